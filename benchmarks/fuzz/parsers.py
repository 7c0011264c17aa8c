"""Inputs fed to the parsers in this process: to the protocol class of the HTTP listener and to the calls of the gRPC
one, with the real data plane and engine behind. Without sockets, thousands a second.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from random import Random
from typing import Any

from benchmarks.fuzz.corpus import KINDS, Entry, corpus, good_message, good_row, http_message
from benchmarks.fuzz.mutations import mutated
from benchmarks.fuzz.server import PATIENCE_S, Target
from benchmarks.fuzz.verdict import Findings, responses
from stretto.api.access import Access
from stretto.api.errors import ApiError
from stretto.api.grpc.reads import Reads
from stretto.api.grpc.servicer import Servicer
from stretto.api.grpc.status import status_of
from stretto.api.http.app import App
from stretto.api.http.protocol import Connection as Protocol
from stretto.api.http.traffic import Traffic

TOGETHER = 32  # connections at a time
PIECES = 4  # that a message comes in, at most


class MemoryTransport(asyncio.Transport):
    """A connection without a socket: what the server writes is kept."""

    def __init__(self, nowhere: socket.socket) -> None:
        # As if over TLS, so that the protocol writes by way of the transport; and a socket that it may ask.
        super().__init__({"sslcontext": "memory", "socket": nowhere})
        self.sent = bytearray()
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_reading(self) -> bool:
        return not self.is_closed


class Connection:
    """The server's side of one connection."""

    def __init__(self, make: Any, nowhere: socket.socket) -> None:
        self.transport = MemoryTransport(nowhere)
        self.protocol = make()
        self.protocol.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        while data and not self.transport.is_closed:
            room = self.protocol.get_buffer(-1)
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self.protocol.buffer_updated(size)
            data = data[size:]

    def end(self) -> None:
        self.transport.is_closed = True
        self.protocol.connection_lost(None)

    def answers(self) -> list[tuple[int, bytes]]:
        return [(status, body) for status, body, _ in responses(self.transport.sent)]


class Context:
    """What a call of gRPC is told of its surroundings: no deadline, no metadata."""

    def time_remaining(self) -> None:
        return None

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def send_initial_metadata(self, metadata: Any) -> None: ...


class Complaints(logging.Handler):
    """Errors that the server logs: a request that it failed on, an exception that nobody took."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.ERROR)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        self._findings.found(f"logged: {self.format(record)[-400:]}", b"")


class ParserFuzz:
    """Draws inputs from a seed and feeds them, some at a time."""

    def __init__(self, target: Target, seed: int) -> None:
        app = App(target.plane)
        self._target = target
        self._random = Random(seed)
        self._findings = Findings()
        loop, limits = asyncio.get_running_loop(), target.plane.limits
        self._traffic = traffic = Traffic(limits.connections)
        self._make = lambda: Protocol(traffic, loop, app, target.plane)
        self._servicer = Servicer(target.plane, limits, is_management=False, access=Access(), reads=Reads(limits))
        entries = corpus()
        self._others = [entry.data for entry in entries]
        self._by_kind = {kind: [entry for entry in entries if entry.kind == kind] for kind in KINDS}
        self._nowhere = socket.socket()  # never connected
        self._kept = self._connection()  # for all bodies whose framing is sound: it must stay usable

    def _connection(self) -> Connection:
        return Connection(self._make, self._nowhere)

    async def run(self, inputs: int) -> Findings:
        """So many inputs; every one gets its end, and good requests are answered between them."""
        complaints = Complaints(self._findings)
        logging.getLogger().addHandler(complaints)
        try:
            while self._findings.total < inputs:
                await self._some(min(TOGETHER, inputs - self._findings.total))
            await self._is_well(b"")
        finally:
            logging.getLogger().removeHandler(complaints)
            self._kept.end()
            self._nowhere.close()
        return self._findings

    async def _some(self, count: int) -> None:
        chosen = [self._random.choice(self._by_kind[self._random.choice(KINDS)]) for _ in range(count)]
        harmed = [mutated(self._random, entry.data, self._others, entry.kind) for entry in chosen]
        connections: list[tuple[Connection, bytes]] = []
        calls: list[tuple[asyncio.Task[bytes], bytes]] = []
        for entry, data in zip(chosen, harmed, strict=True):
            self._findings.inputs[f"{entry.kind}, in process"] += 1
            try:
                if entry.kind == "protobuf":
                    calls.append((asyncio.create_task(self._servicer.model_infer(data, Context())), data))  # type: ignore[arg-type]
                else:
                    connections.append((self._sent(entry, data), data))
            except Exception as error:
                self._findings.found(f"raised {type(error).__name__}: {error}"[:300], data)
        for call, data in calls:
            await self._called(call, data)
        await asyncio.sleep(0)
        if not await self._target.calm():
            self._findings.found("a hang: requests without an end", b"\n".join(harmed))
        await self._settled(connections)
        if self._target.missing():
            self._findings.found("queries without an outcome", b"\n".join(harmed))
        if self._random.random() < 0.02:
            await self._is_well(harmed[-1])

    def _sent(self, entry: Entry, data: bytes) -> Connection:
        """Any bytes on a connection of their own; bodies with sound framing share one."""
        if entry.kind == "http":
            connection = self._connection()
            for piece in self._pieces(data):
                connection.send(piece)
            return connection
        if self._kept.transport.is_closed:
            self._findings.found("a connection closed after a body with sound framing", data)
            self._kept = self._connection()
        self._kept.send(http_message(entry.path, data, entry.headers))
        return self._kept

    def _pieces(self, data: bytes) -> list[bytes]:
        cuts = sorted(self._random.randrange(len(data) + 1) for _ in range(self._random.randrange(PIECES)))
        return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if end > start]

    async def _called(self, call: asyncio.Task[bytes], data: bytes) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await call
            self._findings.grpc("OK", data)
        except TimeoutError:
            self._findings.found("a hang: a call without an end", data)
        except ApiError as error:
            self._findings.grpc(status_of(error, "ModelInfer").code.name, data)
        except Exception as error:
            self._findings.found(f"raised {type(error).__name__}: {error}"[:300], data)

    async def _settled(self, connections: list[tuple[Connection, bytes]]) -> None:
        """Answers are counted, the connections go, and no task of theirs is left."""
        asked = sum(connection is self._kept for connection, _ in connections)
        for connection, data in connections:
            if connection is self._kept:
                continue
            try:
                for status, body in connection.answers():
                    self._findings.http(status, body, data)
            except (ValueError, StopIteration):
                self._findings.found("answered with no HTTP", data)
            connection.end()
        await _until(lambda: not self._traffic.tasks)
        if self._traffic.tasks:
            self._findings.found("a hang: tasks of connections that are gone", connections[-1][1])
        await _until(lambda: len(self._kept.answers()) >= asked or self._kept.transport.is_closed)
        answers = self._kept.answers()
        if len(answers) != asked and not self._kept.transport.is_closed:
            self._findings.found(f"{asked} bodies on one connection, {len(answers)} answers", connections[-1][1])
        bodies = [data for connection, data in connections if connection is self._kept]
        for (status, body), data in zip(answers, bodies, strict=False):
            self._findings.http(status, body, data)
        self._kept.transport.sent.clear()

    async def _is_well(self, data: bytes) -> None:
        """A good request is answered, on the connection that bore it all and on a new one, and over gRPC."""
        good = http_message(good_row().path, good_row().data)
        new = self._connection()
        for connection in (self._kept, new):
            connection.send(good)
        await _until(lambda: bool(self._kept.answers() and new.answers()))
        for connection in (self._kept, new):
            if [status for status, _ in connection.answers()] != [200]:
                self._findings.found("a good request was not answered", data)
        self._kept.transport.sent.clear()
        new.end()
        await self._called(asyncio.create_task(self._servicer.model_infer(good_message(), Context())), data)  # type: ignore[arg-type]


async def _until(condition: Callable[[], bool]) -> None:
    """Turns of the loop until it holds, or patience ends."""
    end = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition() and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(0)
