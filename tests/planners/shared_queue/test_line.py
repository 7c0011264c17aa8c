"""The process with one number as its state, against a linear programme over the same process written out."""

from types import ModuleType

import numpy as np
import pytest

from stretto.planners.parts.laws import Gamma, Law, Poisson
from stretto.planners.shared_queue import gathering
from stretto.planners.shared_queue import line as line_module
from stretto.planners.shared_queue import process as process_module
from stretto.planners.shared_queue.line import solve_line
from stretto.planners.shared_queue.process import process_of
from tests.planners.parts.tasks import small_task
from tests.planners.shared_queue.explicit import line, random_task


@pytest.fixture(autouse=True)
def short_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "LEAST_QUEUE", 20)
    monkeypatch.setattr(process_module, "QUEUE_SHARE", 0.25)


@pytest.mark.parametrize("use", [0.1, 0.4, 0.7, 0.95, 1.3])
@pytest.mark.parametrize(("law", "noise"), [(Poisson(), 0.0), (Gamma(0.4), 0.0), (Poisson(), 0.15)])
def test_the_gain_is_that_of_the_linear_programme(use: float, law: Law, noise: float) -> None:
    task = small_task()
    process = process_of(task, law, use * task.capacity(), task.workers, 20, noise=noise)
    found = solve_line(process)
    assert found.gain == pytest.approx(line(process).best_gain(), rel=1e-7)
    assert 0 < found.gain / process.rate < 0.9


def test_random_tasks() -> None:
    random = np.random.default_rng(5)
    for seed in range(25):
        task = random_task(seed, int(random.integers(1, 9)))
        load = float(random.uniform(0.05, 1.2)) * task.capacity()
        noise, margin, impatience = random.choice([0.0, 0.1]), random.choice([0.0, 0.2]), random.choice([0.0, 0.02])
        steps = int(random.integers(10, 40))
        process = process_of(
            task, Poisson(), load, task.workers, steps, noise=noise, margin=margin, impatience=impatience
        )
        found = solve_line(process)
        assert found.gain == pytest.approx(line(process).best_gain(), rel=1e-7), seed


@pytest.mark.parametrize(
    ("seed", "workers", "use", "steps", "law"),
    [(93, 6, 2.4134734470073704, 12, Poisson()), (14, 2, 2.4622549256260724, 29, Gamma(0.1))],
)
def test_a_round_that_changes_only_queues_never_come_to_is_not_the_last(
    seed: int, workers: int, use: float, steps: int, law: Law
) -> None:
    """Regression: rounds ended where the gain was the same twice, up to 8% below the best one."""
    task = random_task(seed, workers)
    process = process_of(task, law, use * task.capacity(), workers, steps, margin=0.2, memory=1e5)
    assert solve_line(process).gain == pytest.approx(line(process).best_gain(), rel=1e-7)


@pytest.mark.parametrize(("module", "use"), [(line_module, 0.5), (gathering, 0.3)])
def test_what_is_better_for_short_queues_reaches_long_ones_in_the_same_round(
    module: ModuleType, use: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it went up by a batch a round. 28 and 24 rounds were needed here, and more than 50 for policies of
    the image task, which were left unfinished.
    """
    monkeypatch.setattr(process_module, "QUEUE_SHARE", 0.6)
    task = small_task(40)
    process = process_of(task, Poisson(), use * task.capacity(), 40, 30, noise=0.1, margin=0.1, impatience=0.0005)
    solved = {line_module: solve_line, gathering: gathering.solve_gathering_line}[module]
    at_length = solved(process)
    monkeypatch.setattr(module, "MAX_ROUNDS", 10)
    np.testing.assert_allclose(solved(process).values, at_length.values, atol=1e-6)
