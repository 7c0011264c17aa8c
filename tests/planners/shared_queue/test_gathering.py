"""A pool of which one worker may wait, against a linear programme over the same process written out; and in trials."""

import numpy as np
import pytest

from stretto.core.deployment import Deployment
from stretto.planners.parts.laws import Gamma, Law, Poisson
from stretto.planners.parts.task import Task
from stretto.planners.shared_queue import process as process_module
from stretto.planners.shared_queue.gathering import lowest_state, solve_gathering, solve_gathering_line
from stretto.planners.shared_queue.planner import SharedQueue
from stretto.planners.shared_queue.process import process_of
from stretto.planners.shared_queue.solve import solve
from stretto.planning.session import Session
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson as PoissonArrivals
from stretto.sim.simulator import simulate
from tests.planners.parts.tasks import small_task
from tests.planners.shared_queue.explicit import assert_actions_of, gathering, random_task


@pytest.fixture
def short_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "LEAST_QUEUE", 20)
    monkeypatch.setattr(process_module, "QUEUE_SHARE", 0.25)


@pytest.mark.usefixtures("short_queues")
@pytest.mark.parametrize("use", [0.1, 0.4, 0.7, 0.95, 1.3])
@pytest.mark.parametrize(("law", "noise"), [(Poisson(), 0.0), (Gamma(0.4), 0.0), (Poisson(), 0.15)])
def test_the_gain_is_that_of_the_linear_programme(use: float, law: Law, noise: float) -> None:
    task = small_task()
    process = process_of(task, law, use * task.capacity(), task.workers, 20, noise=noise)
    found = solve_gathering_line(process)
    explicit = gathering(process, task.workers, lowest_state(process))
    assert found.gain == pytest.approx(explicit.best_gain(), rel=1e-6)
    assert 0 < found.gain / process.rate < 0.9


@pytest.mark.usefixtures("short_queues")
def test_random_tasks() -> None:
    random = np.random.default_rng(7)
    for seed in range(12):
        task = random_task(seed, int(random.integers(1, 9)))
        load = float(random.uniform(0.05, 1.2)) * task.capacity()
        impatience = float(random.choice([0.0, 0.02]))
        process = process_of(task, Poisson(), load, task.workers, 15, impatience=impatience)
        best = gathering(process, task.workers, lowest_state(process)).best_gain()
        assert solve_gathering_line(process).gain == pytest.approx(best, rel=1e-6), seed


def test_actions_are_of_the_process() -> None:
    task = small_task()
    p = process_of(task, Poisson(), 0.5 * task.capacity(), 3, 12, noise=0.1)
    assert_actions_of(p, solve_gathering(p).action)


def company() -> Task:
    """One variant that answers four in hardly more time than one, and another that is quick and often wrong."""
    latency = np.array([[0, 40.0, 41.0, 42.0, 43.0], [0, 8.0, 14.0, 20.0, 26.0]]) * 1e6
    return Task("app", "default", 60_000_000, 30, ("good", "quick"), np.array([0.9, 0.5]), latency.astype(np.int64))


def test_a_worker_waits_for_company_where_others_go_on() -> None:
    """A step of waiting is 1.2 ms, in which three queries come: too dear for a whole pool, cheap for one of 30."""
    task = company()
    load = 0.9 * task.capacity()
    p = process_of(task, Poisson(), load, task.workers, 50)
    assert solve_gathering(p).action[1, p.steps] == 0
    assert solve(p).action[1, p.steps] != 0
    served = {}
    for gathers in (False, True):
        planner = SharedQueue(noise=0.0, margin=0.0, caution=1.0, prior=0.0, gathers=gathers)
        on: Deployment = task.deployment()
        run = simulate(
            on, Session(planner), Load(PoissonArrivals(), load), seconds=4.0, warmup_s=1.0, expected_rates=(load,)
        )
        served[gathers] = run.summary.correct_on_time
    assert served[True] > served[False] + 0.01
