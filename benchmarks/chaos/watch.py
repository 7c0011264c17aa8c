"""What is looked at all the time: the server's memory, and whether every query is in exactly one count."""

from __future__ import annotations

import threading
import time
import urllib.error
from types import TracebackType
from typing import Self

from benchmarks.serve_faults import metrics
from stretto.cli.started import Started

PERIOD_S = 0.5


def imbalance(found: dict[str, float]) -> float:
    """Submitted, less ended, waiting and running; all read in one moment."""
    waiting = found.get("stretto_queue_depth", 0.0) + found.get("stretto_queries_running", 0.0)
    return found["stretto_queries_submitted_total"] - found["stretto_queries_ended_total"] - waiting


class Watch:
    """Samples in a thread; memory by time, and the largest imbalance ever seen."""

    def __init__(self, server: Started) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.memory: list[tuple[int, int]] = []  # monotonic ns, bytes
        self.balances: list[tuple[int, float]] = []
        self.unread = 0  # looks that the server did not answer
        self.last: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)

    def look(self) -> None:
        """Once; also called at the end of each fault."""
        try:
            self.memory.append((time.monotonic_ns(), self._server.memory_bytes()))
            self.last = metrics(self._server)
            self.balances.append((time.monotonic_ns(), imbalance(self.last)))
        except (urllib.error.URLError, OSError, KeyError):
            self.unread += 1

    def most_memory(self, windows: list[tuple[int, int]]) -> int:
        inside = [size for at, size in self.memory if any(start <= at < end for start, end in windows)]
        return max(inside, default=0)

    def worst_balance(self, windows: list[tuple[int, int]] | None = None) -> float:
        """By how many queries the counts disagreed at most."""
        chosen = [
            abs(value)
            for at, value in self.balances
            if windows is None or any(start <= at < end for start, end in windows)
        ]
        return max(chosen, default=0.0)

    def _look(self) -> None:
        while not self._stop.wait(PERIOD_S):
            self.look()
