"""Every plan that could not be followed is refused, in a sentence that says what is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan, selected_variants
from stretto.core.deployment import Deployment
from stretto.core.errors import PlanError
from stretto.core.plan import (
    Accumulate,
    AdaptiveCap,
    ByLoad,
    Deferred,
    Eager,
    Fixed,
    Lane,
    Late,
    MostAccurate,
    Plan,
    Route,
    RouteRule,
    Select,
    Table,
    Tables,
    Work,
    Worklist,
    by_application,
)
from stretto.core.profile import LatencyProfile
from stretto.core.worker import Worker
from tests.lanes import rules_of_lane

# Workers 0 and 1 are of kind a, worker 2 of kind b. Variants: 0 cat/small (a, b), 1 cat/large (a), 2 dog/only (b).
ON_A = LatencyProfile.linear(1.0, 1.0, 8, "a")
ON_B = LatencyProfile.linear(2.0, 1.0, 8, "b")
DEPLOYMENT = Deployment(
    (
        Application("cat", 100, (Variant("small", 0.5, (ON_A, ON_B), 4, 1), Variant("large", 0.9, (ON_A,), 8, 2))),
        Application("dog", 100, (Variant("only", 0.7, (ON_B,), 1),)),
    ),
    (Worker("w0", "a", 13), Worker("w1", "a", 5), Worker("w2", "b", 13)),
)
CAT = Lane("cat", (0, 1, 2), Fixed(0))
DOG = Lane("dog", (2,), Fixed(2))
GOOD = by_application((CAT, DOG))


def grid(rows: list[list[int]], batch: int = 1, step: int = 10, kind: str | None = None) -> Table:
    cells = np.array(rows, dtype=np.int32)
    return Table(step, cells, np.full_like(cells, batch), kind)


def with_cat(**changes: Any) -> Plan:
    return by_application((replace(CAT, **rules_of_lane(changes)), DOG))


def with_select(select: Select) -> Plan:
    return with_cat(select=select)


def with_route(*arguments: Any, **more: Any) -> Plan:
    other = replace(CAT, name="other")
    return Plan((CAT, DOG, other), (Route(*arguments, **more), Route(RouteRule.BY_APPLICATION, (1,))))


@pytest.mark.parametrize(
    "plan",
    [
        GOOD,
        with_select(ByLoad((10.0, 20.0), (1, 0))),
        with_select(MostAccurate((1, 0))),
        with_select(grid([[-1, -1], [0, -1]])),
        with_select(Tables((grid([[0], [1]], kind="a"), grid([[0], [0]], kind="b")))),
        with_select(Tables((grid([[0], [1]], kind="a"), grid([[0], [0]])))),
        with_select(Worklist((Work(0, 1, (5, 6)), Work(2, 2, ())))),
        with_cat(release=Accumulate(2, 0, 2), adaptive_cap=AdaptiveCap(1)),
        with_cat(release=Deferred(), late=Late.DROP_WHEN_DISPATCHED, floor_rates=(0.0, 1.0)),
        with_route(RouteRule.WEIGHTED, (0, 2), weights=(0.0, 1.0)),
        with_route(RouteRule.BY_CLIENT, (0, 2), targets=(1, 0, 1)),
        replace(GOOD, placement=((1,), (0,), (0, 2))),
        replace(GOOD, seed=2**64 - 1),
    ],
)
def test_a_good_plan_passes(plan: Plan) -> None:
    check_plan(plan, DEPLOYMENT)


REFUSED: list[tuple[Plan, str]] = [
    (Plan((), ()), "between 1 and 65536 lanes, not 0"),
    (by_application((CAT, replace(DOG, name="cat"))), "two lanes have the same name"),
    (by_application((CAT,)), "the plan has 1 routes for 2 applications; each needs one"),
    (replace(GOOD, rate_window_ns=999), "the rate window must be at least a microsecond"),
    (replace(GOOD, seed=-1), "the seed of the weighted routes is -1"),
    (replace(GOOD, seed=2**64), "must be between 0 and 2\\^64 - 1"),
    # lanes
    (with_cat(workers=()), "lane cat has no worker"),
    (with_cat(workers=(0, 1, 0)), "lane cat lists a worker twice"),
    (with_cat(workers=(0, 3)), "lane cat names a worker outside 0 … 2"),
    (with_cat(capacity=-1), "lane cat has capacity -1"),
    (with_cat(capacity=2**24 + 1), "it must be between 0 and 16777216"),
    (with_cat(control_ns=-1), "lane cat has a negative delay"),
    (with_cat(data_ns=-1), "lane cat has a negative delay"),
    (with_cat(ahead_ns=-1), "lane cat has a negative delay"),
    (with_cat(release=Eager(0)), "lane cat has max batch 0; it must be between 1 and 4096"),
    (with_cat(release=Deferred(4097)), "lane cat has max batch 4097"),
    (with_cat(release=Accumulate(0, 5)), "lane cat waits for 0 queries"),
    (with_cat(release=Accumulate(5, 5, 4)), "waits for 5 queries but batches hold at most 4"),
    (with_cat(release=Accumulate(1, -1)), "lane cat has a negative timeout"),
    (with_cat(floor_rates=(0.0,)), "prunes for larger batches but keeps late queries; give it a dropping rule"),
    (with_cat(floor_rates=(0.0,), late=Late.REFUSE), "give it a dropping rule"),
    (
        with_cat(floor_rates=(0.0, float("nan")), late=Late.DROP_WHEN_INFEASIBLE),
        "lane cat has a floor rate that is not a number",
    ),
    (with_cat(adaptive_cap=AdaptiveCap(0)), "lane cat needs an adaptive cap with target and step above 0"),
    (with_cat(adaptive_cap=AdaptiveCap(1, step=0.0)), "needs an adaptive cap"),
    (with_cat(adaptive_cap=AdaptiveCap(1, backoff=1.0)), "backoff in \\(0, 1\\)"),
    (with_cat(adaptive_cap=AdaptiveCap(1, start=0.5)), "start from 1"),
    (with_cat(adaptive_cap=AdaptiveCap(1, start=float("inf"))), "start from 1"),
    # select
    (with_select(Fixed(3)), "lane cat names variant 3, outside 0 … 2"),
    (with_select(Fixed(-1)), "lane cat names variant -1"),
    (by_application((CAT, replace(DOG, workers=(0,)))), "selects dog/only, which none of its workers can run"),
    (with_cat(select=Fixed(1), workers=(1,)), "selects cat/large, which none of its workers can run"),  # memory
    (with_select(ByLoad((), ())), "selects by load and needs one rate per variant"),
    (with_select(ByLoad((1.0,), (0, 1))), "needs one rate per variant"),
    (with_select(ByLoad((2.0, 2.0), (0, 1))), "needs rising rates"),
    (with_select(MostAccurate(())), "lane cat selects among no variants"),
    (with_cat(select=Worklist(), release=Deferred()), "follows a worklist, which starts in order"),
    (with_cat(select=Worklist((Work(1, 0, ()),)), workers=(0,)), "has a batch for worker 1, which does not serve it"),
    (with_select(Worklist((Work(2, 1, ()),))), "has a batch of cat/large for worker w2, which cannot run it"),
    (with_select(Worklist((Work(0, 9, ()),))), "lane cat names variant 9"),
    (with_select(Tables(())), "lane cat selects by table and has none"),
    (with_select(Tables((grid([[0]], kind="a"),))), "lane cat has no table for worker kind b"),
    (with_select(grid([[0]], kind="c")), "the table of lane cat speaks for worker kind c"),
    (with_select(Table(1, np.zeros(3), np.zeros(3))), "needs variant and batch arrays of one shape"),
    (with_select(Table(1, np.zeros((2, 2)), np.zeros((2, 3)))), "of one shape"),
    (with_select(Table(1, np.zeros((0, 2)), np.zeros((0, 2)))), "of one shape"),
    (with_select(grid([[0]], step=0)), "needs a slack step above zero"),
    (with_select(Table(1, np.zeros((1, 3)), np.zeros((1, 3)), edges_ns=(5,))), "has 1 edges; 3 columns have 2 between"),
    (with_select(Table(1, np.zeros((1, 3)), np.zeros((1, 3)), edges_ns=(5, 5))), "edges that rise from above zero"),
    (with_select(Table(1, np.zeros((1, 2)), np.zeros((1, 2)), edges_ns=(0,))), "edges that rise from above zero"),
    (with_select(grid([[-1], [-1]])), "always waits"),
    (with_select(grid([[0], [-2]])), "names variant -2; -1 waits"),
    (with_select(grid([[0]], batch=-2)), "has a batch outside -1 … 4096"),
    (with_select(grid([[0]], batch=4097)), "has a batch outside -1 … 4096"),
    (with_select(grid([[0, 0], [-1, 0]])), "waits at the smallest slack, so a head could wait for ever"),
    (with_select(grid([[-1, 0]])), "waits at the smallest slack"),  # the only row is asked whatever is queued
    # routes
    (with_route(RouteRule.ROUND_ROBIN, ()), "the route of application cat leads to no lane"),
    (with_route(RouteRule.SHORTEST, (0, 3)), "the route of application cat names a lane outside 0 … 2"),
    (with_route(RouteRule.BY_APPLICATION, (0, 2)), "is by application and needs exactly one lane"),
    (with_route(RouteRule.WEIGHTED, (0, 2), weights=(1.0,)), "needs one weight per lane"),
    (with_route(RouteRule.WEIGHTED, (0, 2), weights=(0.0, 0.0)), "not negative and not all zero"),
    (with_route(RouteRule.WEIGHTED, (0, 2), weights=(1.0, -1.0)), "not negative and not all zero"),
    (with_route(RouteRule.WEIGHTED, (0, 2), weights=(1.0, float("inf"))), "not negative and not all zero"),
    (with_route(RouteRule.BY_CLIENT, (0, 2)), "needs a target per client or class"),
    (with_route(RouteRule.BY_CLASS, (0, 2), targets=(0, 2)), "has a target outside its 2 lanes"),
    (with_route(RouteRule.ROUND_ROBIN, (0, 1)), "application cat is routed to lane dog, which runs dog/only"),
    # placement
    (replace(GOOD, placement=((), ())), "the placement needs one entry per worker"),
    (replace(GOOD, placement=((), (7,), ())), "the placement of worker w1 names an unknown variant"),
    (replace(GOOD, placement=((), (2,), ())), "the placement of worker w1 holds dog/only, which it cannot run"),
    (replace(GOOD, placement=((0, 1), (), ())), "the placement of worker w0 needs 14 bytes of its 13"),
]


@pytest.mark.parametrize(("plan", "sentence"), REFUSED, ids=[sentence[:60] for _, sentence in REFUSED])
def test_a_bad_plan_is_refused_in_a_sentence(plan: Plan, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        check_plan(plan, DEPLOYMENT)


def test_the_variants_that_a_lane_may_run() -> None:
    assert selected_variants(CAT) == (0,)
    assert selected_variants(replace(CAT, select=ByLoad((1.0, 2.0), (1, 0)))) == (1, 0)
    assert selected_variants(replace(CAT, select=MostAccurate((1, 0)))) == (1, 0)
    assert selected_variants(replace(CAT, select=grid([[-1, 1], [0, 1]]))) == (0, 1)
    two = Tables((grid([[1]], kind="a"), grid([[0]], kind="b")))
    assert selected_variants(replace(CAT, select=two)) == (1, 0)
    assert selected_variants(replace(CAT, select=Worklist((Work(0, 1, ()), Work(0, 0, ()), Work(1, 1, ()))))) == (1, 0)
