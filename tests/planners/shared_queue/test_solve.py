"""The policy of the whole process, against a linear programme over the same process written out state by state."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.planners.parts.laws import Gamma, Law, Poisson
from stretto.planners.parts.task import Task
from stretto.planners.shared_queue import process as process_module
from stretto.planners.shared_queue import solve as solve_module
from stretto.planners.shared_queue.line import GIVE_UP, solve_line
from stretto.planners.shared_queue.process import Process, process_of
from stretto.planners.shared_queue.solve import Solution, solve
from stretto.planners.shared_queue.sweeps import look_ahead, sweep
from tests.planners.parts.tasks import small_task
from tests.planners.shared_queue.explicit import assert_actions_of, random_task, whole

# Of accuracy per query. Over these cases and 80 more random ones: 0.0011 at most, 0.0001 in all but four.
NEAR = 0.0015
# With one step of looking ahead from the line's values, where 25 to 50 queries come within an SLO: 0.0095 at most.
NEAR_AT_ONCE = 0.01


@pytest.fixture
def short_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "LEAST_QUEUE", 10)
    monkeypatch.setattr(process_module, "QUEUE_SHARE", 0.25)


def followed(solution: Solution) -> NDArray[np.int64]:
    """By state as the explicit process counts them."""
    return solution.action[1:].ravel()


def compare(process: Process, near: float = NEAR) -> None:
    explicit = whole(process)
    best = explicit.best_gain() / process.rate
    gained = explicit.gain_of(followed(solve(process))) / process.rate
    assert best - near <= gained <= best + 1e-7


@pytest.mark.usefixtures("short_queues")
@pytest.mark.parametrize("use", [0.15, 0.5, 0.8])
@pytest.mark.parametrize(("law", "noise"), [(Poisson(), 0.0), (Gamma(0.5), 0.0), (Poisson(), 0.15)])
def test_the_gain_is_nearly_that_of_the_linear_programme(use: float, law: Law, noise: float) -> None:
    task = small_task()
    compare(process_of(task, law, use * task.capacity(), task.workers, 12, noise=noise))


def random_process(seed: int, random: np.random.Generator, workers: int) -> Process:
    task = random_task(seed, workers)
    load = float(random.uniform(0.1, 0.9)) * task.capacity()
    noise, margin, impatience = random.choice([0.0, 0.1]), random.choice([0.0, 0.2]), random.choice([0.0, 0.02])
    steps = int(random.integers(10, 14))
    return process_of(task, Poisson(), load, task.workers, steps, noise=noise, margin=margin, impatience=impatience)


@pytest.mark.usefixtures("short_queues")
def test_random_tasks() -> None:
    random = np.random.default_rng(11)
    for seed in range(8):
        compare(random_process(seed, random, int(random.integers(1, 4))))


@pytest.mark.usefixtures("short_queues")
def test_where_many_queries_come_one_look_ahead_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_module, "FEW", 0)
    random = np.random.default_rng(12)
    processes = [random_process(seed, random, int(random.integers(2, 6))) for seed in range(20, 35)]
    many = [process for process in processes if 25 < process.rate * process.steps < 50]
    assert len(many) >= 4
    for process in many:
        compare(process, NEAR_AT_ONCE)


@pytest.mark.usefixtures("short_queues")
def test_one_worker_and_few_queries() -> None:
    """Regression: with a single step of looking ahead 0.061 and 0.031 of accuracy were lost here."""
    for seed, use, margin in ((6, 0.54, 0.2), (16, 0.35, 0.0)):
        task = random_task(seed, 1)
        compare(process_of(task, Poisson(), use * task.capacity(), 1, 12, margin=margin))


@pytest.mark.parametrize("few", [0, 48])
def test_actions_are_of_the_process(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solve_module, "FEW", few)
    task = small_task()
    p = process_of(task, Poisson(), 0.5 * task.capacity(), 3, 12, noise=0.1)
    action = solve(p).action
    assert action.shape == (p.max_queue + 1, p.steps + 1)
    assert_actions_of(p, action)
    assert (action[1:, p.least] != 0).all(), "a head that can wait no longer"


@pytest.mark.usefixtures("short_queues")
def test_waiting_is_worth_something() -> None:
    """With one query there and plenty of slack, an accurate variant that likes company waits for it."""
    latency = np.array([[0, *(30.0 + 0.2 * b for b in range(1, 9))]]) * 1e6
    task = Task("app", "default", 200_000_000, 1, ("one",), np.array([0.9]), latency.astype(np.int64))
    p = process_of(task, Poisson(), 120.0, 1, 20)
    solution = solve(p)
    assert solution.action[1, p.steps] == 0
    assert (solution.action[1, : p.steps // 4] != 0).all()
    compare(p)


@pytest.mark.parametrize("law", [Poisson(), Gamma(0.25)])
@pytest.mark.parametrize("use", [1.5, 5.0, 20.0])
def test_far_beyond_capacity_values_stay_finite(use: float, law: Law) -> None:
    task = small_task()
    p = process_of(task, law, use * task.capacity(), task.workers, 50)
    line = solve_line(p)
    assert np.isfinite(line.values).all()
    answered = min(1.0, 1.1 / use)  # a little more than the capacity: what ends in time may have begun before
    assert 0 < line.gain / p.rate <= answered * task.accuracy.max()
    assert (solve(p).action[1, p.steps] >= 0).all()


def test_variants_that_gain_eightfold_by_batching() -> None:
    """Regression: here values grew without end, at a quarter of the capacity."""
    sizes = np.arange(33)
    single = np.array([11.0, 25.0, 50.0, 90.0, 137.0])
    growth = (32 / 8 - 1) / 31  # 32 take four times as long as one: eight times the throughput
    latency = np.where(sizes > 0, single[:, None] * (1 + growth * (sizes - 1)), 0.0)
    accuracy = np.array([0.6, 0.68, 0.74, 0.79, 0.82])
    names = tuple(f"v{m}" for m in range(5))
    task = Task("app", "default", 300_000_000, 20, names, accuracy, np.rint(1e6 * latency).astype(np.int64))
    assert task.latency_ns[0, 32] == pytest.approx(45e6, rel=0.03) and task.capacity() == pytest.approx(
        14_000, rel=0.05
    )
    p = process_of(task, Poisson(), 3_500.0, 20, 50)
    line = solve_line(p)
    assert np.isfinite(line.values).all() and np.abs(line.values).max() <= p.max_queue
    assert 0.7 < line.gain / p.rate <= accuracy.max()
    assert (solve(p).action[1:, p.steps] >= 0).mean() > 0.9


@pytest.mark.usefixtures("short_queues")
def test_looking_ahead_from_the_line_is_the_step_of_a_sweep_but_for_waits() -> None:
    """Both take what follows a batch for what the line says; what waits is another matter (below)."""
    random = np.random.default_rng(13)
    for seed in range(6):
        p = random_process(seed, random, int(random.integers(1, 5)))
        line = solve_line(p)
        ahead, swept = (np.full((p.max_queue + 1, p.steps + 1), GIVE_UP, np.int64) for _ in range(2))
        look_ahead(line.values, ahead, line.gain, p.rate, p.least, p.actions)
        sweep(np.repeat(line.values[:, None], p.steps + 1, axis=1), swept, line.gain, p.rate, p.least, p.actions)
        either_waits = (ahead == 0) | (swept == 0)
        assert len(np.unique(swept)) > 3 and either_waits.mean() < 0.5
        np.testing.assert_array_equal(ahead[~either_waits], swept[~either_waits])


def ladder() -> Task:
    """Three variants on one worker, the quickest of which gains sevenfold by batching."""
    lines = ((0.3, 2.0), (1.0, 4.0), (2.5, 6.0))
    latency = np.array([[0, *(beta + alpha * b for b in range(1, 65))] for alpha, beta in lines]) * 1e6
    names, accuracy = ("quick", "sound", "best"), np.array([0.7, 0.8, 0.9])
    return Task("ladder", "default", 60_000_000, 1, names, accuracy, latency.astype(np.int64))


def test_a_wait_is_worth_what_it_leads_to_one_step_of_slack_below() -> None:
    """By a naive loop: minus the time it takes, and the mean over who joins, at the slack that is left."""
    waits = 0
    for load, noise in ((800.0, 0.0), (1_400.0, 0.0), (1_800.0, 0.1)):
        p = process_of(ladder(), Poisson(), load, 1, 50, noise=noise)
        line = solve_line(p)
        action = np.full((p.max_queue + 1, p.steps + 1), GIVE_UP, np.int64)
        worth = look_ahead(line.values, action, line.gain, p.rate, p.least, p.actions)
        for n in range(1, p.max_queue + 1):
            for j in range(p.least + 1, p.steps + 1):
                joined = [(k, chance) for k, chance in zip(p.joining[0], p.chance[0], strict=True) if k >= 0]
                after = sum(chance * worth[min(n + k, p.max_queue), j - 1] for k, chance in joined)
                waited = p.lasting[0] * after - line.gain - p.holding * n - p.running[0]
                assert worth[n, j] >= waited - 1e-9
                if action[n, j] == 0:
                    waits += 1
                    assert worth[n, j] == pytest.approx(waited, abs=1e-9)
    assert waits > 20


@pytest.mark.parametrize("load", [800.0, 1_400.0, 1_800.0, 2_200.0, 2_600.0])
def test_nobody_is_waited_to_death(load: float) -> None:
    """Whoever waits while others come at the expected pace is answered in the end. Regression: a wait was taken for a
    new queue of its length, so one worker stood idle in front of sixty queries and gave up each when its time was over.
    """
    p = process_of(ladder(), Poisson(), load, 1, 50)
    action = solve(p).action
    for n, j in np.argwhere(action == 0):
        queued, slack = float(n), int(j)
        while slack >= p.least and action[min(int(queued), p.max_queue), slack] == 0:
            queued, slack = queued + p.rate, slack - 1
        assert action[min(int(queued), p.max_queue), slack] > 0, f"{n} queued, {j} steps of slack"
