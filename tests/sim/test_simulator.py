"""The simulator: every query ends once, records agree with the summary, and planners, faults and chunks do no harm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import OUTCOME_COUNT, Outcome
from stretto.core.plan import (
    Deferred,
    Delays,
    Eager,
    Fixed,
    Lane,
    Late,
    Order,
    Plan,
    Route,
    RouteRule,
    Work,
    Worklist,
    by_application,
)
from stretto.core.profile import NS_PER_MS, NS_PER_S, LatencyProfile
from stretto.core.view import Planner, View, WaitingQuery
from stretto.core.worker import workers
from stretto.planners.clipper import Clipper
from stretto.planners.clockwork import Clockwork
from stretto.planners.fixed_delay import FixedDelay
from stretto.planners.nexus import Nexus
from stretto.planners.symphony import Symphony
from stretto.planning.completion import with_delays
from stretto.sim.arrivals import CHUNK, Load, Mix, Zipf
from stretto.sim.processes import Gamma, Poisson, Uniform
from stretto.sim.results import Result
from stretto.sim.service import Empirical, Lognormal, Service
from stretto.sim.simulator import Fault, FaultKind, Simulation, simulate
from tests.sim.handmade import Handmade, always, linear


def with_network(view: View) -> Plan:
    """Symphony's plan where a batch takes a millisecond to its worker, and each query a tenth of one."""
    return with_delays(Symphony()(view), Delays(NS_PER_MS, NS_PER_MS // 10))


PLANNERS: dict[str, Planner] = {
    "symphony": Symphony(),
    "symphony, delayed": with_network,
    "symphony, batch aware": Symphony(batch_aware=True),
    "work conserving": Symphony(deferred=False),
    "clockwork": Clockwork(),
    "nexus": Nexus(),
    "clipper": Clipper(),
    "fixed delay": FixedDelay(),
}


def three_applications() -> Deployment:
    """Unequal profiles and SLOs on four workers, which keep up with about 600 queries/s."""
    shapes = ((1.0, 5.0, 25), (3.0, 15.0, 80), (0.2, 12.0, 40))
    return Deployment(
        tuple(
            Application(
                f"a{number}", slo_ms * NS_PER_MS, (Variant("v", 0.9, (LatencyProfile.linear(alpha, beta, 32),)),)
            )
            for number, (alpha, beta, slo_ms) in enumerate(shapes)
        ),
        workers(4),
    )


def rows_of(result: Result) -> NDArray[Any]:
    assert result.queries is not None
    return result.queries


def batches_of(rows: NDArray[Any]) -> list[tuple[int, int, int, int]]:
    """(worker, start_ns, end_ns, size) of every batch that ended, in order."""
    answered = rows[(rows["outcome"] >= 0) & (rows["outcome"] <= Outcome.LATE)]
    return sorted({tuple(int(row[name]) for name in ("worker", "start_ns", "end_ns", "batch")) for row in answered})  # type: ignore[misc]


def check_rows(result: Result, deployment: Deployment, unfinished: int = 0) -> None:
    """Conservation, causality and capacity, from the recorded queries; and the summary counts the same."""
    rows, summary = rows_of(result), result.summary
    assert summary.submitted == len(rows)
    assert sum(summary.outcomes.values()) + summary.unfinished == summary.submitted
    assert summary.unfinished == (rows["outcome"] < 0).sum() == unfinished
    for outcome in Outcome:
        assert summary.outcomes[outcome.name.lower()] == (rows["outcome"] == outcome).sum()
    ended, answered = rows[rows["outcome"] >= 0], rows[(rows["outcome"] >= 0) & (rows["outcome"] <= Outcome.LATE)]
    assert (ended["end_ns"] >= ended["arrival_ns"]).all()
    assert (answered["start_ns"] >= answered["arrival_ns"]).all()
    assert (answered["end_ns"] > answered["start_ns"]).all()
    assert ((answered["outcome"] == Outcome.ON_TIME) == (answered["end_ns"] <= answered["deadline_ns"])).all()
    dropped = rows[rows["outcome"] > Outcome.LATE]
    assert ((dropped["start_ns"] == -1) & (dropped["worker"] == -1)).all()
    expired = dropped["outcome"] == Outcome.DROPPED_EXPIRED
    assert (dropped["end_ns"][expired] > dropped["deadline_ns"][expired]).all()
    batches = batches_of(rows)
    assert sum(size for *_, size in batches) == len(answered)
    for (worker, _, end_ns, _), (following, start_ns, _, _) in pairwise(batches):
        assert worker != following or end_ns <= start_ns  # one batch at a time
    owners = np.array(deployment.application_of)
    assert (owners[answered["variant"]] == answered["application"]).all()
    assert [count for count in summary.batch_histogram if count] == [
        count for count in np.bincount([size for *_, size in batches], minlength=1).tolist() if count
    ]


@pytest.mark.parametrize("service", [None, Lognormal(0.4), Empirical()], ids=["exact", "lognormal", "empirical"])
@pytest.mark.parametrize("rate", [200.0, 1500.0], ids=["light", "overload"])
@pytest.mark.parametrize("name", PLANNERS)
def test_every_query_ends_once(name: str, rate: float, service: Service | None) -> None:
    deployment = three_applications()
    deadlines = Mix(deadlines_ns=(20 * NS_PER_MS, 60 * NS_PER_MS))
    source = Load(Gamma(0.3), rate, Zipf(0.9), {"a0": deadlines})
    result = simulate(deployment, PLANNERS[name], source, seconds=2.0, service=service, record=True, seed=3)
    check_rows(result, deployment)
    assert result.summary.submitted > rate
    assert rows_of(result)["arrival_ns"].tolist() == sorted(rows_of(result)["arrival_ns"].tolist())


@pytest.mark.parametrize("name", ["symphony", "symphony, delayed", "work conserving", "clockwork"])
def test_no_infeasible_query_starts_where_the_lane_drops_late_ones(name: str) -> None:
    """With exact service, every answer is then on time."""
    deployment = three_applications()
    result = simulate(deployment, PLANNERS[name], Load(Poisson(), 1500.0), seconds=2.0, record=True)
    check_rows(result, deployment)
    assert result.summary.outcomes["late"] == 0
    assert result.summary.outcomes["dropped_infeasible"] > 0


# -- records and summary ----------------------------------------------------------------------------------------------


def test_records_agree_with_percentiles_and_counts() -> None:
    deployment = three_applications()
    result = simulate(deployment, Symphony(), Load(Poisson(), 700.0), seconds=5.0, service=Lognormal(0.2), record=True)
    rows = rows_of(result)
    for number, summary in enumerate(result.summary.applications):
        own = rows[rows["application"] == number]
        answered = own[own["outcome"] <= Outcome.LATE]
        assert summary.submitted == len(own)
        assert summary.outcomes["on_time"] == (own["outcome"] == Outcome.ON_TIME).sum()
        assert summary.goodput == pytest.approx((own["outcome"] == Outcome.ON_TIME).sum() / 5.0)
        assert summary.variants[0].answered == len(answered)
        for figures, values in (
            (summary.latency_ms, answered["end_ns"] - answered["arrival_ns"]),
            (summary.queueing_ms, answered["start_ns"] - answered["arrival_ns"]),
        ):
            assert figures["mean"] == pytest.approx(values.mean() / 1e6, rel=0.008)
            for share in (50, 95, 99):
                truth = np.quantile(values, share / 100, method="inverted_cdf") / 1e6
                assert figures[f"p{share}"] == pytest.approx(truth, rel=0.008)
    busy = np.zeros(4)
    for worker, start_ns, end_ns, _ in batches_of(rows):
        if end_ns < 5 * NS_PER_S:  # the load is over then; what is still running is not counted
            busy[worker] += end_ns - start_ns
    assert result.summary.worker_busy == pytest.approx((busy / (5 * NS_PER_S)).tolist(), rel=1e-9)


def test_recording_changes_nothing() -> None:
    runs = [
        simulate(three_applications(), Symphony(), Load(Poisson(), 900.0), seconds=2.0, record=record).summary
        for record in (True, False)
    ]
    assert runs[0] == runs[1]


def test_warm_up_is_served_but_not_counted() -> None:
    source = Load(Poisson(), 900.0)
    whole = simulate(three_applications(), Symphony(), source, seconds=3.0, record=True)
    part = simulate(three_applications(), Symphony(), source, seconds=3.0, warmup_s=1.25, record=True)
    assert (rows_of(whole) == rows_of(part)).all()
    counted = rows_of(part)[rows_of(part)["arrival_ns"] >= 1.25 * NS_PER_S]
    assert part.summary.submitted == len(counted) < whole.summary.submitted
    assert part.summary.seconds == 1.75
    for outcome in Outcome:
        assert part.summary.outcomes[outcome.name.lower()] == (counted["outcome"] == outcome).sum()
    assert part.summary.goodput == pytest.approx((counted["outcome"] == Outcome.ON_TIME).sum() / 1.75)
    assert part.latency_histogram.sum() == (counted["outcome"] <= Outcome.LATE).sum()
    late = [size for _, start_ns, _, size in batches_of(rows_of(part)) if start_ns >= 1.25 * NS_PER_S]
    assert sum(part.summary.batch_histogram) == len(late)


def test_seeds_decide() -> None:
    def rows(seed: int) -> NDArray[Any]:
        source = Load(Poisson(), 500.0)
        return rows_of(
            simulate(linear(2), Symphony(), source, seconds=1.0, seed=seed, service=Lognormal(0.5), record=True)
        )

    assert rows(1).tobytes() == rows(1).tobytes() != rows(2).tobytes()


@pytest.mark.parametrize("size", [1, 7, 64])
def test_chunk_boundaries_do_not_matter(size: int) -> None:
    random = np.random.default_rng(4)
    times = np.cumsum(random.integers(0, 4, 500)) * NS_PER_MS  # many arrive together, some across a boundary
    arrivals = [(int(random.integers(0, 3)), int(at), int(at) + 60 * NS_PER_MS) for at in times]
    runs = [
        simulate(three_applications(), Symphony(), Handmade(arrivals, size), seconds=2.0, record=True, sample_s=0.1)
        for size in (size, 10**6)
    ]
    assert (rows_of(runs[0]) == rows_of(runs[1])).all()
    assert runs[0].summary == runs[1].summary
    for one, other in zip(runs[0].samples, runs[1].samples, strict=True):
        assert one.applications == other.applications and one.waiting == other.waiting
    check_rows(runs[0], three_applications())


def test_memory_is_bounded_by_what_waits_and_runs() -> None:
    """300,000 queries through a system that holds some dozens at a time."""
    run = Simulation(
        linear(8, alpha_ms=1.053, beta_ms=5.072, slo_ms=25.0), Symphony(), Load(Poisson(), 4000.0), seconds=75.0
    )
    sizes = []
    for second in (5, 25, 50, 75):
        run.run_to(second * NS_PER_S)
        sizes.append(
            {
                name: array.nbytes
                for name, array in {**run._arrays, **run.dispatcher.memory.arrays}.items()
                if name != "arrivals"
            }
        )
        assert len(run._arrays["arrivals"]) <= CHUNK
    run.run_to(2**62)
    assert run.is_drained
    summary = run.result().summary
    assert summary.submitted > 295_000 and summary.unfinished == 0
    assert all(size == sizes[0] for size in sizes)
    assert len(run.dispatcher.memory["queries"]) <= 1024
    assert len(run._arrays["records"]) == 1


def test_a_burst_finds_room() -> None:
    """More queries at one instant than the dispatcher has slots at first."""
    arrivals = [(0, 0, 10 * NS_PER_S)] * 5000
    result = simulate(linear(1, slo_ms=10_000), Symphony(deferred=False), Handmade(arrivals), seconds=10.0, record=True)
    check_rows(result, linear(1))
    assert result.summary.outcomes["on_time"] == 5000


def test_stepping_shows_the_run_so_far() -> None:
    """The chunk at hand reaches further than the clock, and is not counted before its time."""
    deployment = three_applications()
    run = Simulation(deployment, Symphony(), Load(Poisson(), 900.0), seconds=2.0, record=True)
    assert not run.is_drained
    run.run_to(NS_PER_S)
    halfway = run.result()
    came = rows_of(halfway)
    assert run.now_ns == NS_PER_S and came["arrival_ns"].max() < NS_PER_S
    assert halfway.summary.submitted == len(came)
    reading = run.dispatcher.telemetry(run.now_ns)
    assert halfway.summary.unfinished == reading.waiting + reading.running > 0
    kept = halfway.latency_histogram.copy()
    run.run_to(2**62)
    assert run.is_drained and not run.result().summary.unfinished
    assert (halfway.latency_histogram == kept).all()
    whole = simulate(deployment, Symphony(), Load(Poisson(), 900.0), seconds=2.0, record=True)
    assert (rows_of(run.result()) == rows_of(whole)).all()
    at_once = Simulation(deployment, Symphony(), Load(Poisson(), 900.0), seconds=2.0)
    at_once.run_to(2**62)
    assert at_once.result().summary == run.result().summary == whole.summary


# -- planners ---------------------------------------------------------------------------------------------------------


@dataclass
class Watching:
    """Keeps what it is shown and follows a list of plans, over and over."""

    plans: Sequence[Plan]
    views: list[View] = field(default_factory=list)
    waiting: list[tuple[WaitingQuery, ...]] = field(default_factory=list)

    def __call__(self, view: View) -> Plan:
        self.views.append(view)
        self.waiting.append(view.waiting())
        return self.plans[(len(self.views) - 1) % len(self.plans)]


def test_planners_are_called_on_time_and_told_the_truth() -> None:
    deployment = three_applications()
    planner = Watching([Symphony()(View(deployment))])
    result = simulate(
        deployment,
        planner,
        Load(Poisson(), 900.0),
        seconds=2.0,
        replan_s=0.15,
        sample_s=0.15,
        record=True,
        expected_rates=(1, 2, 3),
    )
    rows = rows_of(result)
    first = planner.views[0]
    assert first.expected_rates == (1, 2, 3) and first.rates is not None and first.rates.tolist() == [1, 2, 3]
    step = 150 * NS_PER_MS
    assert [view.now_ns for view in planner.views[1:14]] == [step * number for number in range(1, 14)]
    assert [view.now_ns for view in planner.views[14:]] == [
        2 * NS_PER_S + step * n for n in range(len(planner.views) - 14)
    ]
    assert [reading.now_ns for reading in result.samples] == [step * number for number in range(1, 14)]
    before = np.zeros((3, OUTCOME_COUNT), np.int64)
    readings = [snapshot.telemetry for snapshot in result.samples]
    for view, waiting, reading in zip(planner.views[1:], planner.waiting[1:], readings, strict=False):
        now = view.now_ns
        came, ended = rows["arrival_ns"] < now, (rows["end_ns"] < now) & (rows["arrival_ns"] < now)
        for number in range(3):
            own = rows["application"] == number
            assert reading.submitted[number] == (came & own).sum()
            counts = np.bincount(rows["outcome"][ended & own], minlength=OUTCOME_COUNT)
            assert (reading.outcomes[number] == counts).all()
        if view is not planner.views[1]:
            assert (view.ended == reading.outcomes - before).all()
        before = reading.outcomes
        assert reading.waiting + reading.running == (came & ~ended).sum()
        assert len(waiting) == reading.waiting == reading.lane_lengths.sum()
        queued = {(query.application, query.arrival_ns, query.deadline_ns) for query in waiting}
        started = (rows["start_ns"] >= 0) & (rows["start_ns"] < now)
        names = ("application", "arrival_ns", "deadline_ns")
        assert queued == {tuple(row) for row in rows[came & ~ended & ~started][list(names)].tolist()}
        assert view.rates is not None
        if now > NS_PER_S + step:  # a whole window was counted
            assert view.rates == pytest.approx([300.0] * 3, rel=0.3)
        elif now < NS_PER_S:
            assert view.rates.tolist() == [1, 2, 3]


def test_a_planner_that_keeps_its_plan_changes_nothing() -> None:
    deployment = three_applications()
    plan = Symphony()(View(deployment))
    source = Load(Poisson(), 900.0)
    calm = simulate(deployment, always(plan), source, seconds=2.0, record=True)
    called = simulate(deployment, always(plan), source, seconds=2.0, record=True, replan_s=0.01, sample_s=0.03)
    assert (rows_of(calm) == rows_of(called)).all()
    assert [reading.now_ns for reading in called.samples] == list(range(30 * NS_PER_MS, 2 * NS_PER_S, 30 * NS_PER_MS))


def other_plans(deployment: Deployment) -> list[Plan]:
    """Plans of different shapes: other lanes, orders, rules and workers."""
    everyone = tuple(range(len(deployment.workers)))
    numbers = range(len(deployment.applications))
    first_come = by_application(
        tuple(Lane(f"fifo{n}", everyone, Fixed(n), Order.FIRST_COME, Eager(4), capacity=40) for n in numbers)
    )
    by_worker = Plan(
        lanes=tuple(
            Lane(f"{n}@{w}", (w,), Fixed(n), late=Late.DROP_WHEN_DISPATCHED) for n in numbers for w in everyone
        ),
        routes=tuple(Route(RouteRule.ROUND_ROBIN, tuple(n * len(everyone) + w for w in everyone)) for n in numbers),
    )
    few = by_application(
        tuple(
            Lane(
                f"few{n}",
                (n, n + 1),
                Fixed(n),
                release=Deferred(),
                late=Late.DROP_WHEN_INFEASIBLE,
                delays=Delays(NS_PER_MS),
            )
            for n in numbers
        )
    )
    return [Symphony()(View(deployment)), first_come, by_worker, few, PLANNERS["clockwork"](View(deployment))]


@pytest.mark.parametrize("rate", [400.0, 1500.0])
def test_adopting_plans_mid_run_loses_nothing(rate: float) -> None:
    deployment = three_applications()
    planner = Watching(other_plans(deployment))
    result = simulate(
        deployment, planner, Load(Gamma(0.4), rate), seconds=2.0, replan_s=0.007, sample_s=0.05, record=True
    )
    check_rows(result, deployment)
    assert len(planner.views) >= 286 and result.samples
    for reading in (snapshot.telemetry for snapshot in result.samples):
        assert reading.submitted.sum() == reading.outcomes.sum() + reading.waiting + reading.running


def test_adopting_a_plan_while_nothing_waits_is_harmless() -> None:
    """An equal but new plan at every moment in which the lanes happen to be empty or not: first come first served
    without lateness rules leaves no room for a different decision."""
    deployment = linear(2)
    lane = Lane("a", (0, 1), Fixed(0), Order.FIRST_COME, Eager(1))
    source = Load(Poisson(), 200.0)
    calm = simulate(deployment, always(by_application((lane,))), source, seconds=2.0, record=True)
    renewed = Watching([by_application((lane,)) for _ in range(7)])
    restless = simulate(deployment, renewed, source, seconds=2.0, record=True, replan_s=0.003)
    assert (rows_of(calm)[["start_ns", "end_ns"]] == rows_of(restless)[["start_ns", "end_ns"]]).all()


def test_progress_goes_from_zero_to_one() -> None:
    shares: list[float] = []
    simulate(linear(1), Symphony(), Load(Poisson(), 10.0), seconds=1.0, progress=shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) == 100


# -- worklists --------------------------------------------------------------------------------------------------------


def worklist(works: tuple[Work, ...], late: Late = Late.KEEP) -> Plan:
    return by_application((Lane("a", (0, 1), Worklist(works), late=late),))


@pytest.mark.parametrize("replan_s", [None, 0.05])
def test_a_run_ends_although_queries_never_run(replan_s: float | None) -> None:
    planner = Watching([worklist(())])
    result = simulate(linear(2), planner, Load(Uniform(), 100.0), seconds=1.0, replan_s=replan_s, record=True)
    check_rows(result, linear(2), unfinished=100)
    assert rows_of(result)["end_ns"].tolist() == [-1] * 100


def test_worklist_queries_that_expire_end() -> None:
    planner = always(worklist((), Late.DROP_WHEN_INFEASIBLE))
    result = simulate(linear(2), planner, Load(Uniform(), 100.0), seconds=1.0, replan_s=0.05, record=True)
    check_rows(result, linear(2))
    assert result.summary.outcomes["dropped_expired"] == 100


def test_a_window_planner_is_called_until_all_is_done() -> None:
    """Every 20 ms it forms batches of up to five from what waits, in turn for two workers."""

    def planner(view: View) -> Plan:
        tickets = [query.ticket for query in view.waiting()]
        groups = [tuple(tickets[first : first + 5]) for first in range(0, len(tickets), 5)]
        return worklist(tuple(Work(number % 2, 0, group) for number, group in enumerate(groups)))

    result = simulate(linear(2), planner, Load(Poisson(), 300.0), seconds=1.0, replan_s=0.02, record=True)
    check_rows(result, linear(2))
    rows = rows_of(result)
    assert result.summary.outcomes["on_time"] + result.summary.outcomes["late"] == len(rows)
    assert max(size for *_, size in batches_of(rows)) == 5
    assert (rows["start_ns"] // (20 * NS_PER_MS) > rows["arrival_ns"] // (20 * NS_PER_MS)).all()


def test_a_planner_sees_the_evidence_of_what_waits_and_may_answer_with_it() -> None:
    """Every fourth query has no evidence and is run; the others end when the planner first sees them."""
    deployment = replace(linear(2), applications=(replace(linear(2).applications[0], evidence_accuracy=0.5),))
    evidence = np.tile([0.25, 0.75, np.nan], (100, 1))
    evidence[::4] = np.nan
    seen: dict[int, tuple[float, ...] | None] = {}

    def planner(view: View) -> Plan:
        waiting = view.waiting()
        seen.update({query.tag: query.theta for query in waiting})
        works = tuple(Work(0, 0, (query.ticket,)) for query in waiting if query.theta is None)
        answers = tuple(query.ticket for query in waiting if query.theta is not None)
        return by_application((Lane("a", (0, 1), Worklist(works, answers)),))

    arrivals = Load(Uniform(), 100.0)
    result = simulate(deployment, planner, arrivals, seconds=1.0, replan_s=0.02, record=True, evidence=evidence)
    assert seen == {tag: (0.25, 0.75) if tag % 4 else None for tag in range(100)}
    rows, summary = rows_of(result), result.summary
    assert (summary.answered_by_evidence, summary.outcomes["on_time"], summary.unfinished) == (75, 100, 0)
    by_evidence = rows["variant"] < 0
    assert (by_evidence == (np.arange(100) % 4 > 0)).all() and (rows["worker"][by_evidence] == -1).all()
    assert (rows["end_ns"] % (20 * NS_PER_MS) == 0)[by_evidence].all()
    accuracy = deployment.variants[0].accuracy
    assert summary.accuracy == pytest.approx(0.25 * accuracy + 0.75 * 0.5)
    assert summary.applications[0].answered_by_evidence == 75


@dataclass(frozen=True)
class WithClasses:
    """Handmade arrivals of these classes, in chunks of three."""

    arrivals: Handmade
    classes: tuple[int, ...]

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[np.void]]:
        first = 0
        for chunk in self.arrivals.chunks(deployment, seconds, seed):
            chunk["query_class"] = self.classes[first : first + len(chunk)]
            first += len(chunk)
            yield chunk

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        return self.arrivals.expected_rates(deployment, seconds)


@pytest.mark.parametrize("evidence_ms", [0, 3, 12])
def test_evidence_takes_time(evidence_ms: int) -> None:
    """One worker, batches of one and 10 ms each, a lane for each of two classes and one for those of no class: a query
    runs on the variant of its class where it was told before it began, as a naive loop has it.
    """
    profile = LatencyProfile.linear(0, 10, 1)
    application = Application("a", 10**9, tuple(Variant(name, 0.9, (profile,)) for name in ("none", "one", "two")))
    deployment = Deployment((application,), workers(1))
    times_ms = [0, 1, 2, 8, 9, 40, 48, 49, 50, 75]
    classes = (0, 1, 0, -1, 1, 0, 1, 1, 0, 0)
    source = WithClasses(Handmade([(0, t * NS_PER_MS, 10**10 + t) for t in times_ms], 3), classes)
    lanes = tuple(Lane(str(number), (0,), Fixed(number), release=Eager(1)) for number in range(3))
    plan = Plan(lanes, (Route(RouteRule.BY_CLASS, (0, 1, 2), targets=(1, 2)),))
    result = simulate(
        *(deployment, always(plan), source),
        seconds=1.0,
        record=True,
        delays=Delays(evidence_ns=evidence_ms * NS_PER_MS),
    )
    rows = rows_of(result)
    assert rows["query_class"].tolist() == list(classes), "what is recorded is the class itself"
    free_ms = 0
    for place, (came_ms, query_class) in enumerate(zip(times_ms, classes, strict=True)):  # the earliest deadline first
        start_ms = max(came_ms, free_ms)
        is_told = query_class >= 0 and (came_ms + evidence_ms < start_ms or evidence_ms == 0)
        assert (rows["variant"][place], rows["start_ns"][place]) == (
            query_class + 1 if is_told else 0,
            start_ms * NS_PER_MS,
        )
        free_ms = start_ms + 10


def test_a_planner_does_not_see_evidence_before_it_is_there() -> None:
    deployment = linear(2)
    evidence = np.tile([0.25, 0.75], (100, 1))
    seen: list[tuple[int, bool]] = []

    def planner(view: View) -> Plan:
        seen.extend((view.now_ns - query.arrival_ns, query.theta is not None) for query in view.waiting())
        return by_application((Lane("a", (0, 1), Worklist()),))

    delays = Delays(evidence_ns=7 * NS_PER_MS)
    simulate(deployment, planner, Load(Poisson(), 100.0), seconds=0.5, replan_s=0.02, evidence=evidence, delays=delays)
    assert len(seen) > 100 and all(is_there == (age_ns > 7 * NS_PER_MS) for age_ns, is_there in seen)


# -- faults -----------------------------------------------------------------------------------------------------------


def away(worker: int, left_s: float, joined_s: float) -> list[Fault]:
    return [Fault(left_s, worker, FaultKind.LEFT), Fault(joined_s, worker, FaultKind.JOINED)]


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("rate", [300.0, 1200.0])
def test_lost_workers_lose_no_query(name: str, rate: float) -> None:
    deployment = three_applications()
    absences = [(0, 0.30, 0.70), (1, 0.50, 0.90), (0, 1.10, 1.15), (2, 1.12, 1.50), (3, 1.20, 1.30), (1, 1.25, 1.40)]
    faults = [fault for absence in absences for fault in away(*absence)]
    result = simulate(
        deployment,
        PLANNERS[name],
        Load(Gamma(0.4), rate),
        seconds=2.0,
        service=Lognormal(0.3),
        record=True,
        faults=faults,
        replan_s=0.4,
    )
    check_rows(result, deployment)
    for worker, left_s, joined_s in absences:
        for number, start_ns, end_ns, _ in batches_of(rows_of(result)):
            assert number != worker or end_ns < left_s * NS_PER_S or start_ns >= joined_s * NS_PER_S


def test_several_things_at_one_instant() -> None:
    """What one fault decided was forgotten when another event came at the same instant, and its batches never ended."""
    deployment = three_applications()
    faults = [fault for worker in (0, 1, 2) for fault in away(worker, 0.5, 1.0)]
    planner = Watching(other_plans(deployment))
    same_instants: dict[str, Any] = {"replan_s": 0.5, "sample_s": 0.25}
    for arguments in ({}, same_instants):
        result = simulate(
            deployment,
            planner if arguments else Symphony(deferred=False),
            Load(Poisson(), 1200.0),
            seconds=2.0,
            record=True,
            faults=faults,
            **arguments,
        )
        check_rows(result, deployment)
        at_work = {worker for worker, start_ns, _, _ in batches_of(rows_of(result)) if start_ns > 1.2 * NS_PER_S}
        assert at_work == {0, 1, 2, 3}


def test_a_query_of_a_lost_worker_runs_again_elsewhere() -> None:
    arrivals = [(0, 0, 50 * NS_PER_MS)]
    faults = [Fault(0.003, 0, FaultKind.LEFT)]
    plan = Symphony(deferred=False)
    result = simulate(linear(2), plan, Handmade(arrivals), seconds=1.0, record=True, faults=faults)
    row = rows_of(result)[0]
    assert (row["worker"], row["start_ns"], row["end_ns"]) == (1, 3 * NS_PER_MS, 9 * NS_PER_MS)
    assert result.summary.worker_busy == pytest.approx((0.0, 0.006))
    # Too late to begin again (l(1) is 6 ms): it failed, whatever the lane does with those that come too late.
    faults = [Fault(0.003, 0, FaultKind.LEFT)]
    arrivals = [(0, 0, 8 * NS_PER_MS)]
    result = simulate(linear(2), plan, Handmade(arrivals), seconds=1.0, record=True, faults=faults)
    assert (rows_of(result)["outcome"].tolist(), rows_of(result)["end_ns"].tolist()) == (
        [Outcome.FAILED],
        [3 * NS_PER_MS],
    )
    keeps = always(by_application((Lane("a", (0, 1), Fixed(0)),)))
    result = simulate(linear(2), keeps, Handmade(arrivals), seconds=1.0, record=True, faults=faults)
    assert rows_of(result)["outcome"].tolist() == [Outcome.FAILED]


def test_without_any_worker_queries_are_dropped_or_wait() -> None:
    faults = [Fault(0.0, worker, FaultKind.LEFT) for worker in (0, 1)]
    source = Load(Uniform(), 50.0)
    result = simulate(linear(2), Symphony(), source, seconds=1.0, record=True, faults=faults)
    check_rows(result, linear(2))
    assert result.summary.outcomes["dropped_infeasible"] == 50
    keeps = always(by_application((Lane("a", (0, 1), Fixed(0)),)))
    result = simulate(linear(2), keeps, source, seconds=1.0, record=True, faults=faults)
    check_rows(result, linear(2), unfinished=50)
    back = [*faults, Fault(0.5, 1, FaultKind.JOINED)]
    result = simulate(linear(2), keeps, source, seconds=1.0, record=True, faults=back)
    check_rows(result, linear(2))
    assert {worker for worker, *_ in batches_of(rows_of(result))} == {1}


# -- bad input --------------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {"seconds": 1.0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": 0.0}, "between 0 and"),
        ({"seconds": -1.0}, "between 0 and"),
        ({"seconds": math.nan}, "between 0 and"),
        ({"seconds": 1e9}, "between 0 and"),
        ({"warmup_s": 1.0}, "shorter than the run"),
        ({"warmup_s": -0.1}, "shorter than the run"),
        ({"warmup_s": math.nan}, "shorter than the run"),
        ({"replan_s": 0.0}, "replan interval"),
        ({"replan_s": math.nan}, "replan interval"),
        ({"sample_s": -1.0}, "sample interval"),
        ({"sample_s": math.inf}, "sample interval"),
        ({"correction": 1.0}, "correction"),
        ({"faults": [Fault(-0.1, 0, FaultKind.LEFT)]}, "cannot leave or join at -0.1 s"),
        ({"faults": [Fault(1.5, 0, FaultKind.LEFT)]}, "the run lasts 1.0 s"),
        ({"faults": [Fault(math.nan, 0, FaultKind.LEFT)]}, "cannot leave or join"),
        ({"faults": [Fault(0.5, 2, FaultKind.LEFT)]}, "worker number 2 is outside 0 … 1"),
        ({"faults": [Fault(0.5, -1, FaultKind.JOINED)]}, "worker number -1 is outside"),
    ],
)
def test_bad_input_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(StrettoError, match=message):
        simulate(linear(2), Symphony(), Load(Poisson(), 10.0), **(RUN | arguments))


def test_a_bad_plan_is_refused() -> None:
    plan = by_application((Lane("a", (0, 7), Fixed(0)),))
    with pytest.raises(StrettoError, match="worker outside"):
        simulate(linear(2), always(plan), Load(Poisson(), 10.0), seconds=1.0)
    turns = Watching([by_application((Lane("a", (0,), Fixed(0)),)), replace(plan, planner="bad")])
    with pytest.raises(StrettoError, match="worker outside"):
        simulate(linear(2), turns, Load(Poisson(), 10.0), seconds=1.0, replan_s=0.5)
