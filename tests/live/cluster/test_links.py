"""Links over ZeroMQ, over real sockets of this machine: who gets in, what arrives, who is lost and comes back."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stretto.core.address import host_and_port
from stretto.core.errors import StrettoError
from stretto.live.cluster import links
from stretto.live.cluster.keys import checked_endpoint, keys_from
from stretto.live.cluster.links import BEAT_S, Hub, HubLink, Line, Pulse, Sign
from stretto.live.cluster.wire import Wires
from stretto.live.face.messages import MAX_PAYLOAD
from tests.live.cluster.joined import free_endpoint
from tests.live.real import until, within

KEY = b"a key of some length"
ANY = "tcp://127.0.0.1:*"


class Ear:
    """A peer that keeps what it hears."""

    def __init__(self, link: Any) -> None:
        self.link = link
        self.told: list[tuple[int, bytes]] = []
        self.is_lost = False

    def heard(self, kind: int, payload: memoryview) -> None:
        if kind == 99:
            raise StrettoError("nonsense")
        self.told.append((kind, bytes(payload)))

    def lost(self) -> None:
        assert not self.is_lost
        self.is_lost = True


class Ends:
    """Both ends of links, in one loop; everybody has a context of its own, as in processes."""

    def __init__(self) -> None:
        self.there: list[Ear] = []  # at the hub
        self.here: list[Ear] = []
        self.openings: list[dict[str, Any]] = []
        self._made: list[Callable[[], None]] = []

    def hub(self, endpoint: str = ANY, key: bytes | None = None) -> Hub:
        def welcome(link: HubLink, told: dict[str, Any]) -> Ear:
            if told.get("name") == "nobody":
                raise StrettoError("nobody is let in")
            self.openings.append(told)
            link.welcome({"hello": told.get("name")})
            self.there.append(Ear(link))
            return self.there[-1]

        wires = Wires(keys_from(key))
        self._made.append(wires.close)
        hub = Hub(wires, endpoint, welcome)
        self._made.append(hub.close)
        return hub

    def can_listen(self, endpoint: str) -> bool:
        try:
            self.hub(endpoint)
        except StrettoError:
            return False
        return True

    def line(self, endpoint: str, key: bytes | None = None, name: str = "a") -> Line:
        def opened(line: Line, told: dict[str, Any]) -> Ear:
            assert told == {"hello": name}
            self.here.append(Ear(line))
            line.send(88, b"at once")
            return self.here[-1]

        wires = Wires(keys_from(key))
        line = Line(wires, endpoint, lambda: {"name": name}, opened)
        self._made += [wires.close, line.close]
        return line

    def close(self) -> None:
        for close in reversed(self._made):
            close()


@asynccontextmanager
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("key", [None, KEY])
def test_what_is_sent_arrives_whole_and_in_order(key: bytes | None) -> None:
    async def work() -> None:
        async with ends() as both:
            hub = both.hub(key=key)
            for name in "ab":
                both.line(hub.endpoint, key, name)
            await until(lambda: len(both.here) == 2)
            await until(lambda: all(ear.told == [(88, b"at once")] for ear in both.there))
            large = bytes(1_000_000)
            for ear in both.here + both.there:
                ear.told.clear()
                for number in range(500):
                    ear.link.send(number % 90, str(number).encode())
                ear.link.send(7, large)
            await until(lambda: all(len(ear.told) == 501 for ear in both.here + both.there))
            for ear in both.here + both.there:
                assert ear.told[:500] == [(number % 90, str(number).encode()) for number in range(500)]
                assert ear.told[500] == (7, large) and not ear.is_lost

    within(20, work)


def test_beats_tell_how_long_a_message_takes() -> None:
    async def work() -> None:
        async with ends() as both:
            both.line(both.hub().endpoint)
            await until(lambda: bool(both.here))
            await until(lambda: both.here[0].link.transit_ns > 0 and both.there[0].link.transit_ns > 0)
            assert both.here[0].link.transit_ns < 10**8

    within(20, work)


def test_a_clock_of_another_machine_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clocks years apart: each only ever reads its own."""
    ours, theirs = Pulse(), Pulse()
    clock = {"now": 10**9}
    monkeypatch.setattr(links.time, "monotonic_ns", lambda: clock["now"])
    for _ in range(3):
        beat = ours.beat()
        clock["now"] += 3_000_000  # on its way
        clock["now"] += 10**18  # their clock
        theirs.heard_beat(memoryview(beat))
        clock["now"] += 50_000_000
        answer = theirs.beat()
        clock["now"] -= 10**18
        clock["now"] += 1_000_000
        ours.heard_beat(memoryview(answer))
    assert ours.transit_ns == 2_000_000


def test_the_hub_goes_and_comes_back() -> None:
    async def work() -> None:
        async with ends() as both:
            first = both.hub()
            endpoint = first.endpoint
            line = both.line(endpoint)
            await until(lambda: line.is_open)
            first.close()
            await until(lambda: both.here[0].is_lost and not line.is_open)
            line.send(5, b"to nobody")
            await until(lambda: both.can_listen(endpoint))  # ZeroMQ closes in a thread of its own
            await until(lambda: line.is_open)
            line.send(6, b"here again")
            await until(lambda: both.there[1].told == [(88, b"at once"), (6, b"here again")])
            assert both.there[0].is_lost and len(both.openings) == 2

    within(20, work)


def test_a_line_that_closes_is_missed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "SILENT_BEATS", 10_000)

    async def work() -> None:
        async with ends() as both:
            line = both.line(both.hub().endpoint)
            await until(lambda: bool(both.there))
            line.close()
            await until(lambda: both.there[0].is_lost)

    within(20, work)


def test_silence_is_loss_and_who_speaks_again_opens_anew() -> None:
    async def work() -> None:
        async with ends() as both:
            line = both.line(both.hub().endpoint)
            await until(lambda: bool(both.there))
            beat, line._pulse.beat = line._pulse.beat, lambda: b""  # type: ignore[method-assign]
            put, line._put = line._put, lambda kind, payload=b"": None  # type: ignore[method-assign,assignment]
            began = asyncio.get_running_loop().time()
            await until(lambda: both.there[0].is_lost)
            assert asyncio.get_running_loop().time() - began > BEAT_S
            line._pulse.beat, line._put = beat, put  # type: ignore[method-assign]
            await until(lambda: len(both.there) == 2 and line.is_open)
            assert not both.there[1].is_lost

    within(20, work)


def test_nonsense_ends_that_link_and_no_other() -> None:
    async def work() -> None:
        async with ends() as both:
            hub = both.hub()
            both.line(hub.endpoint, name="good")
            await until(lambda: len(both.there) == 1)
            bad = both.line(hub.endpoint, name="bad")
            await until(lambda: len(both.there) == 2 and bad.is_open)
            bad.send(99, b"")
            await until(lambda: both.there[1].is_lost)
            await until(lambda: len(both.there) == 3 and bad.is_open)  # it opens anew
            bad.send(Sign.BEAT, b"short")
            await until(lambda: both.there[2].is_lost)
            bad.send(Sign.OPEN, b"{}")
            assert not both.there[0].is_lost
            both.there[0].link.send(1, b"still here")
            await until(lambda: (1, b"still here") in both.here[0].told)

    within(20, work)


def test_whatever_is_written_to_the_port_harms_nobody() -> None:
    async def work() -> None:
        async with ends() as both:
            hub = both.hub()
            both.line(hub.endpoint)
            await until(lambda: len(both.there) == 1)
            greeting = b"\xff" + bytes(8) + b"\x7f\x03" + b"\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
            ready = b"\x04\x26\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"
            for content in (
                b"GET / HTTP/1.1\r\n\r\n",
                bytes(1000),
                b"\xff" * 1000,
                greeting,
                greeting + ready + b"\xff",
            ):
                for more in (
                    b"",
                    b"\x02" + (1 << 62).to_bytes(8, "big") + b"x",
                    b"\x00\x03abc",
                    b"\x01\x00\x01\x00\x00\x00",
                ):
                    with socket.create_connection(host_and_port(hub.endpoint)) as raw:
                        raw.sendall(content + more)
            await asyncio.sleep(2 * BEAT_S)
            both.there[0].link.send(1, b"still here")
            await until(lambda: (1, b"still here") in both.here[0].told)
            assert not both.there[0].is_lost and len(both.there) == 1

    within(30, work)


def test_whoever_connects_again_and_again_makes_no_storm_of_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one that is disconnected is looked for among all links, together with others that are so soon after."""
    monkeypatch.setattr(links, "BEAT_S", 30.0)

    async def work() -> None:
        async with ends() as both:
            hub = both.hub()
            both.line(hub.endpoint)
            await until(lambda: len(both.there) == 1)
            beat, beats = hub._beat, list[float]()
            hub._beat = lambda: (beats.append(hub._loop.time()), beat())  # type: ignore
            for _ in range(100):
                socket.create_connection(host_and_port(hub.endpoint)).close()
                await asyncio.sleep(0.002)
            await until(lambda: len(beats) > 1)
            pauses = [later - sooner for sooner, later in itertools.pairwise(beats)]
            assert min(pauses) > 0.9 * links.BEAT_AGAIN_S

    within(30, work)


@pytest.mark.parametrize(("ours", "theirs"), [(KEY, None), (KEY, b"another key altogether"), (None, KEY)])
def test_without_the_key_nobody_gets_in(
    ours: bytes | None, theirs: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with ends() as both:
            hub = both.hub(key=ours)
            line = both.line(hub.endpoint, theirs)
            with caplog.at_level(logging.ERROR):
                await until(lambda: any("same key" in record.getMessage() for record in caplog.records))
            right = both.line(hub.endpoint, ours)
            await until(lambda: right.is_open)
            assert not line.is_open and len(both.there) == 1

    within(20, work)


def test_who_is_refused_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with ends() as both:
            line = both.line(both.hub().endpoint, name="nobody")
            with caplog.at_level(logging.ERROR):
                await until(lambda: any("nobody is let in" in record.getMessage() for record in caplog.records))
            assert not line.is_open and not both.there

    within(20, work)


def test_a_message_that_is_too_long_ends_the_link_alone() -> None:
    async def work() -> None:
        async with ends() as both:
            hub = both.hub()
            both.line(hub.endpoint, name="good")
            await until(lambda: len(both.there) == 1)
            bad = both.line(hub.endpoint, name="bad")
            await until(lambda: bad.is_open)
            bad.send(1, bytes(MAX_PAYLOAD + 1000))
            await until(lambda: both.there[1].is_lost)
            assert not both.there[0].is_lost and both.there[1].told == [(88, b"at once")]

    within(20, work)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_who_looks_for_a_hub_again_and_again_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "OPENING_S", 0.0)
    monkeypatch.setattr(links, "PAUSES_S", (0.01, 0.01))
    monkeypatch.setattr(links, "BEAT_S", 0.01)

    async def work() -> None:
        async with ends() as both:
            line = both.line(free_endpoint())
            tries = 0
            connect = line._connect

            def counted() -> None:
                nonlocal tries
                tries += 1
                connect()

            line._connect = counted  # type: ignore[method-assign]
            await until(lambda: tries > 5)
            before = len(os.listdir("/proc/self/fd"))
            await until(lambda: tries > 60)
            assert len(os.listdir("/proc/self/fd")) <= before + 10  # a few are on their way out

    within(30, work)


@pytest.mark.parametrize("host", ["0.0.0.0", "*.example", "10.0.0.7", "[::]", "node-3"])
def test_beyond_this_machine_a_key_is_needed(host: str) -> None:
    with pytest.raises(StrettoError, match=r"--key-file|write it as tcp://"):
        checked_endpoint(f"tcp://{host}:9300", None)


@pytest.mark.parametrize(
    "text", ["tcp://127.0.0.1", "tcp://:9300", "9300", "ipc:///tmp/x", "tcp://a b:1", "tcp://h:70000"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(StrettoError, match="write it as tcp://"):
        checked_endpoint(text, KEY)


def test_addresses_that_are_fine() -> None:
    for endpoint in ("tcp://127.0.0.1:9300", "tcp://[::1]:1", "tcp://localhost:65535"):
        checked_endpoint(endpoint, None)
    assert checked_endpoint("tcp://node-3.example:9300", KEY) == ("node-3.example", 9300)
    with pytest.raises(StrettoError, match="at least 16"):
        keys_from(b"short")
    made = keys_from(KEY)
    assert made == keys_from(KEY) and made is not None and made.listening != made.calling
