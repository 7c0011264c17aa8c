"""A gRPC call by hand, as HTTP/2 frames: a message of any length from memory that all calls share.

A gRPC client would hold a copy of each message, so that a hundred of 63 MB would weigh on us and not on the server. We
keep to the server's flow control, and read its answer only as far as its end.
"""

from __future__ import annotations

import asyncio
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
INITIAL_WINDOW = 4  # the setting
FRAME_BYTES = 16_384
FIRST_WINDOW = 65_535


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def header_block(path: str, authority: str) -> bytes:
    """Literal headers that nobody remembers, without Huffman's code (RFC 7541, section 6.2.2)."""
    pairs = (
        *((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", authority)),
        *(("content-type", "application/grpc"), ("te", "trailers")),
    )
    block = b""
    for name, value in pairs:
        block += b"\x00" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode()
    return block


class Call:
    """One connection with one call on it. `sent` is how much of the message went out."""

    def __init__(self, host: str, port: int, path: str, message: memoryview) -> None:
        self._host, self._port, self._path = host, port, path
        self._message = message
        self._connection_window = self._stream_window = FIRST_WINDOW
        self._has_room = asyncio.Event()
        self.is_ended = False  # by the server
        self.sent = 0

    async def run(self, patience_s: float) -> bool:
        """Whether the server ended the call, with whatever status, within the patience."""
        try:
            async with asyncio.timeout(patience_s):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                try:
                    head = header_block(self._path, f"{self._host}:{self._port}")
                    writer.write(PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, head))
                    sending = asyncio.create_task(self._send(writer))
                    try:
                        await self._read(reader, writer)
                    finally:
                        sending.cancel()
                        await asyncio.gather(sending, return_exceptions=True)
                finally:
                    writer.transport.abort()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass
        return self.is_ended

    async def _send(self, writer: asyncio.StreamWriter) -> None:
        """The prefix of five bytes, then the message, as far as the windows allow."""
        prefix = b"\x00" + struct.pack(">I", len(self._message))
        writer.write(frame(DATA, 0, 1, prefix))
        self._used(len(prefix))
        while self.sent < len(self._message):
            room = min(self._connection_window, self._stream_window, FRAME_BYTES, len(self._message) - self.sent)
            if room <= 0:
                self._has_room.clear()
                await self._has_room.wait()
                continue
            writer.write(frame(DATA, 0, 1, bytes(self._message[self.sent : self.sent + room])))
            self.sent += room
            self._used(room)
            await writer.drain()
        writer.write(frame(DATA, END_STREAM, 1))

    def _used(self, size: int) -> None:
        self._connection_window -= size
        self._stream_window -= size

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first_window = FIRST_WINDOW
        while not self.is_ended:
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF
            if kind == SETTINGS and not flags & ACK:
                for at in range(0, len(payload), 6):
                    name, value = struct.unpack(">HI", payload[at : at + 6])
                    if name == INITIAL_WINDOW:
                        self._stream_window += value - first_window
                        first_window = value
                writer.write(frame(SETTINGS, ACK, 0))
            elif kind == WINDOW_UPDATE:
                size = struct.unpack(">I", payload)[0] & 0x7FFFFFFF
                if stream:
                    self._stream_window += size
                else:
                    self._connection_window += size
            elif kind == PING and not flags & ACK:
                writer.write(frame(PING, ACK, 0, payload))
            elif kind in (RESET, GOAWAY) or (kind == HEADERS and flags & END_STREAM):
                self.is_ended = True
            self._has_room.set()
