"""λ of a lane against what really came: a rolling window, silence, and readings that change nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stretto.core.plan import RouteRule
from stretto.dispatch.dispatcher import Dispatcher
from tests.dispatch.small import FAR, GATHER, deployed, lane, planned

WINDOW = 8_000_000  # eight buckets of a millisecond


def counting(window_ns: int = WINDOW) -> Dispatcher:
    return Dispatcher(deployed(), planned(lane(release=GATHER, capacity=1), rate_window_ns=window_ns))


def rate(dispatcher: Dispatcher, now_ns: int) -> float:
    return float(dispatcher.telemetry(now_ns).lane_rates[0])


def test_nothing_came_and_one_came() -> None:
    made = counting()
    assert rate(made, 10**9) == 0.0
    made.submit(10**9, 0, FAR)
    assert rate(made, 10**9) == 0.0
    assert rate(made, 2 * 10**9) == 0.0


def test_in_the_first_window_the_gaps_are_counted() -> None:
    made = counting()
    for number in range(11):
        made.submit(5_000_000 + number * 100_000, 0, FAR)
    assert rate(made, 6_000_000) == pytest.approx(10_000.0)
    assert rate(made, 7_000_000) == pytest.approx(5_000.0)  # and the silence after them


@pytest.mark.parametrize("true_rate", [2_000.0, 50_000.0, 1_000_000.0])
def test_the_estimate_against_the_truth(true_rate: float) -> None:
    """Poisson arrivals: the estimate is a count over the window, so it is off by about one in the root of the count."""
    chance = random.Random(5)
    made, now = counting(), 0.0
    seen = []
    for number in range(6000):
        now += chance.expovariate(true_rate) * 1e9
        made.submit(int(now), 0, FAR)
        if number > 1000 and number % 500 == 0:
            seen.append(rate(made, int(now)))
    count = min(true_rate * WINDOW / 1e9, 1000)
    for value in seen:
        assert abs(value / true_rate - 1) < 5 / count**0.5


def test_the_window_forgets_bucket_by_bucket() -> None:
    made = counting()
    for number in range(8):  # ten in each millisecond
        for place in range(10):
            made.submit(number * 1_000_000 + place * 100_000, 0, FAR)
    last = 8_000_000
    made.submit(last, 0, FAR)  # the ninth begins, and the first is forgotten
    assert rate(made, last) == pytest.approx(71 / 7e-3)
    for passed, left in ((1, 61), (3, 41), (6, 11), (7, 1)):
        assert rate(made, last + passed * 1_000_000) == pytest.approx(left / 7e-3), passed
    assert rate(made, last + 8_000_000) == 0.0
    assert rate(made, last + 80_000_000_000) == 0.0


def test_a_query_after_a_pause_is_counted_where_it_came() -> None:
    """Regression: it was counted into the bucket before the pause, and forgotten with it."""
    for pause in (3_000_000, 500_000_000):
        made = counting()
        for number in range(100):
            made.submit(number * 100_000, 0, FAR)
        came = 9_900_000 + pause
        made.submit(came, 0, FAR)
        # 6.6 ms later everything before the pause has left the window, and this one has not.
        assert rate(made, came + 6_600_000) == pytest.approx(1 / 7.5e-3), pause


def test_reading_changes_no_decision() -> None:
    """Regression: a reading renewed the estimate that the rules use, so that looking changed what was done."""
    quiet, watched = counting(), counting()
    for number in range(500):
        now = number * 37_000
        for made in (quiet, watched):
            made.submit(now, 0, FAR)
        watched.telemetry(now + 20_000)
        assert quiet.memory["meters"][1]["rate"] == watched.memory["meters"][1]["rate"]


def test_each_lane_has_its_own_rate_and_refused_queries_count() -> None:
    lanes = tuple(lane(name, release=GATHER, capacity=1) for name in "ab")
    made = Dispatcher(deployed(), planned(*lanes, rule=RouteRule.BY_CLIENT, targets=(0, 1), rate_window_ns=WINDOW))
    for number in range(400):
        made.submit(number * 100_000, 0, FAR, client=0 if number % 4 else 1)
    first, second = made.telemetry(40_000_000).lane_rates
    assert first == pytest.approx(7500, rel=0.05)
    assert second == pytest.approx(2500, rel=0.05)


BUCKET = WINDOW / 8


def dispersion(gaps_ns: np.ndarray, lump: int = 1) -> float:
    """Of so many arrivals at once after each gap, as the dispatcher measures it."""
    made = counting()
    for time_ns in np.cumsum(gaps_ns).astype(np.int64).tolist():
        for _ in range(lump):
            made.submit(time_ns, 0, FAR)
    (found,) = made.telemetry(time_ns).dispersion  # type: ignore[misc]
    return float(found)


def test_the_dispersion_of_arrivals_is_the_variance_of_their_counts_over_the_mean() -> None:
    """Forty arrivals in a bucket, 1,200 buckets: 1 for independent ones, 1/shape for gamma gaps, 8 for eight at once, 0
    for even gaps.
    """
    rng = np.random.default_rng(3)
    mean, count = BUCKET / 40, 48_000
    assert dispersion(rng.exponential(mean, count)) == pytest.approx(1.0, abs=0.2)
    assert dispersion(rng.gamma(0.25, mean / 0.25, count)) == pytest.approx(4.0, rel=0.2)
    assert dispersion(rng.exponential(8 * mean, count // 8), lump=8) == pytest.approx(8.0, rel=0.2)
    assert dispersion(np.full(count, mean)) < 0.1


def test_the_dispersion_does_not_see_a_load_that_moves() -> None:
    """Independent arrivals at a load that rises and falls fivefold within 400 buckets; counts themselves have 20 times
    the variance.
    """
    rng = np.random.default_rng(4)
    now, gaps = 0.0, []
    while now < 1200 * BUCKET:
        gaps.append(rng.exponential(BUCKET / (60 + 40 * np.sin(2 * np.pi * now / (400 * BUCKET)))))
        now += gaps[-1]
    assert dispersion(np.array(gaps)) == pytest.approx(1.0, abs=0.2)


def test_without_arrivals_and_at_the_first_ones_the_dispersion_is_that_of_independent_arrivals() -> None:
    assert counting().telemetry(10**9).dispersion.tolist() == [1.0]  # type: ignore[union-attr]
    assert dispersion(np.full(3, BUCKET / 100)) == 1.0  # the first bucket has not ended
    assert dispersion(np.full(150, BUCKET / 100)) == 1.0  # and there is none before it
