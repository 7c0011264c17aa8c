"""Clients: slots that are reused, and what is known of each."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.client import Clients, Network, Told
from stretto.core.errors import StrettoError


def test_a_client_keeps_its_slot_and_the_lowest_free_one_is_taken() -> None:
    clients = Clients()
    assert [clients.slot_of(1, name) for name in ("a", "b", "a", "c")] == [0, 1, 0, 2]
    clients.slot_of(5, "a")
    clients.slot_of(6, "c")
    assert clients.forget_before(5) == 1  # b asked last at 1
    assert clients.slot_of(7, "d") == 1
    assert [client.identity for client in clients.all()] == ["a", "d", "c"]


def test_what_is_known_of_a_client_goes_with_it() -> None:
    clients = Clients()
    slot = clients.slot_of(1, "a")
    clients.measured(slot, Network(1e6, 5_000_000))
    clients.told(slot, Told("px20", (20, 20)))
    clients.slot_of(9, "a")
    (client,) = clients.all()
    assert client.network.bytes_per_s == 1e6 and client.told.input_size == (20, 20) and client.seen_ns == 9
    clients.forget_before(10)
    clients.measured(slot, Network(2.0))  # nobody is there any more
    assert clients.slot_of(11, "b") == slot
    assert clients.all()[0].network == Network() and clients.all()[0].told == Told()


def test_the_one_that_asked_longest_ago_gives_way() -> None:
    clients = Clients(2)
    assert [clients.slot_of(n, name) for n, name in enumerate(("a", "b", "a", "c", "b"))] == [0, 1, 0, 1, 0]
    with pytest.raises(StrettoError, match="at least one client"):
        Clients(0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans()), max_size=60), st.integers(1, 4))
def test_slots_are_small_and_no_two_clients_share_one(steps: list[tuple[str, bool]], most: int) -> None:
    clients = Clients(most)
    for now, (name, forgets) in enumerate(steps):
        slot = clients.slot_of(now, name)
        assert 0 <= slot < most
        if forgets:
            clients.forget_before(now - 1)
        slots = [client.slot for client in clients.all()]
        assert len(set(slots)) == len(slots) == len(clients) <= most
        assert next(client.slot for client in clients.all() if client.identity == name) == slot
