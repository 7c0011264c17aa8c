"""Who is let in where clients share a lane: worker time goes by what was measured of each when the plan was made.

A client that suddenly asks more than that, or floods, is refused what is beyond as long as anything waits in its lane.
So what it asks in excess takes only time that nobody waits for, and another client's query finds at most one batch of
it before its own. The next plan knows its new rate, and maps it alone, elsewhere or nowhere.
"""

from __future__ import annotations

from collections.abc import Callable

from stretto.core.client import Clients
from stretto.core.plan import Plan, RouteRule


def is_beyond_share(
    now_ns: int, plan: Plan, application: int, clients: Clients, slot: int, lane_length: Callable[[int], int]
) -> bool:
    """Whether a query of this client must be refused; `lane_length` tells how many wait in a lane."""
    route = plan.routes[application]
    place = clients.place_of(slot)
    if route.rule is not RouteRule.BY_CLIENT or place is None or clients.admits(now_ns, slot):
        return False
    if 0 <= place.lane < len(plan.lanes):
        return place.is_shared and lane_length(place.lane) > 0
    target = route.targets[slot] if slot < len(route.targets) else 0  # no plan has seen it yet
    return lane_length(route.lanes[target]) > 0
