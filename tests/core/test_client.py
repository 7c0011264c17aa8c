"""Clients: slots that are reused, and what is known of each."""

from __future__ import annotations

import gc
import math
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.client import HEADROOM, PROBE_RATE, Clients, Network, Place, Told
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, NS_PER_S


def test_a_client_keeps_its_slot_and_the_lowest_free_one_is_taken() -> None:
    clients = Clients()
    assert [clients.slot_of(1, name, "fashion") for name in ("a", "b", "a", "c")] == [0, 1, 0, 2]
    clients.slot_of(5, "a", "fashion")
    clients.slot_of(6, "c", "fashion")
    assert clients.forget_before(5) == 1  # b asked last at 1
    assert clients.slot_of(7, "d", "fashion") == 1
    assert [client.identity for client in clients.all()] == ["a", "d", "c"]


def test_what_is_known_of_a_client_goes_with_it() -> None:
    clients = Clients()
    slot = clients.slot_of(1, "a", "fashion")
    clients.asked(1, slot, bytes_per_s=1e6, delay_ns=5_000_000, slo_ns=7, frame_ratio=9.0, said_rate=1e9)
    clients.told(slot, Told("px20", (20, 20)))
    clients.slot_of(9, "a", "fashion")
    (client,) = clients.all()
    assert client.network == Network(pytest.approx(1e6), 5_000_000) and client.told.input_size == (20, 20)
    assert client.seen_ns == 9 and client.application == "fashion" and client.slo_ns == 7 and client.frame_ratio == 9.0
    assert client.said_rate == 1e9 and client.rate == 1.0  # as counted, whatever it says
    clients.forget_before(10)
    clients.asked(10, slot, bytes_per_s=2.0)  # nobody is there any more
    assert clients.slot_of(11, "b", "fashion") == slot
    assert clients.all()[0].network == Network() and clients.all()[0].told == Told()


def test_what_one_identity_asks_of_two_applications_is_known_apart() -> None:
    """Once: 200 queries to one and one to the other were 102 a second of the other, told and placed as such."""
    clients = Clients()
    for number in range(200):
        now_ns = number * 10 * NS_PER_MS
        big = clients.slot_of(now_ns, "camera", "big")
        clients.asked(now_ns, big, slo_ns=7, frame_ratio=2.0, said_rate=99.0)
    small = clients.slot_of(now_ns, "camera", "small")
    clients.asked(now_ns, small)
    assert small != big and len(clients) == 2 and clients.identity_of(small) == clients.identity_of(big) == "camera"
    seen = clients.all(now_ns)
    assert [each.application for each in seen] == ["big", "small"]
    assert [each.rate for each in seen] == pytest.approx([101.0, 1.0])
    assert seen[1].slo_ns is None and seen[1].frame_ratio == 1.0 and seen[1].said_rate is None
    placed = {big: Place(Told("px28", (28, 28)), 1), small: Place(Told("", (8, 8)), 0, True)}
    clients.planned(seen, placed)
    assert clients.place_of(big) == placed[big] and clients.place_of(small) == placed[small]
    for slot, most in ((big, 101 * HEADROOM / 2 + 1), (small, PROBE_RATE)):
        let_in = 0
        while clients.admits(now_ns, slot):
            clients.admitted(now_ns, slot)
            let_in += 1
        assert let_in == pytest.approx(most, abs=1)


def test_a_network_is_its_identity_s_until_the_last_of_its_clients_is_forgotten() -> None:
    clients = Clients()
    big = clients.slot_of(1, "camera", "big")
    clients.asked(1, big, bytes_per_s=1e6, delay_ns=8_000_000)
    small = clients.slot_of(5, "camera", "small")
    assert clients.all()[small].network == Network(pytest.approx(1e6), 8_000_000)
    clients.asked(5, small, bytes_per_s=4e6, delay_ns=16_000_000)
    assert clients.all()[big].network == clients.all()[small].network
    assert clients.all()[big].network == Network(pytest.approx(1.6e6), 9_000_000, pytest.approx(math.exp(-3.0)))
    assert clients.delay_ns_of(big) == 9_000_000
    assert clients.forget_before(3) == 1  # big
    assert clients.delay_ns_of(small) == 9_000_000
    clients.forget_before(6)
    assert not clients._ways
    assert clients.delay_ns_of(clients.slot_of(7, "camera", "small")) == 0


def reporting(*bytes_per_s: float) -> Network:
    """A client's network after 20 reports a second, each bandwidth for a second, again and again for a minute."""
    clients = Clients()
    for number in range(1200):
        now_ns = number * 50 * NS_PER_MS
        slot = clients.slot_of(now_ns, "camera", "see")
        clients.asked(now_ns, slot, bytes_per_s=bytes_per_s[number // 20 % len(bytes_per_s)])
    return clients.all(now_ns)[0].network


def test_a_bandwidth_that_varies_is_counted_on_for_less_of_it() -> None:
    """Reckoned by hand: at 1 and 2 MB/s in turn, each report is off from the harmonic mean of the second before it."""
    offs = []
    reports = [(1e6, 2e6)[number // 20 % 2] for number in range(1200)]
    for number in range(1200 - 128, 1200):
        lately = reports[number - 20 : number]
        mean = len(lately) / sum(1 / each for each in lately)
        offs.append(abs(math.log(reports[number] / mean)))
    expected = math.exp(-3 * sum(offs) / len(offs))
    assert 0.2 < expected < 0.5
    assert reporting(1e6, 2e6).steady_share == pytest.approx(expected, rel=0.2)
    assert reporting(1e6, 1.2e6).steady_share > reporting(1e6, 1.5e6).steady_share > reporting(1e6, 2e6).steady_share
    assert reporting(1e6).steady_share == pytest.approx(1.0)


def test_one_wild_report_is_no_varying_network() -> None:
    clients = Clients()
    for number in range(200):
        slot = clients.slot_of(number * 50 * NS_PER_MS, "camera", "see")
        clients.asked(number * 50 * NS_PER_MS, slot, bytes_per_s=1e10 if number == 190 else 1e6)
    assert clients.all()[0].network.steady_share > 0.9


def test_numbers_that_make_no_sense_are_held_to_their_bounds() -> None:
    clients = Clients()
    slot = clients.slot_of(1, "a", "fashion")
    for frame_ratio in (math.nan, math.inf, -1.0, 1e300):
        clients.asked(1, slot, bytes_per_s=math.nan, delay_ns=10**30, slo_ns=-5, frame_ratio=frame_ratio)
    (client,) = clients.all()
    assert client.network == Network(None, 60 * NS_PER_S) and client.slo_ns is None
    assert client.frame_ratio == 64.0


def test_the_size_of_frames_is_known_from_the_first_and_follows_slowly() -> None:
    """Once: it began at 1, so that a camera of JPEGs was planned with frames of raw numbers for its first second."""
    clients = Clients()
    slot = clients.slot_of(1, "a", "fashion")
    assert clients.all()[0].frame_ratio == 1.0
    clients.asked(1, slot, frame_ratio=0.2)
    assert clients.all()[0].frame_ratio == 0.2
    clients.asked(2, slot, frame_ratio=1.0)
    assert clients.all()[0].frame_ratio == pytest.approx(0.3)


def test_a_plan_is_wanted_when_one_comes_is_counted_or_goes_or_its_bandwidth_moves_by_a_fifth() -> None:
    clients, changes = Clients(), []
    clients.on_change = lambda: changes.append(clients.is_changed)

    def planned() -> None:
        clients.planned(clients.to_plan_for(0), {})

    slot = clients.slot_of(0, "a", "fashion")
    assert changes == [True]
    planned()
    clients.asked(0, slot, bytes_per_s=1e6)
    assert len(changes) == 2  # there was none before
    planned()
    clients.asked(NS_PER_S // 5, slot)
    assert len(changes) == 2  # its rate cannot be told yet
    clients.asked(NS_PER_S // 4, slot)
    assert len(changes) == 3  # now it can, once
    planned()
    clients.asked(NS_PER_S * 3, slot, bytes_per_s=1.15e6)
    assert len(changes) == 3
    clients.asked(NS_PER_S * 6, slot, bytes_per_s=1.3e6)
    clients.asked(NS_PER_S * 7, slot, bytes_per_s=1.3e6)
    assert len(changes) == 4  # once, until there is a plan
    planned()
    clients.forget_before(NS_PER_S * 20)
    assert len(changes) == 5


def test_who_comes_or_moves_while_a_planner_plans_is_a_reason_to_ask_it_again() -> None:
    clients, changes = Clients(), []
    slot = clients.slot_of(0, "a", "fashion")
    clients.asked(0, slot, bytes_per_s=1e6)
    clients.on_change = lambda: changes.append(clients.is_changed)
    seen = clients.to_plan_for(0)
    clients.asked(1, slot, bytes_per_s=1e6)
    assert not changes and not clients.is_changed
    clients.slot_of(2, "b", "fashion")
    clients.planned(seen, {})
    assert changes == [True] and clients.is_changed
    clients.planned(clients.to_plan_for(3), {})
    assert not clients.is_changed


def test_a_plan_says_nothing_of_who_came_into_a_slot_after_it_was_begun() -> None:
    clients = Clients()
    slot = clients.slot_of(1, "a", "fashion")
    seen = clients.all()
    clients.forget_before(5)
    assert clients.slot_of(6, "b", "fashion") == slot
    clients.planned(seen, {slot: Place(Told("px20", (20, 20)), 0, True)})
    assert clients.all()[0].told == Told()


def test_who_asks_more_than_it_was_planned_with_is_not_admitted() -> None:
    clients = Clients()
    honest, liar = clients.slot_of(0, "honest", "fashion"), clients.slot_of(0, "liar", "fashion")
    for frame in range(20):
        for slot in (honest, liar):
            clients.asked(frame * 50 * NS_PER_MS, slot, said_rate=5.0)
    now_ns = NS_PER_S
    clients.planned(clients.all(now_ns), {})
    let_in = {honest: 0, liar: 0}
    for tick_ms in range(2000):
        at_ns = now_ns + tick_ms * NS_PER_MS
        for slot in (liar, honest):
            if (slot == liar or tick_ms % 50 == 0) and clients.admits(at_ns, slot):
                clients.admitted(at_ns, slot)
                let_in[slot] += 1
    assert let_in[honest] == 40  # as measured, which is what it does
    assert let_in[liar] == pytest.approx(2.5 * 20 * HEADROOM, rel=0.1)  # two seconds, and half a second ahead


def test_one_that_is_new_or_was_held_back_may_ask_as_it_would() -> None:
    clients = Clients()
    slot = clients.slot_of(0, "a", "fashion")
    clients.asked(0, slot)
    clients.planned(clients.all(0), {})  # counted once, and 20 a second is what it does
    for frame in range(1, 40):
        now_ns = frame * 50 * NS_PER_MS
        assert clients.admits(now_ns, slot)
        clients.slot_of(now_ns, "a", "fashion")
        clients.asked(now_ns, slot)
        clients.admitted(now_ns, slot)
        if frame % 10 == 0:
            clients.planned(clients.all(now_ns), {})
    later_ns = 3 * NS_PER_S  # it waited for a second, so that nothing was counted
    clients.planned(clients.all(later_ns), {})
    for frame in range(20):
        assert clients.admits(later_ns + frame * 50 * NS_PER_MS, slot)
        clients.admitted(later_ns + frame * 50 * NS_PER_MS, slot)


def test_who_is_mapped_nowhere_may_probe() -> None:
    clients = Clients()
    slot = clients.slot_of(0, "a", "fashion")
    clients.planned(clients.all(), {slot: Place(Told("", (20, 20)), 0, True)})
    let_in = 0
    for tick_ms in range(10_000):
        if clients.admits(tick_ms * NS_PER_MS, slot):
            clients.admitted(tick_ms * NS_PER_MS, slot)
            let_in += 1
    assert let_in <= 10 * PROBE_RATE + 2


NOWHERE = Place(Told("", (20, 20)), 0, True)


def asked_evenly(clients: Clients, rate: int, seconds: int) -> int:
    """By one client, whom plans each half second have a place for; returns its slot."""
    for frame in range(rate * seconds):
        now_ns = frame * NS_PER_S // rate
        slot = clients.slot_of(now_ns, "a", "fashion")
        clients.asked(now_ns, slot)
        if frame % (rate // 2) == 0:
            clients.planned(clients.all(now_ns), {slot: Place(Told("v", (20, 20)), 0)})
    return slot


def test_one_that_is_mapped_nowhere_and_waits_counts_with_the_rate_that_it_had() -> None:
    """Else it would be mapped for the few that it tries, and come back with all that it wants, for ever in turn."""
    clients = Clients()
    slot = asked_evenly(clients, 20, 3)
    for plan in range(6):
        now_ns = 3 * NS_PER_S + plan * NS_PER_S // 2
        clients.slot_of(now_ns, "a", "fashion")
        clients.asked(now_ns, slot)
        clients.planned(clients.all(now_ns), {slot: NOWHERE})
    assert 16 < clients.all(6 * NS_PER_S)[0].rate < 21


def test_a_burst_does_not_count_for_longer_than_it_is_measured() -> None:
    """A client of 20/s that sent 600 at once used to count with hundreds for twenty seconds, and had no place."""
    clients = Clients()
    slot = asked_evenly(clients, 20, 3)
    clients.asked(3 * NS_PER_S, slot, 600)
    for plan in range(3):
        now_ns = 3 * NS_PER_S + plan * NS_PER_S // 2
        clients.planned(clients.all(now_ns), {slot: NOWHERE})
    assert clients.all(4 * NS_PER_S)[0].rate > 500
    assert clients.all(4 * NS_PER_S + NS_PER_S // 5)[0].rate <= 21 * HEADROOM  # counted with 20 or 21


def test_memory_stays_flat_while_thousands_come_and_go() -> None:
    clients = Clients()
    now_ns = 0

    def a_while() -> None:
        nonlocal now_ns
        for number in range(2_000):  # a hundred come each second, and each asks for a tenth of one
            now_ns += 10 * NS_PER_MS
            for who in range(number, number + 10):
                slot = clients.slot_of(now_ns, f"client {who}", "fashion")
                clients.asked(now_ns, slot, bytes_per_s=1e6)
            if number % 25 == 0:
                clients.forget_before(now_ns - 3 * NS_PER_S)
                clients.planned(clients.all(now_ns), {})

    def held() -> int:
        mine = tracemalloc.Filter(True, "*/stretto/core/client*")  # whatever else runs in this process
        return sum(each.size for each in tracemalloc.take_snapshot().filter_traces([mine]).statistics("filename"))

    gc.collect()  # empties Python's lists of tuples to use again: memory from there is not traced
    tracemalloc.start()
    a_while()
    before = held()
    a_while()
    after = held()
    tracemalloc.stop()
    assert len(clients) < 400 and max(client.slot for client in clients.all()) < 400
    assert 0 < after < before * 1.15  # of 2,000 that came, 20 bytes each that are held on to would be more


def test_the_one_that_asked_longest_ago_gives_way() -> None:
    clients = Clients(2)
    assert [clients.slot_of(n, name, "fashion") for n, name in enumerate(("a", "b", "a", "c", "b"))] == [0, 1, 0, 1, 0]
    with pytest.raises(StrettoError, match="at least one client"):
        Clients(0)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["ax", "ay", "bx", "by", "cx", "cy", "dx", "ey"]), st.booleans()), max_size=60),
    st.integers(1, 4),
)
def test_slots_are_small_and_no_two_clients_share_one(steps: list[tuple[str, bool]], most: int) -> None:
    clients = Clients(most)
    for now, (name, forgets) in enumerate(steps):
        key = name[0], name[1]
        slot = clients.slot_of(now, *key)
        assert 0 <= slot < most
        if forgets:
            clients.forget_before(now - 1)
        slots = [client.slot for client in clients.all()]
        assert len(set(slots)) == len(slots) == len(clients) <= most
        assert next(client.slot for client in clients.all() if client.key == key) == slot
        assert clients._ways.keys() == {client.identity for client in clients.all()}


def test_who_has_more_open_than_an_equal_share_is_ahead_of_others() -> None:
    clients = Clients()
    flood, other = clients.slot_of(0, "flood", "fashion"), clients.slot_of(0, "other", "fashion")
    held = [clients.began(flood) for _ in range(30)]
    assert not clients.is_ahead_of_others(flood, 40)  # alone
    asker = clients.began(other, 2)
    assert clients.is_ahead_of_others(flood, 40) and not clients.is_ahead_of_others(other, 40)
    clients.forget_before(10)
    assert clients.slot_of(11, "new", "fashion") == flood  # what the flood still has open is not its own
    for known in held:
        clients.ended(known)
    assert not clients.is_ahead_of_others(flood, 1)
    clients.ended(asker, 2)
    clients.ended(None)
    assert clients.began(99) is None and clients._asking == 0
