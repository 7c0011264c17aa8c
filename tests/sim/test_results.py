"""Results: a small run whose every figure was worked out by hand, and files that follow the seed to the byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.core.application import Application, Penalty, Variant
from stretto.core.deployment import Deployment
from stretto.core.outcome import OUTCOME_COUNT, Outcome
from stretto.core.plan import Eager, Fixed, Lane, Late, Plan, Route, RouteRule
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.planners.symphony import Symphony
from stretto.report.tables import run_table
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.results import Result, Tallies, empty_tallies, summarise
from stretto.sim.service import Lognormal
from stretto.sim.simulator import simulate
from tests.sim.handmade import Handmade, always, linear

# Application a has two variants: fast, l(b) = 2b + 2 ms, and good, l(b) = 5b + 5 ms. Application b: l(b) = 2b + 2 ms.
FAST = Variant("fast", 0.5, (LatencyProfile.linear(2, 2, 8),))
GOOD = Variant("good", 0.9, (LatencyProfile.linear(5, 5, 8),))
ONLY = Variant("only", 0.8, (LatencyProfile.linear(2, 2, 8),))
DEPLOYMENT = Deployment(
    (Application("a", 20 * NS_PER_MS, (FAST, GOOD)), Application("b", 10 * NS_PER_MS, (ONLY,))), workers(3)
)
# A worker for each variant; queries of a take turns; a keeps late queries and b drops them; b never batches.
PLAN = Plan(
    lanes=(
        Lane("a fast", (0,), Fixed(0)),
        Lane("a good", (1,), Fixed(1)),
        Lane("b", (2,), Fixed(2), release=Eager(1), late=Late.DROP_WHEN_INFEASIBLE),
    ),
    routes=(Route(RouteRule.ROUND_ROBIN, (0, 1)), Route(RouteRule.BY_APPLICATION, (2,))),
    planner="by hand",
)
# (application, arrival, deadline) in ms                 lane     runs      ends as
ARRIVALS_MS = (
    (0, 0, 20),  #                                       fast     0 … 4     on time
    (1, 0, 10),  #                                       b        0 … 4     on time
    (0, 1, 21),  #                                       good     1 … 11    on time
    (1, 1, 11),  #                                       b        never     infeasible just after 7
    (0, 2, 22),  #                                       fast     4 … 10    on time, in a batch of two
    (1, 2, 9),  #                                        b        4 … 8     on time: the earlier deadline
    (0, 3, 20),  #                                       good     11 … 21   late
    (0, 3, 23),  #                                       fast     4 … 10    on time
    (1, 3, 6),  #                                        b        never     infeasible at the door
    (1, 12, 11),  #                                      b        never     expired at the door
)


def by_hand(record: bool = True, deployment: Deployment = DEPLOYMENT) -> Result:
    arrivals = [
        tuple(value if place == 0 else value * NS_PER_MS for place, value in enumerate(one)) for one in ARRIVALS_MS
    ]
    return simulate(deployment, always(PLAN), Handmade(arrivals), seconds=1.0, record=record)  # type: ignore[arg-type]


def test_every_query_ends_as_worked_out() -> None:
    queries = by_hand().queries
    assert queries is not None
    late, infeasible, expired = Outcome.LATE, Outcome.DROPPED_INFEASIBLE, Outcome.DROPPED_EXPIRED
    assert queries["outcome"].tolist() == [0, 0, 0, infeasible, 0, 0, late, 0, infeasible, expired]
    ms = NS_PER_MS
    assert queries["start_ns"].tolist() == [0, 0, 1 * ms, -1, 4 * ms, 4 * ms, 11 * ms, 4 * ms, -1, -1]
    ends = [4 * ms, 4 * ms, 11 * ms, 7 * ms + 1, 10 * ms, 8 * ms, 21 * ms, 10 * ms, 3 * ms, 12 * ms]
    assert queries["end_ns"].tolist() == ends
    assert queries["variant"].tolist() == [0, 2, 1, -1, 0, 2, 1, 0, -1, -1]
    assert queries["worker"].tolist() == [0, 2, 1, -1, 0, 2, 1, 0, -1, -1]
    assert queries["batch"].tolist() == [1, 1, 1, 0, 2, 1, 1, 2, 0, 0]
    assert queries["application"].tolist() == [one[0] for one in ARRIVALS_MS]


def test_figures_of_the_whole_run() -> None:
    summary = by_hand().summary
    assert (summary.planner, summary.seed, summary.seconds) == ("by hand", 1, 1.0)
    assert summary.submitted == 10 and summary.unfinished == 0
    assert summary.outcomes == {
        "on_time": 6,
        "late": 1,
        "dropped_infeasible": 2,
        "dropped_expired": 1,
        "dropped_overload": 0,
        "dropped_cancelled": 0,
        "failed": 0,
    }
    assert summary.goodput == 6.0
    assert summary.bad_rate == pytest.approx(0.4)
    assert summary.on_time_rate == pytest.approx(0.6)
    assert summary.accuracy == pytest.approx((3 * 0.5 + 0.9 + 2 * 0.8) / 6)  # per on-time answer
    assert summary.correct_on_time == pytest.approx((3 * 0.5 + 0.9 + 2 * 0.8) / 10)  # per query
    assert summary.batch_histogram == (0, 5, 1)
    assert summary.batch_mean == pytest.approx(7 / 6)
    assert summary.worker_busy == pytest.approx((0.010, 0.020, 0.008))
    assert summary.worker_use == pytest.approx(0.038 / 3)
    assert summary.worst_bad_rate == pytest.approx(0.6)  # of b


def test_figures_by_application_and_variant() -> None:
    a, b = by_hand().summary.applications
    assert (a.name, a.slo_ms, a.submitted, a.goodput) == ("a", 20.0, 5, 4.0)
    assert a.bad_rate == pytest.approx(0.2)
    assert a.accuracy == pytest.approx(0.6)
    assert a.correct_on_time == pytest.approx(0.48)
    assert a.batch_mean == pytest.approx(1.25)
    # Latencies 4, 10, 8, 18, 7 ms and queueing 0, 0, 2, 8, 1 ms, each within a bucket of the histogram.
    assert a.latency_ms == pytest.approx({"mean": 9.4, "p50": 8.0, "p95": 18.0, "p99": 18.0}, rel=0.008)
    assert a.queueing_ms == pytest.approx({"mean": 2.2, "p50": 1.0, "p95": 8.0, "p99": 8.0}, rel=0.008)
    fast, good = a.variants
    assert (fast.name, fast.answered, fast.share, fast.batch_mean) == ("fast", 3, 0.6, 1.5)
    assert (good.name, good.answered, good.share, good.batch_mean) == ("good", 2, 0.4, 1.0)
    assert (b.submitted, b.goodput, b.outcomes["on_time"]) == (5, 2.0, 2)
    assert b.bad_rate == pytest.approx(0.6)
    assert b.accuracy == pytest.approx(0.8)
    assert b.correct_on_time == pytest.approx(0.32)
    assert b.variants[0].share == 1.0


@pytest.mark.parametrize("penalty", list(Penalty))
def test_a_late_answer_is_worth_what_its_lateness_leaves(penalty: Penalty) -> None:
    """By hand: the only late answer, of good, comes 1 ms after a deadline of 17 ms."""
    late = 1 / 17
    kept = {Penalty.STEP: 0.0, Penalty.LINEAR: 1 - late, Penalty.SIGMOID: 1 - 1 / (1 + (late / (1 - late)) ** -3)}
    called = replace(DEPLOYMENT.applications[0], penalty=penalty)
    summary = by_hand(deployment=replace(DEPLOYMENT, applications=(called, DEPLOYMENT.applications[1]))).summary
    a, b = summary.applications
    assert a.utility == pytest.approx((3 * 0.5 + 0.9 + kept[penalty] * 0.9) / 5)
    assert b.utility == b.correct_on_time and a.correct_on_time == pytest.approx(0.48)
    assert summary.utility == pytest.approx((5 * a.utility + 5 * b.utility) / 10)
    figures = [cell for column in run_table(summary, "").columns for cell in column.cells]
    assert ("utility, late answers by their penalty" in figures) == (penalty is not Penalty.STEP)


def test_withdrawn_queries_are_not_held_against_anybody() -> None:
    """And what is neither ended nor counted is unfinished."""
    counts = np.zeros((2, OUTCOME_COUNT), dtype=np.int64)
    counts[0, [Outcome.ON_TIME, Outcome.LATE, Outcome.DROPPED_CANCELLED, Outcome.FAILED]] = (6, 1, 4, 1)
    tallies = Tallies(
        submitted=np.array([14, 0]),
        **{**empty_tallies(DEPLOYMENT, 10), "counts": counts, "variant_counts": np.array([[4, 1], [2, 0], [0, 0]])},
    )
    summary = summarise(tallies, DEPLOYMENT, seconds=2.0, planner="", seed=1, worker_busy=np.zeros(3))
    a, b = summary.applications
    assert a.unfinished == summary.unfinished == 2
    assert a.goodput == 3.0
    assert a.bad_rate == pytest.approx(1 - 6 / 10)
    assert a.correct_on_time == pytest.approx((4 * 0.5 + 2 * 0.9) / 10)
    assert [variant.share for variant in a.variants] == pytest.approx([5 / 7, 2 / 7])
    # Nobody called b: it neither fails nor succeeds.
    assert (b.bad_rate, b.on_time_rate, b.accuracy, b.correct_on_time, b.batch_mean) == (0.0, 1.0, 0.0, 0.0, 0.0)
    assert summary.worst_bad_rate == a.bad_rate


def test_a_run_without_a_query_has_no_bad_rate() -> None:
    summary = simulate(linear(1), Symphony(), Load(Poisson(), 1e-3), seconds=0.1).summary
    assert summary.submitted == 0
    assert summary.worst_bad_rate == summary.bad_rate == summary.goodput == 0.0
    assert summary.batch_histogram == (0,)


def test_the_summary_is_plain_data() -> None:
    plain = by_hand().summary.as_dict()
    assert plain["applications"][0]["variants"][0]["name"] == "fast"
    assert plain["outcomes"]["late"] == 1


def saved(path: Path, seed: int, record: bool = True) -> bytes:
    source = Load(Poisson(), 800.0)
    result = simulate(
        linear(2, 2), Symphony(), source, seconds=1.0, seed=seed, service=Lognormal(0.3), record=record, replan_s=0.3
    )
    result.save(path)
    return path.read_bytes()


@pytest.mark.parametrize("record", [True, False])
def test_the_same_seed_gives_the_same_bytes(tmp_path: Path, record: bool) -> None:
    first = saved(tmp_path / "first.npz", 5, record)
    assert saved(tmp_path / "second.npz", 5, record) == first
    assert saved(tmp_path / "third.npz", 6, record) != first


def test_a_saved_file_holds_the_arrays(tmp_path: Path) -> None:
    result = by_hand()
    result.save(tmp_path / "run.npz")
    assert result.queries is not None
    with np.load(tmp_path / "run.npz") as file:
        for name in result.queries.dtype.names or ():
            assert (file[name] == result.queries[name]).all()
        assert (file["latency_histogram"] == result.latency_histogram).all()
        assert file["batch_histogram"].tolist() == [0, 5, 1]
        assert file["outcome_names"].tolist() == [outcome.name.lower() for outcome in Outcome]
        assert file["outcome_names"][file["outcome"][3]] == "dropped_infeasible"


def test_a_file_without_records_holds_no_query(tmp_path: Path) -> None:
    result = by_hand(record=False)
    result.save(tmp_path / "run.npz")
    assert result.queries is None
    with np.load(tmp_path / "run.npz") as file:
        assert sorted(file.files) == ["batch_histogram", "latency_histogram", "outcome_names", "queueing_histogram"]
