"""Lines for a file that may be slow, full or gone: a bounded buffer, and a thread of its own that writes.

Whoever appends never waits for the disk and never sees its errors. The recording of events and the log share this. The
thread takes the whole buffer at once: were it to take line by line, it would hold Python's lock while it does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

STEP_S = 0.005


class Spool:
    """`write` is called on the thread with whole lines. It may block; it must not raise, for nobody would hear of it.

    At most `most_bytes` wait or are being written. They are written when `eager_bytes` wait, and every `period_s`
    (None: only then).
    """

    def __init__(
        self,
        name: str,
        write: Callable[[bytearray], None],
        *,
        most_bytes: int,
        eager_bytes: int = 0,
        period_s: float | None = None,
    ) -> None:
        self._write = write
        self._most_bytes, self._eager_bytes, self._period_s = most_bytes, eager_bytes, period_s
        self._swapping = threading.Lock()  # held for as long as it takes to append or to swap the buffer
        self._buffer = bytearray()
        self._leaving_bytes = 0  # that are being written
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)  # a hung disk must not hold the exit
        self._thread.start()

    def append(self, line: bytes) -> bool:
        """False where the buffer has no room for it; then it is not written."""
        with self._swapping:
            buffer = self._buffer
            buffer += line
            size = len(buffer)
            if size + self._leaving_bytes > self._most_bytes:
                del buffer[-len(line) :]
                return False
        if size > self._eager_bytes and not self._wake.is_set():
            self._wake.set()
        return True

    def flush(self, patience_s: float) -> bool:
        """Wait until nothing is left to be written, but not for ever; true when nothing is."""
        end_s = time.monotonic() + patience_s
        self._wake.set()
        while self._has_work() and time.monotonic() < end_s and self._thread.is_alive():
            time.sleep(STEP_S)
        return not self._has_work()

    def close(self, patience_s: float) -> bool:
        """Write the rest, and end; true when all is written. Nothing may be appended any more."""
        self._is_closed = True
        self._wake.set()
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _has_work(self) -> bool:
        with self._swapping:
            return bool(self._buffer) or bool(self._leaving_bytes)

    def _run(self) -> None:
        while True:
            self._wake.wait(self._period_s)
            self._wake.clear()
            is_last = self._is_closed  # asked before the buffer is taken: what came before the end is written
            with self._swapping:
                lines, self._buffer = self._buffer, bytearray()
                self._leaving_bytes = len(lines)
            if lines:
                self._write(lines)
            self._leaving_bytes = 0
            if is_last:
                return
