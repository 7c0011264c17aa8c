"""A TCP proxy that puts a server behind a link: whatever connects to it shares the link's bandwidth, queue and delay.

What waits is bounded: a full queue stops the reading of every connection, and the senders' own TCP holds them up, as a
full queue of a real link would. Bytes are conserved, a half-closed connection stays half open, and a connection that
breaks on one side breaks on the other once what was sent before has come through. Setting up a connection costs no
delay: the machine accepts it before the proxy hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast

from stretto.alarm import Alarm
from stretto.client.errors import ConnectionFailed, cause
from stretto.client.network.link import Link, Pipe
from stretto.core.errors import StrettoError

READ_BYTES = 65_536
KERNEL_BYTES = 32_768  # of a socket that is read from: it waits besides the queue, so it must be small
SEGMENT_OPTION = 1448  # the loopback's own segments of 64 KiB would not fit into such a socket
MAX_CONNECTIONS = 4096
CONNECT_TIMEOUT_S = 10.0
AT_ONCE_NS = 2_000_000  # what is read so soon after a hold was waiting all the time


@dataclass(frozen=True)
class Counts:
    """Bytes of one direction since the start: `received` is `delivered` plus `lost` plus `underway`, at every instant.

    Lost are those that came through for a connection whose other end was gone.
    """

    received: int = 0
    delivered: int = 0
    lost: int = 0
    underway: int = 0


class Proxy:
    """`async with Proxy("127.0.0.1", 8080, link) as proxy: … proxy.port` in one event loop."""

    def __init__(self, to_host: str, to_port: int, link: Link, *, host: str = "127.0.0.1", port: int = 0):
        self._to = (to_host, to_port)
        self._link = link
        self._listens = (host, port)
        self._ends: set[_End] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._alarm: Alarm
        self.up: _Direction
        self.down: _Direction
        self.start_ns = 0  # on the monotonic clock; the traces begin here
        self.port = 0
        self.connections = 0  # that were accepted
        self.refused = 0  # because the server could not be reached, or there were too many

    @property
    def link(self) -> Link:
        return self._link

    @property
    def open_connections(self) -> int:
        return sum(end.direction is self.up for end in self._ends)

    async def start(self) -> None:
        """Listens, and starts the traces."""
        loop = asyncio.get_running_loop()
        listening = _listening_socket(*self._listens)
        self._alarm = Alarm(loop, self._move)
        self.start_ns = time.monotonic_ns()
        self.up, self.down = (_Direction(self, pipe) for pipe in self._link.pipes(self.start_ns))
        try:
            self._server = await loop.create_server(self._accepted, sock=listening)
        except BaseException:
            self._alarm.close()
            listening.close()
            raise
        self.port = listening.getsockname()[1]

    def restart(self, start_ns: int) -> None:
        """The traces begin at this moment, as if nothing had passed before; for several proxies that begin together."""
        self.start_ns = start_ns
        for direction in (self.up, self.down):
            direction.restart(start_ns)

    async def close(self) -> None:
        """Breaks every connection; nothing of this proxy is left in the event loop."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for task in list(self._connecting):
            task.cancel()
        for end in list(self._ends):
            _reset(end.transport)
        while self._ends or self._connecting:
            await asyncio.sleep(0)
        self._alarm.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _accepted(self) -> _End:
        return _End(self, self.up)

    def opened(self, near: _End) -> None:
        """A client connected; what it sends waits until the server is reached."""
        self._ends.add(near)
        self.connections += 1
        if len(self._ends) > 2 * MAX_CONNECTIONS:
            self.refused += 1
            near.transport.abort()
            return
        near.other = _End(self, self.down, near)
        task = asyncio.get_running_loop().create_task(self._connect(near, near.other))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, near: _End, far: _End) -> None:
        near.hold("connecting")
        near.hold_if_full()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(lambda: far, *self._to)
        except (OSError, TimeoutError):
            self.refused += 1
            near.transport.abort()
            return
        near.go_on("connecting")

    def closed(self, end: _End) -> None:
        self._ends.discard(end)

    def joined(self, end: _End) -> None:
        self._ends.add(end)

    def holds(self, direction: _Direction, is_full: bool) -> None:
        """A direction's queue is full, or has room again: every connection that fills it waits, or goes on."""
        for end in self._ends:
            if end.direction is direction:
                if is_full:
                    end.hold("full")
                else:
                    end.go_on("full")

    def _move(self) -> None:
        now_ns = time.monotonic_ns()
        for direction in (self.up, self.down):
            direction.move(now_ns)

    def wake_at(self, at_ns: int | None) -> None:
        self._alarm.set(at_ns)


class _Direction:
    """All that goes one way: the pipe, what was counted, and whether its queue is full."""

    def __init__(self, proxy: Proxy, pipe: Pipe[_End]):
        self._proxy = proxy
        self._pipe = pipe
        self._received = self._delivered = self._lost = 0
        self.is_full = False
        self._resumed_ns = 0  # when it was last no longer full
        self._buffer = memoryview(bytearray(READ_BYTES))

    @property
    def counts(self) -> Counts:
        return Counts(self._received, self._delivered, self._lost, self._pipe.underway)

    @property
    def queued(self) -> int:
        return self._pipe.queued

    def restart(self, start_ns: int) -> None:
        self._pipe.restart(start_ns)

    def buffer(self) -> memoryview:
        """Where the next bytes may be read to: as many as there is room for."""
        return self._buffer[: max(1, min(READ_BYTES, self._pipe.room))]

    def put(self, owner: _End, count: int) -> None:
        """So many bytes were read into the buffer, for the far end of a connection."""
        now_ns = time.monotonic_ns()
        was_held_up = now_ns - self._resumed_ns <= AT_ONCE_NS
        self._pipe.put(now_ns, owner, bytes(self._buffer[:count]), was_held_up)
        self._received += count
        self.move(now_ns)
        if self._pipe.room == 0 and not self.is_full:
            self.is_full = True
            self._proxy.holds(self, True)

    def mark(self, owner: _End) -> None:
        now_ns = time.monotonic_ns()
        self._pipe.mark(now_ns, owner)
        self.move(now_ns)

    def move(self, now_ns: int) -> None:
        """Hands over what has come through by now."""
        for owner, content in self._pipe.moved(now_ns):
            if content is None:
                owner.finish()
            elif owner.deliver(content):
                self._delivered += len(content)
            else:
                self._lost += len(content)
        if self.is_full and self._pipe.is_low:
            self.is_full = False
            self._resumed_ns = now_ns
            self._proxy.holds(self, False)
        self._proxy.wake_at(self._pipe.wake_at_ns)


class _End(asyncio.BufferedProtocol):
    """One end of a connection, the client's or the server's. What it sends goes its direction to the other end."""

    def __init__(self, proxy: Proxy, direction: _Direction, other: _End | None = None):
        self._proxy = proxy
        self.direction = direction
        self.other = other
        self.transport: asyncio.Transport
        self._is_connected = False
        self._is_gone = False
        self._early: list[bytes] = []  # came before the server was reached
        self._reasons: set[str] = set()  # why it is not read from
        self._has_sent_all = False  # an end of file came from it
        self._was_told_all = False  # and one goes to it
        self._is_broken = False

    def hold(self, reason: str) -> None:
        if not self._reasons and not self.transport.is_closing():
            self.transport.pause_reading()
        self._reasons.add(reason)

    def go_on(self, reason: str) -> None:
        if reason in self._reasons:
            self._reasons.discard(reason)
            if not self._reasons and not self.transport.is_closing():
                self.transport.resume_reading()

    def deliver(self, content: bytes) -> bool:
        """What the other end sent; whether there is still somebody to take it."""
        if self._is_gone or self._was_told_all:
            return False
        if self._is_connected:
            self.transport.write(content)
        else:
            self._early.append(content)
        return True

    def finish(self) -> None:
        """All that the other end sent has been delivered: pass on how it ended."""
        self._was_told_all = True
        if not self._is_connected or self.transport.is_closing():
            return
        if self.other is not None and self.other._is_broken:
            _reset(self.transport)
        elif self._has_sent_all:
            self.transport.close()
        else:
            with contextlib.suppress(OSError):
                self.transport.write_eof()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._is_connected = True
        if self.other is None:
            self._proxy.opened(self)
            return
        self._proxy.joined(self)
        _keep_small(self.transport.get_extra_info("socket"))
        if self._early:
            self.transport.write(b"".join(self._early))
            self._early.clear()
        if self._was_told_all:
            self.finish()
        elif self.direction.is_full:
            asyncio.get_running_loop().call_soon(self.hold_if_full)

    def hold_if_full(self) -> None:
        """Not before the loop has begun to read, or it would begin in spite of it."""
        if self.direction.is_full:
            self.hold("full")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.direction.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        assert self.other is not None, "an end is read from once it has another"
        self.direction.put(self.other, nbytes)

    def eof_received(self) -> bool:
        self._has_sent_all = True
        if self.other is not None:
            self.direction.mark(self.other)
        if self._was_told_all:
            self.transport.close()
        return True  # the other direction may still have something to say

    def connection_lost(self, error: Exception | None) -> None:
        self._is_gone = True
        self._proxy.closed(self)
        if self.other is not None and (error is not None or not self._has_sent_all):
            self._is_broken = True
            self.direction.mark(self.other)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.hold("slow reader")

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.go_on("slow reader")


def _listening_socket(host: str, port: int) -> socket.socket:
    """Its options are those of every connection that it accepts."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StrettoError(f"cannot listen on {host}:{port} ({cause(error)})") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _keep_small(listening)
        listening.bind(address)
        listening.listen(1024)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise StrettoError(f"cannot listen on {host}:{port} ({cause(error)})") from None
    return listening


def _keep_small(sock: socket.socket) -> None:
    """Little of what has been sent shall wait in the kernel, where no queue counts it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
    with contextlib.suppress(OSError, AttributeError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_OPTION)


def _reset(transport: asyncio.Transport) -> None:
    """Closes at once and so that the other side sees it broken, not ended."""
    with contextlib.suppress(OSError):
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def check_reachable(host: str, port: int) -> None:
    """ConnectionFailed where nothing listens there."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        raise ConnectionFailed(f"{host}:{port} cannot be reached ({cause(error)})") from None
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
