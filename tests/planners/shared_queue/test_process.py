"""What an action leads to: chances of arrivals, of being in time, and a small process by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.planners.parts.laws import Gamma, Law, Poisson
from stretto.planners.parts.task import Task
from stretto.planners.shared_queue import process as process_module
from stretto.planners.shared_queue.options import MAX_QUEUE
from stretto.planners.shared_queue.process import WAIT, arrivals_of, in_time, process_of
from stretto.planners.shared_queue.sweeps import in_time_of
from tests.planners.parts.tasks import small_task
from tests.planners.shared_queue.explicit import in_time_at

LAWS = (Poisson(), Gamma(0.5), Gamma(0.1))


@settings(max_examples=60, deadline=None)
@given(law=st.sampled_from(LAWS), means=st.lists(st.floats(1e-4, 300), min_size=1, max_size=5))
def test_chances_sum_to_one_and_keep_the_mean(law: Law, means: list[float]) -> None:
    joining, chances = arrivals_of(law, np.array(means))
    for mean, counts, chance in zip(means, joining, chances, strict=True):
        there = counts >= 0
        assert (chance[there] > 0).all() and (chance[~there] == 0).all()
        assert (np.diff(counts[there]) > 0).all()
        assert chance.sum() == pytest.approx(1.0, abs=1e-12)
        assert chance @ np.maximum(counts, 0) == pytest.approx(mean, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("law", LAWS)
def test_sharing_counts_out_keeps_their_spread_nearly(law: Law) -> None:
    for mean in (2.0, 30.0, 200.0):
        (counts,), (chance,) = arrivals_of(law, np.array([mean]))
        counts = np.maximum(counts, 0)
        variance = chance @ (counts - chance @ counts) ** 2
        assert variance == pytest.approx(mean * law.dispersion, rel=0.08)
        assert len(counts) < 60 * law.dispersion**0.5  # that is what it is for


def test_few_arrivals_are_told_apart_one_by_one() -> None:
    (counts,), (chance,) = arrivals_of(Poisson(), np.array([1.5]))
    assert counts.tolist() == list(range(len(counts)))
    exact = [math.exp(-1.5) * 1.5**k / math.factorial(k) for k in counts]
    assert chance == pytest.approx(exact, abs=1e-6)


def test_without_noise_a_batch_is_in_time_or_not() -> None:
    slack = np.array([0.0, 4.9, 5.0, 5.1])
    assert in_time(slack, np.array([5.0]), 0.0).tolist() == [0.0, 0.0, 1.0, 1.0]


def test_with_noise_the_chance_is_that_of_a_lognormal_factor_of_mean_one() -> None:
    sigma = math.sqrt(math.log1p(0.2**2))
    drawn = np.random.default_rng(3).lognormal(-0.5 * sigma * sigma, sigma, 400_000)
    assert drawn.mean() == pytest.approx(1.0, abs=0.002)
    assert drawn.std() == pytest.approx(0.2, abs=0.002)
    slack = np.array([0.0, 6.0, 8.0, 10.0, 12.0, 20.0])
    found = in_time(slack, np.array([10.0]), 0.2)
    assert found == pytest.approx([(10 * drawn <= s).mean() for s in slack], abs=0.003)
    assert found[0] == 0.0 and (np.diff(found) > 0).all()


def two_variants() -> Task:
    latency = np.array([[0, 10, 15, 0], [0, 20, 40, 70]], np.int64) * 1_000_000
    return Task("app", "default", 60_000_000, 4, ("fast", "slow"), np.array([0.5, 0.9]), latency)


def test_a_small_process_by_hand() -> None:
    p = process_of(two_variants(), Poisson(), load=100.0, workers=4, steps=30)
    assert (p.steps, p.rate) == (30, pytest.approx(0.2))  # a step is 2 ms
    assert p.max_queue == process_module.LEAST_QUEUE  # 0.6 · 100/s · 60 ms are only 3.6
    assert p.variant.tolist() == [WAIT, 0, 0, 1, 1]  # slow does not take three within the SLO, fast never does
    assert p.batch.tolist() == [0, 1, 2, 1, 2]
    assert p.latency == pytest.approx([1.0, 5.0, 7.5, 10.0, 20.0])
    assert p.blocks == pytest.approx([1.0, 1.25, 1.875, 2.5, 5.0])  # a quarter; waiting takes its step
    assert p.accuracy.tolist() == [0.0, 0.5, 0.5, 0.9, 0.9]
    assert p.least == 5
    assert [int(np.argmax(row)) for row in p.on_time[1:]] == [5, 8, 10, 20]
    assert (p.on_time[0] == 0).all()
    assert p.chance[3, :2] == pytest.approx([math.exp(-0.5), 0.5 * math.exp(-0.5)], abs=1e-6)


def test_the_longest_queue_follows_the_load_within_bounds() -> None:
    task = small_task()
    assert process_of(task, Poisson(), 5_000.0, 3, 12).max_queue == 180
    assert process_of(task, Poisson(), 6_000.0, 3, 12, queue_load=5_000.0).max_queue == 180
    assert process_of(task, Poisson(), 1e6, 3, 12).max_queue == MAX_QUEUE


def test_a_part_of_the_pool_is_blocked_for_longer() -> None:
    halves = process_of(small_task(), Poisson(), 50.0, 1.5, 12)
    all_of_it = process_of(small_task(), Poisson(), 50.0, 3, 12)
    assert halves.blocks[1:] == pytest.approx(2 * all_of_it.blocks[1:])
    assert halves.latency == pytest.approx(all_of_it.latency)
    assert halves.blocks[0] == all_of_it.blocks[0] == 1.0


def test_a_margin_is_slack_that_no_batch_may_use() -> None:
    p = process_of(two_variants(), Poisson(), 100.0, 4, 30, margin=0.2)
    assert p.least == 7  # 5 steps are 0.8 of 6.25
    assert [int(np.argmax(row)) for row in p.on_time[1:]] == [7, 10, 13, 25]
    assert p.latency == pytest.approx(process_of(two_variants(), Poisson(), 100.0, 4, 30).latency)


def test_time_has_a_price() -> None:
    p = process_of(two_variants(), Poisson(), 100.0, 4, 30, impatience=0.03)
    assert p.holding == pytest.approx(0.001)  # a whole SLO of waiting costs 0.03
    assert p.running == pytest.approx(0.001 * p.batch * p.latency)


def test_noise_lets_heads_hope_for_longer() -> None:
    sure = process_of(two_variants(), Poisson(), 100.0, 4, 60)
    noisy = process_of(two_variants(), Poisson(), 100.0, 4, 60, noise=0.2)
    assert noisy.least < sure.least == 10
    assert (noisy.on_time[1, 11:20] < 1).any() and noisy.on_time[1, -1] == 1.0


def test_a_batch_of_queries_that_may_be_late() -> None:
    """Three of them stand for all. Chances rise from the head on, so those in between are misjudged by a third each at
    most; over the cells in which an action is open the error is small, and to the cautious side.
    """
    for noise in (0.05, 0.15, 0.3):
        p = process_of(small_task(), Poisson(), 300.0, 3, 60, noise=noise)
        errors = []
        for action in range(1, len(p.batch)):
            size = int(p.batch[action])
            for queued in (size, size + 3, 20, 40):
                for slack in range(p.least, p.steps + 1):
                    chances = in_time_at(p, action, queued, slack, np.arange(size))
                    error = in_time_of(queued, float(slack), size, p.steps, p.on_time[action]) - chances.sum()
                    assert abs(error) <= max(size - 2, 0) / 3 + 1e-12
                    assert chances[0] < 1.0 or error == 0.0
                    if p.on_time[action, slack] > 1e-3:
                        errors.append(error / size)
        assert -0.005 < np.mean(errors) < 1e-4
