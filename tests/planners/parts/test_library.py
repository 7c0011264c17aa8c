"""Libraries: loads close enough together, found with any map, and the lowest load that covers."""

import itertools
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from stretto.core.errors import StrettoError
from stretto.planners.parts.library import Library, make_library
from stretto.planners.parts.policy import Policy
from stretto.planners.ramsis.options import Options
from stretto.planners.ramsis.policy import make_policy
from tests.planners.parts.tasks import small_task

OPTIONS = Options(slack_steps=20)


def test_neighbours_are_less_than_a_point_apart() -> None:
    task = small_task()
    told: list[tuple[int, int]] = []
    library = make_library(
        task, OPTIONS, make_policy, 10.0, task.capacity(), progress=lambda done, total: told.append((done, total))
    )
    loads = [policy.load for policy in library.policies]
    assert library.complete_to == task.capacity()
    assert loads == sorted(set(loads))
    assert (loads[0], loads[-1]) == (10.0, task.capacity())
    for lower, upper in itertools.pairwise(library.policies):
        apart = abs(lower.expectation.accuracy - upper.expectation.accuracy)
        assert apart < 0.01 or upper.load - lower.load <= (task.capacity() - 10.0) / 256
    assert [done for done, _ in told] == list(range(1, len(loads) + 1))
    assert all(done <= total for done, total in told)
    assert told[-1][0] == told[-1][1]


def test_how_it_is_computed_makes_no_difference() -> None:
    task = small_task()

    def backwards(solve: Callable[[float], Policy], loads: Iterable[float]) -> Iterable[Policy]:
        return [solve(load) for load in reversed(list(loads))]

    plain = make_library(task, OPTIONS, make_policy, 20.0, 100.0, largest_gap=0.05)
    other = make_library(task, OPTIONS, make_policy, 20.0, 100.0, largest_gap=0.05, run=backwards)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        third = make_library(task, OPTIONS, make_policy, 20.0, 100.0, largest_gap=0.05, run=executor.map)
    for library in (other, third):
        assert [policy.load for policy in library.policies] == [policy.load for policy in plain.policies]
        for ours, theirs in zip(plain.policies, library.policies, strict=True):
            assert (ours.variant == theirs.variant).all()
            assert ours.expectation == theirs.expectation


def test_the_lowest_load_that_covers() -> None:
    task = small_task()
    library = Library(task, OPTIONS)
    for load in (50.0, 20.0, 80.0):
        library = library.added(make_policy(task, OPTIONS, load))
    assert [policy.load for policy in library.policies] == [20.0, 50.0, 80.0]
    for load, found in ((1.0, 20.0), (20.0, 20.0), (20.1, 50.0), (80.0, 80.0)):
        policy = library.covering(load)
        assert policy is not None
        assert policy.load == found
    assert library.covering(80.1) is None
    assert len(library.added(make_policy(task, OPTIONS, 50.0)).policies) == 3


def test_loads_out_of_order_are_refused() -> None:
    with pytest.raises(StrettoError, match="rise from above zero"):
        make_library(small_task(), OPTIONS, make_policy, 50.0, 20.0)
