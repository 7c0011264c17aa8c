"""What must hold after every event, said in terms of the driver's own books."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from stretto.core.check import selected_variants
from stretto.core.outcome import Outcome
from stretto.core.plan import GIVE_UP, Eager, Fixed, Lane, Late, Missing, Strategies, Table, Tables, Worklist
from stretto.dispatch.decisions import Drop, Run
from stretto.dispatch.records import Status
from tests.dispatch.books import Stage, order_key

if TYPE_CHECKING:
    from tests.dispatch.driver import Driver

DROPPING = (Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE)
LATENESS = (Outcome.DROPPED_INFEASIBLE, Outcome.DROPPED_EXPIRED)


def gives_up(lane: Lane) -> bool:
    """Whether the lane may give up heads that others could profit from: by floors, strategies, cells of tables, or in a
    crowd.
    """
    several = lane.select if isinstance(lane.select, Tables) else None
    tables = several.tables if several else (lane.select,)
    return (
        bool(lane.release.floor_rates)
        or isinstance(lane.select, Strategies)
        or bool(several and several.crowd)
        or any(bool((table.batch == GIVE_UP).any()) for table in tables if isinstance(table, Table))
    )


def hold(driver: Driver) -> None:
    """After every event: conservation by count and by query, capacity, and a wake-up that is still to come."""
    stages = Counter(entry.stage for entry in driver.book.values())
    reading = driver.dispatcher.telemetry(driver.now_ns)
    for application in range(len(driver.deployment.applications)):
        assert reading.submitted[application] == driver.submitted[application]
        for outcome in Outcome:
            assert reading.outcomes[application, outcome] == driver.outcomes[application, outcome], outcome
    assert reading.waiting == stages[Stage.WAITING]
    assert reading.running == stages[Stage.RUNNING]
    assert reading.submitted.sum() == reading.outcomes.sum() + reading.waiting + reading.running
    assert reading.lane_lengths.sum() == reading.waiting
    assert (reading.lane_rates >= 0).all()
    assert reading.lane_names == tuple(lane.name for lane in driver.plan.lanes)
    assert reading.worker_alive.tolist() == [crew.alive for crew in driver.crew]
    for number, crew in enumerate(driver.crew):
        assert not crew.alive or driver.dispatcher.resident(number) == tuple(sorted(crew.loaded))
    waiting = driver.dispatcher.waiting()
    assert {query.ticket for query in waiting} == {t for t, e in driver.book.items() if e.stage is Stage.WAITING}
    for query in waiting:
        entry = driver.book[query.ticket]
        assert (query.application, query.priority) == (entry.application, entry.priority)
        assert (query.deadline_ns, query.demand) == (entry.deadline_ns, entry.demand)
        demands = driver.plan.routes[entry.application].demands
        if query.ticket in driver.rerouted:
            continue  # it waits where routes led it that are no more
        if 0 <= entry.demand < len(demands):
            assert driver.lane_number(query.ticket) == demands[entry.demand], "a demand waits in another lane"
        else:
            assert driver.lane_number(query.ticket) in driver.plan.routes[entry.application].lanes
    wake = driver.dispatcher.wake_at_ns()
    assert wake is None or wake > driver.now_ns, f"wake at {wake}, but it is {driver.now_ns}"
    for number, lane in enumerate(driver.plan.lanes):
        if reading.lane_lengths[number] > 0 and not isinstance(lane.select, Worklist):
            _nobody_is_stuck(driver, lane)
            _eager_lanes_do_not_wait(driver, number, lane)


def _nobody_is_stuck(driver: Driver, lane: Lane) -> None:
    """Where queries wait, either a worker that could take them is busy or a timer is set."""
    able = [worker for worker in lane.workers if driver.crew[worker].alive and _holds_all(driver, lane, worker)]
    if able and all(not driver.crew[worker].jobs for worker in able):
        assert driver.dispatcher.wake_at_ns() is not None, "queries wait, workers are idle, and nothing will happen"


def _eager_lanes_do_not_wait(driver: Driver, number: int, lane: Lane) -> None:
    """No worker is idle that holds the variant of an eager lane and could answer its head."""
    if not isinstance(lane.release, Eager) or not isinstance(lane.select, Fixed) or driver.correction > 0:
        return
    waiting = [query.ticket for query in driver.dispatcher.waiting() if driver.lane_number(query.ticket) == number]
    head = min((driver.book[ticket] for ticket in waiting), key=lambda entry: order_key(lane.order, entry))
    for worker in lane.workers:
        crew = driver.crew[worker]
        if crew.alive and not crew.jobs and lane.select.variant in crew.loaded:
            alone_ns = driver.profile(lane.select.variant, worker).latency_ns(1, driver.deployment.quantile)
            too_late = driver.now_ns + lane.delays.of_batch_ns(1) + alone_ns > head.deadline_ns
            assert too_late and lane.late in DROPPING, "a worker stands idle while an eager lane waits"


def _holds_all(driver: Driver, lane: Lane, worker: int) -> bool:
    """The worker holds every variant of the lane, so nothing about memory stands in the way."""
    return set(selected_variants(lane)) <= driver.crew[worker].loaded


def batch_is_allowed(driver: Driver, run: Run) -> None:
    entries = [driver.book[ticket] for ticket in run.tickets]
    size = len(entries)
    profile = driver.profile(run.variant, run.worker)
    assert size <= profile.max_batch
    owner = driver.deployment.application_of[run.variant]
    assert all(entry.application == owner for entry in entries), "a query ran on another application's variant"
    if driver.correction == 0:
        assert run.expected_ns - run.start_ns == profile.latency_ns(size, driver.deployment.quantile)
    faults = [_fault(driver, run, lane) for lane in _lanes_that_may_have_run(driver, run)]
    assert None in faults, faults
    crew = driver.crew[run.worker]
    assert not crew.jobs or run.start_ns >= crew.jobs[0].expected_ns, "two batches at once on one worker"
    assert not crew.jobs or _somebody_looks_ahead(driver, run.worker), "a batch for a busy worker"


def _fault(driver: Driver, run: Run, lane: Lane) -> str | None:
    """What the lane would not have allowed about this batch."""
    size = len(run.tickets)
    late = [ticket for ticket in run.tickets if run.expected_ns > driver.book[ticket].deadline_ns]
    if run.worker not in lane.workers:
        return "a worker that does not serve the lane"
    if run.variant not in selected_variants(lane) and not _stands_in(driver, run, lane):
        return "a variant that the plan does not allow"
    if size > lane.release.max_batch:
        return "a batch larger than the plan allows"
    if run.start_ns < driver.now_ns + lane.delays.of_batch_ns(size):
        return "a batch starts before its queries can be there"
    if late and lane.late in DROPPING:
        return "an infeasible query was started"
    return None


def _stands_in(driver: Driver, run: Run, lane: Lane) -> bool:
    """The worker lacks one that the lane would choose, and what it runs in its place was in memory."""
    lacks = set(selected_variants(lane)) - driver.crew[run.worker].loaded
    return lane.missing == Missing.STAND_IN and bool(lacks) and run.variant in driver.crew[run.worker].loaded


def _somebody_looks_ahead(driver: Driver, worker: int) -> bool:
    lanes = [lane for lane in driver.plan.lanes if worker in lane.workers]
    return any(lane.delays.ahead_ns + lane.delays.control_ns + lane.delays.data_ns > 0 for lane in lanes)


def _lanes_that_may_have_run(driver: Driver, run: Run) -> list[Lane]:
    """The lane in which the queries waited, and those that have them in a pre-formed batch."""
    waited = {driver.lane_number(ticket) for ticket in run.tickets}
    found = [driver.plan.lanes[number] for number in waited] if len(waited) == 1 else []
    for lane in driver.plan.lanes:
        for work in lane.select.works if isinstance(lane.select, Worklist) else ():
            if (work.worker, work.variant) == (run.worker, run.variant) and {*run.tickets} <= {*work.tickets}:
                found.append(lane)
    return found


def order_was_kept(driver: Driver, run: Run) -> None:
    """Nobody who still waits in the lane stands before one that was started."""
    lanes = _lanes_that_may_have_run(driver, run)
    if len(lanes) > 1 or isinstance(lanes[0].select, Worklist):
        return
    number = driver.plan.lanes.index(lanes[0])
    last = max(order_key(lanes[0].order, driver.book[ticket]) for ticket in run.tickets)
    for query in driver.dispatcher.waiting():
        if driver.lane_number(query.ticket) == number:
            key = order_key(lanes[0].order, driver.book[query.ticket])
            assert key > last, "a query was overtaken in its own lane"


def drop_was_needed(driver: Driver, drop: Drop) -> None:
    """Nobody is given up as infeasible while an idle worker that holds the variant could still answer in time."""
    if driver.losing or drop.ticket in driver.newest or drop.ticket == driver.cancelling:
        return  # it need not have been in a lane
    lane = driver.lane_of(drop.ticket)
    works = [work for other in driver.plan.lanes if isinstance(other.select, Worklist) for work in other.select.works]
    if any(drop.ticket in work.tickets for work in works):
        return  # a pre-formed batch follows the rules of its own lane, wherever its queries wait
    if drop.reason is Outcome.DROPPED_OVERLOAD:
        assert gives_up(lane), "overload, but the lane gives nobody up"
    if drop.reason not in LATENESS:
        return
    entry = driver.book[drop.ticket]
    assert lane.late in DROPPING, "a lane that keeps late queries dropped one"
    if not isinstance(lane.select, Fixed) or driver.correction > 0:
        return
    for worker in lane.workers:
        crew = driver.crew[worker]
        if crew.alive and not crew.jobs and lane.select.variant in crew.loaded:
            alone_ns = driver.profile(lane.select.variant, worker).latency_ns(1, driver.deployment.quantile)
            ends_ns = driver.now_ns + lane.delays.of_batch_ns(1) + alone_ns
            assert ends_ns > entry.deadline_ns, "dropped, but an idle worker could have answered in time"


def slots_are_those_in_use(driver: Driver) -> None:
    """Memory is bounded by what waits and runs: a slot for each, and for each cancelled query still in a batch."""
    statuses = Counter(Status(int(status)) for status in driver.dispatcher.memory["queries"]["status"])
    in_batches = sum(len(job.tickets) for crew in driver.crew for job in crew.jobs)
    stages = Counter(entry.stage for entry in driver.book.values())
    assert statuses[Status.WAITING] == stages[Stage.WAITING]
    assert statuses[Status.RUNNING] == stages[Stage.RUNNING]
    assert statuses[Status.RUNNING] + statuses[Status.GONE] == in_batches
    assert int(driver.dispatcher.memory.state["free_slots"][0]) == statuses[Status.FREE]
