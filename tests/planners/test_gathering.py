"""Gathering: when a batch starts, who is given up for it, and that it beats waiting near the limit."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Table
from stretto.core.profile import LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.gathering import Gathering
from stretto.planners.symphony import Symphony
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate

SLO_NS = 25_000_000
PROFILE = LatencyProfile.linear(1.053, 5.072)


def deployment(count: int = 8) -> Deployment:
    return Deployment((Application("app", SLO_NS, (Variant("only", 1.0, (PROFILE,)),)),), workers(count))


@pytest.mark.parametrize("rate", [300.0, 3_000.0, 5_400.0])
def test_a_batch_that_keeps_up_starts_at_once_and_smaller_ones_wait_for_one_more(rate: float) -> None:
    (lane,) = Gathering(floor_less=1)(View(deployment(), expected_rates=(rate,))).lanes
    table, release = lane.select, lane.release
    assert isinstance(table, Table) and isinstance(release, Eager)
    enough = table.variant.shape[0] - 1
    pace = [8 * batch * 1e9 / PROFILE.latency_ns(batch) for batch in range(1, enough + 1)]
    assert pace[-1] >= rate and all(each < rate for each in pace[:-1]), "the smallest batch that keeps up"
    assert len(release.floor_rates) == enough - 1 and not any(release.floor_rates)
    assert (table.variant[enough] == 0).all()
    slack_ns = np.arange(table.variant.shape[1]) * table.slack_step_ns
    for queued in range(1, enough):
        is_early = slack_ns > PROFILE.latency_ns(queued + 1) + table.slack_step_ns
        assert ((table.variant[queued] == -1) == is_early).all()


def test_more_is_answered_in_time_near_the_limit_than_by_waiting() -> None:
    def late(planner: Gathering | Symphony) -> float:
        runs = [
            simulate(deployment(), planner, Load(Poisson(), 5_450.0), seconds=10, seed=seed).summary
            for seed in (51, 52, 53)
        ]
        return float(np.mean([1 - run.on_time_rate for run in runs]))

    assert late(Gathering()) < 0.95 * late(Symphony(batch_aware=True))


def test_every_query_is_answered_at_a_low_load() -> None:
    run = simulate(deployment(), Gathering(), Load(Poisson(), 200.0), seconds=10, seed=3).summary
    assert run.on_time_rate == 1.0
