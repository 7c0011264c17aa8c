"""The door where clients share lanes: a client beyond its rate is refused while somebody waits where it is led."""

from __future__ import annotations

import pytest

from stretto.core.client import WINDOW_NS, Clients, Place, Told
from stretto.core.plan import Fixed, Lane, Plan, Route, RouteRule
from stretto.core.profile import NS_PER_S
from stretto.planning.door import let_in

SECOND = 10 * NS_PER_S
LANES = tuple(Lane(name, (0,), Fixed(0), capacity=8) for name in ("first", "second", "third"))
BY_CLIENT = Plan(LANES, (Route(RouteRule.BY_CLIENT, (1, 2), targets=(1,)),))


def beyond_its_rate(clients: Clients, identity: str) -> int:
    """The slot of a client that no plan has seen, and that asked more at once than it may."""
    slot = clients.slot_of(SECOND, identity, "app")
    while clients.admits(SECOND, slot):
        clients.admitted(SECOND, slot, 20)
    return slot


def is_let_in(slot: int, clients: Clients, waiting: dict[int, int], plan: Plan = BY_CLIENT) -> bool:
    return let_in(SECOND, plan, 0, clients, slot, 1, lambda lane: waiting.get(lane, 0))


@pytest.mark.parametrize(("waits_in", "is_in"), [(0, True), (1, True), (2, False)])
def test_one_whose_slot_the_plan_knows_finds_the_queue_to_which_that_is_led(waits_in: int, is_in: bool) -> None:
    """Slot 0 is led to the second lane of the route, which is the third of the plan."""
    clients = Clients()
    slot = beyond_its_rate(clients, "camera")
    assert slot == 0
    assert is_let_in(slot, clients, {waits_in: 1}) == is_in


@pytest.mark.parametrize(("waits_in", "is_in"), [(0, True), (1, False), (2, True)])
def test_one_that_no_plan_has_seen_is_led_to_the_first_lane(waits_in: int, is_in: bool) -> None:
    """Slot 1 is the first behind those that the route knows."""
    clients = Clients()
    clients.slot_of(SECOND, "known", "app")
    slot = beyond_its_rate(clients, "new")
    assert slot == len(BY_CLIENT.routes[0].targets)
    assert is_let_in(slot, clients, {waits_in: 1}) == is_in


@pytest.mark.parametrize(("is_shared", "waiting", "is_in"), [(True, 1, False), (True, 0, True), (False, 1, True)])
def test_one_with_a_place_is_refused_where_others_share_it_and_somebody_waits(
    is_shared: bool, waiting: int, is_in: bool
) -> None:
    clients = Clients()
    slot = beyond_its_rate(clients, "camera")
    clients.placed(clients.all(SECOND), {slot: Place(Told("v"), lane=0, is_shared=is_shared)})
    assert is_let_in(slot, clients, {0: waiting, 1: 5, 2: 5}) == is_in


def test_who_keeps_to_its_rate_comes_in_whatever_waits() -> None:
    clients = Clients()
    slot = clients.slot_of(SECOND, "camera", "app")
    assert is_let_in(slot, clients, {0: 9, 1: 9, 2: 9})
    assert is_let_in(7, clients, {0: 9, 1: 9, 2: 9}), "one that is forgotten is held to nothing"


def test_what_is_let_in_counts_as_its_own() -> None:
    clients = Clients()
    slot = clients.slot_of(SECOND, "camera", "app")
    assert let_in(SECOND, BY_CLIENT, 0, clients, slot, 40, lambda lane: 0)
    assert not clients.admits(SECOND, slot) and clients.admits(SECOND + 4 * WINDOW_NS, slot)


BY_APPLICATION = Plan(LANES, (Route(RouteRule.BY_APPLICATION, (0, 1)),))  # 16 places


@pytest.mark.parametrize(
    ("queries", "waiting", "is_in"),
    [(9, {0: 8}, False), (9, {0: 4, 1: 4}, False), (9, {0: 4, 1: 3, 2: 9}, True), (8, {0: 8, 1: 8}, True)],
)
def test_in_lanes_that_are_half_full_nobody_holds_more_than_an_equal_share(
    queries: int, waiting: dict[int, int], is_in: bool
) -> None:
    """Two clients ask: half of the places is an equal share."""
    clients = Clients()
    slot, other = (clients.slot_of(SECOND, name, "app") for name in ("greedy", "other"))
    clients.began(slot, queries)
    clients.began(other, 1)
    assert is_let_in(slot, clients, waiting, BY_APPLICATION) == is_in
