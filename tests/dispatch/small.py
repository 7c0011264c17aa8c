"""Small things to test rules with: latencies of a few nanoseconds, one application, a plan of one lane or a few."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Accumulate, Fixed, Lane, Plan, Route, RouteRule, by_application
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.worker import Worker, workers
from tests.dispatch.driver import Driver
from tests.lanes import rules_of_lane

FAR = 10**15  # a deadline that presses nobody
GATHER = Accumulate(4096, FAR)  # a lane that never starts by itself


def straight(alpha_ns: int, beta_ns: int, max_batch: int = 8, kind: str = "default") -> LatencyProfile:
    """l(b) = α·b + β in whole nanoseconds."""
    row = alpha_ns * np.arange(max_batch + 1) + beta_ns
    row[0] = 0
    return LatencyProfile(np.tile(row, (len(Quantile), 1)), kind)


PROFILE = straight(2, 10)  # 12, 14, 16, 18, … ns


def variant(name: str = "v", profile: LatencyProfile = PROFILE, *, memory: int = 0, load_ns: int = 0) -> Variant:
    return Variant(name, 0.5, (profile,), memory_bytes=memory, load_ns=load_ns)


def on_kinds(name: str, *profiles: LatencyProfile) -> Variant:
    """A variant with a latency for each of these kinds of worker."""
    return Variant(name, 0.5, profiles)


def deployed(*variants: Variant, crew: int | tuple[Worker, ...] = 1) -> Deployment:
    """One application with these variants, on so many equal workers or on these."""
    models = variants or (variant(),)
    return Deployment((Application("app", 100, models),), workers(crew) if isinstance(crew, int) else crew)


def lane(name: str = "lane", crew: tuple[int, ...] = (0,), **rules: Any) -> Lane:
    return Lane(name, crew, **({"select": Fixed(0)} | rules_of_lane(rules)))


def driver(*lanes: Lane, on: Deployment | None = None, rule: RouteRule | None = None, **plan: Any) -> Driver:
    """A driver whose application goes to the one lane, or by `rule` among all of them."""
    made = on if on is not None else deployed(crew=1 + max(max(lane.workers) for lane in lanes))
    return Driver(made, planned(*lanes, rule=rule, **plan))


def planned(*lanes: Lane, rule: RouteRule | None = None, **plan: Any) -> Plan:
    if rule is None:
        return by_application(lanes, **plan)
    chosen = {name: plan.pop(name) for name in ("weights", "targets", "front_ends") if name in plan}
    route = Route(rule, tuple(range(len(lanes))), **chosen)
    return Plan(lanes, (route,), **plan)
