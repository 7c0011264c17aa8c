"""The trial of a plan: query by query what a plain loop over workers does with the same table and arrivals."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.core.plan import Plan, Table, by_application
from stretto.planners.parts.laws import Gamma, Poisson
from stretto.planners.parts.task import Task, task_of
from stretto.planners.ports import Seen, TrialConditions
from stretto.planners.shared_queue.options import Options
from stretto.planners.shared_queue.policy import expectation_of, make_policy, trial_lane
from stretto.sim.trial import drawn_arrivals, simulated_trial
from tests.planners.parts.tasks import small_deployment
from tests.planners.ramsis.test_planner import two_applications

QUERIES = 4_000
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
    options = Options(slack_steps=30, max_late=0.0005, noise=0.0, margin=0.0, queries=2_000)
    policy = make_policy(task, options, use * task.capacity(), trial=simulated_trial)
    return policy.variant, policy.batch, int(policy.slack_ns[1])


def plan_of(task: Task, cells: Cells) -> Plan:
    variant, batch, step_ns = cells
    return by_application((trial_lane(task, Table(step_ns, variant, batch)),))


def followed(task: Task, cells: Cells, arrivals: list[int]) -> list[int]:
    """The variant that answers each query on time, -1 where none does: the rules of a table, written out plainly."""
    variant, batch, step = cells
    latency, slo = task.latency_ns.tolist(), task.slo_ns
    fastest = task.fastest(1)
    ends: list[int] = []  # of running batches
    answered = [-1] * len(arrivals)
    head = tail = 0
    wake = None
    while head < len(arrivals):
        now = min(moment for moment in (*arrivals[tail : tail + 1], *ends, wake) if moment is not None)
        wake = None
        ends = [end for end in ends if end > now]
        while tail < len(arrivals) and arrivals[tail] <= now:
            tail += 1
        while head < tail and len(ends) < task.workers:
            slack = arrivals[head] + slo - now
            if slack < latency[fastest][1]:
                head += 1
                continue
            queued = tail - head
            column = min(slack // step, variant.shape[1] - 1)
            chosen = int(variant[min(queued, len(variant) - 1), column])
            if chosen < 0:  # until the cell changes, or the head is lost
                wake = arrivals[head] + slo - max(column * step, latency[fastest][1]) + 1
                break
            size = min(queued, int(batch[min(queued, len(variant) - 1), column]), task.max_batch)
            while size > 0 and latency[chosen][size] > slack:
                size -= 1
            if size == 0:  # the table is coarser than time: the fastest variant saves the head
                chosen, size = fastest, min(queued, task.max_batch)
                while size > 1 and latency[chosen][size] > slack:
                    size -= 1
            end = now + latency[chosen][size]
            for query in range(head, head + size):
                answered[query] = chosen if end <= arrivals[query] + slo else -1
            head += size
            ends.append(end)
    return answered


@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize("use", [0.3, 0.8, 1.3])
@pytest.mark.parametrize("cells", [1, 2, 3, "made"])
def test_the_same_ends_as_the_rules_written_out(cells: int | str, use: float, workers: int) -> None:
    task = task_of(small_deployment(workers), 0)
    conditions = TrialConditions(use * task.capacity(), Poisson(), queries=QUERIES, seed=7)
    table = random_cells(cells) if isinstance(cells, int) else made_cells(workers, min(use, 0.9))
    assert isinstance(cells, str) or (table[0] == -1).any()
    seen = simulated_trial(task.deployment(), plan_of(task, table), conditions)
    answered = np.array(followed(task, table, drawn_arrivals(conditions).tolist()))[int(0.05 * QUERIES) :]
    on_time = answered >= 0
    assert seen.queries == len(answered)
    assert seen.late == pytest.approx(1.0 - on_time.mean(), abs=1e-12)
    assert seen.accuracy == pytest.approx(task.accuracy[answered[on_time]].mean(), rel=1e-12)
    by_block = on_time[: len(on_time) // 20 * 20].reshape(20, -1).mean(axis=1)
    assert seen.late_error == pytest.approx(by_block.std(ddof=1) / 20**0.5, rel=0.05, abs=1e-12)


def test_what_is_drawn() -> None:
    conditions = TrialConditions(200.0, Gamma(0.25), queries=200_000, seed=3)
    arrivals = drawn_arrivals(conditions)
    gaps = np.diff(arrivals) / 1e9
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(2.0, rel=0.02)  # shape 1/4
    assert (drawn_arrivals(conditions) == arrivals).all()
    assert (drawn_arrivals(replace(conditions, seed=4)) != arrivals).any()
    assert len(drawn_arrivals(TrialConditions(1e-3, Poisson()))) < 1_000  # no longer than a simulation may be


def test_noise_makes_batches_late_and_the_same_seed_the_same_ones() -> None:
    task = task_of(small_deployment(3), 0)
    cells = (np.full((3, 2), 2, np.int32), np.full((3, 2), 3, np.int32), 60_000_000)  # slow takes 43 ms for three
    plan, conditions = plan_of(task, cells), TrialConditions(0.3 * task.capacity(), Poisson(), queries=QUERIES)
    seen = [simulated_trial(task.deployment(), plan, replace(conditions, noise=noise)) for noise in (0.0, 0.1, 0.4)]
    assert seen[0].late < seen[1].late < seen[2].late
    assert simulated_trial(task.deployment(), plan, replace(conditions, noise=0.4)) == seen[2]
    assert simulated_trial(task.deployment(), plan, replace(conditions, noise=0.4, seed=2)) != seen[2]


def test_an_expectation_is_to_the_worse_side() -> None:
    sure = expectation_of(Seen(0.8, 0.0, 0.0, 0.0, 30_000))
    assert (sure.accuracy, sure.late) == (0.8, pytest.approx(1e-4))  # none seen among 30,000 is not none at all
    spread = expectation_of(Seen(0.8, 0.01, 0.002, 0.003, 30_000))
    assert (spread.accuracy, spread.late) == (pytest.approx(0.796), pytest.approx(0.016))
    assert spread.correct == pytest.approx(0.796 * (1 - 0.016))
    assert Seen(0.8, 0.01, 0.0, 0.0, 10).correct == pytest.approx(0.792)


def test_a_task_as_a_deployment_is_the_same_task() -> None:
    task = task_of(small_deployment(3), 0)
    assert task_of(task.deployment(), 0).key == task.key


def test_several_applications_are_not_tried() -> None:
    task = task_of(small_deployment(3), 0)
    with pytest.raises(StrettoError, match="one application"):
        simulated_trial(two_applications(), plan_of(task, random_cells(1)), TrialConditions(10.0, Poisson()))
