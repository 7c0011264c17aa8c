"""The process with one number as its state, against a linear programme over the same process written out."""

import numpy as np
import pytest

from stretto.planners.parts.laws import Gamma, Law, Poisson
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


def test_shares_and_values() -> None:
    task = small_task()
    process = process_of(task, Poisson(), 0.5 * task.capacity(), task.workers, 20)
    found = solve_line(process)
    assert found.share[0] == 0 and found.share.sum() == pytest.approx(1.0)
    assert found.values[1] == 0.0
    assert found.time > 0
    served = found.share[1:] @ np.arange(1, process.max_queue + 1)
    assert served < 10  # far from saturation the queue is short
