"""Loads beside the work: prefetching, who gives way, what answers meanwhile, and switches that find their variant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import Eager, Fixed, Late, Missing, Plan
from stretto.core.worker import Worker
from stretto.dispatch.decisions import Load, Run, Unload
from tests.dispatch.driver import Driver
from tests.dispatch.small import PROFILE, deployed, lane, planned, straight, variant

MODELS = tuple(variant(name, memory=4, load_ns=100) for name in "abcde")


def cramped(memory: int = 12, resident: tuple[str, ...] = ("app/a", "app/b", "app/c")) -> Deployment:
    """Five variants of 4 bytes that take 100 ns to load, on a worker with room for three."""
    return deployed(*MODELS, crew=(Worker("w", memory_bytes=memory, resident=resident),))


def holding(chosen: int, *others: int, **rules: Any) -> Plan:
    """One lane that runs `chosen`, with the others prefetched."""
    rules = {"missing": Missing.STAND_IN, "release": Eager(1)} | rules
    return planned(lane(select=Fixed(chosen), **rules), placement=((chosen,),), prefetch=(others,))


def loads(made: Driver) -> list[tuple[int, bool]]:
    """Of what was decided since this was last asked: loads, by variant and whether they go on beside the work."""
    return [(decision.variant, decision.beside) for decision in made.taken() if isinstance(decision, Load)]


def test_a_prefetch_goes_on_beside_the_work() -> None:
    made = Driver(cramped(), holding(0, 1, 2))
    made.query(10_000)
    made.taken()
    made.adopt(holding(0, 1, 3))
    assert made.taken() == [Unload(0, 2), Load(0, 3, 0, 100, alone=False, beside=True)]
    made.at(12).finish(0)
    made.query(10_000)
    assert made.batches() == [(0, 0, [1])], "the worker serves while a load goes on"
    made.at(100).load_ended(0)
    assert made.crew[0].loaded == {0, 1, 3}


def test_one_at_a_time_what_is_placed_first_then_the_soonest() -> None:
    made = Driver(cramped(20, ()), holding(2, 4, 1, 0))
    order = []
    for _ in range(4):
        (load,) = loads(made)
        order.append(load)
        made.at(made.now_ns + 100).load_ended(0)
    assert order == [(2, True), (4, True), (1, True), (0, True)]
    assert loads(made) == []


def test_the_variant_before_answers_until_the_new_one_is_there() -> None:
    made = Driver(cramped(), holding(0, 1, 2))
    made.query(10_000)
    made.at(12).finish(0)
    made.adopt(holding(4, 3, 2))
    made.query(10_000)
    assert [(d.worker, d.variant) for d in made.taken() if isinstance(d, Run)] == [(0, 0), (0, 0)]
    made.at(24).finish(0)
    made.query(10_000)
    assert made.batches()[-1][1] == 0
    made.at(36).finish(0)
    made.at(112).load_ended(0)
    made.query(10_000)
    assert made.batches()[-1][1] == 4, "from now on the one that was chosen"


def test_a_lane_that_takes_no_stand_in_waits_for_what_is_on_its_way() -> None:
    made = Driver(cramped(), holding(0, 1, 2))
    made.query(10_000)
    made.at(12).finish(0)
    made.adopt(holding(4, 3, 2, missing=Missing.LOAD))
    made.taken()
    made.query(10_000)
    assert made.taken() == [], "it is not loaded once more in the way of the work"
    made.at(112).load_ended(0)
    assert made.batches() == [(0, 4, [1])]


def test_only_a_variant_of_the_same_application_stands_in() -> None:
    made = Driver(cramped(4, ("app/a",)), holding(0))
    made.adopt(holding(1))
    made.taken()
    made.query(10_000)
    assert made.taken() == [], "nothing else fits into memory, so nothing can answer"
    made.at(100).load_ended(0)
    assert made.batches() == [(0, 1, [0])]


def test_what_ran_last_is_the_last_to_give_way() -> None:
    made = Driver(cramped(), holding(1, 0, 2))
    made.query(10_000)
    made.at(12).finish(0)
    made.taken()
    made.adopt(holding(3, 4))
    assert made.taken()[0] == Unload(0, 0), "b answers meanwhile"
    made.at(112).load_ended(0)
    assert loads(made) == [(4, True)] and 1 in made.crew[0].loaded
    made.at(212).load_ended(0)
    assert made.crew[0].loaded == {1, 3, 4}


def test_a_prefetched_variant_gives_way_to_what_is_placed_but_to_no_other_prefetched_one() -> None:
    made = Driver(cramped(), holding(0, 1, 2))
    made.query(10_000)
    made.at(12).finish(0)
    made.taken()
    made.adopt(replace(holding(3, 1, 2), placement=((3,),)))
    assert made.taken() == [Unload(0, 2), Load(0, 3, 12, 112, alone=False, beside=True)], "the last that was prefetched"
    made.at(112).load_ended(0)
    assert loads(made) == [], "c would have to take the place of what ran last"
    made.query(10_000)
    made.at(124).finish(0)
    assert made.taken()[1:] == [Unload(0, 0), Load(0, 2, 124, 224, alone=False, beside=True)], "now d ran last"


def test_a_variant_in_use_stays_and_its_place_is_taken_when_its_batch_has_ended() -> None:
    made = Driver(cramped(4, ("app/a",)), holding(0))
    made.query(10_000)
    made.taken()
    made.adopt(holding(1))
    assert made.taken() == []
    made.at(12).finish(0)
    assert made.taken() == [Unload(0, 0), Load(0, 1, 12, 112, alone=False, beside=True)]


def test_a_load_that_fails_is_not_tried_again_until_the_next_plan() -> None:
    made = Driver(cramped(), holding(0, 1, 2))
    made.query(10_000)
    made.at(12).finish(0)
    made.adopt(holding(3, 1))
    made.taken()
    made.at(112).load_ended(0, ok=False)
    assert loads(made) == []
    made.query(10_000)
    assert made.batches() == [(0, 0, [1])], "the one before goes on answering"
    made.at(130).finish(0)
    made.adopt(holding(3, 2))
    assert loads(made) == [(3, True)]


def test_a_lost_worker_loses_what_was_on_its_way() -> None:
    made = Driver(cramped(), holding(0, 1, 3))
    assert loads(made) == [(3, True)]
    made.leave(0)
    assert made.dispatcher.loaded(made.now_ns, 0, 3) is False
    made.join(0)
    assert loads(made) == [(3, True)]
    made.at(100).load_ended(0)


def test_a_load_under_way_outlives_its_plan() -> None:
    made = Driver(cramped(), holding(0, 1, 3))
    made.taken()
    made.adopt(planned(lane(select=Fixed(0))))
    made.at(100).load_ended(0)
    assert 3 in made.crew[0].loaded and loads(made) == []


def test_a_placement_that_takes_the_worker_does_not_load_what_is_on_its_way() -> None:
    made = Driver(cramped(), holding(0, 1, 3))
    made.taken()
    made.adopt(planned(lane(select=Fixed(3), missing=Missing.WAIT), placement=((3,),)))
    assert made.taken() == []
    made.query(10_000)
    made.at(100).load_ended(0)
    assert made.batches() == [(0, 3, [0])]


def test_without_a_prefetch_a_placement_takes_the_worker_as_before() -> None:
    made = Driver(cramped(), planned(lane(select=Fixed(3)), placement=((3,),)))
    (load,) = [decision for decision in made.taken() if isinstance(decision, Load)]
    assert load.alone and not load.beside


def test_switches_are_counted_by_whether_the_variant_was_there() -> None:
    made = Driver(cramped(), holding(0, 1, 2))
    assert made.dispatcher.switches == (0, 0)
    made.adopt(holding(1, 0, 2))
    made.adopt(holding(1, 2))
    assert made.dispatcher.switches == (1, 0)
    made.adopt(holding(4, 2))
    assert made.dispatcher.switches == (1, 1)
    made.adopt(holding(3, 4))  # while e is still on its way
    reading = made.dispatcher.telemetry(made.now_ns)
    assert (reading.switch_hits, reading.switch_misses) == (1, 2)


def test_a_larger_fleet_prefetches_nothing_on_workers_that_the_plan_does_not_know() -> None:
    made = Driver(cramped(), holding(0, 1, 2))
    made.enlarge(Worker("more", memory_bytes=12, resident=()))
    assert made.plan.prefetch == ((1, 2), ())
    made.join(1)
    assert loads(made) == []


def test_a_stand_in_that_would_be_late_is_not_run() -> None:
    """The old variant takes 60 ns; a query with 30 ns left is dropped when it would be dispatched."""
    models = (variant("slow", straight(1, 59), memory=4, load_ns=100), variant("fast", PROFILE, memory=4, load_ns=100))
    on = deployed(*models, crew=(Worker("w", memory_bytes=8, resident=("app/slow",)),))
    made = Driver(on, holding(0, late=Late.DROP_WHEN_DISPATCHED))
    made.adopt(holding(1, late=Late.DROP_WHEN_DISPATCHED))
    made.taken()
    lost, kept = made.query(30), made.query(80)
    assert made.outcome(lost) is Outcome.DROPPED_INFEASIBLE
    assert made.batches() == [(0, 0, [1])] and made.outcome(kept) is None


def test_numbers_out_of_range_are_refused() -> None:
    made = Driver(cramped(), holding(0))
    with pytest.raises(StrettoError, match="variant number 5 is outside 0 … 4"):
        made.dispatcher.loaded(0, 0, 5)
    with pytest.raises(StrettoError, match="worker number 1"):
        made.dispatcher.loaded(0, 1, 0)
