"""How many workers to add or remove, from what the last interval showed (Symphony section 4.4).

Sound where the schedule is flat-topped: overload shows as bad rate and spare capacity as idle time, in proportion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stretto.core.errors import StrettoError
from stretto.core.view import View

ROUNDING = 1e-9  # 0.1·10 workers is one worker, whatever floating point makes of it


@dataclass(frozen=True)
class Advice:
    """At most one of `add` and `remove` is above zero."""

    add: int
    remove: int
    bad_rate: float
    idle_share: float


@dataclass(frozen=True)
class Autoscale:
    """A bad rate r above `bad_rate` adds N·r/(1 − r) workers, at most `growth`·N; else idle time removes some.

    `hysteresis` is the idle share to keep. The paper removes N·f, after which the next burst would add workers again;
    this removes what leaves that share idle, N·(f − h)/(1 − h), which for h = 0 is the paper's.
    """

    bad_rate: float = 0.01
    hysteresis: float = 0.1
    growth: float = 4.0
    min_workers: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.bad_rate < 1 and 0 <= self.hysteresis < 1 and self.growth > 0 and self.min_workers >= 1):
            raise StrettoError(
                "autoscaling needs a bad rate and a hysteresis from 0 to below 1, growth above 0, at least one worker"
            )

    def advise(self, workers: int, bad_rate: float, idle_share: float) -> Advice:
        """From the number of workers in use, the share of queries that went bad and the idle share of worker time."""
        if bad_rate > self.bad_rate:
            wanted = workers * bad_rate / (1 - bad_rate) if bad_rate < 1 else math.inf
            add = max(1, math.ceil(min(wanted, self.growth * workers) - ROUNDING))
            return Advice(add, 0, bad_rate, idle_share)
        spare = workers * (idle_share - self.hysteresis) / (1 - self.hysteresis)
        remove = max(0, min(math.floor(spare + ROUNDING), workers - self.min_workers))
        return Advice(0, remove, bad_rate, idle_share)

    def __call__(self, view: View) -> Advice:
        """From what a view says of the time since the last one; no change where it says nothing."""
        if view.idle_share is None:
            return Advice(0, 0, 0.0, 0.0)
        return self.advise(int(view.alive.sum()), view.bad_rate, view.idle_share)
