"""What an operator says of autoscaling: how many workers of each kind there may be, at what cost, and how to react."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.core.errors import StrettoError

MAX_WORKERS = 65_536
MAX_COST = 1e9
MOST_ROOM = 0.5


@dataclass(frozen=True)
class Bounds:
    """Of one kind of worker; `cost` is of one for an hour."""

    least: int = 1
    most: int = MAX_WORKERS
    cost: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most <= MAX_WORKERS or self.most < 1:
            raise StrettoError(
                f"autoscaling is from {self.least} to {self.most} workers; give the smaller number first, and at most "
                f"{MAX_WORKERS}"
            )
        if not 0 < self.cost <= MAX_COST:
            raise StrettoError(f"a worker costs {self.cost:g} an hour; it must be above 0 and at most {MAX_COST:g}")


@dataclass(frozen=True)
class AutoscaleOptions:
    """`kinds` are those that may be scaled; the others stay as they are.

    A period in which more than `bad_rate` of the queries had no answer on time asks for more workers. `room` is the
    idle share that a hundred workers keep; a quarter of them keeps twice that. Workers are let go while `slack` more
    than it is idle; less than half of it asks for more.
    """

    kinds: Mapping[str, Bounds] = field(default_factory=lambda: {"default": Bounds()})
    period_s: float = 10.0
    start_s: float = 0.0  # from ordering a worker to its first batch
    bad_rate: float = 0.01
    room: float = 0.03
    slack: float = 0.05
    smoothing: float = 0.4  # of a reading near the last ones; one that is not near counts at once
    near: float = 0.1
    growth: float = 4.0  # times as many workers in one period, at most
    shrink: float = 0.9  # of the workers go in one period, at most
    calm_periods: int = 2  # workers go when so many periods agree

    def __post_init__(self) -> None:
        if not self.kinds:
            raise StrettoError("autoscaling needs a kind of worker")
        for what, value, low, high in (
            ("period", self.period_s, 0.01, 86_400.0),
            ("start-up delay", self.start_s, 0.0, 86_400.0),
            ("bad rate", self.bad_rate, 0.0, 0.99),
            ("room", self.room, 0.0, MOST_ROOM),
            ("slack", self.slack, 0.0, MOST_ROOM),
            ("smoothing", self.smoothing, 0.01, 1.0),
            ("near", self.near, 0.0, 1.0),
            ("growth", self.growth, 1.01, 1000.0),
            ("shrink", self.shrink, 0.01, 1.0),
            ("number of calm periods", self.calm_periods, 1, 1000),
        ):
            if not low <= value <= high:
                raise StrettoError(f"the {what} of autoscaling is {value:g}; it must be from {low:g} to {high:g}")
