"""What workers hold in memory: swapping in and out with load times, the longest unused first, and placements."""

from __future__ import annotations

from typing import Any

from stretto.core.application import Variant
from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Eager, Fixed, Late, Missing, Plan, Route, RouteRule, Work, Worklist
from stretto.core.worker import Worker
from stretto.dispatch.decisions import Load, Run, Unload
from tests.dispatch.driver import Driver
from tests.dispatch.small import PROFILE, deployed, driver, lane, planned, variant

MODELS = tuple(variant(name, memory=4, load_ns=100) for name in "abc")


def cramped(memory: int = 8, *, resident: tuple[str, ...] | None = None, workers: int = 1, **rules: Any) -> Driver:
    """Three variants of 4 bytes and 100 ns to load, a lane for each, reached by client number."""
    return Driver(small_workers(memory, resident, workers), three_lanes(workers, **rules))


def small_workers(memory: int, resident: tuple[str, ...] | None, workers: int) -> Deployment:
    crew = tuple(Worker(f"w{number}", memory_bytes=memory, resident=resident) for number in range(workers))
    return deployed(*MODELS, crew=crew)


def three_lanes(workers: int = 1, **rules: Any) -> Plan:
    crew = tuple(range(workers))
    lanes = tuple(lane(name, crew, select=Fixed(number), **rules) for number, name in enumerate("abc"))
    return Plan(lanes, (Route(RouteRule.BY_CLIENT, (0, 1, 2), targets=(0, 1, 2)),))


def test_a_worker_begins_with_what_fits_in_order() -> None:
    made = cramped()
    assert made.crew[0].loaded == {0, 1}
    made.query(500, client=1)
    (run,) = made.taken()
    assert isinstance(run, Run) and run.start_ns == 0


def test_a_worker_begins_with_what_it_names() -> None:
    assert cramped(resident=("app/c", "app/a")).crew[0].loaded == {0, 2}
    assert cramped(resident=()).crew[0].loaded == set()


def test_a_variant_is_swapped_in_for_the_one_unused_longest() -> None:
    made = cramped()
    made.query(500, client=0)
    made.at(12).finish(0)
    made.query(500, client=1)
    made.at(30).finish(0)
    made.taken()
    made.query(500, client=2)
    assert made.taken() == [
        Unload(0, 0),  # b was used after a
        Load(0, 2, start_ns=30, expected_ns=130, alone=False),
        Run(0, 2, (next(reversed(made.book)),), start_ns=130, expected_ns=142),
    ]
    made.at(142).finish(0)
    made.query(500, client=0)
    assert made.taken()[0] == Unload(0, 1)


def test_a_variant_in_use_stays() -> None:
    """The worker runs b; c is committed behind it, and a has to go although b was used longer ago."""
    made = cramped(ahead_ns=50)
    made.query(500, client=1)
    made.at(12).finish(0)
    made.query(5000, client=0)
    made.at(24).finish(0)
    made.query(5000, client=1)
    made.taken()
    made.query(5000, client=2)
    unload, load, run = made.taken()
    assert unload == Unload(0, 0)
    assert load == Load(0, 2, start_ns=36, expected_ns=136, alone=False)
    assert isinstance(run, Run) and (run.start_ns, run.expected_ns) == (136, 148)
    made.at(50).finish(0)  # 14 late, and so is the load
    assert made.dispatcher.telemetry(50).worker_free_ns[0] == 162


def test_an_idle_worker_that_holds_the_variant_is_better_than_one_that_must_load() -> None:
    crew = (Worker("empty", resident=()), Worker("full"))
    made = driver(lane(crew=(0, 1), release=Eager(1)), on=deployed(variant(load_ns=100), crew=crew))
    made.query(500)
    made.query(500)
    assert [type(decision) for decision in made.taken()] == [Run, Load, Run]
    assert [worker.jobs[0].start_ns for worker in made.crew] == [100, 0]


def test_where_loading_is_not_allowed_the_lane_waits_for_a_worker_that_holds_it() -> None:
    crew = (Worker("empty", resident=()), Worker("full"))
    made = driver(
        lane(crew=(0, 1), release=Eager(1), missing=Missing.WAIT), on=deployed(variant(load_ns=100), crew=crew)
    )
    made.query(500)
    made.query(500)
    assert made.batches() == [(1, 0, [0])]
    made.at(12).finish(1)
    assert made.batches() == [(1, 0, [1])]


def test_a_load_that_would_take_too_long_is_not_begun() -> None:
    """Where late queries are dropped: better wait for the worker that holds the variant, if it is free in time."""
    crew = (Worker("empty", resident=()), Worker("full"))
    on = deployed(variant(load_ns=100), crew=crew)
    for late in (Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE):
        made = driver(lane(crew=(0, 1), release=Eager(1), late=late), on=on)
        made.query(50)
        waits = made.query(50)
        assert made.batches() == [(1, 0, [0])], late
        assert made.outcome(waits) is None, late
        made.at(12).finish(1)
        assert made.batches() == [(1, 0, [1])], late
        patient = made.query(500)
        assert made.outcome(patient) is None
        assert [type(decision) for decision in made.taken()] == [Load, Run], late


def test_a_variant_too_large_for_one_worker_goes_to_another() -> None:
    crew = (Worker("small", memory_bytes=3), Worker("large", memory_bytes=9, resident=()))
    made = driver(lane(crew=(0, 1)), on=deployed(variant(memory=4, load_ns=5), crew=crew))
    made.query(500)
    assert [decision.worker for decision in made.taken() if isinstance(decision, Load)] == [1]


def test_room_to_run_is_kept_for_the_hungriest() -> None:
    """Regression: a variant was loaded beside one that then had no room left to run."""
    hungry = Variant("hungry", 0.5, (PROFILE,), memory_bytes=2, dynamic_memory_bytes=6)
    plain = Variant("plain", 0.5, (PROFILE,), memory_bytes=4, load_ns=1)
    on = deployed(hungry, plain, crew=(Worker("w", memory_bytes=10),))
    lanes = (lane("hungry", select=Fixed(0)), lane("plain", select=Fixed(1)))
    made = Driver(on, Plan(lanes, (Route(RouteRule.BY_CLIENT, (0, 1), targets=(0, 1)),)))
    assert made.crew[0].loaded == {0}
    made.query(500, client=1)
    assert [type(decision) for decision in made.taken()] == [Unload, Load, Run]
    made.at(13).finish(0)
    made.query(500, client=0)
    assert [type(decision) for decision in made.taken()] == [Unload, Load, Run]


def test_a_placement_is_loaded_one_by_one_and_reported() -> None:
    made = cramped(resident=(), memory=12)
    made.adopt(Plan(three_lanes().lanes, three_lanes().routes, placement=((2, 0),)))
    assert made.taken() == [Load(0, 0, 0, 100, alone=True)]
    made.query(5000, client=2)
    assert made.taken() == []  # a load is running
    made.at(100).finish(0)
    assert made.taken() == [Load(0, 2, 100, 200, alone=True)]
    made.at(200).finish(0)
    assert made.batches() == [(0, 2, [0])]
    assert made.dispatcher.telemetry(200).worker_busy_ns[0] == 200


def test_what_a_placement_does_not_ask_for_goes_first() -> None:
    made = cramped()
    made.query(500, client=0)
    made.at(12).finish(0)
    made.adopt(Plan(three_lanes().lanes, three_lanes().routes, placement=((1, 2),)))
    assert [decision for decision in made.taken() if not isinstance(decision, Run)] == [
        Unload(0, 0),  # used last, but not wanted
        Load(0, 2, 12, 112, alone=True),
    ]


def test_no_placement_leaves_memory_as_it_is() -> None:
    made = cramped()
    made.adopt(three_lanes())
    assert made.taken() == []


def test_a_load_alone_can_be_told_from_one_that_a_batch_waits_for() -> None:
    """Regression: a driver could not tell a placement's load, followed by an early batch, from a batch's own load."""
    made = cramped(resident=(), memory=12)
    plan = three_lanes(ahead_ns=1000)
    made.adopt(Plan(plan.lanes, plan.routes, placement=((2,),)))
    made.query(5000, client=2)
    load, run = made.taken()
    assert isinstance(load, Load) and load.alone
    assert isinstance(run, Run) and run.start_ns == 100
    made.at(100).finish(0)  # the load
    made.at(112).finish(0)  # the batch
    assert made.outcomes[0, Outcome.ON_TIME] == 1


def test_a_work_loads_its_variant_only_where_the_lane_may_load() -> None:
    for missing, expected in ((Missing.LOAD, [Load, Run]), (Missing.WAIT, [])):
        made = cramped(resident=(), memory=12, workers=1)
        made.leave(0)
        ticket = made.query(5000, client=1)
        made.adopt(planned(lane(select=Worklist((Work(0, 1, (ticket,)),)), missing=missing)))
        made.join(0)
        assert [type(decision) for decision in made.taken()] == expected


def test_a_variant_that_cannot_be_brought_in_now_does_not_keep_the_others_out() -> None:
    """A placement comes while a large variant is on its way: the first of its own has no room beside that."""
    sizes = {"large": 11, "wide": 10, "a": 3, "b": 3, "c": 3}
    models = tuple(variant(name, memory=size, load_ns=100) for name, size in sizes.items())
    on = deployed(*models, crew=(Worker("w", memory_bytes=20, resident=()),))
    rules = {"select": Fixed(2), "missing": Missing.WAIT}
    made = Driver(on, planned(lane(**rules), placement=((),), prefetch=((0,),)))
    assert made.taken() == [Load(0, 0, 0, 100, alone=False, beside=True)]
    made.adopt(planned(lane(**rules), placement=((1, 2, 3, 4),)))
    for moment in (50, 90, 95):  # its loads are quick here
        made.at(moment).finish(0)
    loads = [decision.variant for decision in made.taken() if isinstance(decision, Load)]
    assert loads == [2, 3, 4], "each of those that fit is loaded once, and the one that does not is not tried again"
    assert made.dispatcher.memory["workers"]["loads_wanted"].tolist() == [0]
