"""Planners on light and heavy workers of one kind of machine: each worker runs what it is named for."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.instances import with_instances
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.planners.entry import Entry
from stretto.planners.listed.instances import ENTRIES as INSTANCES
from stretto.planners.ports import Ports
from stretto.planners.registry import ENTRIES
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.responses import already_measured, measured_responses
from stretto.sim.simulator import simulate
from stretto.sim.trial import simulated_trial
from tests.planners.test_registry import QUICK

RATES = (120.0,)
OTHERS = ("priced", "symphony", "nexus", "jellyfish")
CHOSEN = [entry for entry in ENTRIES if entry in INSTANCES or entry.name in OTHERS]
DEALS = ("edge_rl", "leave_it", "single_queue", "stationary")
NAMED = (("light",), ("light",), ("see/heavy",))


def light_and_heavy() -> Deployment:
    """The heavy variant is the most accurate one that answers within half the SLO, so that it was every worker's."""
    variants = tuple(
        Variant(name, accuracy, (LatencyProfile.linear(0.5 * ms, 0.5 * ms, 8),))
        for name, accuracy, ms in (("light", 0.7, 5.0), ("heavy", 0.9, 20.0), ("other", 0.95, 30.0))
    )
    machine = Deployment((Application("see", 100 * NS_PER_MS, variants),), workers(3))
    return with_instances(machine, NAMED)


@pytest.mark.parametrize("entry", CHOSEN, ids=lambda entry: entry.name)
def test_each_worker_runs_what_it_is_named_for(entry: Entry) -> None:
    deployment = light_and_heavy()
    responses = None
    if "responses" in entry.ports:
        responses = already_measured(measured_responses(deployment, (20.0, 100.0), rates=RATES, seconds=0.5))
    options = {option.name: QUICK[option.name] for option in entry.options if option.name in QUICK}
    planner = entry.make(options, ports=Ports(trial=simulated_trial, responses=responses))
    result = simulate(
        deployment,
        planner,
        Load(Poisson(), sum(RATES)),
        seconds=1.0,
        replan_s=entry.replan_s,
        expected_rates=RATES,
        record=True,
    )
    assert result.queries is not None
    ran = result.queries[result.queries["worker"] >= 0]
    names = np.array([variant.name for variant in deployment.variants])
    pairs = set(zip(ran["worker"].tolist(), names[ran["variant"]].tolist(), strict=True))
    assert pairs and pairs <= {(0, "light"), (1, "light"), (2, "heavy")}
    if entry.name in DEALS:
        assert {name for _, name in pairs} == {"light", "heavy"}  # once only the heavy one was left to deal to
