"""Route: which lane a query joins. One small function per rule."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.compiled import compiled
from stretto.core.plan import RouteRule
from stretto.dispatch.queue import NONE
from stretto.dispatch.records import alias, float64s, int64s, lanes, queries, routes

ALIKE = 1e-9  # of a query: debts that differ by rounding alone


@compiled
def next_random(s: Any) -> float:
    """Uniform in [0, 1): splitmix64 from the plan's seed."""
    s.random += np.uint64(0x9E3779B97F4A7C15)
    z = s.random
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@compiled
def round_robin(route: Any) -> int:
    chosen = route.cursor
    route.cursor = chosen + 1 if chosen + 1 < route.count else 0
    return chosen


@compiled
def shortest(s: Any, route: Any) -> int:
    """The lane with the fewest waiting among those that somebody serves; equals take turns."""
    lane_of = int64s(s.route_lanes_at, s.route_lanes_count)
    first = round_robin(route)
    best = first
    for step in range(1, route.count):
        position = (first + step) % route.count
        lane = lanes(s)[lane_of[route.first + position]]
        other = lanes(s)[lane_of[route.first + best]]
        if lane.alive > 0 and (other.alive == 0 or lane.length < other.length):
            best = position
    return best


@compiled
def weighted(s: Any, route: Any) -> int:
    """Walker's alias method: one draw picks the column and the side."""
    draw = next_random(s) * route.count
    column = min(int(draw), route.count - 1)
    entry = alias(s)[route.first + column]
    # Which side it is cannot be foretold, so there is no branch.
    return column + (entry.other - column) * int(draw - column >= entry.keep)


@compiled
def deal(s: Any, route: Any) -> int:
    """The lane to which a front end owes most. With each query it owes every lane its share more, and one query less
    where that goes. Which front end has the query is drawn.
    """
    front_end = min(int(next_random(s) * route.front_ends), route.front_ends - 1) if route.front_ends > 1 else 0
    dealt = float64s(s.dealt_at, s.dealt_count)
    owed = route.dealt_first + (1 + front_end) * route.count
    most = 0
    for position in range(route.count):
        dealt[owed + position] += dealt[route.dealt_first + position]
        if dealt[owed + position] > dealt[owed + most] + ALIKE:
            most = position
    dealt[owed + most] -= 1.0
    return most


@compiled
def by_number(s: Any, route: Any, number: int) -> int:
    """By client or class; the unknown are dealt by weights, which lead to the first lane where a plan has none."""
    if number < 0 or number >= route.target_count:
        return weighted(s, route)
    return int64s(s.route_targets_at, s.route_targets_count)[route.target_first + number]


@compiled
def lane_alive(s: Any, slot: int, lane_index: int) -> int:
    """The lane itself if somebody serves it, else another one of the query's route, else -1."""
    if lane_index != NONE and lanes(s)[lane_index].alive > 0:
        return lane_index
    route = routes(s)[queries(s)[slot].application]
    if 0 <= queries(s)[slot].demand < route.demand_count:
        return NONE
    for _ in range(route.count):  # in turn, or the first lane would inherit all that a lost worker leaves
        other = int64s(s.route_lanes_at, s.route_lanes_count)[route.first + round_robin(route)]
        if lanes(s)[other].alive > 0:
            return other
    return NONE


@compiled
def route_query(s: Any, slot: int) -> int:
    """The lane for a query."""
    query = queries(s)[slot]
    route = routes(s)[query.application]
    if 0 <= query.demand < route.demand_count:
        return int64s(s.route_targets_at, s.route_targets_count)[route.demand_first + query.demand]
    position = 0
    if route.rule == RouteRule.ROUND_ROBIN:
        position = round_robin(route)
    elif route.rule == RouteRule.SHORTEST:
        position = shortest(s, route)
    elif route.rule == RouteRule.WEIGHTED:
        position = weighted(s, route)
    elif route.rule == RouteRule.DEALT:
        position = deal(s, route)
    elif route.rule == RouteRule.BY_CLIENT:
        position = by_number(s, route, query.client)
    elif route.rule == RouteRule.BY_CLASS:
        position = by_number(s, route, query.query_class)
    lane_index = int64s(s.route_lanes_at, s.route_lanes_count)[route.first + position]
    if lanes(s)[lane_index].alive == 0 and route.count > 1:
        other = lane_alive(s, slot, lane_index)
        return lane_index if other == NONE else other
    return lane_index
