"""A link: messages to one other process and back. Here over a stream socket, between processes of one machine."""

from __future__ import annotations

import asyncio
import struct
from typing import Protocol, cast

from stretto.core.errors import StrettoError
from stretto.live.face.messages import MAX_PAYLOAD

HEAD = struct.Struct("<IB")
HIGH_BYTES = 64_000_000  # a peer that lets more lie does not read any more


class Link(Protocol):
    """What is sent arrives whole and in order, or the link is lost."""

    @property
    def transit_ns(self) -> int:
        """How long a message takes at least, as far as it is known."""

    def send(self, kind: int, payload: bytes = b"") -> None: ...

    def close(self) -> None: ...


class Peer(Protocol):
    """Who is told of what comes. StrettoError from `heard` ends the link."""

    def heard(self, kind: int, payload: memoryview) -> None: ...

    def lost(self) -> None: ...


class StreamLink(asyncio.Protocol):
    """Length, kind, payload. `peer` is set before the first byte comes, or when it does."""

    transit_ns = 0  # it stays on this machine

    def __init__(self, peer: Peer | None = None) -> None:
        self.peer = peer
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()
        self._is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def send(self, kind: int, payload: bytes = b"") -> None:
        transport = self._transport
        if transport is None or self._is_lost:
            return
        transport.write(HEAD.pack(len(payload), kind) + payload)
        if transport.get_write_buffer_size() > HIGH_BYTES:
            transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        held = self._held
        held += data
        place = 0
        try:
            while len(held) - place >= HEAD.size:
                length, kind = HEAD.unpack_from(held, place)
                if length > MAX_PAYLOAD:
                    raise StrettoError("a message is too long")
                end = place + HEAD.size + length
                if len(held) < end:
                    break
                payload = bytes(memoryview(held)[place + HEAD.size : end])
                place = end
                if self.peer is not None:
                    self.peer.heard(kind, memoryview(payload))
        except StrettoError:
            if self._transport is not None:
                self._transport.abort()
            return
        del held[:place]

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            if self.peer is not None:
                self.peer.lost()
