"""Conditions: what a driver knows besides telemetry, and every plan is completed with."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto.core.plan import Delays


@dataclass(frozen=True)
class Demand:
    """Only these variants may answer; of one application, the most accurate first."""

    application: int
    variants: tuple[int, ...]


@dataclass(frozen=True)
class Conditions:
    """The demands in use, and delays as a scenario states them or a server measured them.

    `left_ns` is how much of its SLO a query usually has left when it comes, by application; None: all of it.
    `on_trial` are applications whose models may yet take workers down: they run on `trial_worker` alone.
    """

    demands: tuple[Demand, ...] = ()
    delays: Delays = field(default_factory=Delays)
    left_ns: tuple[int, ...] | None = None
    on_trial: tuple[int, ...] = ()
    trial_worker: int = 0
