"""The budget of bytes in flight: who is let in, and who is given up for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.api.budget import (
    CONNECTION_BYTES,
    FREE_CONNECTIONS,
    RELIEF_PART,
    SHARE_PART,
    SMALL_BYTES,
    SPARE_PART,
    Budget,
)

LIMIT = 16_000_000


class Sender:
    def __init__(self, budget: Budget, promised: int = 0):
        self.budget = budget
        self.held = self.weight = 0
        self.promised = promised
        self.is_stale = False
        self.is_given_up = False

    def send(self, size: int) -> bool:
        return self.budget.hold(self, size)

    def give_up(self) -> None:
        self.is_given_up = True
        self.budget.let_go(self)


@pytest.fixture
def budget() -> Budget:
    return Budget(LIMIT)


def test_what_a_crowd_takes_by_itself_is_not_there_for_bodies(budget: Budget) -> None:
    budget.connected(FREE_CONNECTIONS)
    assert budget.used == 0, "some are there anyway"
    budget.connected(100)
    assert budget.used == 100 * CONNECTION_BYTES
    budget.connected(1_000_000)
    assert budget.used == LIMIT // 2, "however many there are, bodies have half"
    assert Sender(budget).send(SMALL_BYTES)
    budget.connected(-1_000_100 - FREE_CONNECTIONS)
    assert budget.used == SMALL_BYTES


def test_a_connection_has_its_share_and_no_more(budget: Budget) -> None:
    sender = Sender(budget)
    assert sender.send(LIMIT // SHARE_PART)
    assert not sender.send(1)
    budget.let_go(sender)
    assert budget.used == 0 and sender.send(1)


def test_those_that_hold_most_give_way(budget: Budget) -> None:
    small, large = [Sender(budget) for _ in range(10)], [Sender(budget) for _ in range(6)]
    assert all(sender.send(100_000 + number) for number, sender in enumerate(small))
    sent = [sender.send(3_000_000) for sender in large]
    assert sent.count(True) == 4  # a fifth would hold no less than those who were there before
    new = Sender(budget)
    while new.send(100_000) and not any(sender.is_given_up for sender in large):
        pass
    assert new.held <= 3_000_000 and not new.is_given_up
    assert [sender.is_given_up for sender in small] == [False] * 10
    assert budget.used <= LIMIT and budget.given_up >= 1


def test_what_is_small_finds_room_when_the_budget_is_used_up(budget: Budget) -> None:
    for _ in range(1_000):
        Sender(budget).send(LIMIT // 100)
    assert budget.used > LIMIT - LIMIT // SPARE_PART - LIMIT // 10
    assert budget.take(3_000) and Sender(budget).send(3_000)
    while budget.take(SMALL_BYTES):  # even this many: bodies that hold more make room for them
        assert budget.used <= LIMIT
    assert budget.used > LIMIT - SMALL_BYTES
    assert budget.given_up > 50
    while budget.take(1_000):
        pass
    assert budget.used > LIMIT - 1_000  # now all of it is of requests that wait, which are never given up


def test_tensors_take_no_more_than_there_is(budget: Budget) -> None:
    taken = 0
    while budget.take(1_000_000):
        taken += 1
    assert taken == (LIMIT - LIMIT // SPARE_PART) // 1_000_000
    budget.used -= 1_000_000
    assert budget.take(1_000_000)


def test_room_is_made_for_some_time(budget: Budget) -> None:
    """Looking for those that hold most is not done for every byte."""
    senders = [Sender(budget) for _ in range(140)]
    assert all(sender.send(100_000) for sender in senders)
    new = Sender(budget)
    assert new.send(1_000)
    while not budget.given_up:
        assert Sender(budget).send(50_000)
    assert budget.used <= LIMIT - LIMIT // RELIEF_PART + 50_000
    assert sum(sender.is_given_up for sender in senders) == budget.given_up


def test_a_part_that_was_given_up_with_the_whole_is_not_given_back_twice(budget: Budget) -> None:
    """What waited for its turn was given back once more then: its connection had that much for nothing."""
    sender, other = Sender(budget), Sender(budget)
    assert sender.send(200_000) and other.send(100_000)
    sender.give_up()
    budget.let_go_of(sender, 150_000)  # its next turn comes all the same
    assert (sender.held, budget.used) == (0, 100_000)
    assert sender.send(LIMIT // SHARE_PART) and not sender.send(1)


def test_of_those_that_hold_about_the_same_the_first_gives_way(budget: Budget) -> None:
    """A body that never comes to its end is older than one that is just being sent."""
    slow = [Sender(budget) for _ in range(135)]
    assert all(sender.send(100_000) for sender in slow)
    quick = Sender(budget)
    assert quick.send(120_000)
    while not budget.given_up:
        assert Sender(budget).send(50_000)
    assert slow[0].is_given_up and not quick.is_given_up


def test_of_bodies_that_come_at_once_as_many_end_as_there_is_room_for(budget: Budget) -> None:
    """Those that were nearly complete were given up for others that just began; of these, too, none came to its end."""
    length, piece = 1_000_000, 50_000
    senders = [Sender(budget, length) for _ in range(100)]
    for _ in range(length // piece):
        for sender in senders:
            if not sender.is_given_up and not sender.send(piece):
                sender.give_up()
    complete = [sender for sender in senders if sender.held == length]
    assert len(complete) == (LIMIT - LIMIT // SPARE_PART) // length
    assert Sender(budget, 1_000).send(1_000), "what is small has room all the same"


def test_one_that_never_ends_gives_way_to_another_of_its_size(budget: Budget) -> None:
    slow = [Sender(budget, 1_000_000) for _ in range(28)]
    assert all(sender.send(500_000) for sender in slow)
    quick = Sender(budget, 1_000_000)
    assert not quick.send(100_000), "those are on their way like any other"
    budget.let_go(quick)
    for sender in slow[:10]:
        sender.is_stale = True
    assert quick.send(100_000) and slow[0].is_given_up and not slow[1].is_given_up
    assert not Sender(budget, 1_500_000).send(600_000), "but not to a larger one"
    assert not slow[1].send(500_000) and not slow[1].is_given_up, "nobody is given up by its own asking"


def test_a_body_is_as_large_as_it_will_be(budget: Budget) -> None:
    large = [Sender(budget, 3_000_000) for _ in range(10)]
    assert all(sender.send(1_390_000) for sender in large)
    small = Sender(budget, 2_000_000)
    assert small.send(1_900_000), "though it holds more than any of them"
    assert sum(sender.is_given_up for sender in large) == budget.given_up > 0
    assert not Sender(budget, 4_000_000).send(2_000_000), "and nobody goes for one that will be larger"


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4_000_000), st.sampled_from(["hold", "part", "all", "take"])))
)
def test_nobody_is_given_up_for_one_that_holds_more(steps: list[tuple[int, int, str]]) -> None:
    budget, taken = Budget(LIMIT), 0
    senders = [Sender(budget, promised) for promised in range(0, 3_100_000, 100_000)]
    for number, size, what in steps:
        sender, before = senders[number], [each.weight for each in senders]
        for each in senders:
            each.is_given_up = False
        if what == "hold":
            asks = sender.held + size
            if not sender.send(size):
                assert not any(other.weight > sender.weight for other in senders) or sender.held > budget.share
                budget.let_go(sender)
            asks = max(asks, sender.promised) if asks else 0
        elif what == "take":
            taken += size if budget.take(size) else 0
            asks = size
        else:
            budget.let_go_of(sender, size) if what == "part" else budget.let_go(sender)
            asks = LIMIT
        assert all(weight > asks for weight, each in zip(before, senders, strict=True) if each.is_given_up)
        assert budget.used == taken + sum(each.held for each in senders) <= LIMIT
