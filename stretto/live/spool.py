"""Lines for a file that may be slow, full or gone: a bounded buffer, and a thread of its own that writes.

Whoever appends never waits for the disk and never sees its errors. The recording of events and the log share this.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

CHUNK_BYTES = 1 << 20
STEP_S = 0.005


class Spool:
    """`write` is called on the thread with whole lines. It may block; it must not raise, for nobody would hear of it.

    One thread at a time may append. At most `most_bytes` wait; they are written when `eager_bytes` wait, and every
    `period_s` (None: only then), about `chunk_bytes` at a time.
    """

    def __init__(
        self,
        name: str,
        write: Callable[[bytes], None],
        *,
        most_bytes: int,
        eager_bytes: int = 0,
        period_s: float | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._write = write
        self._most_bytes, self._eager_bytes, self._period_s = most_bytes, eager_bytes, period_s
        self._chunk_bytes = chunk_bytes
        self._lines: deque[bytes] = deque()  # append and popleft of a deque need no lock
        self._taken_bytes = 0  # counted by whoever appends
        self._done_bytes = 0  # counted by the thread
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)  # a hung disk must not hold the exit
        self._thread.start()

    def append(self, line: bytes) -> bool:
        """False where the buffer has no room for it; then it is not written."""
        size = len(line)
        waiting_bytes = self._taken_bytes - self._done_bytes + size
        if waiting_bytes > self._most_bytes:
            return False
        self._lines.append(line)
        self._taken_bytes += size
        if waiting_bytes > self._eager_bytes and not self._wake.is_set():
            self._wake.set()
        return True

    def flush(self, patience_s: float) -> bool:
        """Wait until what was appended so far is written, but not for ever; true when it is."""
        goal_bytes, end_s = self._taken_bytes, time.monotonic() + patience_s
        self._wake.set()
        while self._done_bytes < goal_bytes and time.monotonic() < end_s and self._thread.is_alive():
            time.sleep(STEP_S)
        return self._done_bytes >= goal_bytes

    def close(self, patience_s: float) -> bool:
        """Write the rest, and end; true when all is written. Nothing may be appended any more."""
        self._is_closed = True
        self._wake.set()
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._wake.wait(self._period_s)
            self._wake.clear()
            is_last = self._is_closed  # asked before the buffer is emptied: what came before the end is written
            while self._lines:
                parts, size = [], 0
                while self._lines and size < self._chunk_bytes:
                    parts.append(self._lines.popleft())
                    size += len(parts[-1])
                self._write(b"".join(parts))
                self._done_bytes += size
            if is_last:
                return
