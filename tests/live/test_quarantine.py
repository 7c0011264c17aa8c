"""Models that are set aside: when, for how long, and what is remembered of them."""

from __future__ import annotations

from stretto.live.quarantine import FIRST_PAUSE_S, HEALTHY_S, LONGEST_PAUSE_S, NS, SUSPECT_S, Fault, Quarantine

KEY = "app/v@1"


def pause_s(made: Quarantine, now_ns: int) -> float:
    return (made.entries[KEY].until_ns - now_ns) / NS


def test_the_second_loss_sets_a_model_aside_and_one_more_after_it_was_tried() -> None:
    made = Quarantine()
    assert not made.lost(0, KEY, Fault.CRASHED, "signal 11") and made.entries == {}
    assert made.suspects(0) == {KEY} and made.suspects(round((SUSPECT_S + 1) * NS)) == set()
    assert made.lost(1, KEY, Fault.HUNG, "it hung") and made.entries[KEY].fault is Fault.HUNG
    assert not made.lost(2, KEY, Fault.HUNG, "it hung again")  # of a batch that had begun before
    assert made.due(round(FIRST_PAUSE_S * NS)) == [] and made.due(round(FIRST_PAUSE_S * NS) + 1) == [KEY]
    now_ns = round(FIRST_PAUSE_S * NS) + 1
    made.release(now_ns, KEY)
    assert made.entries == {} and made.suspects(now_ns) == {KEY}
    assert made.lost(now_ns, KEY, Fault.CRASHED, "signal 11") and pause_s(made, now_ns) == 2 * FIRST_PAUSE_S
    assert (made.losses["app/v"], made.times["app/v"]) == (3, 2)


def test_pauses_double_up_to_the_longest_and_begin_anew_after_a_healthy_life() -> None:
    made, now_ns, pauses = Quarantine(), 0, []
    for _ in range(10):
        made.put(now_ns, KEY, Fault.LOAD_CRASHED, "signal 11")
        pauses.append(pause_s(made, now_ns))
    assert pauses[:4] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, 8 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    made.release(now_ns, KEY)
    now_ns = round((HEALTHY_S + 1) * NS)
    assert not made.lost(now_ns, KEY, Fault.CRASHED, "signal 11")
    assert made.lost(now_ns, KEY, Fault.CRASHED, "signal 11") and pause_s(made, now_ns) == FIRST_PAUSE_S


def test_another_file_is_another_model() -> None:
    made = Quarantine()
    made.put(0, KEY, Fault.LOAD_FAILED, "damaged")
    made.forget({"app/v@2"})
    assert made.entries == {} and made.due(10**18) == []
    assert "damaged; it is tried again in 30 s" in made.put(0, KEY, Fault.LOAD_FAILED, "damaged").told(0)


def test_what_an_operator_reads_counts_down_and_ends_at_nothing() -> None:
    entry = Quarantine().put(5 * NS, KEY, Fault.RAISED, "it failed")
    assert entry.until_ns == 35 * NS
    assert "it failed; it is tried again in 30 s," in entry.told(5 * NS)
    assert "in 12 s," in entry.told(23 * NS)
    assert "in 0 s," in entry.told(35 * NS) and "in 0 s," in entry.told(99 * NS)


def test_ten_minutes_after_a_loss_it_is_forgotten_and_not_before() -> None:
    made = Quarantine()
    made.lost(0, KEY, Fault.CRASHED, "signal 11")
    assert made.lost(600 * NS, KEY, Fault.CRASHED, "signal 11"), "ten minutes are not over"
    made = Quarantine()
    made.lost(0, KEY, Fault.CRASHED, "signal 11")
    assert not made.lost(600 * NS + 1, KEY, Fault.CRASHED, "signal 11")


def test_one_that_raised_is_no_danger_to_workers_when_it_is_served_again() -> None:
    made = Quarantine()
    made.put(0, KEY, Fault.RAISED, "it failed")
    made.release(1, KEY)
    assert made.suspects(1) == set() and not made.lost(2, KEY, Fault.CRASHED, "signal 11")
    made.put(3, KEY, Fault.RAISED, "it failed again")
    assert pause_s(made, 3) == 2 * FIRST_PAUSE_S
