"""Messages that do not end cost their sender its connection, and nobody else anything."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
import zmq

from stretto.core.address import host_and_port
from stretto.live.cluster import links
from stretto.live.cluster.keys import keys_from
from stretto.live.cluster.wire import Wires
from tests.live.cluster.test_links import ends
from tests.live.real import until, within

MB = 1 << 20
MOST_MB = 700  # that the server may grow by; without a bound it takes as much as the attack lasts
# Speaks ZeroMQ's protocol by itself: the library's own sender keeps a message until it is whole. Says how much it sent
# until its connection ended, or until the attack was over.
ATTACK = """
import socket, sys, time

host, port, frame_bytes, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
connection = socket.create_connection((host, port))
connection.sendall(b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00" + b"NULL".ljust(20, b"\\0") + bytes(32))
ready = b"\\x05READY" + b"\\x0bSocket-Type" + (6).to_bytes(4, "big") + b"DEALER"
connection.sendall(bytes((4, len(ready))) + ready)
answer = b""
while b"READY" not in answer:
    answer += connection.recv(1000)
frame = b"\\x01" + bytes((frame_bytes,)) if frame_bytes < 256 else b"\\x03" + frame_bytes.to_bytes(8, "big")
piece = (frame + bytes(frame_bytes)) * max(1, 100_000 // (frame_bytes + 2))
sent, end = 0, time.monotonic() + seconds
try:
    while time.monotonic() < end:
        connection.sendall(piece)
        sent += len(piece)
except OSError:
    print("ended", sent)
else:
    print("went on", sent)
"""


def memory_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / MB


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def attack(endpoint: str, frame_bytes: int, seconds: float, stack: ExitStack) -> subprocess.Popen[str]:
    host, port = host_and_port(endpoint)
    command = [sys.executable, "-c", ATTACK, host, str(port), str(frame_bytes), str(seconds)]
    attacker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(attacker.wait)
    stack.callback(attacker.kill)
    return attacker


@pytest.mark.parametrize("frame_bytes", [0, 1, MB])
def test_messages_without_end_are_bounded_and_others_go_on(
    frame_bytes: int, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with ends() as both:
            hub = both.hub()
            both.line(hub.endpoint)
            await until(lambda: bool(both.there))
            before = memory_mb()
            attackers = [attack(hub.endpoint, frame_bytes, 30.0, stack) for _ in range(2)]
            said = [await asyncio.to_thread(attacker.communicate) for attacker in attackers]
            assert [words.split()[0] for words, _ in said] == ["ended"] * 2, said
            assert memory_mb() - before < MOST_MB
            assert not both.there[0].is_lost and not both.here[0].is_lost
            both.here[0].link.send(5, b"still here")
            await until(lambda: (5, b"still here") in both.there[0].told)

    within(60, work)
    assert caplog.text.count("a message without end") == 2


def test_a_message_in_parts_that_ends_in_time_is_heard(stack: ExitStack) -> None:
    async def work() -> None:
        heard: list[list[bytes]] = []
        wires = Wires(None)
        stack.callback(wires.close)
        wire = wires.listening("tcp://127.0.0.1:*", heard.append, links.BOUNDS)
        stack.callback(wire.close)
        context = stack.enter_context(zmq.Context())
        sender = stack.enter_context(closing(context.socket(zmq.DEALER)))
        sender.connect(wire.endpoint)
        frames = [bytes([number % 256]) * 100_000 for number in range(100)]
        for _ in range(20):
            sender.send_multipart(frames)
            await until(lambda: bool(heard))
            assert heard.pop()[1:] == frames
            await asyncio.sleep(0.02)

    within(60, work)


def test_who_connects_and_says_nothing_stays(stack: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with ends() as both:
            host, port = host_and_port(both.hub().endpoint)
            silent = stack.enter_context(closing(socket.create_connection((host, port))))
            line = both.line(f"tcp://{host}:{port}")
            await until(lambda: line.is_open)
            await asyncio.sleep(1.5)
            assert line.is_open
            silent.setblocking(False)
            assert silent.recv(100)  # ZeroMQ's greeting, and no end

    within(20, work)
    assert "without end" not in caplog.text


def test_without_a_key_it_is_said_what_that_means(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def work() -> None:
        for key in (None, b"a key of some length"):
            caplog.clear()
            wires = Wires(keys_from(key))
            wires.close()
            assert ("whoever can run a program here may take part" in caplog.text) == (key is None)

    within(20, work)
