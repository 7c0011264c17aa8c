"""How many workers: the same as trying every number, in few tries; and what no number can do."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core.errors import StrettoError
from stretto.core.plan import Table
from stretto.planners.parts.task import task_of
from stretto.planners.promise import Promise, promise_of
from stretto.planners.ramsis.planner import Ramsis
from stretto.sim.capacity import Requirement, Seen, least_workers, workers_needed
from tests.planners.parts.tasks import small_deployment, small_task

TABLE = Table(1, np.zeros((2, 1), np.int32), np.zeros((2, 1), np.int32))


def told(accuracy: list[float], violation: list[float]) -> list[Promise]:
    """By workers from 1 on."""
    return [Promise(n, 1.0, a, v, TABLE) for n, (a, v) in enumerate(zip(accuracy, violation, strict=True), 1)]


def fewest(promises: list[Promise], requirement: Requirement) -> int | None:
    """Every number, one after the other."""
    return next((one.workers for one in promises if requirement.is_met(one)), None)


@given(
    gains=st.lists(st.floats(0, 0.2), min_size=1, max_size=60),
    losses=st.lists(st.floats(0, 0.3), min_size=60, max_size=60),
    wanted=st.floats(0, 1),
    allowed=st.floats(0, 1),
)
def test_as_exhaustive_search_where_more_workers_promise_more(
    gains: list[float], losses: list[float], wanted: float, allowed: float
) -> None:
    accuracy = np.minimum(1.0, np.cumsum(gains)).tolist()
    violation = np.maximum(0.0, 1.0 - np.cumsum(losses))[: len(gains)].tolist()
    promises, requirement = told(accuracy, violation), Requirement(1.0, wanted, allowed)
    expected = fewest(promises, requirement)
    if expected is None:
        with pytest.raises(StrettoError, match="are not enough"):
            workers_needed(lambda n: promises[n - 1], requirement, most=len(promises))
        return
    found = workers_needed(lambda n: promises[n - 1], requirement, most=len(promises))
    assert found.workers == expected == found.promise.workers
    assert len(found.tried) <= 4 * np.log2(len(promises) + 1) + 6
    assert [one.workers for one in found.tried] == sorted({one.workers for one in found.tried})


@given(
    gains=st.lists(st.floats(0, 0.2), min_size=1, max_size=40),
    wanted=st.floats(0, 1),
    confirmed_from=st.integers(1, 45),
)
def test_the_answer_is_the_fewest_that_is_confirmed_too(gains: list[float], wanted: float, confirmed_from: int) -> None:
    """It once ended at the fewest by promise, also where the simulation beside it said that these fall short."""
    promises = told(np.minimum(1.0, np.cumsum(gains)).tolist(), [0.0] * len(gains))
    requirement = Requirement(1.0, wanted, 0.0)
    asked: list[int] = []

    def confirms(promised: Promise) -> bool:
        asked.append(promised.workers)
        assert requirement.is_met(promised)
        return promised.workers >= confirmed_from

    expected = next(
        (one.workers for one in promises if requirement.is_met(one) and one.workers >= confirmed_from), None
    )
    most = len(promises)
    if expected is None:
        says = "a simulation of them falls short" if requirement.is_met(promises[-1]) else "are not enough"
        with pytest.raises(StrettoError, match=says):
            workers_needed(lambda n: promises[n - 1], requirement, most=most, confirms=confirms)
        return
    found = workers_needed(lambda n: promises[n - 1], requirement, most=most, confirms=confirms)
    assert found.workers == expected and expected in asked
    assert len(set(asked)) <= 2 * np.log2(most + 1) + 4


def test_what_rounding_takes_is_not_missed() -> None:
    """README's line: 7 workers answer all with one variant of 0.95, whose mean over a load is 0.9499999999999998."""
    requirement = Requirement(1.0, 0.95, 0.01)
    seen = Seen(7, float(np.mean(np.full(3, 0.9499999999999998))), 0.01 + 1e-17)
    assert requirement.is_met(seen)
    assert not requirement.is_met(replace(seen, accuracy=0.94999)) and not requirement.is_met(
        replace(seen, violation=0.0101)
    )


def test_violations_that_rise_again_do_not_hide_a_small_number() -> None:
    """A policy with room to spare trades violations for accuracy; bisecting both together went past 48 workers."""
    accuracy = [0.5 + 0.004 * n for n in range(1, 129)]
    violation = [1.0 if n < 44 else 0.0 if n < 52 else 0.0004 if n < 68 else 0.0 for n in range(1, 129)]
    promises, requirement = told(accuracy, violation), Requirement(1.0, 0.69, 0.0001)
    assert workers_needed(lambda n: promises[n - 1], requirement, least=32, most=128).workers == 48
    assert workers_needed(lambda n: promises[n - 1], replace(requirement, min_accuracy=0.72), most=128).workers == 68


@pytest.mark.parametrize(("wanted", "allowed"), [(0.65, 0.05), (0.75, 0.01), (0.88, 0.001)])
def test_real_policies_give_what_every_number_gives(wanted: float, allowed: float) -> None:
    planner, requirement = Ramsis(slack_steps=15, max_queue=12), Requirement(150.0, wanted, allowed)

    def promise(count: int) -> Promise:
        return promise_of(planner, small_deployment(count), requirement.load)

    least = least_workers(small_task(1), requirement)
    found = workers_needed(promise, requirement, least=least, most=40)
    every = [promise(count) for count in range(1, found.workers + 1)]
    assert found.workers == fewest(every, requirement)
    assert all(one.violation > allowed for one in every[: least - 1])  # fewer than `least` could not do it


def test_progress_counts_what_was_tried() -> None:
    heard: list[int] = []
    promises = told([0.1 * n for n in range(1, 10)], [0.0] * 9)
    found = workers_needed(lambda n: promises[n - 1], Requirement(1.0, 0.7, 0.0), most=9, progress=heard.append)
    assert found.workers == 7 and heard == list(range(1, len(found.tried) + 1))


def test_what_no_number_of_workers_can_do() -> None:
    task = task_of(small_deployment(1), 0)
    with pytest.raises(StrettoError, match=r"slow is the most accurate variant .* 0.9000 where 0.95 is asked for; ask"):
        least_workers(task, Requirement(10.0, 0.95, 0.1))
    with pytest.raises(StrettoError, match="slow would do with an SLO above 25 ms"):
        least_workers(replace(task, slo_ns=20_000_000), Requirement(10.0, 0.85, 0.1))
    promises = told([0.8] * 4, [0.5] * 4)
    with pytest.raises(StrettoError, match=r"4 workers are not enough .* they promise accuracy 0.8000 and 50.000%"):
        workers_needed(lambda n: promises[n - 1], Requirement(1.0, 0.7, 0.1), most=4)
    with pytest.raises(StrettoError, match="at least 5 could answer so many in time"):
        workers_needed(lambda n: promises[n - 1], Requirement(1.0, 0.7, 0.1), least=5, most=4)


def test_the_least_is_what_the_best_batches_could_answer() -> None:
    task = small_task(1)
    one = task.capacity()
    assert least_workers(task, Requirement(3 * one, 0.1, 0.0)) == 3
    assert least_workers(task, Requirement(3.001 * one, 0.1, 0.0)) == 4
    assert least_workers(task, Requirement(3.001 * one, 0.1, 0.1)) == 3  # a tenth may be late
    assert least_workers(replace(task, workers=7), Requirement(0.001, 0.1, 0.0)) == 1


@pytest.mark.parametrize(
    ("load", "accuracy", "violation", "says"),
    [(0, 0.5, 0.1, "the load is 0"), (1, 1.5, 0.1, "accuracy asked for is 1.5"), (1, 0.5, -1, "violations asked for")],
)
def test_requirements_are_bounded(load: float, accuracy: float, violation: float, says: str) -> None:
    with pytest.raises(StrettoError, match=says):
        Requirement(load, accuracy, violation)
