"""The trial on K workers: query by query what the simulator's dispatcher does with the same table and arrivals."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.core.outcome import Outcome
from stretto.core.plan import Eager, Lane, Late, Order, Table, by_application
from stretto.planners.ramsis.laws import Gamma, Poisson
from stretto.planners.ramsis.task import task_of
from stretto.planners.shared_queue.evaluate import BLOCKS, WARM_UP, Seen, evaluate, trial_of
from stretto.planners.shared_queue.options import Options
from stretto.planners.shared_queue.policy import make_policy
from stretto.sim.simulator import simulate
from tests.planners.ramsis.tasks import small_deployment
from tests.sim.handmade import Handmade, always

QUERIES = 6_000
Cells = tuple[NDArray[np.int32], NDArray[np.int32], int]  # variant, batch, step


def random_cells(seed: int) -> Cells:
    """A table without sense: any variant, batches that do and do not fit, a third of the cells waits."""
    random = np.random.default_rng(seed)
    shape = (int(random.integers(3, 30)), int(random.integers(5, 40)))
    variant = random.integers(0, 4, shape)
    variant[random.random(shape) < 0.3] = -1
    variant[:, 0] = 0
    batch = random.integers(1, 9, shape)
    step_ns = 60_000_000 // (shape[1] - 1)
    return np.ascontiguousarray(variant, np.int32), np.ascontiguousarray(batch, np.int32), step_ns


def made_cells(workers: int, use: float) -> Cells:
    task = task_of(small_deployment(workers), 0)
    policy = make_policy(task, Options(slack_steps=30, queries=2_000), use * task.capacity())
    return policy.variant, policy.batch, int(policy.slack_ns[1])


@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize("use", [0.3, 0.8, 1.3])
@pytest.mark.parametrize("cells", [1, 2, 3, 4, "made"])
def test_the_same_ends_as_in_the_simulator(cells: int | str, use: float, workers: int) -> None:
    deployment = small_deployment(workers)
    task = task_of(deployment, 0)
    load = use * task.capacity()
    variant, batch, step_ns = random_cells(cells) if isinstance(cells, int) else made_cells(workers, min(use, 0.9))
    assert isinstance(cells, str) or (variant == -1).any()
    trial = trial_of(Poisson(), load, QUERIES, 0.0, seed=7)
    seen = evaluate(task, variant, batch, step_ns, trial)
    lane = Lane(
        "app",
        tuple(range(workers)),
        Table(step_ns, variant, batch),
        Order.EARLIEST_DEADLINE,
        Eager(),
        Late.DROP_WHEN_INFEASIBLE,
    )
    source = Handmade([(0, int(at), int(at) + task.slo_ns) for at in trial.arrivals_ns])
    seconds = float(trial.arrivals_ns[-1]) / 1e9 + 1.0
    result = simulate(deployment, always(by_application((lane,))), source, seconds=seconds, record=True)
    assert result.queries is not None and len(result.queries) == QUERIES
    counted = result.queries[int(WARM_UP * QUERIES) :]
    on_time = counted["outcome"] == Outcome.ON_TIME
    assert seen.queries == len(counted)
    assert seen.late == pytest.approx(1.0 - on_time.mean(), abs=1e-12)
    assert seen.accuracy == pytest.approx(task.accuracy[counted["variant"][on_time]].mean(), rel=1e-12)
    by_block = on_time[: len(on_time) // BLOCKS * BLOCKS].reshape(BLOCKS, -1).mean(axis=1)
    assert seen.late_error == pytest.approx(by_block.std(ddof=1) / BLOCKS**0.5, rel=0.02, abs=1e-12)


def test_what_is_drawn() -> None:
    trial = trial_of(Gamma(0.25), 200.0, 200_000, 0.2, seed=3)
    gaps = np.diff(trial.arrivals_ns) / 1e9
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.02)  # shape 1/4
    assert (trial.noise.mean(), trial.noise.std()) == (pytest.approx(1.0, abs=0.002), pytest.approx(0.2, abs=0.002))
    again = trial_of(Gamma(0.25), 200.0, 200_000, 0.2, seed=3)
    assert (again.arrivals_ns == trial.arrivals_ns).all() and (again.noise == trial.noise).all()
    other = trial_of(Gamma(0.25), 200.0, 200_000, 0.2, seed=4)
    assert (other.arrivals_ns != trial.arrivals_ns).any()
    assert (trial_of(Poisson(), 200.0, 1_000, 0.0, seed=3).noise == 1.0).all()


def test_noise_makes_batches_late() -> None:
    deployment = small_deployment(3)
    task = task_of(deployment, 0)
    variant = np.full((3, 2), 2, np.int32)  # slow takes 43 ms for three
    batch = np.full((3, 2), 3, np.int32)
    load = 0.3 * task.capacity()
    late = [
        evaluate(task, variant, batch, 60_000_000, trial_of(Poisson(), load, QUERIES, noise, 1)).late
        for noise in (0.0, 0.1, 0.4)
    ]
    assert late[0] < late[1] < late[2]


def test_an_expectation_is_to_the_worse_side() -> None:
    sure = Seen(0.8, 0.0, 0.0, 0.0, 30_000).expectation()
    assert (sure.accuracy, sure.late) == (0.8, pytest.approx(1e-4))  # none seen among 30,000 is not none at all
    spread = Seen(0.8, 0.01, 0.002, 0.003, 30_000).expectation()
    assert (spread.accuracy, spread.late) == (pytest.approx(0.796), pytest.approx(0.016))
    assert spread.correct == pytest.approx(0.796 * (1 - 0.016))
    assert Seen(0.8, 0.01, 0.0, 0.0, 10).correct == pytest.approx(0.792)
