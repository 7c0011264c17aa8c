"""How much of a machine's time went elsewhere: a neighbour on the same host, or another program on the same cores; and
how fast the machine was, for a host may slow its guests down by a fifth for minutes and say nothing of it.

A live measurement of deadlines means nothing while the machine is taken away. What is repeated is chosen by these two
alone, never by what was measured.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable
from statistics import quantiles
from types import TracebackType
from typing import Self, TypeVar

Measured = TypeVar("Measured")

QUIET = 0.01  # of a core: stolen by the host
SLOWED = 0.1  # of the machine's speed: lost
TRIES = 4
LOOK_S = 2.0
PIECE, PIECES_S = bytes(200_000), 0.1  # half a millisecond of work, ten times a second


def stolen_s() -> float:
    """Seconds that the host took from all cores since the machine started; 0 where the system does not tell."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


class Pace(threading.Thread):
    """While it is entered: how long a piece of work takes that is always the same, in processor time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._pieces_s: list[float] = []
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(PIECES_S):
            began_s = time.thread_time()
            hashlib.sha256(PIECE).digest()
            self._pieces_s.append(time.thread_time() - began_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self.join()

    @property
    def piece_s(self) -> float:
        """Of four pieces the quickest but for the best: what runs beside on the same core slows some of them."""
        return quantiles(self._pieces_s)[0]


def wait_for_quiet(most_s: float = 90.0) -> None:
    """Until the host takes nothing for a moment, or for so long at most."""
    end = time.perf_counter() + most_s
    while time.perf_counter() < end:
        before = stolen_s()
        time.sleep(LOOK_S)
        if stolen_s() - before <= QUIET * LOOK_S:
            return


def when_quiet(
    measure: Callable[[], Measured],
    tries: int = TRIES,
    quiet: float = QUIET,
    slowed: Callable[[Measured], float] = lambda measured: 0.0,
) -> tuple[Measured, float, int]:
    """What was measured in the first try that was quiet, else in the quietest; its share of a core that was stolen; and
    how many tries there were. `slowed` tells what part of the machine's speed was lost in a try.
    """
    best: tuple[Measured, float, float] | None = None
    count = 0
    while count < tries:
        count += 1
        wait_for_quiet()
        began, before = time.perf_counter(), stolen_s()
        result = measure()
        share = (stolen_s() - before) / (time.perf_counter() - began)
        lost = max(slowed(result), 0.0)
        if best is None or share + lost < best[1] + best[2]:
            best = (result, share, lost)
        if share <= quiet and lost <= SLOWED:
            break
    assert best is not None
    return best[0], best[1], count
