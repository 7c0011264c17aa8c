"""How much of a machine's time went elsewhere: a neighbour on the same host, or another program on the same cores.

A live measurement of deadlines means nothing while the machine is taken away. What is repeated is chosen by that share
alone, never by what was measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

Measured = TypeVar("Measured")

QUIET = 0.01  # of a core: stolen by the host
TRIES = 4
LOOK_S = 2.0


def stolen_s() -> float:
    """Seconds that the host took from all cores since the machine started; 0 where the system does not tell."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def wait_for_quiet(most_s: float = 90.0) -> None:
    """Until the host takes nothing for a moment, or for so long at most."""
    end = time.perf_counter() + most_s
    while time.perf_counter() < end:
        before = stolen_s()
        time.sleep(LOOK_S)
        if stolen_s() - before <= QUIET * LOOK_S:
            return


def when_quiet(
    measure: Callable[[], Measured], tries: int = TRIES, quiet: float = QUIET
) -> tuple[Measured, float, int]:
    """What was measured in the first try that was quiet, else in the quietest; its share of a core that was stolen; and
    how many tries there were.
    """
    best: tuple[Measured, float] | None = None
    count = 0
    while count < tries:
        count += 1
        wait_for_quiet()
        began, before = time.perf_counter(), stolen_s()
        result = measure()
        share = (stolen_s() - before) / (time.perf_counter() - began)
        if best is None or share < best[1]:
            best = (result, share)
        if share <= quiet:
            break
    assert best is not None
    return *best, count
