"""Who is let in where clients share lanes: nobody takes the time that others were planned with, or wait for.

Where clients are mapped, worker time goes by what was measured of each when the plan was made. A client that suddenly
asks more, or floods, is refused what is beyond as long as anything waits in its lane. So what it asks in excess takes
only time that nobody waits for, and another client's query finds at most one batch of it before its own. The next plan
knows its new rate, and maps it alone, elsewhere or nowhere.

Where they are not, all wait in the same lanes: once those are half full, nobody may hold more than an equal share of
their places.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.core.client import Clients
from stretto.core.plan import Plan, Route, RouteRule


def let_in(
    now_ns: int,
    plan: Plan,
    application: int,
    clients: Clients,
    slot: int,
    queries: int,
    lane_length: Callable[[int], int],
) -> bool:
    """Whether so many queries of this client may come in, and are counted as its own; `lane_length` tells how many
    wait in a lane.
    """
    if _is_beyond_share(now_ns, plan, application, clients, slot, lane_length):
        return False
    clients.admitted(now_ns, slot, queries)
    return True


def _is_beyond_share(
    now_ns: int, plan: Plan, application: int, clients: Clients, slot: int, lane_length: Callable[[int], int]
) -> bool:
    route = plan.routes[application]
    if route.rule is not RouteRule.BY_CLIENT:
        return _is_crowding(plan, route, clients, slot, lane_length)
    place = clients.place_of(slot)
    if place is None or clients.admits(now_ns, slot):
        return False
    if 0 <= place.lane < len(plan.lanes):
        return place.is_shared and lane_length(place.lane) > 0
    target = route.targets[slot] if slot < len(route.targets) else 0  # no plan has seen it yet
    return lane_length(route.lanes[target]) > 0


def _is_crowding(plan: Plan, route: Route, clients: Clients, slot: int, lane_length: Callable[[int], int]) -> bool:
    places = sum(plan.lanes[lane].capacity for lane in route.lanes)
    if not clients.is_ahead_of_others(slot, places):
        return False
    return 2 * sum(lane_length(lane) for lane in route.lanes) >= places
