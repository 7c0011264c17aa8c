"""What clients may take of the server together: memory for bodies, turns of the event loop, connections over TLS."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import shutil
import socket
import ssl
import subprocess
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.api.http import door
from stretto.api.http.exchange import Direct
from stretto.api.http.intake import FREE_CHUNKS, TURN_BYTES
from stretto.api.http.traffic import SWEPT, sweep
from stretto.api.limits import Limits
from stretto.core.outcome import Outcome
from stretto.live.requests import Request
from tests.api.serving import (
    DEADLINE_MS,
    INFER,
    PATIENCE_S,
    PINNED,
    STEP_S,
    GoodQueries,
    Running,
    Wire,
    binary_body,
    images,
    json_body,
    message,
    values_of,
)

ONE = json_body(images(), id="one")
PATHS = pytest.mark.parametrize("path", [PINNED, PINNED + "/"])


def connections_of(server: Running) -> Any:
    return server.listeners._http[0][1].connections


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tight(repository: Path) -> Iterator[Running]:
    """Of 4 MB for bodies and tensors."""
    with Running(repository, limits=Limits(memory_bytes=8_000_000)) as server:
        assert server.ask("POST", PINNED, ONE).status == 200
        yield server


def held_bytes(server: Running) -> int:
    """Of bodies, by what the connections really hold."""

    def read() -> int:
        last = [each.last for each in connections_of(server) if each.last is not None]
        parts = [part for each in last for part in (each.parts if isinstance(each, Direct) else [each.body])]
        empty = [each.room for each in last if isinstance(each, Direct)]  # of the memory that was made for them
        return sum(map(len, parts)) - sum(map(len, empty))

    return server.call(read)


@PATHS
def test_slow_bodies_stay_within_the_budget(tight: Running, path: str) -> None:
    """Bodies that are never completed, five times as much as may be held; good queries are answered meanwhile."""
    refused = tight.call(lambda: tight.plane.refused.get("overloaded", 0))
    head, _, body = message("POST", path, bytes(600_000)).partition(b"\r\n\r\n")
    with GoodQueries(tight) as good, ExitStack() as stack:
        wires = [stack.enter_context(tight.wire()) for _ in range(40)]
        for wire in wires:
            wire.send(head + b"\r\n\r\n")
        for start in range(0, 500_000, 100_000):
            for wire in wires:
                wire.send(body[start : start + 100_000])
            assert tight.call(lambda: tight.plane.budget.used) <= 4_500_000
            assert held_bytes(tight) <= 4_500_000
        tight.wait_until(lambda: tight.plane.refused["overloaded"] >= refused + 30, "most of them are refused")
        answered = good.answered
        tight.wait_until(lambda: good.answered > answered, "good queries are answered")
        assert held_bytes(tight) <= 4_000_000
    tight.wait_until(lambda: tight.plane.budget.used == 0, "all is let go of")


def test_a_body_that_is_given_up_hears_so_and_may_try_again(tight: Running) -> None:
    with ExitStack() as stack:
        wires = [stack.enter_context(tight.wire()) for _ in range(12)]
        for wire in wires:
            wire.send(message("POST", PINNED, bytes(700_000))[:-50_000])
        tight.wait_until(lambda: refusals(tight) > 0, "some are given up")
        replies = []
        for wire in wires:
            with suppress(ConnectionError):  # what is refused long before its end is not read to its end
                wire.send(bytes(50_000))
            replies.append(wire.reply())
        assert {reply.status for reply in replies} == {400, 429}
        for wire, reply in zip(wires, replies, strict=True):
            if reply.status == 429:
                assert reply.reason == "overloaded" and int(reply.headers["retry-after"]) >= 1
            if "connection" not in reply.headers:
                assert wire.ask("POST", PINNED, ONE).content["id"] == "one"
    tight.wait_until(lambda: tight.plane.budget.used == 0, "all is let go of")


def refusals(server: Running) -> int:
    return int(server.plane.refused.get("overloaded", 0))


def test_tensors_that_wait_are_counted_until_they_end(tight: Running) -> None:
    body = json_body(images(32))
    with tight.gate, ExitStack() as stack:
        for count in range(1, 4):
            wire = stack.enter_context(tight.wire())
            wire.send(message("POST", PINNED, body))
            tight.wait_for_queries(32 * count)
        assert tight.call(lambda: tight.plane.budget.used) == 3 * 32 * 784 * 4
        wire.socket.close()
        tight.wait_until(lambda: tight.plane.budget.used == 2 * 32 * 784 * 4, "one is cancelled")
        tight.gate.is_open.set()
        tight.wait_until(lambda: tight.plane.budget.used == 0, "all have ended")


def test_a_dropped_query_gives_its_memory_back_at_once() -> None:
    """Regression: what was dropped kept its body until the collector came, so that an overloaded server read every
    further body into fresh pages.
    """
    ended: list[Outcome | None] = []
    inputs = images()
    kept = weakref.ref(inputs)
    gc.disable()
    try:
        request = Request("fashion", inputs, 1, lambda request: ended.append(request.outcome))
        request.end(Outcome.DROPPED_INFEASIBLE, 0)
        del request, inputs
        assert ended == [Outcome.DROPPED_INFEASIBLE] and kept() is None
    finally:
        gc.enable()


def test_bodies_that_are_dropped_leave_their_rooms_to_the_next(server: Running) -> None:
    late, length = binary_body(images(32), deadline_ms=0.001)
    dropped = message("POST", PINNED, late, Inference_Header_Content_Length=length)
    rooms = server.plane.rooms
    server.call(rooms.take_ahead)

    def taken() -> int:
        free = rooms._free.free + sum(size for _, size in rooms._given_back)
        return rooms._kept_bytes - free

    assert server.ask("POST", PINNED, ONE).status == 200
    gc.disable()
    try:
        with server.wire() as wire:
            wire.send(dropped[:-1])
            server.wait_until(lambda: taken() >= len(late), "its body has a room")
            wire.send(dropped[-1:])
            assert wire.reply().reason in ("expired", "infeasible")
            for _ in range(5):
                wire.send(dropped)
                assert wire.reply().reason in ("expired", "infeasible")
            server.wait_until(lambda: taken() < 4096, "nothing but what rounding took")
    finally:
        gc.enable()


# -- turns of the event loop -------------------------------------------------------------------------------------------


@PATHS
def test_one_byte_chunks_are_refused(server: Running, path: str) -> None:
    """They held everybody for seconds: each costs as much as a small request."""
    assert server.ask("POST", PINNED, ONE).status == 200
    head = message("GET", path, Transfer_Encoding="chunked").replace(b"GET", b"POST", 1)
    with server.wire() as wire:
        wire.send(head + b"1\r\n \r\n" * (FREE_CHUNKS + 1))
        reply = wire.reply()
        assert (reply.status, reply.reason) == (400, "bad_request")
        assert "chunks" in reply.content["error"] and wire.is_closed()


def test_a_turn_takes_in_so_much_of_a_connection(server: Running) -> None:
    """However much came: others have their turn in between."""
    assert server.ask("POST", PINNED, ONE).status == 200
    each = message("POST", PINNED, b"{}")
    steps: list[int] = []

    def step() -> None:
        steps.append(server.plane.refused.get("bad_request", 0))
        if len(steps) < 10**6:
            server.loop.call_soon(step)

    server.call(step)
    count = 200_000 // len(each)
    try:
        with server.wire() as wire:
            wire.send(each * count)
            for _ in range(count):
                wire.reply()
    finally:
        server.call(lambda: steps.extend([steps[-1]] * 10**6))
    taken = np.diff(np.array(steps))
    assert taken.sum() == count
    assert taken.max() <= TURN_BYTES // len(each) + 1


def test_large_bodies_come_whole_in_turns(server: Running) -> None:
    """In any pieces, and with another request in the same piece."""
    body = json_body(images(32), id="large")
    whole = message("POST", PINNED, body) + message("POST", PINNED, ONE) + message("GET", "/v2")
    for size in (len(whole), 200_000, 20_000, 17_001):
        with server.wire() as wire:
            for start in range(0, len(whole), size):
                wire.send(whole[start : start + size])
            assert wire.reply().content["id"] == "large"
            assert wire.reply().content["id"] == "one"
            assert wire.reply().content["name"] == "stretto"


def test_latency_counts_from_when_the_request_was_there(server: Running) -> None:
    """The loop is held while a request comes: what it waited so is taken off its slack, and is in its latency."""
    assert server.ask("POST", PINNED, ONE).status == 200
    is_held, is_sent = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        is_sent.wait(PATIENCE_S)
        time.sleep(0.5)

    with server.wire() as wire:
        wire.ask("GET", "/v2")
        server.loop.call_soon_threadsafe(hold)
        assert is_held.wait(PATIENCE_S)
        wire.send(message("POST", PINNED, ONE))
        is_sent.set()
        parameters = wire.reply().content["parameters"]
    assert parameters["slack_ms"] < DEADLINE_MS - 450
    assert parameters["queue_ms"] > 450
    text = server.ask("GET", "/metrics", name="management").body.decode()
    counts = {
        line.split('"')[1]: float(line.split()[-1])
        for line in text.splitlines()
        if line.startswith("stretto_loop_lag_seconds_bucket")
    }
    assert counts["+Inf"] > counts["0.25"]


# -- clients that send no more, and draining ---------------------------------------------------------------------------


@PATHS
def test_half_closed_clients_get_their_answers(server: Running, path: str) -> None:
    assert server.ask("POST", PINNED, ONE).status == 200
    with server.gate, server.wire() as wire:
        wire.send(message("POST", path, ONE) + message("POST", PINNED, json_body(images(), id="two")))
        server.wait_for_queries(1)
        wire.socket.shutdown(socket.SHUT_WR)
        server.wait_until(lambda: any(each.is_half_closed for each in connections_of(server)), "it is noticed")
        server.gate.is_open.set()
        replies = [reply for reply in wire.replies() if reply.status != 100]
    assert [reply.content["id"] for reply in replies] == ["one", "two"]


def test_a_half_request_of_a_half_closed_client_ends(server: Running) -> None:
    with server.wire() as wire:
        wire.send(message("POST", PINNED, ONE)[:-10])
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.is_closed()


@pytest.mark.parametrize("value", ["gzip, chunked", "chunked, chunked", "gzip", "Chunked;q=1"])
def test_only_chunked_transfer_encoding(server: Running, value: str) -> None:
    with server.wire() as wire:
        wire.send(f"POST {INFER} HTTP/1.1\r\nTransfer-Encoding: {value}\r\n\r\n2\r\n{{}}\r\n0\r\n\r\n".encode())
        replies = wire.replies()
    assert [reply.status for reply in replies] == [400]


# -- TLS ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    files = (folder := tmp_path_factory.mktemp("tls")) / "certificate.pem", folder / "key.pem"
    command = f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    subprocess.run([*command, "-out", str(files[0]), "-keyout", str(files[1])], check=True, capture_output=True)
    return files


def test_connections_count_before_their_handshake(
    repository: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "HANDSHAKES", 4)
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    trusting.check_hostname = False
    limits = Limits(connections=6)
    files = {"certificate": certificate[0], "key": certificate[1]}
    with Running(repository, limits=limits, **files) as server, ExitStack() as stack:
        opened = server.listeners._http[0][0]
        silent = [stack.enter_context(server.wire()) for _ in range(4)]
        server.wait_until(lambda: opened.handshakes == 4, "four have not shaken hands")
        good = stack.enter_context(server.wire(tls=trusting))  # for which the oldest is let go
        assert values_of(good.ask("POST", PINNED, ONE)).shape == (1, 10)
        assert silent[0].is_closed()
        server.wait_until(lambda: opened.handshakes == 3, "three are left")
        another = stack.enter_context(server.wire(tls=trusting))
        assert another.ask("GET", "/v2").status == 200
        stack.enter_context(server.wire())
        server.wait_until(lambda: opened.handshakes == 4, "six in all")
        assert server.wire().is_closed()
        assert server.call(lambda: server.plane.refused["overloaded"]) == 2
        for wire in silent:
            wire.socket.close()
        server.wait_until(lambda: opened.handshakes == 1, "those that left do not count")
        assert ask_over(server, trusting)


def test_handshakes_that_begin_together_are_let_go_one_by_one(
    repository: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever came in one turn of the event loop was all taken for the same one: 3,000 at once stayed open."""
    monkeypatch.setattr(door, "HANDSHAKES", 4)
    monkeypatch.setattr(door, "ACCEPTED", 3)
    with Running(repository, certificate=certificate[0], key=certificate[1]) as server, ExitStack() as stack:
        opened, address = server.listeners._http[0][0], server.address()
        silent = server.call(lambda: [stack.enter_context(Wire(address)) for _ in range(30)])  # while nobody accepts
        server.wait_until(lambda: server.plane.refused.get("overloaded") == 26, "all are accepted")
        assert server.call(lambda: opened.handshakes) == 4
        assert all(wire.is_closed() for wire in silent[:26])


def ask_over(server: Running, trusting: ssl.SSLContext) -> bool:
    with Wire(server.address(), trusting) as wire:
        return wire.ask("GET", "/v2").status == 200


def test_without_descriptors_it_waits_instead_of_asking_all_the_time(
    repository: Path, certificate: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """The connection that could not be accepted used to wake the event loop at every turn."""
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    trusting.check_hostname = False
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Running(repository, certificate=certificate[0], key=certificate[1]) as server, ExitStack() as stack:
        waiting = stack.enter_context(closing(socket.socket()))
        taken = [stack.enter_context(open(os.devnull)) for _ in range(64)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(file.fileno() for file in taken) + 1, hard))
        try:
            with suppress(OSError):  # no number below the limit is free any more
                while True:
                    stack.callback(os.close, os.dup(0))
            waiting.connect(server.address())
            server.wait_until(lambda: "can be accepted" in caplog.text, "it says so")
            time.sleep(3 * STEP_S)
            assert caplog.text.count("can be accepted") == 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        server.wait_until(lambda: server.listeners._http[0][0].handshakes == 1, "then it is accepted")
        assert ask_over(server, trusting)


def test_a_crowd_of_connections_that_end_together_leaves_others_their_turn() -> None:
    """Ten thousand slow bodies that came together used to be ended in one turn of the event loop."""

    class Slow:
        def end_if_slow(self, now_s: float) -> None:
            ended_at.append(turns)

    ended_at: list[int] = []
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while len(ended_at) < 3 * SWEPT + 1:
            turns += 1
            await asyncio.sleep(0)

    async def work() -> None:
        crowd = {Slow() for _ in range(3 * SWEPT + 1)}
        await asyncio.wait(
            {asyncio.create_task(sweep(crowd, 0.0)), asyncio.create_task(count_turns())},
            timeout=30,
            return_when=asyncio.FIRST_COMPLETED,
        )

    asyncio.run(work())
    first = Counter(ended_at[: 3 * SWEPT + 1])  # it begins anew at once
    assert sorted(first.values()) == [1, SWEPT, SWEPT, SWEPT]
