"""Planners that know nothing of classes, made data-aware through the Plan."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Fixed, Lane, MostAccurate, Plan, Route, RouteRule, Table, by_application
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import Planner, View, WaitingQuery
from stretto.core.worker import Worker, workers
from stretto.planners.data_aware import DataAware, alike, disguise
from stretto.planners.priced import Priced
from stretto.planners.ramsis.planner import Ramsis
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
    recall = np.array([SMALL.recall, LARGE.recall])
    assert alike(recall, 2).tolist() == [0, 0, 1]
    assert alike(recall, 3).tolist() == [0, 1, 2]
    assert alike(recall, 1).tolist() == [0, 0, 0]


def test_an_application_is_shown_as_one_for_each_kind_of_class() -> None:
    seen = disguise(SERVED, 2)
    assert [one.name for one in seen.deployment.applications] == ["plain", "told", "told:kind-0", "told:kind-1"]
    assert [v.accuracy for v in seen.deployment.applications[2].variants] == pytest.approx([0.945, 0.9])
    assert [v.accuracy for v in seen.deployment.applications[3].variants] == pytest.approx([0.36, 0.75])
    assert seen.variant.tolist() == [0, 1, 2, 1, 2, 1, 2]


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


def test_a_planner_keeps_its_rhythm() -> None:
    """Sub-clusters, with evidence, were planned once and never followed the load."""
    split = {"sub_clusters": 2}
    plain, by_class = (served_session("symphony", split, data_aware=aware) for aware in (False, True))
    assert by_class.rhythm == plain.rhythm and plain.rhythm.period_s > 0 and by_class.looks_at_evidence
