"""Partitioning: the greedy placement keeps the limits and balances; workers follow the work."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.partition import PartitionProblem, greedy_partition, keeps_limits, loads_of, partition_problem
from stretto.planners.parts.sharing import expected_work, workers_of_groups


def test_greedy_placement_balances_within_the_limits() -> None:
    draw = np.random.default_rng(2)
    static, dynamic = draw.choice([99.0, 88, 230, 822], 400), draw.choice([2172.0, 1519, 6200], 400)
    asked = PartitionProblem(draw.exponential(100, 400), static, dynamic, 20, max_bytes=6200 + 7000)
    assignment = greedy_partition(asked)
    assert keeps_limits(asked, assignment)
    rates, sizes, _ = loads_of(asked, assignment)
    assert np.ptp(rates) < 0.05 * rates.mean()
    assert np.ptp(sizes) < 0.05 * sizes.mean()
    with pytest.raises(StrettoError, match="no partition keeps within the limits on rate, memory"):
        greedy_partition(PartitionProblem(asked.rates, static, dynamic, 20, max_bytes=6200))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_workers_are_split_by_work(data: st.DataObject) -> None:
    subclusters = data.draw(st.integers(1, 6))
    assignment = data.draw(st.lists(st.integers(0, subclusters - 1), min_size=1, max_size=20))
    work = [data.draw(st.floats(0, 50)) for _ in assignment]
    count = data.draw(st.integers(subclusters, 40))
    parts = workers_of_groups(assignment, work, subclusters, range(100, 100 + count))
    assert sorted(worker for part in parts for worker in part) == list(range(100, 100 + count))
    loads = np.bincount(assignment, weights=work, minlength=subclusters)
    for number, part in enumerate(parts):
        assert bool(part) == (number in assignment)
        # Nobody would gain by a worker from somebody with a lower load even after giving it away.
        for other in range(subclusters):
            if len(parts[other]) > 1 and part:
                assert loads[number] / len(part) <= loads[other] / (len(parts[other]) - 1) + 1e-9


def test_each_subcluster_gets_its_share_of_every_kind() -> None:
    parts = workers_of_groups([0, 1], [2.0, 1.0], 2, range(12))
    assert [len([w for w in part if w < 6]) for part in parts] == [4, 2]
    assert [len(part) for part in parts] == [8, 4]
    with pytest.raises(StrettoError, match="only 1 workers"):
        workers_of_groups([0, 1], [2.0, 1.0], 2, [0])


def test_from_a_view() -> None:
    def application(name: str, memory_bytes: int) -> Application:
        variant = Variant("v", 0.7, (LatencyProfile.linear(1, 4),), memory_bytes, 2 * memory_bytes)
        return Application(name, 16 * NS_PER_MS, (variant,))

    deployment = Deployment((application("a", 10), application("b", 20)), workers(4, memory_bytes=500))
    asked = partition_problem(View(deployment, expected_rates=(100.0, 300.0)), (0, 1), 2)
    np.testing.assert_array_equal(asked.rates, [100, 300])
    np.testing.assert_array_equal(asked.static_bytes, [10, 20])
    np.testing.assert_array_equal(asked.dynamic_bytes, [20, 40])
    assert asked.max_bytes == 500
    work = expected_work(deployment, (0, 1), asked.rates)
    assert work == pytest.approx([100 * 0.002, 300 * 0.002])  # batches of four in 8 ms
    assignment = greedy_partition(asked)
    parts = workers_of_groups(assignment, work, 2, range(4))
    assert len(parts[assignment[1]]) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"rates": np.array([])},
        {"rates": np.array([-1.0, 1])},
        {"static_bytes": np.array([1.0])},
        {"subclusters": 0},
    ],
)
def test_senseless_problems_are_refused(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {
        "rates": np.ones(2),
        "static_bytes": np.ones(2),
        "dynamic_bytes": np.ones(2),
        "subclusters": 2,
    }
    with pytest.raises(StrettoError):
        PartitionProblem(**{**right, **wrong})  # type: ignore[arg-type]
