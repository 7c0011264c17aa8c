"""Route: each rule sends the same queries another way."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from stretto.core.application import Application
from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Fixed, Plan, Route, RouteRule, by_application
from stretto.core.worker import workers
from tests.dispatch.driver import Driver
from tests.dispatch.small import GATHER, deployed, driver, lane, planned, variant

THREE = tuple(lane(f"lane-{number}", (number,), release=GATHER) for number in range(3))


def joined(driver: Driver, **query: int) -> int:
    """The lane that one more query joins."""
    return driver.lane_number(driver.submit(**query))


def joined_by_all(rule: RouteRule, **plan: Any) -> list[int]:
    """The lanes that eight queries join, of clients 0 1 2 0 1 2 0 1 and classes 2 2 1 1 0 0 2 2."""
    made = driver(*THREE, rule=rule, **plan)
    return [
        joined(made, client=number % 3, query_class=query_class)
        for number, query_class in enumerate((2, 2, 1, 1, 0, 0, 2, 2))
    ]


EXPECTED: dict[RouteRule, tuple[dict[str, object], list[int]]] = {
    RouteRule.ROUND_ROBIN: ({}, [0, 1, 2, 0, 1, 2, 0, 1]),
    RouteRule.BY_CLIENT: ({"targets": (1, 0, 2)}, [1, 0, 2, 1, 0, 2, 1, 0]),
    RouteRule.BY_CLASS: ({"targets": (1, 0, 2)}, [2, 2, 0, 0, 1, 1, 2, 2]),
    RouteRule.WEIGHTED: ({"weights": (0.0, 1.0, 0.0)}, [1] * 8),
    RouteRule.DEALT: ({"weights": (1.0, 1.0, 1.0)}, [0, 1, 2, 0, 1, 2, 0, 1]),
}


@pytest.mark.parametrize("rule", EXPECTED)
def test_each_rule_has_its_own_way(rule: RouteRule) -> None:
    plan, lanes = EXPECTED[rule]
    assert joined_by_all(rule, **plan) == lanes


@pytest.mark.parametrize("weights", [(1.0, 2.0, 1.0), (5.0, 1.0, 0.3), (0.0, 1.0, 3.0)])
def test_a_front_end_deals_as_evenly_as_can_be(weights: tuple[float, ...]) -> None:
    """After any number of queries each lane has its share of them, but for less than one query."""
    made, counts = driver(*THREE, rule=RouteRule.DEALT, weights=weights), [0, 0, 0]
    for number in range(1, 60):
        counts[joined(made)] += 1
        for lane_number, weight in enumerate(weights):
            assert abs(counts[lane_number] - number * weight / sum(weights)) < 1


def test_front_ends_that_deal_alone_send_bursts_to_lanes() -> None:
    """Table 2 of Symphony: the same shares, but how many queries come to a lane in a while varies far more."""
    spread = {}
    for front_ends in (1, 25):
        made = driver(*THREE, rule=RouteRule.DEALT, weights=(1.0, 1.0, 1.0), front_ends=front_ends)
        windows = [Counter(joined(made) for _ in range(30)) for _ in range(40)]
        totals = sum(windows, Counter[int]())
        assert all(abs(totals[number] - 400) < 40 for number in range(3))
        spread[front_ends] = sum((window[number] - 10) ** 2 for window in windows for number in range(3)) / 120
    assert spread[1] == 0 and spread[25] > 2


def test_other_weights_are_dealt_by_at_once() -> None:
    made = driver(*THREE, rule=RouteRule.DEALT, weights=(1.0, 1.0, 1.0))
    assert [joined(made) for _ in range(3)] == [0, 1, 2]
    made.reroute(Route(RouteRule.DEALT, (0, 1, 2), (0.0, 0.0, 1.0)))
    assert [joined(made) for _ in range(3)] == [2, 2, 2]


def test_by_application() -> None:
    two = Deployment((Application("a", 100, (variant(),)), Application("b", 100, (variant(),))), workers(2))
    lanes = (lane("for-a", (1,), release=GATHER), lane("for-b", (0,), select=Fixed(1), release=GATHER))
    made = Driver(two, by_application(lanes))
    assert [joined(made, application=number) for number in (0, 1, 1, 0)] == [0, 1, 1, 0]


def test_shortest_goes_where_fewest_wait() -> None:
    made = driver(*THREE, rule=RouteRule.SHORTEST)
    tickets = [made.submit() for _ in range(6)]
    assert made.lengths() == [2, 2, 2]
    made.cancel(tickets[2])
    made.cancel(tickets[5])
    # Round robin would have gone 0 1 2 0; of equals, that whose turn it is comes first.
    assert [joined(made) for _ in range(4)] == [2, 2, 2, 0]


def test_shortest_passes_by_a_lane_that_nobody_serves() -> None:
    """Regression: the empty lane of a lost worker was the shortest, and everything went to the first lane instead."""
    made = driver(*THREE, rule=RouteRule.SHORTEST)
    made.leave(2)
    assert [joined(made) for _ in range(4)] == [0, 1, 0, 1]


def test_a_lane_that_nobody_serves_hands_on_to_one_of_its_route() -> None:
    made = driver(*THREE, rule=RouteRule.BY_CLIENT, targets=(0, 1, 2))
    made.leave(1)
    assert [joined(made, client=client) for client in (0, 1, 2)] == [0, 0, 2]
    made.join(1)
    assert joined(made, client=1) == 1


@pytest.mark.parametrize("rule", [RouteRule.BY_CLIENT, RouteRule.BY_CLASS])
def test_the_unknown_take_the_first_lane(rule: RouteRule) -> None:
    made = driver(*THREE, rule=rule, targets=(2, 2))
    assert joined(made, client=1, query_class=1) == 2
    assert joined(made) == 0
    assert joined(made, client=2, query_class=2) == 0


def draws(seed: int, count: int, weights: tuple[float, ...] = (1.0, 2.0, 5.0)) -> list[int]:
    made = driver(*THREE, rule=RouteRule.WEIGHTED, weights=weights, seed=seed)
    route = [made.dispatcher.submit(0, 0, 10**15) & 0xFFFFFFFF for _ in range(count)]
    return made.dispatcher.memory["queries"]["lane"][route].tolist()


def test_weighted_frequencies() -> None:
    count = 20_000
    found = Counter(draws(7, count))
    for number, share in enumerate((1 / 8, 2 / 8, 5 / 8)):
        deviation = (count * share * (1 - share)) ** 0.5
        assert abs(found[number] - count * share) < 4 * deviation
    assert Counter(draws(3, 2000, (1.0, 0.0, 1.0)))[1] == 0


def test_weighted_is_decided_by_the_seed() -> None:
    assert draws(7, 200) == draws(7, 200)
    assert draws(7, 200) != draws(8, 200)


def test_draws_and_rounds_go_on_over_a_new_plan() -> None:
    """Regression: each plan began them anew, so that planning often sent the same few draws again and again."""
    plan = planned(*THREE, rule=RouteRule.WEIGHTED, weights=(1.0, 1.0, 1.0), seed=5)
    unbroken = driver(*THREE, rule=RouteRule.WEIGHTED, weights=(1.0, 1.0, 1.0), seed=5)
    replanned = driver(*THREE, rule=RouteRule.WEIGHTED, weights=(1.0, 1.0, 1.0), seed=5)
    expected = [joined(unbroken) for _ in range(30)]
    found: list[int] = []
    for _ in range(10):
        found.extend(joined(replanned) for _ in range(3))
        for query in replanned.dispatcher.waiting():
            replanned.cancel(query.ticket)
        replanned.adopt(plan)
    assert found == expected
    replanned.adopt(planned(*THREE, rule=RouteRule.WEIGHTED, weights=(1.0, 1.0, 1.0), seed=6))
    fresh = driver(*THREE, rule=RouteRule.WEIGHTED, weights=(1.0, 1.0, 1.0), seed=6)
    assert [joined(replanned) for _ in range(20)] == [joined(fresh) for _ in range(20)]
    rounds = driver(*THREE, rule=RouteRule.ROUND_ROBIN)
    assert joined(rounds) == 0
    rounds.cancel(rounds.dispatcher.waiting()[0].ticket)
    rounds.adopt(planned(*THREE, rule=RouteRule.ROUND_ROBIN))
    assert joined(rounds) == 1


def test_two_applications_may_be_routed_differently() -> None:
    two = Deployment((Application("a", 100, (variant(),)), Application("b", 100, (variant(),))), workers(2))
    pair = tuple(lane(f"b-{number}", (number,), select=Fixed(1), release=GATHER) for number in range(2))
    routes = (Route(RouteRule.BY_APPLICATION, (0,)), Route(RouteRule.ROUND_ROBIN, (1, 2)))
    made = Driver(two, Plan((lane("a", (0,), release=GATHER), *pair), routes))
    assert [joined(made, application=number) for number in (0, 1, 0, 1, 1)] == [0, 1, 0, 2, 1]


def test_a_class_that_becomes_known_moves_the_query_to_its_lane() -> None:
    made = driver(*THREE, rule=RouteRule.BY_CLASS, targets=(0, 1, 2))
    ticket, other = made.submit(), made.submit()
    made.at(5).classify(ticket, 2)
    assert (made.lane_number(ticket), made.lane_number(other), made.lengths()) == (2, 0, [1, 0, 1])
    rates = made.dispatcher.telemetry(1_000_000_000).lane_rates
    assert made.dispatcher.memory["meters"]["total"][1:].tolist() == [1, 0, 1] and (rates >= 0).all()
    made.classify(ticket, 9)  # unknown again
    assert made.lane_number(ticket) == 0


def test_a_class_that_comes_too_late_changes_nothing() -> None:
    made = driver(*(lane(f"lane-{number}", (number,)) for number in range(3)), rule=RouteRule.BY_CLASS, targets=(0, 1))
    running = made.submit()
    made.classify(running, 1)
    made.at(20).finish(0)
    made.classify(running, 1)  # has ended
    assert made.batches() == [(0, 0, [0])] and made.lengths() == [0, 0, 0]


def test_a_class_does_not_move_queries_of_other_routes_or_with_demands() -> None:
    made = driver(*THREE, rule=RouteRule.ROUND_ROBIN)
    ticket = made.submit()
    made.classify(ticket, 1)
    assert made.lane_number(ticket) == 0


def test_unknown_clients_are_dealt_by_weights_where_there_are_any() -> None:
    lanes = tuple(lane(f"l{number}", release=GATHER) for number in range(3))
    made = driver(*lanes, rule=RouteRule.BY_CLIENT, targets=(0,), weights=(0.0, 1.0, 3.0), on=deployed())
    joined = [made.lane_number(made.submit(client=client)) for client in (-1, 7, 2**40) for _ in range(200)]
    assert 0 not in joined and 2.0 < joined.count(2) / joined.count(1) < 4.5
    assert {made.lane_number(made.submit(client=0)) for _ in range(20)} == {0}


def test_a_lane_of_no_capacity_refuses_everybody() -> None:
    made = driver(lane(capacity=0))
    assert made.outcome(made.submit()) is Outcome.DROPPED_OVERLOAD
