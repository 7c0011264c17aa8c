"""The solvers against the enumeration of all policies, and against each other."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.planners.ramsis.options import Options
from stretto.planners.ramsis.policy import model_of
from stretto.planners.ramsis.solve import DecisionProcess, policy_iteration, stationary
from tests.planners.parts.tasks import small_task
from tests.planners.ramsis.value_iteration import NoConvergence, value_iteration


def random_process(seed: int, states: int, most: int) -> DecisionProcess:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, most + 1, states)
    first = np.concatenate([[0], np.cumsum(counts)])
    chance = rng.dirichlet(np.full(states, 0.4), first[-1]) * 0.95
    chance[:, 0] += 0.05  # every policy comes back to state 0
    begin = states * np.arange(first[-1] + 1)
    target = np.tile(np.arange(states, dtype=np.int32), first[-1])
    lengths = rng.integers(1, 5, first[-1]).astype(float)
    return DecisionProcess(first, begin, target, chance.ravel(), rng.random(first[-1]) * lengths, lengths)


def best_by_enumeration(process: DecisionProcess) -> float:
    best = -np.inf
    for rows in itertools.product(*(range(a, b) for a, b in itertools.pairwise(process.first))):
        policy = np.array(rows)
        chain = process.chain(policy).toarray()
        system = np.vstack([chain.T - np.eye(process.states), np.ones(process.states)])
        share = np.linalg.lstsq(system, np.eye(process.states + 1)[-1], rcond=None)[0]
        best = max(best, float(share @ process.reward[policy] / (share @ process.length[policy])))
    return best


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5))
def test_both_find_the_best_of_all_policies(seed: int, states: int) -> None:
    process = random_process(seed, states, 3)
    best = best_by_enumeration(process)
    by_policy = policy_iteration(process, 1e-9)
    assert by_policy.gain == pytest.approx(best, abs=2e-9)
    try:
        by_value = value_iteration(process, 1e-9)
    except NoConvergence:  # a few processes are nearly periodic, and sweeps over values settle too slowly
        return
    assert by_value.gain == pytest.approx(best, abs=2e-9)
    for solution in (by_value, by_policy):
        assert solution.low - 1e-9 <= best <= solution.high + 1e-9


@pytest.mark.parametrize("per_decision", [False, True])
@pytest.mark.parametrize(("variable", "drop"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("use", [0.3, 0.6, 0.85])
def test_the_two_agree_on_a_worker(use: float, variable: bool, drop: bool, per_decision: bool) -> None:
    task = small_task(4)
    options = Options(slack_steps=24, max_queue=12, variable=variable, drop=drop, per_decision=per_decision)
    model = model_of(task, use * task.capacity(), options)
    start = model.space.after_empty
    by_value = value_iteration(model.process, 1e-8, start)
    by_policy = policy_iteration(model.process, 1e-8, start)
    assert by_value.gain == pytest.approx(by_policy.gain, abs=2e-8)
    assert by_value.share == pytest.approx(by_policy.share, abs=1e-5)
    for solution in (by_value, by_policy):
        assert solution.high - solution.low <= 1e-8


def test_plain_value_iteration_agrees_too() -> None:
    process = random_process(7, 6, 3)
    assert value_iteration(process, 1e-7, followed=1).gain == pytest.approx(
        policy_iteration(process, 1e-9).gain, abs=1e-6
    )


def test_stationary_shares_stay_where_they_are() -> None:
    process = random_process(3, 8, 2)
    policy = process.first[:-1]
    share = stationary(process, policy)
    assert share.sum() == pytest.approx(1.0)
    assert share @ process.chain(policy) == pytest.approx(share, abs=1e-10)
