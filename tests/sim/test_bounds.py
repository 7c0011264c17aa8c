"""Bounds: the analytic figures of Symphony's table 4, known fluid optima, and a grid as a second method."""

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, LatencyProfile, Quantile
from stretto.core.worker import workers
from stretto.planners.slackfit import SlackFit
from stretto.sim.arrivals import Load
from stretto.sim.bounds import (
    fluid_accuracy,
    fluid_goodput,
    fluid_over_time,
    staggered,
    staggered_goodput,
    uncoordinated,
)
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate

RAMSIS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "ramsis_image.csv"
EFFICIENT = (f"efficientnet_{size}" for size in ("b0", "b2", "b3", "b4", "v2_s", "v2_m", "v2_l"))
PARETO = ("shufflenet_v2_x0_5", "mobilenet_v3_large", *EFFICIENT)


def application(name: str, slo_ms: float, *variants: tuple[float, float, float]) -> Application:
    """Variants as (accuracy, alpha_ms, beta_ms)."""
    made = tuple(
        Variant(f"v{number}", accuracy, (LatencyProfile.linear(alpha_ms, beta_ms, 64),))
        for number, (accuracy, alpha_ms, beta_ms) in enumerate(variants)
    )
    return Application(name, round(slo_ms * NS_PER_MS), made)


@pytest.mark.parametrize(
    ("alpha_ms", "beta_ms", "slo_ms", "alone", "together"),
    [(1.053, 5.072, 25, (7, 4501), (16, 5839)), (5.090, 18.368, 70, (3, 713), (8, 1083))],
    ids=["ResNet50", "InceptionResNetV2"],
)
def test_table_4(
    alpha_ms: float, beta_ms: float, slo_ms: int, alone: tuple[int, int], together: tuple[int, int]
) -> None:
    profile = LatencyProfile.linear(alpha_ms, beta_ms)
    for bound, (batch, throughput) in ((uncoordinated, alone), (staggered, together)):
        ideal = bound(profile, slo_ms * NS_PER_MS, 8)
        assert ideal.batch == batch
        assert round(ideal.throughput) == throughput


def test_a_batch_that_takes_all_of_its_budget_is_allowed() -> None:
    """The floor of section 5.2.2 admits equality where equation 2, read strictly, would not."""
    profile = LatencyProfile.linear(1, 4)
    assert staggered(profile, 9 * NS_PER_MS, 8).batch == 4  # (1 + 1/8)·8 ms = 9 ms
    assert staggered(profile, 9 * NS_PER_MS - 1, 8).batch == 3
    assert uncoordinated(profile, 16 * NS_PER_MS, 8).batch == 4
    assert uncoordinated(profile, 16 * NS_PER_MS - 1, 8).batch == 3


def test_no_batch_fits_a_tight_slo() -> None:
    assert staggered(LatencyProfile.linear(1, 4), 5 * NS_PER_MS, 8).throughput == 0
    with pytest.raises(StrettoError, match="at least one worker"):
        staggered(LatencyProfile.linear(1, 4), 5 * NS_PER_MS, 0)


def test_a_measured_profile_is_bounded_by_its_most_efficient_batch() -> None:
    points = {1: {"p95": 10.0}, 2: {"p95": 11.0}, 3: {"p95": 30.0}}
    ideal = uncoordinated(LatencyProfile.measured(points), 60 * NS_PER_MS, 1)
    assert ideal.batch == 2
    assert ideal.throughput == pytest.approx(2 / 0.011)


def test_staggered_goodput_takes_the_fastest_variant() -> None:
    deployment = Deployment((application("a", 25, (0.9, 5, 5), (0.7, 1.053, 5.072)),), workers(8))
    assert staggered_goodput(deployment) == pytest.approx(5839, abs=1)
    assert staggered_goodput(deployment, variants=[0]) == pytest.approx(8 * 3 / 0.020)
    two = Deployment((application("a", 25, (0.9, 5, 5)), application("b", 25, (0.9, 5, 5))), workers(8))
    with pytest.raises(StrettoError, match="one application"):
        staggered_goodput(two)


def ramsis_deployment(models: tuple[str, ...] | None) -> Deployment:
    if not RAMSIS.exists():
        pytest.skip("the measured RAMSIS profiles (shared/data/ramsis_image.csv, beside the repository) are not here")
    points: dict[str, dict[int, dict[str, float]]] = {}
    accuracy: dict[str, float] = {}
    with RAMSIS.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            points.setdefault(row["model"], {})[int(row["batch"])] = {"p95": float(row["p95_ms"])}
            accuracy[row["model"]] = float(row["accuracy"])
    variants = tuple(
        Variant(name, accuracy[name], (LatencyProfile.measured(points[name], max_batch=32),))
        for name in models or tuple(points)
    )
    return Deployment((Application("image", 150 * NS_PER_MS, variants),), workers(60))


@pytest.mark.parametrize(
    ("models", "known"),
    [
        # Found by hand too: at 1,200 q/s 37.149 ms·x + 51.282 ms·y fill 60 workers with x = 109 of b0, y = 1,091 of b2.
        pytest.param(PARETO, {1200: 0.8034, 2000: 0.7588, 2800: 0.7370}, id="nine on the Pareto front"),
        # Of the others, efficientnet_b1 in batches of three helps at 1,200 q/s: the front is one of single queries.
        pytest.param(None, {1200: 0.8037, 2000: 0.7588, 2800: 0.7370}, id="all 26"),
    ],
)
def test_ramsis_image_classification(models: tuple[str, ...] | None, known: dict[int, float]) -> None:
    deployment = ramsis_deployment(models)
    for rate, accuracy in known.items():
        bound = fluid_accuracy(deployment, [rate])
        assert round(bound.accuracy, 4) == accuracy
        assert bound.answered_share == pytest.approx(1)
        assert bound.correct_share == pytest.approx(bound.accuracy)
        assert bound.worker_use == pytest.approx((1,))
        assert sum(row.workers for row in bound.mix) == pytest.approx(60)


def tiny() -> Deployment:
    fast, slow = (
        Application("fast", 30 * NS_PER_MS, (two_kinds("small", 0.6, 2, 6), two_kinds("large", 0.9, 8, 12))),
        Application("slow", 50 * NS_PER_MS, (two_kinds("only", 0.8, 5, 10),)),
    )
    return Deployment((fast, slow), workers(2, "quick") + workers(3, "lame"))


def two_kinds(name: str, accuracy: float, alpha_ms: float, beta_ms: float) -> Variant:
    quick = LatencyProfile.linear(alpha_ms, beta_ms, 16, "quick")
    lame = LatencyProfile.linear(2 * alpha_ms, 1.5 * beta_ms, 16, "lame")
    return Variant(name, accuracy, (quick, lame))


@pytest.mark.parametrize("rates", [(100.0, 50.0), (400.0, 100.0), (900.0, 600.0)])
def test_no_division_of_worker_time_on_a_grid_beats_the_fluid_bound(rates: tuple[float, float]) -> None:
    """Every split of each kind's time among (variant, batch) in twelfths; the best comes close and none is above."""
    deployment = tiny()
    bound = fluid_accuracy(deployment, rates)
    by_kind = []
    for kind, count in (("quick", 2), ("lame", 3)):
        speeds = []
        for variant in range(3):
            slo_ns = deployment.applications[deployment.application_of[variant]].slo_ns
            profile = deployment.profile(variant, kind)
            fitting = [b for b in range(1, 17) if profile.latency_ns(b) <= slo_ns]
            speeds.append(max((b / profile.latency_ns(b) * 1e9 for b in fitting), default=0.0))
        splits = [s for s in itertools.product(range(13), repeat=3) if sum(s) <= 12]
        by_kind.append(np.array(splits) / 12 * count * np.array(speeds))
    answered = by_kind[0][:, None, :] + by_kind[1][None, :, :]
    # Of the first application the more accurate answers count first; what exceeds its rate is not asked.
    large = np.minimum(answered[..., 1], rates[0])
    small = np.minimum(answered[..., 0], rates[0] - large)
    only = np.minimum(answered[..., 2], rates[1])
    best = float((0.9 * large + 0.6 * small + 0.8 * only).max()) / sum(rates)
    assert best <= bound.correct_share + 1e-9
    assert best >= bound.correct_share * 0.95


def test_the_mix_keeps_every_limit() -> None:
    deployment = tiny()
    bound = fluid_accuracy(deployment, (900.0, 600.0))
    assert bound.answered_share < 1
    for kind, count, use in zip(("quick", "lame"), (2, 3), bound.worker_use, strict=True):
        busy = sum(row.workers for row in bound.mix if row.kind == kind)
        assert busy == pytest.approx(use * count)
        assert use <= 1 + 1e-9
    for row in bound.mix:
        profile = deployment.profile(row.variant, row.kind)
        assert profile.latency_ns(row.batch) <= deployment.applications[row.application].slo_ns
        assert row.workers == pytest.approx(row.rate * profile.latency_ns(row.batch) / row.batch / 1e9)


def test_fluid_goodput_is_where_the_last_query_can_be_answered() -> None:
    deployment = tiny()
    total = fluid_goodput(deployment, (3, 1))
    at, above = (fluid_accuracy(deployment, (0.75 * rate, 0.25 * rate)) for rate in (total * 0.999, total * 1.01))
    assert at.worker_use == pytest.approx((1, 1))
    # More correct answers may be had by answering fewer, so only the throughput of the fast variants shows the edge.
    fast_only = fluid_accuracy(deployment, (0.75 * total, 0.25 * total), variants=[0, 2])
    assert fast_only.answered_share == pytest.approx(1)
    assert above.answered_share < 1
    assert fluid_goodput(deployment, (3, 1), variants=[1, 2]) < total


def test_fluid_goodput_of_one_model_is_workers_times_its_best_batch() -> None:
    deployment = Deployment((application("a", 25, (0.7, 1.053, 5.072)),), workers(8))
    assert fluid_goodput(deployment, [1.0]) == pytest.approx(8 * 18 / (1.053 * 18 + 5.072) * 1e3)
    assert fluid_goodput(deployment, [1.0]) > staggered_goodput(deployment)


def test_quantile_changes_the_bound() -> None:
    profile = LatencyProfile.measured({1: {"mean": 10.0, "p95": 20.0}})
    deployment = Deployment((Application("a", 30 * NS_PER_MS, (Variant("v", 0.5, (profile,)),)),), workers(1))
    assert fluid_goodput(deployment, [1]) == pytest.approx(50)
    assert fluid_goodput(deployment, [1], Quantile.MEAN) == pytest.approx(100)


def test_nothing_fits_or_nothing_comes() -> None:
    deployment = Deployment((application("a", 5, (0.7, 1, 5)),), workers(2))
    assert fluid_accuracy(deployment, [10]).answered_share == 0
    assert fluid_goodput(deployment, [1]) == 0
    assert fluid_accuracy(deployment, [0]).mix == ()


@pytest.mark.parametrize("rates", [[1, 2], [-1], [float("nan")]])
def test_bad_rates_are_refused(rates: list[float]) -> None:
    deployment = Deployment((application("a", 50, (0.7, 1, 5)),), workers(2))
    with pytest.raises(StrettoError):
        fluid_accuracy(deployment, rates)
    with pytest.raises(StrettoError):
        fluid_goodput(deployment, rates)


def unequal_fleet() -> Deployment:
    """Two applications on unequal workers: the accurate variant of the second runs on one kind only."""

    def variant(name: str, accuracy: float, **alpha_ms: float) -> Variant:
        profiles = tuple(LatencyProfile.linear(alpha, 2 * alpha, 16, kind) for kind, alpha in alpha_ms.items())
        return Variant(name, accuracy, profiles)

    first = (variant("quick", 0.6, fast=1.0, slow=3.0), variant("good", 0.9, fast=4.0, slow=12.0))
    second = (variant("quick", 0.5, fast=1.0, slow=3.0), variant("good", 0.95, fast=5.0))
    made = (Application("first", 100 * NS_PER_MS, first), Application("second", 60 * NS_PER_MS, second))
    return Deployment(made, workers(2, "fast") + workers(3, "slow"))


def test_a_steady_load_has_the_same_bound_over_time_but_for_what_windows_share() -> None:
    deployment = unequal_fleet()
    rates = np.array([400, 300])
    steady = fluid_accuracy(deployment, rates)
    shares = []
    for window_s in (1, 10, 1000):
        counts = np.tile(rates * window_s, (4, 1))
        bound = fluid_over_time(deployment, counts, window_s)
        longer = fluid_accuracy(deployment, rates * window_s / (window_s + 0.1))
        assert bound.correct_share == pytest.approx(longer.correct_share)
        assert bound.accuracy * bound.answered_share == pytest.approx(bound.correct_share)
        shares.append(bound.correct_share)
    assert shares[0] > shares[1] > shares[2] >= steady.correct_share
    assert shares[2] == pytest.approx(steady.correct_share, abs=1e-3)


def test_windows_are_weighed_by_their_queries_and_a_changing_load_has_less() -> None:
    deployment = unequal_fleet()
    counts = np.array([[100, 0], [9000, 6000], [0, 0]])
    bound = fluid_over_time(deployment, counts, 10.0)
    parts = [fluid_accuracy(deployment, row / 10.1) for row in counts[:2]]
    correct = sum(part.correct_share * row.sum() for part, row in zip(parts, counts, strict=False))
    assert bound.correct_share == pytest.approx(correct / counts.sum())
    assert bound.correct_share < fluid_over_time(deployment, counts.sum(axis=0)[None], 30.0).correct_share


def test_no_run_is_above_the_bound_over_time() -> None:
    deployment = unequal_fleet()
    source = Load(Poisson(), 900.0)
    run = simulate(deployment, SlackFit(), source, seconds=12.0, record=True)
    assert run.queries is not None
    window = run.queries["arrival_ns"] // 2_000_000_000
    counts = np.zeros((6, 2), np.int64)
    np.add.at(counts, (window, run.queries["application"]), 1)
    assert run.summary.correct_on_time <= fluid_over_time(deployment, counts, 2.0).correct_share


@pytest.mark.parametrize(("counts", "window_s"), [(np.zeros((2, 2)), 1.0), (np.ones((2, 2)), 0.0), (np.ones(2), 1.0)])
def test_a_bound_over_time_needs_windows_with_arrivals(counts: np.ndarray, window_s: float) -> None:
    with pytest.raises(StrettoError, match="needs windows"):
        fluid_over_time(unequal_fleet(), counts, window_s)
