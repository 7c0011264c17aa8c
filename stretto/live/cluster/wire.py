"""ZeroMQ sockets on the event loop: read when their descriptor says so, written at once, never waited for.

pyzmq's own asyncio sockets make a future for every message; here a message is a call.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils import z85

from stretto.core.errors import StrettoError
from stretto.live.cluster.keys import Keys
from stretto.live.cluster.unfinished import LOOK_S, Unfinished

log = logging.getLogger("stretto.cluster")

POLLIN = int(zmq.POLLIN)  # as a flag it would be made anew with every look
AT_ONCE = 256  # messages that are read before others of the loop have their turn
ZAP = "inproc://zeromq.zap.01"  # where ZeroMQ asks who may come in
DOMAIN = b"stretto"
HANDSHAKE_MS = 5_000
RECONNECT_MS = 50, 200
BACKLOG = 1024
HANDSHAKE_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
HANDSHAKE_FAILED |= zmq.EVENT_HANDSHAKE_FAILED_AUTH
WATCHED = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED
KEYLESS = (
    "there is no key (--key-file): only this machine's own addresses are taken, and whoever can run a program here may "
    "take part in the cluster. Give all its processes one key where others use this machine"
)


class Unreachable(Exception):
    """Nobody of that identity is connected any more, or it has let too much lie."""


@dataclass(frozen=True)
class Bounds:
    """Of a socket, for each that is connected: messages that lie there unread, and bytes of one frame. Without a key,
    for all together: bytes of messages that are not whole.
    """

    messages: int
    message_bytes: int
    unfinished_bytes: int


class Wires:
    """What one process has: a context, its keys, and who may come in. Close it last."""

    def __init__(self, keys: Keys | None):
        self.loop = asyncio.get_running_loop()
        self.context = zmq.Context()
        self.is_secured = keys is not None
        self._keys = keys
        self._door = None if keys is None else Wire(self, self._plain(zmq.ROUTER, 1000), self._asked)
        if self._door is not None:
            self._door.socket.bind(ZAP)
        else:
            log.info(KEYLESS)

    def listening(
        self, endpoint: str, heard: Callable[[list[Any]], None], bounds: Bounds, is_large: bool = False
    ) -> Wire:
        """A socket that others connect to; each has an identity of its own, which comes first in its messages."""
        socket = self._socket(zmq.ROUTER, bounds)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.BACKLOG, BACKLOG)
        if self._keys is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.listening.secret)
        wire = Wire(self, socket, heard, is_large)
        if self._keys is None:
            wire.bound_unfinished(bounds)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            wire.close()
            raise StrettoError(f"cannot listen on {endpoint} ({error.strerror}); choose another") from None
        return wire

    def calling(
        self, endpoint: str, heard: Callable[[list[Any]], None], bounds: Bounds, is_large: bool = False
    ) -> Wire:
        """A socket that connects, now or when there is somebody."""
        socket = self._socket(zmq.DEALER, bounds)
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS[0])
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MS[1])
        if self._keys is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._keys.listening.public)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.calling.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.calling.secret)
        wire = Wire(self, socket, heard, is_large)
        socket.connect(endpoint)
        return wire

    def close(self) -> None:
        """What was sent and is not on its way yet has a moment."""
        if self._door is not None:
            self._door.close()
        self.context.destroy(linger=100)

    def _socket(self, kind: int, bounds: Bounds) -> zmq.Socket[bytes]:
        socket = self._plain(kind, bounds.messages)
        socket.setsockopt(zmq.MAXMSGSIZE, bounds.message_bytes)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.IPV6, 1)
        return socket

    def _plain(self, kind: int, messages: int) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, messages)
        socket.setsockopt(zmq.RCVHWM, messages)
        return socket

    def _asked(self, frames: list[Any]) -> None:
        """Somebody wants to come in: version, request, domain, address, identity, mechanism, credentials."""
        assert self._keys is not None and self._door is not None
        parts = [bytes(frame) for frame in frames]
        caller, _, version, request, _, _, _, mechanism = parts[:8]
        is_known = mechanism == b"CURVE" and z85.encode(parts[8]) == self._keys.calling.public
        answer = (b"200", b"OK") if is_known else (b"400", b"another key")
        self._door.send((caller, b"", version, request, *answer, b"", b""))


class Wire:
    """One socket. `heard` gets the frames of each message; of one that `is_large`, as they lie in ZeroMQ's memory."""

    def __init__(
        self, wires: Wires, socket: zmq.Socket[bytes], heard: Callable[[list[Any]], None], is_large: bool = False
    ):
        self.socket = socket
        self._wires = wires
        self._loop = wires.loop
        self._heard = heard
        self._copies = not is_large
        self._descriptor = int(socket.getsockopt(zmq.FD))  # type: ignore[arg-type]
        self._monitor: Wire | None = None
        self._watchers: list[tuple[int, Callable[[int], None]]] = []  # events, and who hears of them
        self._unfinished: Unfinished | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._is_due = False
        self._loop.add_reader(self._descriptor, self._read)
        self._read_soon()  # what came before the descriptor was looked at

    @property
    def endpoint(self) -> str:
        """What it is bound to, with the port that it was given."""
        return bytes(self.socket.getsockopt(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()  # type: ignore[arg-type]

    def send(self, frames: Sequence[Any], copy: bool = True) -> None:
        """Unreachable where it cannot go now. Frames that are not copied must not change any more."""
        if self._is_closed:
            raise Unreachable
        try:
            self.socket.send_multipart(frames, zmq.DONTWAIT, copy=copy)
        except zmq.ZMQError as error:  # full, or nobody of that identity
            raise Unreachable(error.strerror) from None
        finally:
            self._look()

    def _look(self) -> None:
        """The descriptor tells of changes only, and whatever is done with the socket may take one away."""
        if not self._is_due and int(self.socket.getsockopt(zmq.EVENTS)) & POLLIN:  # type: ignore[arg-type]
            self._read_soon()

    def _read_soon(self) -> None:
        self._is_due = True
        self._loop.call_soon(self._read_due)

    def _read_due(self) -> None:
        self._is_due = False
        self._read()

    def _read(self) -> None:
        self.drain(AT_ONCE)

    def drain(self, most: int) -> None:
        """Hear what lies there now."""
        for _ in range(most):
            if self._is_closed:
                return
            try:
                frames = self._frames()
            except zmq.ZMQError:  # there is nothing more, or the context is closed
                return
            try:
                self._heard(frames if self._copies else [frame.buffer for frame in frames])
            except Exception:  # the descriptor would not tell again of what lies behind it
                log.exception("a message could not be taken")
        if not self._is_due and not self._is_closed:
            self._read_soon()

    def _frames(self) -> list[Any]:
        """Of the next message. zmq.ZMQError where there is none."""
        if self._unfinished is None:
            return list(self.socket.recv_multipart(zmq.DONTWAIT, copy=self._copies))
        first = self.socket.recv(zmq.DONTWAIT, copy=False)
        self._unfinished.heard(int(first.get(zmq.SRCFD)))
        return [first.bytes if self._copies else first, *self.socket.recv_multipart(zmq.DONTWAIT, copy=self._copies)]

    def watch(self, events: int, on_event: Callable[[int], None]) -> None:
        """`on_event` hears what happens to its connections, of these events."""
        self._watchers.append((events, on_event))
        if self._monitor is None:
            self._monitor = Wire(self._wires, self.socket.get_monitor_socket(WATCHED), self._happened)

    def _happened(self, frames: list[Any]) -> None:
        event, value = struct.unpack_from("=HI", frames[0])
        if self._unfinished is not None and event == zmq.EVENT_ACCEPTED:
            self._unfinished.accepted(value)
        elif self._unfinished is not None and event == zmq.EVENT_DISCONNECTED:
            self._unfinished.left(value)
        for events, on_event in self._watchers:
            if event & events:
                on_event(event)

    def bound_unfinished(self, bounds: Bounds) -> None:
        """From the first connection on."""
        self._unfinished = Unfinished(bounds.unfinished_bytes)
        self.watch(0, lambda event: None)
        self._look_at_unfinished(bounds.messages)

    def _look_at_unfinished(self, messages: int) -> None:
        self.drain(messages)
        if self._unfinished is not None and not self._is_closed:
            self._unfinished.look()
            self._looking = self._loop.call_later(LOOK_S, self._look_at_unfinished, messages)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._unfinished is not None and self._looking is not None:
            self._looking.cancel()
            self._unfinished.close()
        self._loop.remove_reader(self._descriptor)
        if self._monitor is not None:
            self.socket.disable_monitor()
            self._monitor.close()
        self.socket.close()
