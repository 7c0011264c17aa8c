"""Large bodies are read in the order in which they began, and what waits too long for its turn is refused unread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import numpy as np
import pytest

from stretto.api import turns
from stretto.api.http.app import App
from stretto.api.http.exchange import Direct
from stretto.api.plane import Plane
from stretto.api.turns import MOST_RESUMED, SHARE_BYTES, Turns
from stretto.live.requests import Request
from tests.api.serving import PINNED, Running, binary_body, images, json_body, message, values_of

# -- the order ---------------------------------------------------------------------------------------------------------


class Loop:
    """Calls are made when the next turn begins."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self.calls.append((call, arguments))

    def turn(self) -> None:
        calls, self.calls = self.calls, []
        for call, arguments in calls:
            call(*arguments)


class Sender:
    """A connection with a body of which `there` bytes can be read in each of its turns."""

    def __init__(self, turns: Turns, loop: Loop, begun_ns: int, left: int, there: int):
        self.turns, self.loop = turns, cast("asyncio.AbstractEventLoop", loop)
        self.begun_ns, self.left, self.there = begun_ns, left, there
        self.is_waiting = False
        self.turns_had = 0

    def read(self) -> None:
        if not self.is_waiting and self.left and self.there:
            size = min(self.there, self.left)
            self.left -= size
            self.is_waiting = self.turns.must_wait(self, size, self.left, self.begun_ns)

    def turn_came(self, now_ns: int) -> int:
        self.is_waiting = False
        self.turns_had += 1
        return self.left


def run(loop: Loop, senders: list[Sender]) -> list[Sender]:
    """Everybody that may read does, turn by turn; who ended, in that order."""
    ended: list[Sender] = []
    while len(ended) < sum(sender.there > 0 for sender in senders):
        loop.turn()
        for sender in senders:
            sender.read()
            if not sender.left and sender not in ended:
                ended.append(sender)
    return ended


def test_bodies_end_in_the_order_in_which_they_began() -> None:
    order, loop = Turns(), Loop()
    began = np.random.default_rng(3).permutation(40)
    senders = [Sender(order, loop, int(begun_ns), 3 * SHARE_BYTES, SHARE_BYTES) for begun_ns in began]
    ended = run(loop, senders)
    assert [sender.begun_ns for sender in ended[1:]] == sorted(sender.begun_ns for sender in ended[1:])
    assert len(order) == 0


def test_what_fits_into_one_turn_waits_for_nobody() -> None:
    order, loop = Turns(), Loop()
    senders = [Sender(order, loop, begun_ns, SHARE_BYTES // 10, SHARE_BYTES // 10) for begun_ns in range(9)]
    run(loop, senders)
    assert [sender.turns_had for sender in senders] == [0] * 9
    loop.turn()
    assert not loop.calls  # nor does the loop go round for nothing


def test_a_stalled_sender_loses_its_turn_and_is_first_again_when_its_bytes_come() -> None:
    order, loop = Turns(), Loop()
    stalled = Sender(order, loop, 0, 2 * SHARE_BYTES, SHARE_BYTES)
    others = [Sender(order, loop, begun_ns, 2 * SHARE_BYTES, SHARE_BYTES) for begun_ns in range(1, 9)]
    stalled.read()
    assert stalled.is_waiting
    stalled.there = 0
    ended = run(loop, [stalled, *others[:6]])
    assert stalled.turns_had == 1 and not stalled.is_waiting  # whatever it sends is heard of
    assert ended == others[:6]
    stalled.there, stalled.left = 1, 2
    for sender in (*others[6:], stalled):  # the others use up this turn before it
        sender.read()
    loop.turn()
    assert stalled.turns_had == 2 and not others[7].turns_had


def test_a_turn_resumes_only_so_many() -> None:
    order, loop = Turns(), Loop()
    first = Sender(order, loop, 0, SHARE_BYTES, SHARE_BYTES)
    crowd = [Sender(order, loop, begun_ns, 2, 1) for begun_ns in range(1, MOST_RESUMED + 11)]
    for sender in (first, *crowd):
        sender.read()
    loop.turn()
    assert [sender.turns_had for sender in crowd] == [1] * MOST_RESUMED + [0] * 10
    loop.turn()
    assert [sender.turns_had for sender in crowd] == [1] * (MOST_RESUMED + 10)


def test_a_burst_may_wait_longer_than_a_queue_that_stands() -> None:
    order, loop = Turns(), Loop()
    sender = Sender(order, loop, 0, 2 * SHARE_BYTES, SHARE_BYTES)
    before_ns = time.monotonic_ns()
    sender.read()
    after_ns = time.monotonic_ns()
    patience_ns = 10**12
    assert not order.is_too_long(2 * patience_ns, patience_ns, before_ns + 2 * patience_ns - 1)
    assert order.is_too_long(2 * patience_ns + 1, patience_ns, before_ns + 2 * patience_ns - 1)
    assert order.is_too_long(patience_ns + 1, patience_ns, after_ns + 2 * patience_ns)
    assert not order.is_too_long(patience_ns, patience_ns, after_ns + 2 * patience_ns)


# -- connections -------------------------------------------------------------------------------------------------------


def large(seed: int = 7, **headers: str) -> bytes:
    body, length = binary_body(images(32, seed))
    return message("POST", PINNED, body, Inference_Header_Content_Length=length, X_Test="turns", **headers)


@pytest.fixture
def waiting(server: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    """Every large body waits for its turn after each of its pieces, and for as long as a busy machine may take."""
    monkeypatch.setattr(turns, "SHARE_BYTES", 1)
    monkeypatch.setattr("stretto.api.http.app.PATIENCE_PART", 1e-6)
    assert server.ask("POST", PINNED, json_body(images())).status == 200  # its address is known from now on
    return server


@pytest.mark.parametrize("is_known", [True, False])
def test_bodies_in_turns_come_whole(waiting: Running, is_known: bool) -> None:
    """By the parser too, which reads what differs in its head."""
    with ExitStack() as stack:
        wires = [stack.enter_context(waiting.wire()) for _ in range(8)]
        for again in range(2):
            for number, wire in enumerate(wires):
                wire.send(large(number, **({} if is_known else {"X_Number": f"{again} {number}"})))
            answers = [values_of(wire.reply()) for wire in wires]
            for number, values in enumerate(answers):
                alone = values_of(waiting.ask("POST", PINNED, json_body(images(32, number))))
                np.testing.assert_allclose(values, alone, rtol=1e-4)
    assert waiting.call(lambda: len(waiting.plane.turns)) == 0


def test_a_stalled_body_keeps_nobody_from_being_read(waiting: Running) -> None:
    whole = large()
    with waiting.wire() as stalled, waiting.wire() as other:
        assert other.ask("GET", "/v2").status == 200
        stalled.send(whole[:70_000])
        for _ in range(3):
            other.send(whole)
            values_of(other.reply())
        assert waiting.call(lambda: len(waiting.plane.turns)) == 0  # it waits for its client, and for nobody else
        stalled.send(whole[70_000:])
        values_of(stalled.reply())


@pytest.mark.parametrize("is_known", [True, False])
def test_what_waits_too_long_is_refused_and_its_connection_kept(
    waiting: Running, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    whole = large(X_Known=str(is_known))
    with waiting.wire() as wire:
        wire.send(whole)
        values_of(wire.reply())
        asked = waiting.call(lambda: _known(waiting, whole))
        refused = waiting.plane.refused.get("overloaded", 0)
        monkeypatch.setattr(asked, "patience_ns", -1)
        if not is_known:
            monkeypatch.setattr("stretto.api.http.app.PATIENCE_PART", -1)
            whole = large(X_Known="another")
        for count in range(1, 4):
            wire.send(whole)
            reply = wire.reply()
            assert (reply.status, reply.reason) == (429, "overloaded") and "retry-after" in reply.headers
            assert waiting.plane.refused["overloaded"] == refused + count
            assert wire.ask("GET", "/v2/models/fashion").status == 200  # by the parser, which is where the body ended
            assert wire.ask("POST", PINNED, json_body(images(), id="small")).content["id"] == "small"
    waiting.wait_until(lambda: waiting.plane.budget.used == 0, "all is let go of")


def test_a_body_is_refused_for_its_own_wait_and_not_for_how_long_the_machine_runs(
    waiting: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute of patience, which no body here needs, and which is less than the clock shows."""
    assert time.monotonic() > 120, "the machine has only just started"
    whole = large()
    with waiting.wire() as wire:
        wire.send(whole)
        values_of(wire.reply())
        monkeypatch.setattr(waiting.call(lambda: _known(waiting, whole)), "patience_ns", 60 * 10**9)
        wire.send(whole)
        values_of(wire.reply())


def _known(server: Running, whole: bytes) -> Any:
    app: App = next(iter(server.listeners._http[0][1].connections)).api
    return app.known_head(whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")


def test_the_wait_is_taken_off_the_time_that_is_left(waiting: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client asked for counts from when it was sent, not from when the server found the time to read it."""
    held_ns: list[int] = []
    spent_ns: list[int] = []
    enter, enter_plane = Direct.enter, Plane._enter

    def noting(self: Direct, body: Any) -> None:
        held_ns.append(self.held_ns)
        enter(self, body)

    def noting_spent(self: Plane, entered: Request) -> None:
        spent_ns.append(entered.spent_ns)
        enter_plane(self, entered)

    monkeypatch.setattr(Direct, "enter", noting)
    monkeypatch.setattr(Plane, "_enter", noting_spent)
    with waiting.wire() as wire:
        for _ in range(2):
            wire.send(large())
            values_of(wire.reply())
    assert len(held_ns) == 2 and all(0 < held <= spent for held, spent in zip(held_ns, spent_ns, strict=True))


def test_a_body_that_is_read_in_many_turns_has_lost_all_of_its_waits() -> None:
    """Only the longest was taken off: in a burst its answer was planned for a moment that was long past its client's
    deadline. A client that lets the server wait begins anew.
    """
    direct = Direct(cast(Any, None), cast(Any, None), True, 0, 0)
    ms = 1_000_000
    for since, until in ((1000, 1003), (1004, 1006), (1007, 1011)):
        direct.waited(since * ms, until * ms)
    assert direct.held_ns == 9 * ms
    direct.waited(1100 * ms, 1102 * ms)
    assert direct.held_ns == 9 * ms, "the longest in a row stays"
    direct.waited(1103 * ms, 1111 * ms)
    assert direct.held_ns == 10 * ms
