"""Requests that do not become complete: read a few at a time, and answered as any other when they are complete."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Iterator

import pytest
import uvloop

from stretto.api.http import protocol
from stretto.api.http.crowd import PORTIONS, Crowd
from tests.api.serving import PINNED, Running, images, json_body, message, values_of

BODY = json_body(images(rows=4), id="slow")  # more than one turn takes in
LENGTH = f"Content-Length: {len(BODY)}\r\n".encode()


class Reader:
    """A member whose client has sent one byte more than was read."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.theirs.send(b"xx")
        self.descriptor = self.ours.fileno()
        self.read = 0

    def read_portion(self) -> None:
        self.read += len(os.read(self.descriptor, 1))

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


def test_a_bounded_number_is_read_in_a_turn_and_everybody_has_a_turn() -> None:
    """The event loop reads all that are ready before anything else has its turn."""

    async def work() -> None:
        crowd, readers = Crowd(), [Reader() for _ in range(3 * PORTIONS)]
        try:
            assert all(map(crowd.join, readers)) and len(crowd) == len(readers)
            seen = [0]
            while seen[-1] < 2 * len(readers):
                await asyncio.sleep(0)
                seen.append(sum(reader.read for reader in readers))
                if seen[-1] == len(readers):
                    assert {reader.read for reader in readers} == {1}, "nobody is read twice before others"
            steps = [after - before for before, after in itertools.pairwise(seen)]
            assert max(steps) == PORTIONS
            crowd.leave(readers[0])
            assert readers[0] not in crowd and readers[1] in crowd
        finally:
            crowd.close()
            for reader in readers:
                reader.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(work(), 20))


def test_after_a_turn_it_rests_as_long_as_that_took() -> None:
    """Half of the loop's time is for others, whoever sends."""

    class Slow(Reader):
        def __init__(self) -> None:
            super().__init__()
            self.turns: list[tuple[float, float]] = []

        def read_portion(self) -> None:
            began_s = time.monotonic()
            time.sleep(0.02)
            self.turns.append((began_s, time.monotonic()))

    async def work() -> None:
        crowd, reader = Crowd(), Slow()
        try:
            assert crowd.join(reader)
            while len(reader.turns) < 3:
                await asyncio.sleep(0)
            for (began_s, ended_s), (next_s, _) in itertools.pairwise(reader.turns):
                assert next_s - ended_s > 0.9 * (ended_s - began_s)
        finally:
            crowd.close()
            reader.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(work(), 20))


def test_what_cannot_be_watched_is_left_to_the_event_loop() -> None:
    async def work() -> None:
        crowd, reader = Crowd(), Reader()
        reader.close()
        assert not crowd.join(reader) and reader not in crowd
        crowd.leave(reader)
        crowd.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(work(), 20))


@pytest.fixture
def crowded(server: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """Every request that does not come in one piece is in the crowd."""
    assert server.ask("POST", PINNED, BODY).status == 200
    monkeypatch.setattr(protocol, "FEW", 0)
    monkeypatch.setattr(protocol, "SOON_NS", -1)
    yield server
    server.wait_until(lambda: not crowd_of(server), "nobody is left in the crowd")


def crowd_of(server: Running) -> int:
    return len(server.listeners._http[0][1].crowd)


def in_crowd(server: Running) -> None:
    server.wait_until(lambda: crowd_of(server) == 1, "it is in the crowd")


HEADS = {
    "stated": b"POST " + PINNED.encode() + b" HTTP/1.1\r\nHost: x\r\n" + LENGTH + b"\r\n",
    "a call": b"POST " + PINNED.encode() + b"/ HTTP/1.1\r\nHost: x\r\n" + LENGTH + b"\r\n",
    "chunked": b"POST " + PINNED.encode() + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_slow_request_is_answered_and_so_is_the_next_on_its_connection(crowded: Running, kind: str) -> None:
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) if kind == "chunked" else BODY
    whole = HEADS[kind] + body
    with crowded.wire() as wire:
        for _ in range(2):  # the second head is known
            for first, last in ((0, 20), (20, len(HEADS[kind]) + 40), (len(HEADS[kind]) + 40, len(whole) - 1)):
                wire.send(whole[first:last])
                in_crowd(crowded)
            wire.send(whole[-1:])
            assert values_of(wire.reply()).shape == (4, 10)
            crowded.wait_until(lambda: not crowd_of(crowded), "it left the crowd")
            assert wire.ask("GET", "/v2").status == 200


def test_a_client_that_leaves_while_it_sends_is_let_go(crowded: Running) -> None:
    for is_reset in (False, True):
        with crowded.wire() as wire:
            wire.send(HEADS["stated"] + BODY[:30_000])
            in_crowd(crowded)
            if is_reset:
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        crowded.wait_until(lambda: not crowd_of(crowded), "it left the crowd")
        crowded.wait_until(lambda: crowded.plane.budget.used == 0, "its bytes are given back")


def test_a_body_that_is_given_up_is_told_and_read_no_more(crowded: Running) -> None:
    with crowded.wire() as wire:
        wire.send(HEADS["stated"].replace(LENGTH, b"Content-Length: 900000\r\n") + bytes(100_000))
        in_crowd(crowded)
        crowded.call(lambda: [each.give_up() for each in tuple(crowded.listeners._http[0][1].connections) if each.held])
        assert wire.reply().status == 429
        with contextlib.suppress(OSError):
            wire.send(bytes(100_000))
        assert wire.is_closed() and not crowd_of(crowded)


def test_unsound_bytes_in_the_crowd_are_refused(crowded: Running) -> None:
    with crowded.wire() as wire:
        wire.send(HEADS["chunked"] + b"4\r\nabcd\r\n")
        in_crowd(crowded)
        wire.send(b"no length\r\n")
        assert [reply.status for reply in wire.replies()] == [400]


def test_an_error_of_ours_ends_one_connection_alone(crowded: Running, complaints: list[str]) -> None:
    def fail(size: int) -> None:
        raise RuntimeError("a mistake")

    with crowded.wire() as wire:
        wire.send(HEADS["stated"] + BODY[:100])
        in_crowd(crowded)
        for connection in tuple(crowded.listeners._http[0][1].connections):
            connection.buffer_updated = fail  # type: ignore[method-assign]
        wire.send(BODY[100:200])
        assert wire.is_closed()
    assert crowded.ask("GET", "/v2").status == 200
    assert any("a request could not be read" in line for line in complaints)


def test_one_that_sends_nothing_more_is_in_the_crowd_before_it_does(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else ten thousand that wait for a while and then send a byte each would all be read in one turn."""
    with server.wire() as wire:
        wire.send(HEADS["stated"] + BODY[:100])
        server.wait_until(lambda: server.plane.budget.used > 0, "it is read")
        assert not crowd_of(server)
        monkeypatch.setattr(protocol, "FEW", 0)
        in_crowd(server)


def test_what_is_sent_after_a_refusal_is_read_in_turns_too(crowded: Running) -> None:
    with crowded.wire() as wire:
        wire.send(b"this is no HTTP\r\n\r\n")
        assert wire.reply().status == 400
        wire.send(bytes(100_000))
        in_crowd(crowded)


def test_requests_that_wait_for_an_earlier_answer_are_not_in_the_crowd(crowded: Running) -> None:
    crowded.gate.is_open.clear()
    with crowded.wire() as wire:
        wire.send(message("POST", PINNED, json_body(images(), id="first")) + HEADS["stated"] + BODY[:100])
        crowded.wait_until(lambda: crowded.service.engine.waiting > 0, "the first one runs")
        assert not crowd_of(crowded)
        crowded.gate.is_open.set()
        assert wire.reply().content["id"] == "first"
        wire.send(BODY[100:])
        assert wire.reply().content["id"] == "slow"


def test_a_few_connections_are_no_crowd(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "SOON_NS", -1)
    with server.wire() as wire:
        wire.send(HEADS["stated"] + BODY[:100])
        server.wait_until(lambda: server.plane.budget.used > 0, "it is read")
        assert not crowd_of(server)
        wire.send(BODY[100:])
        assert wire.reply().status == 200
