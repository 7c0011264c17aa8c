"""A made-up machine: a clock that only a made-up model moves, with neighbours that can be let loose on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from stretto.profiling.clock import Reading

NS_PER_MS = 1_000_000
REFERENCE_NS = 100_000


@dataclass
class FakeMachine:
    """`run` takes `latency_ms(batch)` of work, spread by `jitter`; neighbours stretch it as told.

    `preempted` is how long others keep it waiting per ns of its own work; `slowdown` stretches the work itself, as a
    neighbour on the same core does; `foreign` is how many cores others use.
    """

    latency_ms: Callable[[int], float] = lambda batch: 1.0 + 0.5 * batch
    jitter: float = 0.01
    cores: int = 2
    foreign: Callable[[float], float] = lambda now_s: 0.0
    preempted: Callable[[float], float] = lambda now_s: 0.0
    slowdown: Callable[[float], float] = lambda now_s: 1.0
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    now: int = 0
    cpu: int = 0
    waited: int = 0
    busy: float = 0.0
    runs: list[int] = field(default_factory=list)

    def run(self, batch: int) -> None:
        self.runs.append(batch)
        work = self.latency_ms(batch) * NS_PER_MS * (1 + self.jitter * abs(self.random.standard_normal()))
        self._spend(work)

    def _spend(self, work_ns: float) -> None:
        at = self.now / 1e9
        own = round(work_ns * self.slowdown(at))
        waits = round(own * self.preempted(at))
        self.now += own + waits
        self.cpu += own
        self.waited += waits
        self.busy += own + self.foreign(at) * (own + waits)

    def now_ns(self) -> int:
        return self.now

    def waiting_ns(self) -> int:
        return self.waited

    def read(self) -> Reading:
        return Reading(self.now, self.cpu, self.waited, int(self.busy))

    def reference_ns(self) -> int:
        before = self.now
        self._spend(REFERENCE_NS)
        return self.now - before
