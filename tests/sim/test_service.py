"""Service laws: how long simulated batches really take, measured from recorded runs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays, Eager, Fixed, Lane, by_application
from stretto.core.profile import NS_PER_MS, NS_PER_S, LatencyProfile, Quantile
from stretto.core.worker import Worker, workers
from stretto.sim.arrivals import Load
from stretto.sim.processes import Uniform
from stretto.sim.residuals import BUCKETS, Measured, Residuals, batches_of_bucket, blended, bucket_of_batch
from stretto.sim.service import Deterministic, Draw, Empirical, Lognormal, Service, service_arrays
from stretto.sim.simulator import Simulation, simulate
from tests.sim.handmade import Handmade, always

POINTS = {
    1: {"mean": 4.0, "p50": 3.5, "p95": 6.0, "p99": 9.0},
    2: {"mean": 5.0, "p50": 4.5, "p95": 7.0, "p99": 9.5},
    4: {"mean": 7.0, "p50": 6.5, "p95": 9.0, "p99": 11.0},
}
DEPLOYMENT = Deployment(
    (Application("a", 100 * NS_PER_MS, (Variant("only", 1.0, (LatencyProfile.measured(POINTS),)),)),), workers(1)
)


def service_times_ns(service: Service | None, draws: int = 1, batch: int = 1, seed: int = 1) -> NDArray[np.int64]:
    """How long `draws` batches of one size took; each waits behind a query of its own that occupies the worker."""
    plan = by_application((Lane("a", (0,), Fixed(0), release=Eager(batch)),))
    arrivals = [
        (0, start_ns + behind, start_ns + NS_PER_S)
        for start_ns in range(0, draws * NS_PER_S, NS_PER_S)
        for behind in [0, *[1] * batch]
    ]
    source = Handmade(arrivals)
    result = simulate(DEPLOYMENT, always(plan), source, seconds=float(draws), service=service, record=True, seed=seed)
    assert result.queries is not None
    behind = result.queries[result.queries["arrival_ns"] % NS_PER_S == 1]
    assert (behind["batch"] == batch).all()
    return (behind["end_ns"] - behind["start_ns"])[::batch]


@pytest.mark.parametrize("quantile", list(Quantile))
@pytest.mark.parametrize("batch", [1, 2, 4])
def test_deterministic_takes_exactly_the_quantile(quantile: Quantile, batch: int) -> None:
    times = service_times_ns(Deterministic(quantile), 3, batch)
    assert times.tolist() == [round(POINTS[batch][quantile.name.lower()] * NS_PER_MS)] * 3


def test_deterministic_by_default_takes_what_decisions_rest_on() -> None:
    assert DEPLOYMENT.quantile is Quantile.P95
    assert service_times_ns(None).tolist() == service_times_ns(Deterministic()).tolist() == [6 * NS_PER_MS]


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0])
def test_lognormal_has_its_mean_and_its_variation(cv: float) -> None:
    times = service_times_ns(Lognormal(cv), 20_000) / NS_PER_MS
    assert times.mean() == pytest.approx(4.0, rel=5 * cv / math.sqrt(20_000))
    assert times.std() / times.mean() == pytest.approx(cv, rel=0.05)
    # Lognormal: the logarithm is symmetric about its mean.
    logs = np.log(times)
    assert np.median(logs) == pytest.approx(logs.mean(), abs=0.03 * logs.std())


def test_lognormal_without_variation_is_the_mean() -> None:
    assert service_times_ns(Lognormal(0.0), 5).tolist() == [4 * NS_PER_MS] * 5


def test_empirical_meets_the_measured_quantiles() -> None:
    times = service_times_ns(Empirical(), 20_000) / NS_PER_MS
    for share, expected in ((0.5, 3.5), (0.95, 6.0), (0.99, 9.0)):
        assert np.quantile(times, share) == pytest.approx(expected, rel=0.03)
    assert times.min() >= 3.5 / 2
    assert times.max() <= 9.0 + (9.0 - 6.0) / 4


def test_empirical_ratios_are_drawn_alike() -> None:
    times = service_times_ns(Empirical((0.5, 1.0, 2.0)), 6_000) / NS_PER_MS
    values, counts = np.unique(times, return_counts=True)
    assert values.tolist() == [2.0, 4.0, 8.0]
    assert np.abs(counts - 2_000).max() < 200


def test_draws_follow_the_seed() -> None:
    assert (
        service_times_ns(Lognormal(0.5), 50, seed=3).tolist() == service_times_ns(Lognormal(0.5), 50, seed=3).tolist()
    )
    assert (
        service_times_ns(Lognormal(0.5), 50, seed=3).tolist() != service_times_ns(Lognormal(0.5), 50, seed=4).tolist()
    )


def test_a_batch_that_is_slower_than_planned_makes_its_queries_late_and_its_successor_wait() -> None:
    """Decisions rest on the median, service takes the p99: nothing is known before it happens."""
    deployment = Deployment(DEPLOYMENT.applications, DEPLOYMENT.workers, Quantile.P50)
    plan = by_application((Lane("a", (0,), Fixed(0), release=Eager(1)),))
    arrivals = [(0, 0, 5 * NS_PER_MS), (0, 1, 30 * NS_PER_MS)]
    result = simulate(
        deployment, always(plan), Handmade(arrivals), seconds=1.0, service=Deterministic(Quantile.P99), record=True
    )
    assert result.queries is not None
    assert result.queries["start_ns"].tolist() == [0, 9 * NS_PER_MS]
    assert result.queries["end_ns"].tolist() == [9 * NS_PER_MS, 18 * NS_PER_MS]
    assert (result.summary.outcomes["late"], result.summary.outcomes["on_time"]) == (1, 1)


def test_rows_follow_variants_and_kinds() -> None:
    """A variant without a profile for a kind leaves its row unused."""
    fast = LatencyProfile.linear(1, 1, 4, "fast")
    slow = LatencyProfile.linear(2, 2, 3, "slow")
    variants = (Variant("both", 1.0, (slow, fast)), Variant("one", 1.0, (fast,)))
    deployment = Deployment(
        (Application("a", 10**9, variants),), (Worker("w0", "slow"), Worker("w1", "fast")), Quantile.MEAN
    )
    arrays = service_arrays(Lognormal(0.3), deployment, 6)
    assert arrays.draw is Draw.LOGNORMAL and arrays.base == Quantile.MEAN
    assert arrays.table.shape == (4, len(Quantile), 6)
    assert arrays.table[0, Quantile.MEAN, 1:4].tolist() == slow.table_ns[Quantile.MEAN, 1:].tolist()
    assert arrays.table[1, Quantile.MEAN, 1:5].tolist() == fast.table_ns[Quantile.MEAN, 1:].tolist()
    assert arrays.table[3, Quantile.MEAN, 1:5].tolist() == fast.table_ns[Quantile.MEAN, 1:].tolist()


def test_service_is_the_same_for_every_load() -> None:
    """The law is about batches, not about where arrivals come from."""
    plan = by_application((Lane("a", (0,), Fixed(0), release=Eager(1)),))
    result = simulate(
        DEPLOYMENT, always(plan), Load(Uniform(), 10.0), seconds=2.0, service=Deterministic(Quantile.P50), record=True
    )
    assert result.queries is not None
    assert set((result.queries["end_ns"] - result.queries["start_ns"]).tolist()) == {round(3.5 * NS_PER_MS)}


@pytest.mark.parametrize("cv", [-0.1, 11.0, math.nan])
def test_a_bad_variation_is_refused(cv: float) -> None:
    with pytest.raises(StrettoError, match="coefficient of variation"):
        Lognormal(cv)


@pytest.mark.parametrize("ratio", [0.0, -1.0, 1000.0, math.nan, math.inf])
def test_a_bad_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(StrettoError, match="ratio"):
        Empirical((1.0, ratio))


def measured(*samples: tuple[int, NDArray[np.float64]]) -> Measured:
    return Measured({("a/only", "default"): Residuals(dict(samples))})


def test_measured_ratios_are_drawn_by_bucket_of_the_batch() -> None:
    random = np.random.default_rng(3)
    single, larger = random.lognormal(0.0, 0.3, 1200), random.lognormal(0.5, 0.1, 1200)
    law = measured((0, single), (2, larger))
    for batch, sample in ((1, single), (4, larger), (2, np.concatenate([single, larger]))):  # 2–3: nothing, so pooled
        drawn = service_times_ns(law, 8_000, batch) / (POINTS[batch]["p95"] * NS_PER_MS)
        assert drawn.mean() == pytest.approx(sample.mean(), rel=0.02)
        wanted = np.quantile(sample, [0.05, 0.5, 0.95, 0.99])
        assert np.quantile(drawn, [0.05, 0.5, 0.95, 0.99]) == pytest.approx(wanted, rel=0.04)
        assert sample.min() * 0.9999 <= drawn.min() and drawn.max() <= sample.max() * 1.0001


def test_one_measured_run_is_always_repeated_and_seeds_are_kept() -> None:
    assert service_times_ns(measured((0, np.array([1.5]))), 5).tolist() == [9 * NS_PER_MS] * 5
    law = measured((0, np.linspace(0.5, 2.0, 50)))
    assert service_times_ns(law, 50, seed=4).tolist() == service_times_ns(law, 50, seed=4).tolist()
    assert service_times_ns(law, 50, seed=4).tolist() != service_times_ns(law, 50, seed=5).tolist()


def test_a_variant_that_hardly_ran_borrows_from_its_kind_else_from_its_profile() -> None:
    other = Measured({("b/other", "default"): Residuals({0: np.array([2.0])})})
    assert service_times_ns(other, 3).tolist() == [12 * NS_PER_MS] * 3
    busy = Residuals({0: np.full(5000, 2.0)})
    hardly_ran = Measured({("a/only", "default"): Residuals({0: np.array([40.0])}), ("b/other", "default"): busy})
    assert np.median(service_times_ns(hardly_ran, 20)) == 12 * NS_PER_MS
    elsewhere = Measured({("a/only", "large"): Residuals({0: np.array([2.0])})})
    assert service_times_ns(elsewhere, 50).tolist() == service_times_ns(Empirical(), 50).tolist()


def test_few_runs_say_where_they_are_and_borrow_how_far_they_spread() -> None:
    random = np.random.default_rng(4)
    many = random.lognormal(0.0, 0.3, 5000)
    lucky = np.full(40, 2.0)  # twice as slow as the others, and by luck all alike
    drawn = blended(np.sort(lucky), np.sort(many))
    assert drawn.mean() == pytest.approx(1.7, abs=0.15)  # 40 of 70 parts of the way, and a sixth of it its own
    assert np.quantile(drawn, 0.95) / np.median(drawn) > 1.3
    assert blended(np.sort(many[:29]), np.sort(many)) == pytest.approx(np.sort(many))  # too few to speak
    assert blended(np.sort(many[:1000]), lucky) == pytest.approx(np.sort(many[:1000]))  # enough to speak alone
    exact = blended(np.ones(40), np.ones(3000))
    assert exact.min() == exact.max() == 1.0


def test_ratios_may_be_to_the_mean() -> None:
    law = replace(measured((0, np.full(2000, 2.0))), row=Quantile.MEAN)
    assert set(service_times_ns(law, 5).tolist()) == {round(2 * POINTS[1]["mean"] * NS_PER_MS)}


def test_handoffs_are_drawn_for_idle_workers_only_and_are_no_part_of_the_run() -> None:
    """The run time that corrects the profile is the worker's own, as it is live."""
    plan = by_application((Lane("a", (0,), Fixed(0), release=Eager(1), delays=Delays(control_ns=NS_PER_MS)),))
    law = Measured({("a/only", "default"): Residuals({0: np.ones(40)})}, np.array([-900_000, 500_000, 2_000_000]))
    arrivals = [(0, second * NS_PER_S + behind, (second + 1) * NS_PER_S) for second in range(900) for behind in (0, 1)]
    run = Simulation(
        DEPLOYMENT, always(plan), Handmade(arrivals), seconds=900.0, service=law, record=True, correction=0.1
    )
    run.run_to(1000 * NS_PER_S)
    queries = run.result().queries
    assert queries is not None
    took_ns = queries["end_ns"] - queries["arrival_ns"] // NS_PER_S * NS_PER_S
    first, second = took_ns[::2], took_ns[1::2]
    drawn, counts = np.unique(first - 7 * NS_PER_MS, return_counts=True)  # the run and the delay of the plan
    assert drawn.tolist() == [-900_000, 500_000, 2_000_000] and counts.min() > 250
    assert (second - first).min() == 6 * NS_PER_MS and (second - first).max() <= 7 * NS_PER_MS  # it waits at the worker
    ratio = run.dispatcher.latency_ratio()[0, 0]
    assert ratio == pytest.approx(1.0, rel=0.12)  # to the p95 of 6 ms that decisions rest on


def test_every_batch_size_finds_its_bucket() -> None:
    assert [bucket_of_batch(size) for size in (1, 2, 3, 4, 7, 8, 4096)] == [0, 1, 1, 2, 2, 3, BUCKETS - 1]
    for size in range(1, 4097):
        assert bucket_of_batch(size) == math.frexp(float(size))[1] - 1  # as the compiled loop finds it
        low, high = batches_of_bucket(bucket_of_batch(size))
        assert low <= size <= high


@pytest.mark.parametrize("sample", [[], [0.0], [math.nan], [1e9], [-1.0]])
def test_residuals_that_are_none_are_refused(sample: list[float]) -> None:
    with pytest.raises(StrettoError, match="ratios between"):
        Residuals({0: np.array(sample)})
    with pytest.raises(StrettoError, match="at least one run"):
        Residuals({})
