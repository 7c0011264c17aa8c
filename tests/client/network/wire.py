"""Real sockets around a proxy: a server that counts, a sender that never stops, and what came when."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import uvloop

NS = 1_000_000_000


@dataclass
class Received:
    """What a server got: (moment, bytes) by connection, and how each ended."""

    parts: list[list[tuple[int, bytes]]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)  # "eof" or "lost"
    transports: list[asyncio.Transport] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(len(content) for parts in self.parts for _, content in parts)

    def content(self, number: int = 0) -> bytes:
        return b"".join(content for _, content in self.parts[number])

    def between(self, start_ns: int, end_ns: int) -> int:
        return sum(len(content) for parts in self.parts for at_ns, content in parts if start_ns <= at_ns < end_ns)


class _Sink(asyncio.Protocol):
    def __init__(self, received: Received, answers: bool) -> None:
        self._received, self._answers = received, answers
        self._parts: list[tuple[int, bytes]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._received.parts.append(self._parts)
        self._received.transports.append(self._transport)

    def data_received(self, data: bytes) -> None:
        self._parts.append((time.monotonic_ns(), data))
        if self._answers:
            self._transport.write(data)

    def eof_received(self) -> bool:
        self._received.ended.append("eof")
        if self._answers:
            self._transport.write(b"bye")
            self._transport.write_eof()
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._received.ended.append("lost")


@contextlib.asynccontextmanager
async def sink(answers: bool = False) -> AsyncIterator[tuple[int, Received]]:
    """A server on a free port that takes everything; with `answers` it sends it back, and says bye at the end."""
    received = Received()
    server = await asyncio.get_running_loop().create_server(lambda: _Sink(received, answers), "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], received
    finally:
        server.close()
        for transport in received.transports:
            transport.abort()
        await asyncio.sleep(0)


async def pour(port: int, block: bytes = b"x" * 16_384) -> None:
    """Sends as fast as it is let, until cancelled."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while True:
            writer.write(block)
            await writer.drain()
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def pouring(port: int, connections: int = 1) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(pour(port)) for _ in range(connections)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(is_so: Callable[[], bool], within_s: float = 10.0) -> None:
    end_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end_s, "it did not come about in time"
        await asyncio.sleep(0.002)


def on_both_loops(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """asyncio's own loop and uvloop differ in when they begin to read, and in how they stop."""
    for factory in (None, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(work())
