"""The policy of the whole process, against a linear programme over the same process written out state by state."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.planners.parts.laws import Gamma, Law, Poisson
from stretto.planners.shared_queue import process as process_module
from stretto.planners.shared_queue.process import Process, process_of
from stretto.planners.shared_queue.solve import MAX_SWEEPS, Solution, solve
from tests.planners.parts.tasks import small_task
from tests.planners.shared_queue.explicit import random_task, whole

TOLERANCE = 1e-6
NEAR = 1e-5  # of accuracy per query


@pytest.fixture(autouse=True)
def short_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "LEAST_QUEUE", 10)
    monkeypatch.setattr(process_module, "QUEUE_SHARE", 0.25)


def followed(solution: Solution) -> NDArray[np.int64]:
    """By state as the explicit process counts them."""
    return solution.action[1:].ravel()


def compare(process: Process) -> None:
    """Near saturation the gain settles slowly; the policy is the best one long before."""
    explicit = whole(process)
    best = explicit.best_gain() / process.rate
    solution = solve(process, TOLERANCE)
    gained = explicit.gain_of(followed(solution)) / process.rate
    assert best - NEAR <= gained <= best + 1e-7
    settled = abs(solution.drift) <= TOLERANCE
    assert settled == (solution.sweeps < MAX_SWEEPS)
    assert solution.gain / process.rate == pytest.approx(best, abs=NEAR if settled else 50 * abs(solution.drift))


@pytest.mark.parametrize("use", [0.15, 0.5, 0.8])
@pytest.mark.parametrize(("law", "noise"), [(Poisson(), 0.0), (Gamma(0.5), 0.0), (Poisson(), 0.15)])
def test_the_gain_is_that_of_the_linear_programme(use: float, law: Law, noise: float) -> None:
    task = small_task()
    compare(process_of(task, law, use * task.capacity(), task.workers, 12, noise=noise))


def test_random_tasks() -> None:
    random = np.random.default_rng(11)
    for seed in range(8):
        task = random_task(seed, int(random.integers(1, 7)))
        load = float(random.uniform(0.1, 0.9)) * task.capacity()
        noise, margin, impatience = random.choice([0.0, 0.1]), random.choice([0.0, 0.2]), random.choice([0.0, 0.02])
        steps = int(random.integers(10, 14))
        compare(
            process_of(task, Poisson(), load, task.workers, steps, noise=noise, margin=margin, impatience=impatience)
        )


def test_a_start_close_by_gives_the_same() -> None:
    task = small_task()
    load = 0.5 * task.capacity()
    first = solve(process_of(task, Poisson(), load, 3, 12), TOLERANCE)
    raised = process_of(task, Poisson(), 1.1 * load, 3, 12, queue_load=load)
    warm, cold = solve(raised, TOLERANCE, first), solve(raised, TOLERANCE)
    assert warm.gain == pytest.approx(cold.gain, rel=1e-4)
    explicit = whole(raised)
    assert explicit.gain_of(followed(warm)) == pytest.approx(explicit.best_gain(), rel=1e-4)


def test_values_and_actions_are_of_the_process() -> None:
    task = small_task()
    p = process_of(task, Poisson(), 0.5 * task.capacity(), 3, 12)
    solution = solve(p, TOLERANCE)
    assert solution.action.shape == solution.values.shape == (p.max_queue + 1, p.steps + 1)
    assert solution.values[1, p.steps] == 0.0
    for n in range(1, p.max_queue + 1):
        assert (solution.action[n, : p.least] < 0).all() and (solution.action[n, p.least :] >= 0).all()
        taken = solution.action[n, p.least :]
        assert (p.batch[taken] <= n).all()
        assert (p.on_time[taken, np.arange(p.least, p.steps + 1)][taken > 0] > 0).all()


def test_waiting_is_worth_something() -> None:
    """With one query there and plenty of slack, an accurate variant that likes company waits for it."""
    latency = np.array([[0, *(30.0 + 0.2 * b for b in range(1, 9))]]) * 1e6
    task = small_task(1).only([0])
    task = type(task)("app", "default", 200_000_000, 1, ("one",), np.array([0.9]), latency.astype(np.int64))
    p = process_of(task, Poisson(), 120.0, 1, 20)
    solution = solve(p, TOLERANCE)
    assert solution.action[1, p.steps] == 0
    assert (solution.action[1, : p.steps // 4] != 0).all()
    compare(p)
