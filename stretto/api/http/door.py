"""Where connections come in: a bounded number in one turn of the event loop, plain or over TLS.

uvloop's server accepts one connection a turn. In a crowd, where turns take long, hundreds waited in the system's queue,
and whoever came then waited for all of them. So several servers listen on one socket.

Over TLS, connections count from the moment when they are accepted. A server of the event loop tells of one when its
handshake is over, so that any number could stand before it, each with its buffers. Where too many are at it, the one
that began first is let go: an honest handshake takes milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from stretto.api.errors import too_many_connections
from stretto.api.http.intake import Intake
from stretto.api.http.traffic import Traffic
from stretto.api.limits import Limits
from stretto.api.plane import Plane

log = logging.getLogger("stretto.api")

SERVERS = 8  # each costs a new connection 3 µs where no other comes with it
HANDSHAKES = 256  # at once; each takes about 100 kB
ACCEPTED = 64  # connections a turn of the event loop
PAUSE_S = 0.5  # where the process has no descriptor left


class PlainDoor:
    """Several servers of the event loop on one socket, as if they were one."""

    def __init__(self, listening: socket.socket, make: Callable[[], Intake]):
        self._listening, self._make = listening, make
        self._servers: list[asyncio.Server] = []
        self._given: set[asyncio.Task[None]] = set()

    async def open(self, backlog: int) -> None:
        loop = asyncio.get_running_loop()
        sockets = [self._listening, *(self._listening.dup() for _ in range(SERVERS - 1))]
        self._servers = [await loop.create_server(self._make, sock=each, backlog=backlog) for each in sockets]

    def adopt(self, given: socket.socket) -> asyncio.Task[None]:
        """A connection that another front end had; done when it is there."""
        task = asyncio.get_running_loop().create_task(_let_in(given, self._make_kept))
        self._given.add(task)
        task.add_done_callback(self._given.discard)
        return task

    def _make_kept(self) -> Intake:
        """It stands between two requests, and may stay so for as long as where it was."""
        connection = self._make()
        connection.is_reading = False
        return connection

    def close(self) -> None:
        for server in self._servers:
            server.close()

    async def wait_closed(self) -> None:
        await asyncio.gather(*(server.wait_closed() for server in self._servers))


class TlsDoor:
    """`traffic` has the connections that have shaken hands."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.BaseProtocol],
        traffic: Traffic,
        plane: Plane,
        limits: Limits,
    ):
        self._listening, self._context, self._make = listening, context, make
        self._traffic, self._plane, self._limits = traffic, plane, limits
        self._most_handshakes = traffic.most_connections // 2 if traffic.makes_room else HANDSHAKES
        self._handover = traffic.handover
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None  # until connections are accepted again
        self._handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first

    async def open(self, backlog: int) -> None:
        self._listening.listen(backlog)
        self._listen()

    def _listen(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        if self._handshakes:
            await asyncio.wait(set(self._handshakes))

    @property
    def handshakes(self) -> int:
        return len(self._handshakes)

    def _accept(self) -> None:
        for _ in range(ACCEPTED):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return  # none is left
            except OSError:  # there is no descriptor for it, and it would be announced again at once, for ever
                log.warning("no further connection can be accepted at present; it is tried again in %g s", PAUSE_S)
                self._loop.remove_reader(self._listening)
                self._pause = self._loop.call_later(PAUSE_S, self._listen)
                return
            if self._handover is not None and self._handover.gave(accepted.fileno(), is_counted=False):
                accepted.close()  # here alone: the other one has it open
                continue
            accepted.setblocking(False)
            handshake = self.adopt(accepted)
            if self._handover is not None and handshake is not None:
                self._handover.comes(handshake)

    @property
    def _is_full(self) -> bool:
        return len(self._traffic.connections) + len(self._handshakes) >= self._traffic.most_connections

    def adopt(self, accepted: socket.socket) -> asyncio.Task[None] | None:
        """A connection that was accepted, here or by another front end; done when it is there. None: there are too
        many.
        """
        traffic = self._traffic
        if len(self._handshakes) >= self._most_handshakes and (traffic.makes_room or not self._is_full):
            self._plane.count_refusal(too_many_connections())
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]  # it ends in the next turn, and others may come in this one
            oldest.cancel()
        if self._is_full and not traffic.make_room():
            self._plane.count_refusal(too_many_connections())
            accepted.close()  # nobody could read a reason yet
            return None
        timeout_s = self._limits.header_timeout_s
        shaking = _let_in(accepted, self._make, ssl=self._context, ssl_handshake_timeout=timeout_s)
        handshake = self._loop.create_task(shaking)
        self._handshakes[handshake] = None
        handshake.add_done_callback(lambda done: self._handshakes.pop(done, None))
        return handshake


async def _let_in(accepted: socket.socket, make: Callable[[], asyncio.BaseProtocol], **tls: Any) -> None:
    with contextlib.suppress(OSError, ssl.SSLError, TimeoutError):  # who is there left, or does not speak TLS
        await asyncio.get_running_loop().connect_accepted_socket(make, accepted, **tls)
