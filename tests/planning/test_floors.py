"""Floors: from which load on which batch is the least that keeps up, by equation 3 of Symphony worked out naively."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Fixed, Lane, Late, Plan, Strategies, by_application
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import Worker, workers
from stretto.planning.completion import complete
from stretto.planning.floors import Crew, crew_of, with_floors
from stretto.planning.session import Session

DROPS = Late.DROP_WHEN_INFEASIBLE
SLO_NS = 50 * NS_PER_MS


def variant(name: str, alpha: float, beta: float, *kinds: str) -> Variant:
    kinds = kinds or ("default",)
    return Variant(name, 0.9, tuple(LatencyProfile.linear(alpha, beta, 16, kind) for kind in kinds))


def one(count: int) -> Deployment:
    return Deployment((Application("a", SLO_NS, (variant("v", 1.0, 9.0),)),), workers(count))


def floors_of(plan: Plan, deployment: Deployment, crew: Crew | None = None) -> list[tuple[float, ...]]:
    ones = np.ones((len(deployment.variants), len(deployment.kinds)))
    made = with_floors(plan, deployment, ones, crew or crew_of(View(deployment)))
    return [lane.release.floor_rates for lane in made.lanes]


def floor_at(rates: tuple[float, ...], load: float) -> int:
    return sum(rate <= load for rate in rates)


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("load", [1.0, 60.0, 150.0, 400.0, 900.0, 1e6])
def test_the_floor_is_the_smallest_batch_that_keeps_up(count: int, load: float) -> None:
    """N·b/l(b) ≥ λ; where none keeps up, the batch with the best pace. l(b) = b + 9 ms, and (1 + 1/N)·l(b) ≤ SLO."""
    deployment = one(count)
    plan = by_application((Lane("a", tuple(range(count)), Fixed(0), late=DROPS),))
    (rates,) = floors_of(plan, deployment)
    able = [batch for batch in range(1, 17) if (1 + 1 / count) * (batch + 9) <= 50]
    keeping_up = [batch for batch in able if count * batch / (batch + 9) * 1e3 > load]
    expected = min(keeping_up, default=max(able))
    assert floor_at(rates, load) == expected


def test_lanes_that_keep_or_plan_themselves_stay_as_they_are() -> None:
    deployment = one(2)
    stated = Eager(floor_rates=(0.0, 5.0))
    for lane in (
        Lane("a", (0, 1), Fixed(0), late=Late.KEEP),
        Lane("a", (0, 1), Fixed(0), late=Late.REFUSE),
        Lane("a", (0, 1), Strategies(0), late=DROPS),
        Lane("a", (0, 1), Fixed(0), release=stated, late=DROPS),
    ):
        plan = by_application((lane,))
        assert floors_of(plan, deployment) == [lane.release.floor_rates]


def test_workers_that_are_gone_do_not_count() -> None:
    plan = by_application((Lane("a", (0, 1, 2), Fixed(0), late=DROPS),))
    alone, (both,) = floors_of(plan, one(3), Crew((1,), (1.0,))), floors_of(plan, one(3))
    assert floor_at(alone[0], 100.0) == 2 and floor_at(both, 100.0) == 1


def test_unequal_workers_count_by_their_own_pace() -> None:
    """One takes b + 9 ms, the other twice as long: together 1.5 times the first."""
    slow = LatencyProfile.linear(2.0, 18.0, 16, "slow")
    model = Variant("v", 0.9, (LatencyProfile.linear(1.0, 9.0, 16, "quick"), slow))
    deployment = Deployment((Application("a", SLO_NS, (model,)),), (Worker("w0", "quick"), Worker("w1", "slow")))
    (rates,) = floors_of(by_application((Lane("a", (0, 1), Fixed(0), late=DROPS),)), deployment)
    for batch in range(1, 5):
        assert rates[batch] == pytest.approx(1.5 * batch / (batch + 9) * 1e3)


def test_applications_share_workers_by_the_work_that_comes() -> None:
    """Of 4 workers, two equal applications with loads of 3 to 1 need 3 and 1: that is what their floors are for."""
    apps = tuple(Application(name, SLO_NS, (variant(name, 1.0, 9.0),)) for name in "ab")
    deployment = Deployment(apps, workers(4))
    lanes = tuple(Lane(name, (0, 1, 2, 3), Fixed(number), late=DROPS) for number, name in enumerate("ab"))
    crew = crew_of(View(deployment, rates=np.array([300.0, 100.0])))
    assert crew.shares == pytest.approx((0.75, 0.25))
    for rates, count in zip(floors_of(by_application(lanes), deployment, crew), (3, 1), strict=True):
        assert rates[1] == pytest.approx(count / 10 * 1e3)


def test_small_moves_of_the_load_change_nothing() -> None:
    apps = tuple(Application(name, SLO_NS, (variant(name, 1.0, 9.0),)) for name in "ab")
    deployment = Deployment(apps, workers(4))
    before = crew_of(View(deployment, rates=np.array([300.0, 100.0])))
    assert crew_of(View(deployment, rates=np.array([305.0, 98.0])), before) == before
    assert crew_of(View(deployment, rates=np.array([100.0, 300.0])), before).shares == pytest.approx((0.25, 0.75))


def test_slower_workers_than_profiled_need_larger_batches() -> None:
    deployment = one(1)
    plan = by_application((Lane("a", (0,), Fixed(0), late=DROPS),))
    crew = crew_of(View(deployment))
    slow = complete(plan, deployment, Conditions(), np.full((1, 1), 1.5), crew=crew).lanes[0].release.floor_rates
    fast = complete(plan, deployment, Conditions(), crew=crew).lanes[0].release.floor_rates
    assert slow[1] == pytest.approx(fast[1] / 1.5) and fast[1] == pytest.approx(100.0)


def test_what_is_served_has_floors_and_a_published_planner_s_lanes_stay_as_they_are() -> None:
    deployment = one(2)
    plan = by_application((Lane("a", (0, 1), Fixed(0), late=DROPS),))
    served = Session(lambda view: plan).first(deployment)
    published = Session(lambda view: plan, has_doors=False).first(deployment)
    assert len(served.plan.lanes[0].release.floor_rates) > 1 and published.plan == plan
    assert math.isfinite(served.plan.lanes[0].release.floor_rates[-1])
