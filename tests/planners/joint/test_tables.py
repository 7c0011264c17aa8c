"""The tables of the joint planner: their grid of slacks, and which loads share a policy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stretto.core.view import View
from stretto.planners.joint.planner import Joint
from stretto.planners.joint.tables import RUNG, TableMaker, step_of_load
from stretto.planners.parts.rates import RATE_WINDOW_NS
from tests.planners.joint.test_planner import many
from tests.planners.parts.tasks import small_task

WINDOW_S = RATE_WINDOW_NS / 1e9


@pytest.mark.parametrize("steps", [7, 20])
def test_slack_goes_in_even_steps_from_nothing_to_the_slo(steps: int) -> None:
    task = small_task(2)
    maker = TableMaker(steps, noise=0.1, margin=0.1, caution=1.0, prior=0.0)
    (policy,) = maker._solve([task], [2.0], 60.0)
    assert len(policy.slack_ns) == policy.variant.shape[1] == steps + 1
    assert policy.slack_ns[0] == 0 and set(np.diff(policy.slack_ns)) == {task.slo_ns // steps}
    assert task.slo_ns - steps < policy.slack_ns[-1] <= task.slo_ns


def nearest_power_of_two(counted: float) -> int:
    """In rungs: half of the share by which a count of so many queries varies."""
    rungs = math.log(1 + 0.5 / math.sqrt(counted), RUNG)
    return min((1, 2, 4, 8), key=lambda power: abs(math.log(power / rungs)))


@pytest.mark.parametrize("counted", [1, 2, 4, 8, 16, 60, 300, 5_000])
def test_the_fewer_queries_a_window_counts_the_fewer_loads_are_told_apart(counted: int) -> None:
    """A Poisson count of n is off by √n: loads are told apart by half of that."""
    coarse = nearest_power_of_two(counted)
    rates = counted / WINDOW_S * np.geomspace(1 / 1.1, 1.1, 40)
    coarse_of = {nearest_power_of_two(rate * WINDOW_S) for rate in rates}
    for rate in rates:
        step = step_of_load(float(rate), WINDOW_S)
        assert step % min(coarse_of) == 0
        assert abs(step - math.log(rate, RUNG)) <= (max(coarse_of) + 1) / 2
    assert coarse in coarse_of


def test_a_window_that_counted_nothing_tells_loads_apart_as_one_query_would() -> None:
    coarse = nearest_power_of_two(1.0)
    steps = [step_of_load(rate, WINDOW_S) for rate in np.geomspace(1e-3, 0.9 / WINDOW_S, 40)]
    assert all(step % coarse == 0 for step in steps) and any(step % (2 * coarse) for step in steps)


@pytest.mark.parametrize(("counted", "apart"), [(2.0, 4), (8.0, 2), (1_000.0, 1)])
def test_the_planner_tells_loads_apart_by_what_its_window_counts(counted: float, apart: int) -> None:
    deployment = many(1)
    planner = Joint(slack_steps=10, prior=0.0)
    rungs = []
    for factor in np.geomspace(1 / 1.05, 1.05, 3):
        planner(View(deployment, rates=np.array([factor * counted / WINDOW_S])))
        rungs.append(planner._known[0][0].rung)
    assert all(rung % apart == 0 for rung in rungs)
    assert any(rung % (2 * apart) for rung in rungs) or apart > 1
    assert all(abs(rung - math.log(counted / WINDOW_S, RUNG)) <= apart / 2 + 1.2 for rung in rungs)
