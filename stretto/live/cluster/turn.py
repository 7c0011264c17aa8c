"""A turn that one process of this machine has at a time, until it ends, however it ends. Others wait, and know at once.

It is an address in Linux' abstract namespace: it has no file, and the system takes it back with the process.
"""

from __future__ import annotations

import errno
import socket
import sys

from stretto.core.errors import StrettoError


def wait_for_turn(name: str) -> socket.socket:
    """Blocks. What it gives back is to be kept for as long as the turn is."""
    if not sys.platform.startswith("linux"):
        raise StrettoError("a process can wait for another one's end on Linux only")
    address = b"\0stretto " + name.encode()[:80]
    while True:
        turn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            turn.bind(address)
            turn.listen(8)
            return turn
        except OSError as error:
            turn.close()
            if error.errno != errno.EADDRINUSE:
                raise StrettoError(f"no turn can be waited for on this machine ({error.strerror})") from None
        _wait_for_the_end(address)


def _wait_for_the_end(address: bytes) -> None:
    """Whoever has the turn answers nothing; it is gone when the connection is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as waiting:
        try:
            waiting.connect(address)
            waiting.recv(1)
        except OSError:
            return
