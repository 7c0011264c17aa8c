"""Connections among front ends: whoever has more than another hands new ones over, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stretto.api.handover import ALIVE_NS, BEAT, FIRST_GIVEN, OPEN, TOOK, Counts, Handover, Handovers
from stretto.api.limits import Limits
from tests.api.fronting import RunningFronts, pid_of
from tests.api.serving import INFER, PATIENCE_S, Wire, images, json_body, message, values_of

COUNT = 3

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="front ends share a port as Linux can")


@pytest.mark.parametrize(
    ("open_ones", "on_their_way", "alive", "least"),
    [
        ((5, 3, 4), (0, 0, 0), (True, True, True), (1, 2)),
        ((5, 3, 4), (0, 2, 0), (True, True, True), (2, 1)),
        ((5, 3, 4), (3, 0, 0), (True, True, True), (1, 5)),
        ((5, 3, 4), (0, 0, 0), (True, False, True), (2, 1)),
        ((1, 3, 4), (0, 0, 0), (True, True, True), (1, -2)),
        ((5, 3, 4), (0, 0, 0), (True, False, False), (0, 0)),
    ],
)
def test_who_has_least(
    open_ones: tuple[int, ...], on_their_way: tuple[int, ...], alive: tuple[bool, ...], least: tuple[int, int]
) -> None:
    """As the first sees it; what the third gave the second and that one has taken is among its own."""
    counts, now_ns = Counts.made(COUNT), time.monotonic_ns()
    counts.rows[:, OPEN] = open_ones
    counts.rows[:, BEAT] = [now_ns if is_alive else now_ns - 2 * ALIVE_NS for is_alive in alive]
    counts.rows[2, FIRST_GIVEN:] = [given + 7 for given in on_their_way]
    counts.rows[:, TOOK] = 7
    assert counts.least(0) == least


def test_a_connection_is_anothers_with_all_that_its_client_sent() -> None:
    async def work() -> None:
        loop, adopted = asyncio.get_running_loop(), asyncio.Queue[socket.socket]()
        handovers = Handovers(2)
        first, second = (Handover.of(number, *map(os.dup, handovers.descriptors(number))) for number in range(2))
        first.start(lambda given: pytest.fail("nobody gives it any"))
        second.start(adopted.put_nowait)  # which returns nothing
        client, accepted = socket.socketpair()
        client.send(b"before")
        for count, is_given in ((1, False), (2, True)):
            first.has(count)
            assert first.gave(accepted.fileno()) is is_given
        first.has(1)
        assert handovers.counts.least(0) == (1, 0), "it is on its way"
        accepted.close()
        client.send(b" and after")
        given = await asyncio.wait_for(adopted.get(), 10)
        second.has(1)
        assert handovers.counts.least(0) == (1, 0)
        assert await loop.sock_recv(given, 100) == b"before and after"
        await loop.sock_sendall(given, b"answer")
        assert client.recv(100) == b"answer"

        took = int(handovers.counts.rows[1, TOOK])
        handovers.doors[1].send(b"\0")  # as the system delivers it where a process has no descriptor left
        while handovers.counts.rows[1, TOOK] == took:
            await asyncio.sleep(0.01)

        second.stop()
        first.has(9)
        assert not first.gave(given.fileno()), "one that stops is given none"
        second.start(adopted.put_nowait)
        loop.remove_reader(second._own)  # it hangs
        assert first.gave(given.fileno())
        given.close()
        handovers.ended(1)
        assert client.recv(100) == b"", "its client is told at once"
        assert not first.gave(accepted.fileno())
        first.stop()
        client.close()
        handovers.close()

    asyncio.run(work())


@pytest.mark.parametrize("is_tls", [False, True])
def test_no_front_end_has_more_than_its_share(repository: Path, certificate: tuple[Path, Path], is_tls: bool) -> None:
    files = dict(zip(("certificate", "key"), certificate, strict=True)) if is_tls else {}
    tls = ssl.create_default_context(cafile=str(certificate[0])) if is_tls else None
    most = 3 if is_tls else 1  # between the most and the fewest; over TLS they come to stay
    with RunningFronts(repository, count=COUNT, **files) as running:
        wires = [running.wire(tls=tls) for _ in range(10 * COUNT)]
        running.wait_until(lambda: sum(connections(running)) == len(wires), "all are there")
        answered_until(running, wires, lambda: np.ptp(connections(running)) <= most)
        assert sum(connections(running)) == len(wires)
        for wire in wires:
            wire.socket.close()
        running.wait_for_queries(0)
        assert running.missing() == 0


def test_one_that_is_started_again_is_given_its_share(repository: Path) -> None:
    with RunningFronts(repository) as running:
        wires = running.wires(1, 12)
        running.kill(0)
        running.wait_until_back(0)
        answered_until(running, wires[1:], lambda: connections(running) == [6, 6])
        assert running.fronts.slots[1].restarts == 0 and running.missing() == 0


def test_one_that_was_handed_over_may_be_as_idle_as_before(repository: Path) -> None:
    """Regression: it was taken for one whose first request does not come, and ended after 20 s in place of 75."""
    limits = Limits(header_timeout_s=0.5)
    with RunningFronts(repository, limits=limits) as running:
        wires = running.wires(1, 8)
        answered_until(running, wires, lambda: connections(running) == [4, 5] or connections(running) == [5, 4])
        time.sleep(3 * limits.header_timeout_s)
        for wire in wires:
            assert values_of(wire.ask("POST", INFER, json_body(images()))).shape == (1, 10)


def test_requests_that_follow_each_other_at_once_stay_whole(repository: Path) -> None:
    """While connections change hands, clients send the next request, or half of it, before they have an answer."""
    asked = message("POST", INFER, json_body(images()))
    with RunningFronts(repository) as running:
        wires = running.wires(10, 1)
        given = running.fronts._handovers.counts.given_to(1)
        for wire in wires:
            wire.send(asked + asked + asked[:50])
        for _ in range(3):
            for wire in wires:
                assert values_of(wire.reply()).shape == (1, 10)
                wire.send(asked[50:] + asked[:50])
        for wire in wires:
            for _ in range(2):
                assert values_of(wire.reply()).shape == (1, 10)
            wire.send(asked[50:])
            assert values_of(wire.reply()).shape == (1, 10)
        answered_until(running, wires, lambda: np.ptp(connections(running)) <= 1)
        assert running.fronts._handovers.counts.given_to(1) > given and running.missing() == 0


def test_one_that_hangs_is_given_none(repository: Path) -> None:
    with RunningFronts(repository) as running:
        wires = running.wires(1, 6)
        handovers, hanging = running.fronts._handovers, pid_of(running.fronts.slots[0])
        os.kill(hanging, signal.SIGSTOP)
        try:
            running.wait_until(lambda: handovers.counts.least(1) == (1, 0), "it is missed")
            before = handovers.counts.given_to(0)
            for _ in range(20):
                for wire in wires[1:]:
                    assert values_of(wire.ask("POST", INFER, json_body(images()))).shape == (1, 10)
            assert handovers.counts.given_to(0) == before
        finally:
            os.kill(hanging, signal.SIGCONT)
        answered_until(running, wires, lambda: connections(running) in ([3, 4], [4, 3]))


def answered_until(running: RunningFronts, wires: list[Wire], condition: Callable[[], bool]) -> None:
    """All are asked again and again."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, connections(running)
        for wire in wires:
            assert values_of(wire.ask("POST", INFER, json_body(images()))).shape == (1, 10)


def connections(running: RunningFronts) -> list[int]:
    """Of each front end, with those that are on their way to it."""
    return running.fronts._handovers.counts._loads().tolist()
