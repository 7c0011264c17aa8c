"""Bytes that nobody wants are taken from a socket without being copied, where the system can do that."""

from __future__ import annotations

import ctypes
import socket
import sys

MOST_BYTES = 1 << 20  # at a time

_library = ctypes.CDLL(None) if sys.platform == "linux" else None
_FLAGS = socket.MSG_TRUNC | socket.MSG_DONTWAIT if _library is not None else 0
_memory = ctypes.create_string_buffer(MOST_BYTES)  # a system without MSG_TRUNC for streams copies them there
if _library is not None:
    _library.recv.restype = ctypes.c_ssize_t
    _library.recv.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def discarded(descriptor: int, most: int) -> int:
    """How many bytes were there, of at most so many; they are gone. What else happened to the connection, its transport
    finds out.
    """
    if _library is None:
        return 0
    total = 0
    while total < most:
        size = _library.recv(descriptor, _memory, min(MOST_BYTES, most - total), _FLAGS)
        if size <= 0:
            break
        total += size
    return total
