"""Other routes over the same lanes: for queries to come, while nothing that waits or was measured changes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.application import Application
from stretto.core.deployment import Deployment
from stretto.core.errors import PlanError
from stretto.core.outcome import Outcome
from stretto.core.plan import Eager, Fixed, Plan, Route, RouteRule, by_application
from stretto.core.worker import workers
from stretto.dispatch.alias import alias_table, as_shares
from stretto.dispatch.dispatcher import Dispatcher
from tests.dispatch.driver import Driver
from tests.dispatch.small import FAR, GATHER, deployed, driver, lane, planned, variant

THREE = tuple(lane(f"lane-{number}", (number,), release=GATHER) for number in range(3))
ALL = (0, 1, 2)


def joined(made: Driver, **query: int) -> int:
    return made.lane_number(made.submit(**query))


@pytest.mark.parametrize(
    ("route", "lanes"),
    [
        (Route(RouteRule.WEIGHTED, ALL, weights=(0.0, 0.0, 1.0)), [2, 2, 2, 2]),
        (Route(RouteRule.BY_CLIENT, ALL, targets=(2, 0, 1)), [2, 0, 1, 2]),
        (Route(RouteRule.BY_CLASS, ALL, targets=(1, 1, 0)), [1, 1, 0, 1]),
        (Route(RouteRule.BY_APPLICATION, (1,)), [1, 1, 1, 1]),
        (Route(RouteRule.ROUND_ROBIN, (2, 0)), [2, 0, 2, 0]),
    ],
)
def test_queries_to_come_go_the_new_way_and_others_stay(route: Route, lanes: list[int]) -> None:
    made = driver(*THREE, rule=RouteRule.WEIGHTED, weights=(1.0, 0.0, 0.0))
    before = [made.submit() for _ in range(4)]
    made.reroute(route)
    assert [joined(made, client=number % 3, query_class=number % 3) for number in range(4)] == lanes
    assert [made.lane_number(ticket) for ticket in before] == [0] * 4


def test_rates_caps_and_the_draws_go_on() -> None:
    """The same weights again change nothing at all, wherever in a stream of queries it happens."""
    weights = (0.5, 0.3, 0.2)
    quiet, other = (driver(*THREE, rule=RouteRule.WEIGHTED, weights=weights) for _ in range(2))
    lanes: list[list[int]] = [[], []]
    for number in range(60):
        for place, made in enumerate((quiet, other)):
            lanes[place].append(joined(made.at(20 * number)))
        if number % 7 == 0:
            other.reroute(Route(RouteRule.WEIGHTED, ALL, weights=weights))
    assert lanes[0] == lanes[1] and len(set(lanes[0])) == 3
    readings = [made.dispatcher.telemetry(1300) for made in (quiet, other)]
    assert readings[0].lane_rates.tolist() == readings[1].lane_rates.tolist()
    assert readings[0].rates.tolist() == readings[1].rates.tolist()


def test_a_round_goes_on_where_it_was() -> None:
    made = driver(*THREE, rule=RouteRule.ROUND_ROBIN)
    order = []
    for _ in range(6):
        order.append(joined(made))
        made.reroute(Route(RouteRule.ROUND_ROBIN, ALL))
    assert order == [0, 1, 2, 0, 1, 2]


def test_timers_that_are_due_ring() -> None:
    made = driver(lane(release=Eager(1)), rule=RouteRule.ROUND_ROBIN)
    made.query(30)
    made.query(13)
    made.at(12).finish(0)
    made.at(20).reroute(Route(RouteRule.ROUND_ROBIN, (0,)))
    made.drain()
    assert made.outcomes[0, Outcome.ON_TIME] + made.outcomes[0, Outcome.LATE] == 2


def test_the_plan_in_force_has_the_new_routes() -> None:
    plan = planned(*THREE, rule=RouteRule.ROUND_ROBIN, planner="p")
    made = Dispatcher(deployed(crew=3), plan)
    routes = (Route(RouteRule.WEIGHTED, ALL, weights=(1.0, 2.0, 3.0)),)
    made.reroute(5, routes)
    assert made.plan == Plan(plan.lanes, routes, planner="p") and made.now_ns == 5


REFUSED: list[tuple[tuple[Route, ...], str]] = [
    ((), "has 0 routes for 2 applications"),
    ((Route(RouteRule.BY_APPLICATION, (0,)),), "has 1 routes for 2 applications"),
    ((Route(RouteRule.SHORTEST, (0, 9)), Route(RouteRule.BY_APPLICATION, (1,))), "names a lane outside 0 … 1"),
    ((Route(RouteRule.WEIGHTED, (0,), weights=(0.0,)), Route(RouteRule.BY_APPLICATION, (1,))), "not all zero"),
    ((Route(RouteRule.BY_CLIENT, (0,), targets=(1,)), Route(RouteRule.BY_APPLICATION, (1,))), "target outside"),
    (
        (Route(RouteRule.SHORTEST, (0, 1)), Route(RouteRule.BY_APPLICATION, (1,))),
        "routed to lane dog, which runs dog/v",
    ),
    (
        (Route(RouteRule.BY_APPLICATION, (0,), demands=(1,)), Route(RouteRule.BY_APPLICATION, (1,))),
        "application cat is routed to lane dog",
    ),
]


@pytest.mark.parametrize(("routes", "words"), REFUSED)
def test_bad_routes_are_refused_and_change_nothing(routes: tuple[Route, ...], words: str) -> None:
    two = Deployment((Application("cat", 100, (variant(),)), Application("dog", 100, (variant(),))), workers(1))
    made = Driver(two, by_application((lane("cat", release=GATHER), lane("dog", select=Fixed(1), release=GATHER))))
    before = made.dispatcher.plan
    with pytest.raises(PlanError, match=words):
        made.dispatcher.reroute(7, routes)
    assert made.dispatcher.plan is before and made.dispatcher.now_ns == 0
    assert [joined(made, application=number) for number in (0, 1)] == [0, 1]


def drawn(weights: tuple[float, ...], queries: int = 4000) -> Counter[int]:
    lanes = tuple(lane(f"lane-{number}", (0,), release=GATHER) for number in range(len(weights)))
    made = Dispatcher(deployed(crew=1), planned(*lanes, rule=RouteRule.ROUND_ROBIN))
    made.reroute(0, (Route(RouteRule.WEIGHTED, tuple(range(len(weights))), weights=weights),))
    for _ in range(queries):
        made.submit(0, 0, FAR)
    return Counter(dict(enumerate(made.telemetry(0).lane_lengths.tolist())))


def test_weights_are_shares_of_the_queries() -> None:
    assert drawn((1.0, 2.0, 5.0)) == pytest.approx({0: 500, 1: 1000, 2: 2500}, rel=0.12)


def test_very_large_weights_are_shares_like_any() -> None:
    """Regression: the sum of weights overflowed, and every query went to one lane."""
    assert drawn((1e308, 1e308)) == pytest.approx({0: 2000, 1: 2000}, rel=0.1)


@settings(deadline=None, derandomize=True)
@given(weights=st.lists(st.floats(0, 1e308), min_size=1, max_size=70).filter(lambda weights: max(weights) > 0))
def test_the_alias_table_holds_exactly_the_shares(weights: list[float]) -> None:
    shares = as_shares(np.array(weights))
    keep, other = alias_table(shares)
    held = keep / len(shares)
    np.add.at(held, other, (1 - keep) / len(shares))
    assert held == pytest.approx(shares, abs=1e-9)
    assert (held[shares == 0] == 0).all()
