"""What the profiler reads besides the time: how busy the machine is with other things than the model.

A `Clock` is passed in, so that tests can run on a made-up machine.
"""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

NS_PER_S = 1_000_000_000
SWITCH_NS = 1_000_000  # what an involuntary switch is taken to cost where the system does not tell
REFERENCE_LENGTH = 4096  # float32: fits the first-level cache
REFERENCE_PASSES = 20  # about 0.05 ms
REFERENCE_TIMES = 3


@dataclass(frozen=True)
class Reading:
    """Sums since some start, in ns."""

    wall_ns: int
    cpu_ns: int  # used by this process, all threads
    waiting_ns: int  # in which this process could have run but another one did, all threads
    busy_ns: int  # used by everybody on all cores, what the hypervisor took for others included


class Clock(Protocol):
    """`now_ns` and `waiting_ns` are read at every run and must be cheap; the others only around blocks of runs."""

    @property
    def cores(self) -> int:
        """Cores that this process may use."""

    def now_ns(self) -> int:
        """Monotonic."""

    def waiting_ns(self) -> int:
        """The sum of the times in which the calling thread could have run but another program did."""

    def read(self) -> Reading:
        """All sums at this moment."""

    def reference_ns(self) -> int:
        """The time that a fixed piece of work takes now: longer when the core is slower or shared."""


class SystemClock:
    """The present machine, as seen by the thread that makes this. What a system does not tell counts as quiet."""

    def __init__(self) -> None:
        self.cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._tick_ns = NS_PER_S // os.sysconf("SC_CLK_TCK")
        self._values = np.linspace(0.5, 1.5, REFERENCE_LENGTH, dtype=np.float32)
        self._result = np.empty_like(self._values)
        self._statistics: int | None = None
        with suppress(OSError):
            self._statistics = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if getattr(self, "_statistics", None) is not None:
            os.close(self._statistics)  # type: ignore[arg-type]

    def now_ns(self) -> int:
        return time.perf_counter_ns()

    def waiting_ns(self) -> int:
        """The second number of schedstat is the time spent ready but not running."""
        if self._statistics is None:
            return 0
        return int(os.pread(self._statistics, 96, 0).split()[1])

    def read(self) -> Reading:
        cpu_ns = time.process_time_ns()
        busy_ns = self._busy_ns()
        return Reading(self.now_ns(), cpu_ns, self._process_waiting_ns(), cpu_ns if busy_ns is None else busy_ns)

    def reference_ns(self) -> int:
        """The least of a few: an interrupt hits one of them, a slower core all."""
        return min(self._reference_once_ns() for _ in range(REFERENCE_TIMES))

    def _reference_once_ns(self) -> int:
        started = self.now_ns()
        for _ in range(REFERENCE_PASSES):
            np.multiply(self._values, self._values, out=self._result)
        return self.now_ns() - started

    def _busy_ns(self) -> int | None:
        """From the first line of /proc/stat: user nice system idle iowait irq softirq steal."""
        try:
            with open("/proc/stat", encoding="ascii") as file:
                ticks = [int(part) for part in file.readline().split()[1:9]]
        except (OSError, ValueError):
            return None
        return (sum(ticks) - sum(ticks[3:5])) * self._tick_ns if len(ticks) > 4 else None

    def _process_waiting_ns(self) -> int:
        """Of all threads of the process."""
        waiting = 0
        try:
            for task in Path("/proc/self/task").iterdir():
                waiting += int((task / "schedstat").read_text(encoding="ascii").split()[1])
        except (OSError, ValueError, IndexError):
            return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw * SWITCH_NS
        return waiting
