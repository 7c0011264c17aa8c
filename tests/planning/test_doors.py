"""Doors in simulation: what could be answered is let in, and nothing that is let in comes too late."""

from __future__ import annotations

import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Delays
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.planners.registry import planner_entry
from stretto.planning.session import Session
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.service import Lognormal
from stretto.sim.simulator import simulate

ALPHA_MS, BETA_MS, LARGEST = 0.45, 0.96, 32
ONE = Deployment(
    (Application("a", 50 * NS_PER_MS, (Variant("v", 0.9, (LatencyProfile.linear(ALPHA_MS, BETA_MS, LARGEST),)),)),),
    workers(1),
)
CAPACITY = LARGEST / (ALPHA_MS * LARGEST + BETA_MS) * 1e3


@pytest.mark.parametrize(("load", "most_refused"), [(0.85, 0.001), (1.3, 0.291)])
def test_one_variant_refuses_hardly_more_than_it_must(load: float, most_refused: float) -> None:
    """At 85% of its capacity, 0.3% used to be refused: the door took half of what could be answered in time."""
    result = simulate(
        ONE,
        Session(planner_entry("shared_queue").make({})),
        Load(Poisson(), load * CAPACITY),
        seconds=30.0,
        service=Lognormal(0.1),
        delays=Delays(control_ns=NS_PER_MS),
        replan_s=0.25,
        correction=0.02,
    )
    outcomes, submitted = result.summary.outcomes, result.summary.submitted
    assert submitted - outcomes["on_time"] - outcomes["late"] <= most_refused * submitted
    assert outcomes["late"] <= 0.002 * submitted


def test_batches_of_more_than_half_the_slo_fit_where_several_workers_take_turns() -> None:
    """Regression: a batch was taken to wait for a whole one before it, so that the door was for batches of one, and 98%
    of what eight workers can answer were refused.
    """
    slow = Variant("v", 0.9, (LatencyProfile.linear(0.05, 10.5, 256),))
    eight = Deployment((Application("a", 21 * NS_PER_MS, (slow,)),), workers(8))
    summary = simulate(
        eight, Session(planner_entry("symphony").make({})), Load(Poisson(), 40_000.0), seconds=2.0, warmup_s=0.5
    ).summary
    assert summary.on_time_rate >= 0.999
