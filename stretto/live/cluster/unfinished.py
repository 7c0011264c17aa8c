"""Messages that do not end, where a listening socket has no key and anybody on this machine may connect.

A message of ZeroMQ has any number of frames, and is handed over with its last one. Until then the library keeps what
came, and none of its limits holds: they are of a frame's length and of the number of whole messages. So connections are
watched from outside. The system counts the bytes that came on each, and ZeroMQ tells on which one a message came. Who
brings more and more without ending a message is disconnected, and what it brought is freed.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass

log = logging.getLogger("stretto.cluster")

LOOK_S = 0.2
PATIENT_LOOKS = 5  # in which a message may come in parts; all of ours are sent at once
SMALL_BYTES = 65_536  # handshakes and the like
TCP_INFO_BYTES = 256
RESET = struct.pack("ii", 1, 0)
RECEIVED, RECEIVED_AT = struct.Struct("=Q"), 128  # `tcpi_bytes_received` of Linux's tcp_info


@dataclass(eq=False)
class Incoming:
    """One connection. It has a descriptor of its own, so that another connection is never taken for it."""

    connection: socket.socket
    ended_at: int = 0  # bytes that had come when a message of it was heard last
    unfinished: int = 0  # bytes since then
    looks: int = 0  # in a row in which it had more than a few of these
    is_heard: bool = True  # since the last look

    def look(self) -> None:
        counted = self.connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        came = RECEIVED.unpack_from(counted, RECEIVED_AT)[0]
        if self.is_heard:
            self.is_heard, self.ended_at, self.looks = False, came, 0
        self.unfinished = came - self.ended_at
        self.looks = self.looks + 1 if self.unfinished > SMALL_BYTES else 0


class Unfinished:
    """Of one listening socket. All its connections may have `most_bytes` of messages that are not whole."""

    def __init__(self, most_bytes: int):
        self._most_bytes = most_bytes
        self._connections: dict[int, Incoming] = {}  # by ZeroMQ's descriptor

    def accepted(self, descriptor: int) -> None:
        self.left(descriptor)
        with suppress(OSError):  # it is gone already
            self._connections[descriptor] = Incoming(socket.socket(fileno=os.dup(descriptor)))

    def left(self, descriptor: int) -> None:
        incoming = self._connections.pop(descriptor, None)
        if incoming is not None:
            incoming.connection.close()

    def heard(self, descriptor: int) -> None:
        """A whole message came."""
        incoming = self._connections.get(descriptor)
        if incoming is not None:
            incoming.is_heard = True

    def look(self) -> None:
        """After all messages that are there were heard."""
        for descriptor, incoming in list(self._connections.items()):
            try:
                incoming.look()
            except (OSError, struct.error):  # it is gone, or this system does not count
                self.left(descriptor)
                continue
            if incoming.looks > PATIENT_LOOKS:
                self._end(descriptor)
        while sum(incoming.unfinished for incoming in self._connections.values()) > self._most_bytes:
            self._end(max(self._connections, key=lambda each: self._connections[each].unfinished))

    def _end(self, descriptor: int) -> None:
        incoming = self._connections[descriptor]
        log.warning("a connection is ended: it sent %d bytes of a message without end", incoming.unfinished)
        with suppress(OSError):
            incoming.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # its sender hears of it at once
            incoming.connection.shutdown(socket.SHUT_RDWR)
        self.left(descriptor)

    def close(self) -> None:
        for descriptor in list(self._connections):
            self.left(descriptor)
