"""Planners that know nothing of classes, made data-aware through the Plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment, with_evidence
from stretto.core.errors import StrettoError
from stretto.core.plan import (
    Accumulate,
    Deferred,
    Delays,
    Fixed,
    Lane,
    MostAccurate,
    Plan,
    Route,
    RouteRule,
    Table,
    by_application,
)
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import Planner, View, WaitingQuery
from stretto.core.worker import Worker, workers
from stretto.planners.data_aware import DataAware, alike, disguise
from stretto.planners.judged.planner import Judged
from stretto.planners.priced import Priced
from stretto.planners.ramsis.planner import Ramsis
from stretto.planners.registry import ENTRIES, planner_entry
from stretto.planners.sneakpeek.planner import SneakPeek
from stretto.planners.symphony import Symphony
from stretto.planning.served import served_session
from stretto.sim.arrivals import Load, Mix
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate

SMALL = Variant("small", 0.75, (LatencyProfile.linear(1, 4),), recall=(0.95, 0.94, 0.36), memory_bytes=10)
LARGE = Variant("large", 0.85, (LatencyProfile.linear(3, 12),), recall=(0.9, 0.9, 0.75), memory_bytes=10)
TOLD = Application("told", 100 * NS_PER_MS, (SMALL, LARGE), classes=3)
PLAIN = Application("plain", 100 * NS_PER_MS, (Variant("only", 0.9, (LatencyProfile.linear(1, 4),), memory_bytes=10),))
SERVED = Deployment((PLAIN, TOLD), workers(2))
SMALL_NUMBER, LARGE_NUMBER = 1, 2


def test_classes_for_which_variants_differ_alike_are_one_kind() -> None:
    recall, even = np.array([SMALL.recall, LARGE.recall]), np.ones(3)
    assert alike(recall, even, 2).tolist() == [0, 0, 1]
    assert alike(recall, even, 3).tolist() == [0, 1, 2]
    assert alike(recall, even, 1).tolist() == [0, 0, 0]
    assert alike(np.full((2, 3), 0.5), even, 3).tolist() == [0, 0, 0], "variants that differ nowhere"
    assert alike(recall, np.zeros(3), 2).tolist() == [0, 0, 1]


def test_an_application_is_shown_as_one_for_each_kind_of_class() -> None:
    seen = disguise(SERVED, 2)
    assert [one.name for one in seen.deployment.applications] == ["plain", "told", "told:kind-0", "told:kind-1"]
    assert [v.accuracy for v in seen.deployment.applications[2].variants] == pytest.approx([0.945, 0.9])
    assert [v.accuracy for v in seen.deployment.applications[3].variants] == pytest.approx([0.36, 0.75])
    assert seen.variant.tolist() == [0, 1, 2, 1, 2, 1, 2]


def test_a_kind_s_accuracy_is_the_mean_of_theta_times_recall_over_samples_told_to_be_of_it() -> None:
    """Equation 9 as a naive loop: evidence that is often wrong makes variants less different than their recall."""
    random = np.random.default_rng(2)
    theta = random.dirichlet((2.0, 1.0, 1.5), 200)
    served = with_evidence(SERVED, {"told": theta})
    assert served.applications[0] is PLAIN
    seen = disguise(served, 2)
    shown, kind_of = seen.deployment.applications[2:], seen.kind_of[1]
    assert kind_of.tolist() == [0, 0, 1]
    for kind, application in enumerate(shown):
        rows = [row for row in theta.tolist() if kind_of[row.index(max(row))] == kind]
        for variant in application.variants:
            expected = [sum(share * recall for share, recall in zip(row, variant.recall, strict=True)) for row in rows]
            assert variant.accuracy == pytest.approx(sum(expected) / len(expected))
        assert seen.shares[2 + kind] == pytest.approx(0.99 * len(rows) / 200)
    small, large = (abs(v.accuracy - w.accuracy) for v, w in zip(*(one.variants for one in shown), strict=True))
    assert small < 0.58 and large < 0.15, "less apart than the recalls of the classes"


def specialists(classes: int) -> Application:
    """Four variants, each good at a quarter of the classes, and one that is middling at all."""
    recalls = [[0.95 if c % 4 == own else 0.2 for c in range(classes)] for own in range(4)]
    models = tuple(
        Variant(f"only-{own}", sum(recall) / classes, (LatencyProfile.linear(1, 4),), recall=tuple(recall))
        for own, recall in enumerate(recalls)
    )
    plain = Variant("all", 0.6, (LatencyProfile.linear(2, 6),), recall=(0.6,) * classes)
    return Application("many", 100 * NS_PER_MS, (*models, plain), classes=classes)


@pytest.mark.parametrize("classes", [8, 600, 1500])
def test_no_class_need_be_more_likely_than_all_others_together(classes: int) -> None:
    """With neighbours and a Jeffreys prior, no class of 320 has half of θ. It was then told of none of them."""
    application = specialists(classes)
    theta = np.full((400, classes), 0.5)
    theta[np.arange(400), np.arange(400) % classes] += 5 + 0.25 * classes
    theta /= theta.sum(axis=1, keepdims=True)
    assert theta.max() < 0.5 or classes == 8
    served = with_evidence(Deployment((application,), workers(4)), {"many": theta})
    plan = DataAware(Priced())(View(served, expected_rates=(20.0,)))
    check_plan(plan, served)
    route = plan.routes[0]
    lanes = [route.lanes[place] for place in route.targets]
    assert len(route.targets) == classes and len(set(lanes[:400])) == 4
    for told in range(min(400, classes)):
        select = plan.lanes[lanes[told]].select
        assert isinstance(select, Table) and told % 4 in select.variant


def test_the_default_looks_at_evidence_before_anything_was_judged() -> None:
    """It took a minute and more on two busy cores until there was a verdict, and queries went to no specialist."""
    application = specialists(8)
    theta = np.full((400, 8), 0.02)
    theta[np.arange(400), np.arange(400) % 8] = 0.86
    served = with_evidence(Deployment((application,), workers(4)), {"many": theta})
    plan = Judged()(View(served, expected_rates=(20.0,)))
    check_plan(plan, served)
    route = plan.routes[0]
    assert len(route.targets) == 8
    for told, place in enumerate(route.targets):
        select = plan.lanes[route.lanes[place]].select
        assert isinstance(select, Table) and told % 4 in select.variant and 4 not in select.variant
    without = Judged()(View(Deployment((application,), workers(4)), expected_rates=(20.0,)))
    assert len(without.lanes) == 1, "with nothing known of a query there is one kind"


def test_every_planner_has_the_option_and_it_is_one_form() -> None:
    for entry in ENTRIES:
        options = [option.name for option in entry.options]
        assert options.count("data_aware") == (0 if entry.name == "judged" else 1), entry.name
        if entry.name != "judged" and not entry.by_windows:
            assert isinstance(entry.make({"data_aware": True}), DataAware), entry.name
            assert not isinstance(entry.make({"data_aware": False}), DataAware)
    windows = planner_entry("grouped").make({"data_aware": True})
    assert isinstance(windows, SneakPeek) and windows.data_aware, "it looks at each query's own evidence"
    assert isinstance(planner_entry("judged").make(), Judged)
    session = served_session("grouped", data_aware=True)
    assert isinstance(session.planner, SneakPeek) and session.looks_at_evidence


def test_a_planner_that_waits_for_policies_still_says_so() -> None:
    @dataclass
    class Waits:
        is_prepared: bool = False
        replan_s: float = 0.7
        knows_networks: bool = True

        def __call__(self, view: View) -> Plan:
            return Priced()(view)

    aware = DataAware(Waits())
    assert not aware.is_prepared and aware.replan_s == 0.7 and aware.knows_networks
    plain = DataAware(Priced())
    assert plain.is_prepared and plain.replan_s is None and not plain.knows_networks


def test_a_fixed_variant_is_chosen_by_class() -> None:
    """Symphony takes the most accurate that is fast enough: for two of the classes that is the small one."""
    plan = DataAware(Symphony(), kinds=2)(View(SERVED, expected_rates=(10.0, 10.0)))
    check_plan(plan, SERVED)
    route = plan.routes[1]
    assert route.rule is RouteRule.BY_CLASS

    def variant_of(query_class: int) -> int:
        place = route.targets[query_class] if query_class >= 0 else 0
        select = plan.lanes[route.lanes[place]].select
        assert isinstance(select, Fixed)
        return select.variant

    assert [variant_of(c) for c in (-1, 0, 1, 2)] == [LARGE_NUMBER, SMALL_NUMBER, SMALL_NUMBER, LARGE_NUMBER]
    assert len(route.lanes) == 2  # unknown classes and class 2 share a lane, and batches
    assert plan.routes[0] == Route(RouteRule.BY_APPLICATION, (0,))
    assert plan.planner == "data_aware_symphony"


def test_tables_name_real_variants() -> None:
    plan = DataAware(Priced(), kinds=2)(View(SERVED, expected_rates=(10.0, 10.0)))
    check_plan(plan, SERVED)
    tables = [lane.select for lane in plan.lanes if isinstance(lane.select, Table)]
    assert tables and all(set(np.unique(table.variant)) <= {-1, SMALL_NUMBER, LARGE_NUMBER} for table in tables)


def test_the_plan_object_stays_while_the_inner_one_does() -> None:
    planner = DataAware(Priced())
    view = View(SERVED, expected_rates=(10.0, 10.0))
    assert planner(view) is planner(view)


@dataclass
class Onlooker:
    """Keeps what it is shown."""

    views: list[View]

    def __call__(self, view: View) -> Plan:
        self.views.append(view)
        lanes = (
            Lane(owner.name, (0,), MostAccurate(tuple(view.deployment.variants_of(number))))
            for number, owner in enumerate(view.deployment.applications)
        )
        return by_application(tuple(lanes))


def test_rates_and_waiting_queries_are_shown_by_class() -> None:
    views: list[View] = []
    planner = DataAware(Onlooker(views), kinds=2)
    waiting = tuple(WaitingQuery(number, 1, 0, 10**8, -1, c, 0) for number, c in enumerate((-1, 0, 1, 2)))
    planner(View(SERVED, expected_rates=(10.0, 30.0), waiting=lambda: waiting))
    assert views[0].expected_rates == pytest.approx((10.0, 0.3, 30 * 0.99 * 2 / 3, 30 * 0.99 / 3))
    assert [query.application for query in views[0].waiting()] == [1, 2, 2, 3]


def test_shares_of_classes_are_measured() -> None:
    views: list[View] = []
    mix = {"told": Mix(class_shares=(0.05, 0.05, 0.9))}
    planner = DataAware(Onlooker(views), kinds=2)
    simulate(SERVED, planner, Load(Poisson(), 200.0, mix=mix), seconds=5, replan_s=0.5)
    last = views[-3]
    rates = last.rates
    assert rates is not None
    assert rates.sum() == pytest.approx(200, rel=0.25)
    assert rates[3] == pytest.approx(90, rel=0.25) and rates[2] < 25
    assert last.latency_ratio.shape[0] == 7


def test_residents_are_shown_for_every_kind() -> None:
    crew = (Worker("w", resident=("told/small",)),)
    seen = disguise(Deployment((PLAIN, TOLD), crew), 2)
    assert seen.deployment.workers[0].resident == ("told/small", "told:kind-0/small", "told:kind-1/small")


def test_a_planner_that_deals_to_several_lanes_is_refused() -> None:
    with pytest.raises(StrettoError, match="single lane"):
        DataAware(Ramsis())(View(Deployment((TOLD,), workers(8)), expected_rates=(50.0,)))


@pytest.mark.parametrize("inner", [Priced, Symphony])
def test_accuracy_by_class_rises_and_every_query_ends(inner: type) -> None:
    """Nine of ten queries are of classes at which the small variant is the better one."""
    mix = {"told": Mix(class_shares=(0.45, 0.45, 0.1))}

    def accuracy(planner: Planner) -> float:
        result = simulate(
            SERVED, planner, Load(Poisson(), 100.0, mix=mix), seconds=20, replan_s=0.1, record=True, seed=3
        )
        summary, queries = result.summary, result.queries
        assert sum(summary.outcomes.values()) == summary.submitted
        assert summary.on_time_rate > 0.98
        assert queries is not None
        told = queries[(queries["application"] == 1) & (queries["variant"] >= 0)]
        recalls = np.array([SMALL.recall, LARGE.recall])
        return float(recalls[told["variant"] - 1, told["query_class"]].mean())

    assert accuracy(DataAware(inner(), kinds=2)) > accuracy(inner()) + 0.02


@pytest.mark.parametrize("inner", [Priced, Symphony])
def test_a_free_worker_waits_for_evidence(inner: type) -> None:
    """Evidence takes 4 ms, and a worker is mostly free: without a wait most queries were answered without it."""
    mix, delays = {"told": Mix(class_shares=(0.45, 0.45, 0.1))}, Delays(evidence_ns=4 * NS_PER_MS)

    def of_class(evidence_ns: int) -> float:
        planner = DataAware(inner(), kinds=2)
        run = {"seconds": 10, "replan_s": 0.1, "record": True, "seed": 3}
        given = Delays(evidence_ns=evidence_ns)
        result = simulate(SERVED, planner, Load(Poisson(), 40.0, mix=mix), delays=given, **run)  # type: ignore[arg-type]
        assert result.queries is not None and result.summary.on_time_rate > 0.98
        told = result.queries[result.queries["application"] == 1]
        return float((told["variant"][told["query_class"] < 2] == SMALL_NUMBER).mean())

    assert of_class(delays.evidence_ns) >= of_class(0) - 0.02
    plan = DataAware(inner(), kinds=2)(View(SERVED, expected_rates=(10.0, 10.0), delays=delays))
    unknown = plan.lanes[plan.routes[1].lanes[0]].release
    assert isinstance(unknown, Deferred) or (isinstance(unknown, Accumulate) and unknown.timeout_ns == 4 * NS_PER_MS)
    long = Delays(evidence_ns=40 * NS_PER_MS)  # too much of an SLO of 100 ms
    plan = DataAware(inner(), kinds=2)(View(SERVED, expected_rates=(10.0, 10.0), delays=long))
    assert not isinstance(plan.lanes[plan.routes[1].lanes[0]].release, Accumulate)


def test_a_planner_keeps_its_rhythm() -> None:
    """Sub-clusters, with evidence, were planned once and never followed the load."""
    split = {"sub_clusters": 2}
    plain, by_class = (served_session("symphony", split, data_aware=aware) for aware in (False, True))
    assert by_class.rhythm == plain.rhythm and plain.rhythm.period_s > 0 and by_class.looks_at_evidence
