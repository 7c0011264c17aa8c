"""The planner that follows verdicts: which one is in force at a load, and promises that are not kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import pytest

from stretto.core.check import check_plan
from stretto.core.client import Client, Network
from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Plan, Table, Worklist
from stretto.core.profile import NS_PER_S
from stretto.core.verdict import Candidate, Verdict
from stretto.core.view import Planner, View, WaitingQuery
from stretto.core.worker import workers
from stretto.planners.candidates import make
from stretto.planners.judged.ledger import RUNG, RUNG_OF_SEVERAL
from stretto.planners.judged.planner import ENOUGH, MOST_PLANNERS, Judged
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate
from stretto.twin.judge import judge
from tests.planners.parts.tasks import small_deployment
from tests.twin.libraries import verdict
from tests.twin.settings import Steady, two_kinds

CANDIDATES = (
    Candidate("priced", (("caution", 0.9), ("margin", 0.0))),
    Candidate("priced", (("caution", 1.2), ("margin", 0.5))),
    Candidate("jellyfish_plus"),
)
MINUTES = count(1)
START = Candidate("shared_queue", (("caution", 1.0),))  # for one application with several variants


@dataclass
class OnTheSpot:
    """Judges when it is asked; `is_busy`: not before it is told to."""

    candidates: Sequence[Candidate] = CANDIDATES
    is_busy: bool = False
    levels: tuple[float, float] = (1.0, 1.0)
    asked: list[tuple[float, ...]] = field(default_factory=list)
    waiting: list[tuple[Deployment, tuple[float, ...]]] = field(default_factory=list)
    broken_ones: list[tuple[Verdict, float]] = field(default_factory=list)
    followed: list[tuple[float, ...]] = field(default_factory=list)
    before: Sequence[Verdict] = ()

    def known(self, deployment: Deployment) -> Sequence[Verdict]:
        return self.before

    def ask(self, deployment: Deployment, rates: tuple[float, ...]) -> None:
        self.asked.append(rates)
        self.waiting.append((deployment, rates))

    def collect(self, deployment: Deployment) -> Sequence[Verdict]:
        if self.is_busy:
            return ()
        waiting, self.waiting = self.waiting, []
        return [
            replace(judge(deployment, Steady(rates), rates, candidates=self.candidates), levels=self.levels)
            for whose, rates in waiting
            if whose is deployment
        ]

    def follows(self, rates: tuple[float, ...]) -> None:
        self.followed.append(rates)

    def broken(self, verdict: Verdict, late: float) -> None:
        self.broken_ones.append((verdict, late))


def at_load(planner: Judged, deployment: Deployment, *rates: float, on_time: int = 0, late: int = 0) -> Plan:
    """A minute has passed under this load, so that it counts in full, and so many queries ended."""
    view = View(deployment, next(MINUTES) * 60 * NS_PER_S, np.array(rates))
    ended = view.ended.copy()
    ended[0, Outcome.ON_TIME] = on_time
    ended[0, Outcome.LATE] = late
    plan = planner(replace(view, ended=ended))
    check_plan(plan, deployment)
    return plan


def with_clients(deployment: Deployment, now_ns: int, count: int, counted: float) -> View:
    network = Network(1e6, 0)
    name = deployment.applications[0].name
    clients = tuple(Client(slot, f"{slot}", now_ns, network, application=name, rate=15.0) for slot in range(count))
    return View(deployment, now_ns, np.array([counted]), clients=lambda: clients)


def test_the_load_of_a_client_that_came_counts_at_once() -> None:
    """A fourth client of 15/s beside three looks like chance in a count of half a second; it used to count five
    seconds later, and a variant that was judged for three served four until then. What comes while it is counted in
    part is judged by nobody.
    """
    deployment, port = small_deployment(3), OnTheSpot(candidates=CANDIDATES[2:])
    planner = Judged(judge=port)
    tenth = NS_PER_S // 10
    for step in range(50):
        planner(with_clients(deployment, step * tenth, 3, 45.0))
    assert [rates[0] for rates in port.asked] == pytest.approx([45.0])
    for step in range(50, 60):
        planner(with_clients(deployment, step * tenth, 4, min(60.0, 45.0 + 3.0 * (step - 50))))
    assert [rates[0] for rates in port.asked] == pytest.approx([45.0, 60.0])
    verdict = planner.in_force()
    assert verdict is not None and verdict.rates == pytest.approx((60.0,))


def test_clients_that_change_places_are_no_change_of_the_load() -> None:
    deployment, port = small_deployment(3), OnTheSpot(candidates=CANDIDATES[2:])
    planner = Judged(judge=port)
    for step in range(100):  # a count that wavers, with as many clients as ever
        planner(with_clients(deployment, step * NS_PER_S // 10, 40 + step % 3, 600.0 + 150.0 * (step % 2)))
    assert len(port.asked) == 1


def test_without_a_judge_the_start_candidate_serves() -> None:
    deployment = small_deployment(3)
    planner = Judged()
    plan = at_load(planner, deployment, 100.0)
    assert planner.in_force() is None
    assert plan.planner == START.planner
    assert at_load(Judged(start=Candidate("jellyfish_plus")), deployment, 100.0).planner == "jellyfish+"


def test_the_start_candidate_serves_until_there_is_a_verdict() -> None:
    deployment, port = small_deployment(3), OnTheSpot(is_busy=True, candidates=CANDIDATES[2:])
    planner = Judged(judge=port)
    assert at_load(planner, deployment, 100.0).planner == START.planner
    assert at_load(planner, deployment, 100.0).planner == START.planner
    assert set(port.asked) == {(100.0,)}, "after a minute without an answer it is asked for the same"
    port.is_busy = False
    assert at_load(planner, deployment, 100.0).planner != START.planner
    verdict = planner.in_force()
    assert verdict is not None and verdict.candidate.planner in {candidate.planner for candidate in CANDIDATES}


def test_a_verdict_that_was_known_serves_from_the_start_and_is_judged_all_the_same() -> None:
    deployment = small_deployment(3)
    known = [judge(deployment, Steady((load,)), (load,), candidates=CANDIDATES[2:]) for load in (30.0, 100.0)]
    port = OnTheSpot(is_busy=True, before=known)
    planner = Judged(judge=port)
    assert at_load(planner, deployment, 0.0).planner == "priced", "what was judged at other loads says nothing"
    assert at_load(planner, deployment, 25.0).planner == "jellyfish+" and planner.in_force() == known[0]
    assert at_load(planner, deployment, 100.0).planner == "jellyfish+" and planner.in_force() == known[1]
    asked = [rates[0] for rates in port.asked]
    assert asked == pytest.approx([25.0, 100.0]), "it is no answer under what is measured here"
    port.is_busy, port.candidates = False, CANDIDATES[:1]
    assert at_load(planner, deployment, 100.0).planner == "priced"
    assert planner.in_force() not in known


def test_a_load_that_moves_is_judged_once_for_all_its_levels() -> None:
    deployment, port = small_deployment(3), OnTheSpot(levels=(0.4, 5.0))
    planner = Judged(judge=port)
    for load in (100.0, 250.0, 40.0, 480.0):
        at_load(planner, deployment, load)
    assert port.asked == [(100.0,)]
    verdict = planner.in_force()
    at_load(planner, deployment, 30.0)
    assert len(port.asked) == 2, "it never moved as far down as that"
    assert planner.in_force() is not verdict


def test_a_load_that_moves_alone_is_judged_anew_when_another_application_is_called() -> None:
    deployment, port = two_kinds(), OnTheSpot(levels=(0.4, 5.0))
    planner = Judged(judge=port)
    for load in (100.0, 250.0):
        at_load(planner, deployment, load, 0.0)
    assert len(port.asked) == 1
    at_load(planner, deployment, 250.0, 50.0)
    assert len(port.asked) == 2


def test_a_load_that_moves_is_held_to_its_promise_at_all_its_levels() -> None:
    deployment, port = small_deployment(3), OnTheSpot(levels=(0.4, 5.0))
    planner = Judged(judge=port)
    at_load(planner, deployment, 100.0)
    for load in (250.0, 40.0, 250.0, 40.0):
        at_load(planner, deployment, load, on_time=ENOUGH // 4, late=ENOUGH // 8)
    assert len(port.broken_ones) == 1


def test_nothing_is_asked_while_nothing_comes() -> None:
    port = OnTheSpot()
    planner = Judged(judge=port)
    assert at_load(planner, small_deployment(3), 0.0).planner == "priced"
    assert not port.asked


def test_the_nearest_verdict_serves_until_the_right_one_is_there() -> None:
    deployment, port = small_deployment(3), OnTheSpot(candidates=CANDIDATES[:1])
    planner = Judged(judge=port)
    for load in (50.0, 500.0):
        at_load(planner, deployment, load)
    low, high = port.asked
    port.is_busy = True
    for load, nearest in ((90.0, low), (400.0, high), (30.0, low), (900.0, high)):
        at_load(planner, deployment, load)
        verdict = planner.in_force()
        assert verdict is not None and verdict.rates == nearest
    for load in (1.0, 160.0, 1e5):
        plan = at_load(planner, deployment, load)
        assert planner.in_force() is None and plan.planner == START.planner, "none is near"
    port.is_busy = False
    at_load(planner, deployment, 100.0)
    verdict = planner.in_force()
    assert verdict is not None and verdict.rates[0] == pytest.approx(100.0, rel=RUNG / 2 - 0.5 + 0.01)


def test_an_application_that_is_hardly_called_makes_no_verdict_far() -> None:
    deployment, port = two_kinds(), OnTheSpot()
    planner = Judged(judge=port)
    at_load(planner, deployment, 400.0, 2.0)
    verdict = planner.in_force()
    assert verdict is not None
    port.is_busy = True
    at_load(planner, deployment, 400.0, 20.0)
    assert planner.in_force() is verdict
    at_load(planner, deployment, 400.0, 200.0)
    assert planner.in_force() is None, "by now it is a third of the load"


def test_rungs_are_near_the_load_and_left_only_when_it_is_well_beyond() -> None:
    deployment, port = small_deployment(3), OnTheSpot(candidates=CANDIDATES[:1])
    planner = Judged(judge=port)
    at_load(planner, deployment, 20.0)
    assert port.asked == [(20.0,)]
    rung = RUNG ** round(math.log(20.0, RUNG))
    for steps in (0.55, -0.55, 0.0, 0.59):  # half a rung and a little more
        at_load(planner, deployment, rung * RUNG**steps)
    assert port.asked == [(20.0,)]
    at_load(planner, deployment, rung * RUNG**0.65)
    assert port.asked[1:] == [(pytest.approx(rung * RUNG**0.65),)]
    at_load(planner, deployment, rung * RUNG**0.45)
    assert len(port.asked) == 2, "on the way back it stays as well"
    verdict = planner.in_force()
    assert verdict is not None and verdict.rates == port.asked[1]


def test_several_applications_are_told_apart_each_by_its_own_load() -> None:
    deployment, port = two_kinds(), OnTheSpot(candidates=CANDIDATES[:1], is_busy=True)
    planner = Judged(judge=port)
    at_load(planner, deployment, 300.0, 100.0)
    for _ in range(2):  # the first count may be chance
        at_load(planner, deployment, 300.0, 100.0 * RUNG_OF_SEVERAL**1.2)
    (first, second), (same, other) = port.asked[0], port.asked[-1]
    assert same == pytest.approx(first) and other > second
    assert (first, second) == (300.0, 100.0)


def test_the_judge_is_told_which_of_its_verdicts_is_in_force() -> None:
    deployment, port = small_deployment(3), OnTheSpot(candidates=CANDIDATES[2:], before=[verdict(101.0)])
    planner = Judged(judge=port)
    port.is_busy = True
    at_load(planner, deployment, 100.0)
    assert not port.followed, "it did not judge what was known before"
    port.is_busy = False
    for rate in (100.0, 200.0, 200.0, 100.0):
        at_load(planner, deployment, rate)
    assert [rates[0] for rates in port.followed] == pytest.approx([100.0, 200.0, 100.0])


def test_another_deployment_begins_anew() -> None:
    port = OnTheSpot()
    planner = Judged(judge=port)
    at_load(planner, small_deployment(3), 100.0)
    port.is_busy = True
    at_load(planner, small_deployment(4), 100.0)
    assert planner.in_force() is None and len(port.asked) == 2


def test_a_promise_that_is_not_kept_is_told_and_the_runner_up_serves() -> None:
    deployment, port = small_deployment(3), OnTheSpot()
    planner = Judged(judge=port)
    at_load(planner, deployment, 100.0)
    before = planner.in_force()
    assert before is not None and before.candidate != before.runner_up and before.promise.late < 0.01
    at_load(planner, deployment, 100.0, on_time=ENOUGH // 2, late=ENOUGH // 4)
    assert not port.broken_ones and planner.in_force() == before, "too few to say so"
    port.is_busy = True
    at_load(planner, deployment, 100.0, on_time=ENOUGH // 2, late=ENOUGH // 4)
    ((verdict, late),) = port.broken_ones
    assert verdict == before and late == pytest.approx(1 / 3)
    after = planner.in_force()
    assert after is not None and (after.candidate, after.runner_up) == (before.runner_up, before.candidate)
    assert after.promise.late == pytest.approx(1 / 3), "no more is expected of it"
    at_load(planner, deployment, 100.0)
    assert len(port.asked) == 2 and port.asked[0] == port.asked[1], "the rung is judged anew"
    assert planner.in_force() == after
    port.is_busy = False
    at_load(planner, deployment, 100.0)
    assert planner.in_force() is not None and planner.in_force() != after


def test_a_promise_broken_by_half_is_answered_at_once_by_another_planner() -> None:
    deployment, port = small_deployment(3), OnTheSpot()
    planner = Judged(judge=port)
    at_load(planner, deployment, 100.0)
    before = planner.in_force()
    assert before is not None and before.promise.late < 0.01
    assert before.runner_up.planner != before.candidate.planner, "there is a candidate of another planner"
    at_load(planner, deployment, 100.0, on_time=100, late=100)
    assert not port.broken_ones and planner.in_force() == before, "half of them, which is not more than half"
    at_load(planner, deployment, 100.0, late=100)
    after = planner.in_force()
    assert len(port.broken_ones) == 1 and after is not None and after.candidate == before.runner_up


def test_a_promise_that_is_kept_stands() -> None:
    deployment, port = small_deployment(3), OnTheSpot()
    planner = Judged(judge=port)
    at_load(planner, deployment, 100.0)
    verdict = planner.in_force()
    assert verdict is not None
    late = round((verdict.promise.late + 0.01) * ENOUGH)
    for _ in range(3):
        at_load(planner, deployment, 100.0, on_time=ENOUGH - late, late=late)
    assert not port.broken_ones and planner.in_force() == verdict and len(port.asked) == 1


def test_a_promise_is_not_broken_by_two_batches_that_were_late() -> None:
    """They are up to 64 queries of 2,000, and were taken for as many accidents."""
    deployment, port = small_deployment(3, slo_ms=120.0, max_batch=32), OnTheSpot(candidates=CANDIDATES[2:])
    planner = Judged(judge=port)
    at_load(planner, deployment, 100.0)
    for late, is_broken in ((62, False), (200, True)):
        at_load(planner, deployment, 100.0, on_time=ENOUGH - late, late=late)
        assert bool(port.broken_ones) == is_broken


def test_what_was_late_at_another_load_does_not_count() -> None:
    deployment, port = small_deployment(3), OnTheSpot(candidates=CANDIDATES[:2])
    planner = Judged(judge=port)
    at_load(planner, deployment, 100.0)
    at_load(planner, deployment, 100.0, on_time=ENOUGH // 2, late=ENOUGH // 2 - 1)
    at_load(planner, deployment, 300.0, on_time=1)
    at_load(planner, deployment, 100.0, on_time=ENOUGH - 1)
    assert not port.broken_ones


def test_candidates_keep_their_planner_up_to_a_bound() -> None:
    deployment = small_deployment(3)
    planner = Judged()
    at_load(planner, deployment, 100.0)
    kept = planner._planners[START]
    at_load(planner, deployment, 101.0)
    assert planner._planners[START] is kept
    for number in range(MOST_PLANNERS + 3):
        planner._planner(Candidate("priced", (("caution", 1.0 + number / 100),)))
    assert len(planner._planners) == MOST_PLANNERS and START not in planner._planners


def test_it_follows_a_load_that_changes() -> None:
    """As a planner in a simulation: what was judged best is served, and few queries are lost on the way."""
    deployment, port = small_deployment(3), OnTheSpot()
    planner = Judged(judge=port)
    run = simulate(
        deployment, planner, Load(Poisson(), 200.0), seconds=20, seed=5, replan_s=0.1, expected_rates=(200.0,)
    ).summary
    assert run.on_time_rate > 0.97 and run.accuracy > 0.7
    assert 1 <= len(port.asked) <= 8 and not port.broken_ones


class Listening(Judged):
    """Remembers the loads that candidates were told."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.loads: list[float] = []

    def _plan(self, view: View, wanted: Candidate) -> Plan:
        assert view.rates is not None
        self.loads.append(float(view.rates[0]))
        return super()._plan(view, wanted)


def test_a_load_that_differs_by_chance_is_not_planned_for_anew_and_a_change_is_at_once() -> None:
    """100/s is 50 in half a second, and chance is 21 of them up or down."""
    planner, deployment = Listening(), small_deployment(3)
    random = np.random.default_rng(3)
    for number in range(100):
        planner(View(deployment, number * NS_PER_S // 10, np.array([100.0 + random.uniform(-30, 30)])))
    assert np.std(planner.loads[50:]) < 4 < np.std(random.uniform(-30, 30, 50))
    assert np.mean(planner.loads[50:]) == pytest.approx(100.0, abs=5)
    planner(View(deployment, 10 * NS_PER_S, np.array([200.0])))
    assert planner.loads[-1] == 200.0


def test_a_load_that_has_settled_is_judged_again_once_and_then_served_as_judged() -> None:
    """The first count was 4% too low, within the rung; 4 s later the mean is known to 2%."""
    port = OnTheSpot()
    planner, deployment = Listening(judge=port), small_deployment(3)
    planner(View(deployment, 0, np.array([4_800.0])))
    for number in range(1, 101):
        planner(View(deployment, number * NS_PER_S // 10, np.array([5_000.0 + 40 * (-1) ** number])))
    assert len(port.asked) == 2 and port.asked[0] == (4_800.0,)
    assert port.asked[1][0] == pytest.approx(5_000, rel=0.01)
    assert set(planner.loads[-20:]) == {port.asked[1][0]}, "what it wavers by is no other load"


def test_a_judged_plan_comes_with_the_latencies_it_was_judged_with() -> None:
    deployment = small_deployment(3)
    (verdict,) = [judge(deployment, Steady((100.0,)), (100.0,), candidates=CANDIDATES[:1])]
    ratios = tuple((1.3,) for _ in deployment.variants)
    planner = Judged(judge=OnTheSpot(is_busy=True, before=[replace(verdict, ratios=ratios)]))
    assert at_load(planner, deployment, 100.0).ratios == ratios
    far = tuple((99.0,) for _ in deployment.variants)
    planner = Judged(judge=OnTheSpot(is_busy=True, before=[replace(verdict, ratios=far)]))
    assert at_load(planner, deployment, 100.0).ratios == tuple((16.0,) for _ in deployment.variants)
    planner = Judged(judge=OnTheSpot(is_busy=True, before=[verdict]))
    assert at_load(planner, deployment, 100.0).ratios is None


def test_a_load_of_few_queries_is_counted_for_longer() -> None:
    """Four seconds of 100/s are known to a tenth, and waver by as much; twenty by less than half of that."""
    spread = {}
    for rate in (100.0, 10_000.0):
        planner, deployment = Listening(), small_deployment(3)
        random = np.random.default_rng(7)
        for number in range(600):
            counted = random.normal(rate, np.sqrt(2 * rate))  # of half a second
            planner(View(deployment, number * NS_PER_S // 10, np.array([counted])))
        spread[rate] = np.std(planner.loads[300:]) / np.sqrt(rate)
    assert spread[100.0] < 0.7 * spread[10_000.0]


def test_a_load_that_begins_is_judged_when_it_was_counted_for_a_window() -> None:
    """What a tenth of a second tells is a tenth off, and would be the slow mean's start. The start candidate has it."""
    port = OnTheSpot()
    planner, deployment = Listening(judge=port), small_deployment(3)
    for number, rate in enumerate((0.0, 5_600.0, 4_500.0, 5_200.0, 5_080.0, 5_000.0, 5_010.0)):
        planner(View(deployment, number * NS_PER_S // 10, np.array([rate])))
        if number < 5:
            assert not port.asked
    assert len(port.asked) == 1 and port.asked[0][0] == pytest.approx(5_000.0, rel=0.01)


def test_before_the_first_look_at_a_load_nothing_runs_for_long() -> None:
    """Taken for none it had the slowest variants on all workers, and near saturation what gathered behind them stayed:
    0.2 points at 100% of capacity within 500 ms.
    """
    deployment = small_deployment(3, slo_ms=1000.0, max_batch=64)
    planner, longest = Judged(), []
    for now_ns, counted in ((0, 0.0), (NS_PER_S // 10, 0.0), (NS_PER_S // 5, 400.0)):
        table = planner(View(deployment, now_ns, np.array([counted]))).lanes[0].select
        assert isinstance(table, Table)
        runs = [
            deployment.variants[variant].profiles[0].latency_ns(int(max(size, 1)), deployment.quantile)
            for variant, size in zip(table.variant[1:].flat, table.batch[1:].flat, strict=True)
        ]
        longest.append(max(runs))
    assert longest[0] <= 100_000_000 < min(longest[1:])


def swapping() -> Deployment:
    """Two applications on a worker that holds one of them."""
    (application,) = small_deployment(1).applications
    variants = tuple(replace(each, memory_bytes=100, load_ns=20 * NS_PER_S // 1000) for each in application.variants)
    pair = tuple(replace(application, name=name, variants=variants) for name in ("a", "b"))
    return Deployment(pair, workers(1, memory_bytes=100))


def right_from_the_start(deployment: Deployment, planner: Planner, load: float) -> float:
    """Of all queries of the first two seconds."""
    rates = (0.0,) * len(deployment.applications)
    source = Load(Poisson(), load)
    run = simulate(deployment, planner, source, seconds=2.0, seed=5, replan_s=0.1, expected_rates=rates)
    return run.summary.correct_on_time


def test_one_application_is_served_by_tables_for_its_load_until_there_is_a_verdict() -> None:
    """By `priced`, 1 to 12 points fewer were right."""
    ladder = small_deployment(8, slo_ms=150.0, max_batch=32)
    priced = right_from_the_start(ladder, make(Candidate("priced")), 700.0)
    assert right_from_the_start(ladder, Judged(), 700.0) > priced + 0.05


def test_workers_that_must_load_variants_are_not_served_by_such_tables() -> None:
    """They reckon with no loading: a quarter of the queries of three applications was lost until the verdict."""
    (application,) = swapping().applications[:1]
    alone = Deployment((replace(application, slo_ns=150_000_000),), workers(1, memory_bytes=100))
    priced = right_from_the_start(alone, make(Candidate("priced")), 60.0)
    assert right_from_the_start(alone, Judged(), 60.0) > priced - 0.01
    assert at_load(Judged(), alone, 60.0).planner == at_load(Judged(), swapping(), 30.0, 30.0).planner == "priced"


def test_a_schedule_by_windows_is_made_for_what_waits_each_time() -> None:
    """It was kept for 90 ms where clients are known, and so were the queries of 90 ms."""
    deployment = swapping()
    planner = Judged(start=Candidate("sneakpeek"))
    name = deployment.applications[0].name
    clients = (Client(0, "camera", 0, Network(), application=name, rate=15.0),)
    for ticket in range(4):
        now_ns = NS_PER_S + ticket * 20_000_000
        waiting = (WaitingQuery(ticket, 0, now_ns, now_ns + deployment.applications[0].slo_ns, 0, -1, 0),)
        view = View(deployment, now_ns, clients=lambda: clients, waiting=lambda waiting=waiting: waiting)  # type: ignore[misc]
        worklist = planner(view).lanes[0].select
        assert isinstance(worklist, Worklist) and [work.tickets for work in worklist.works] == [(ticket,)]


def test_a_known_schedule_by_windows_serves_only_where_variants_are_swapped() -> None:
    windows = Candidate("sneakpeek")
    for deployment, is_taken in ((swapping(), True), (two_kinds(), False)):
        rates = (20.0,) * len(deployment.applications)
        known = replace(verdict(*rates), candidate=windows)
        planner = Judged(judge=OnTheSpot(is_busy=True, before=(known,)))
        at_load(planner, deployment, *rates)
        assert (planner.in_force() is not None) is is_taken
        assert not planner.may_use_evidence(deployment), "there is none"


def test_where_a_known_plan_cannot_be_made_the_start_candidate_serves() -> None:
    """It was judged before another application came, and needs a worker for each of them."""
    alone = small_deployment(1)
    other = replace(alone.applications[0], name="other")
    both = replace(alone, applications=(*alone.applications, other))
    known = replace(verdict(20.0, 0.0), candidate=Candidate("jellyfish_plus"), ratios=())
    planner = Judged(judge=OnTheSpot(is_busy=True, before=(known,)))
    assert at_load(planner, both, 20.0, 0.0).planner == "priced"
    assert planner.in_force() == known


def test_it_may_use_evidence_where_variants_are_swapped() -> None:
    deployment = swapping()
    with_evidence = replace(
        deployment, applications=tuple(replace(each, evidence_accuracy=0.8) for each in deployment.applications)
    )
    assert Judged().may_use_evidence(with_evidence)
    roomy = replace(with_evidence, workers=workers(1))
    assert not Judged().may_use_evidence(roomy)
