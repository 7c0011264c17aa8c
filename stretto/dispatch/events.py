"""The events that a driver reports. Each takes the state array and the time, and leaves decisions and a wake-up time.

Within one event the report is applied first and due timers ring after it, so a query that arrives at the very moment
of a deferred start still joins the batch.

Python calls `submit_many`, `report` and `move_in`; each of these is compiled together with all rules behind it, so the
small events share one way in, and a query that comes alone is one of many.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from stretto.core.compiled import compiled, compiled_seldom
from stretto.core.outcome import Outcome
from stretto.core.plan import Late, RouteRule, SelectRule
from stretto.dispatch.batches import end_front_batch, finish_batch, left_running
from stretto.dispatch.beside import arrived, forget_arriving, load_beside
from stretto.dispatch.correction import find_all_fastest
from stretto.dispatch.late import can_make_it, would_be_late
from stretto.dispatch.ledger import (
    announce_drop,
    answer_now,
    drop_waiting,
    free_slot,
    lateness_reason,
    slot_of,
    take_slot,
    ticket_of,
)
from stretto.dispatch.pool import has_idle, set_idle
from stretto.dispatch.queue import NONE, dequeue, enqueue
from stretto.dispatch.rates import count_arrival, lane_meter, rate_at, uncount_arrival
from stretto.dispatch.records import NEVER, Status, batches, int64s, lanes, queries, routes, workers
from stretto.dispatch.routes import lane_alive, route_query
from stretto.dispatch.select import batch_limit
from stretto.dispatch.turns import due, expect_worker, look_around, refresh, ring, serve


class Event(IntEnum):
    """What `report` reports."""

    TIME_PASSED = 0
    FINISHED = 1
    WITHDRAWN = 2
    CLASSIFIED = 3
    WORKER_JOINED = 4
    WORKER_LEFT = 5
    LEARNED = 6  # latencies are others now
    LOADED = 7  # beside the work
    WORKER_LEAVING = 8
    ADOPTED = 9  # a new plan is in place, and its queries moved in


@compiled
def advance(state: Any, now_ns: int) -> None:
    s = state[0]
    s.now_ns = max(s.now_ns, now_ns)
    due(s, s.now_ns)


@compiled
def is_full(s: Any, lane_index: int, now_ns: int) -> bool:
    """A lane of one variant that drops what is late holds what waits and what is left of what runs; and what came at
    one moment while nobody waited is not divided by its door: a request of many rows gets through if it fits into a
    batch. One that keeps all has so many places.
    """
    lane = lanes(s)[lane_index]
    if not lane.counts_running:
        return lane.length >= lane.capacity
    if lane.length + lane.running < lane.capacity:
        return False
    if lane.late == Late.KEEP or lane.capacity == 0:
        return True
    row = lane.fastest_row
    if row >= 0 and lane.filled_ns == now_ns and 0 < lane.length < batch_limit(s, lane, row):
        return False
    return lane.length + left_running(s, lane_index, now_ns) >= lane.capacity


@compiled
def admit(s: Any, slot: int, lane_index: int, now_ns: int) -> bool:
    """At the door of the lane: full, already hopeless, or (where the lane refuses) bound to be late."""
    lane = lanes(s)[lane_index]
    deadline = queries(s)[slot].deadline_ns
    hopeless = lane.late == Late.DROP_WHEN_INFEASIBLE and not can_make_it(lane, deadline, now_ns)
    reason = NONE
    if is_full(s, lane_index, now_ns):
        reason = Outcome.DROPPED_OVERLOAD.value
    elif hopeless or (lane.late == Late.REFUSE and would_be_late(s, lane_index, deadline, now_ns)):
        reason = lateness_reason(deadline, now_ns)
    if reason == NONE:
        return True
    announce_drop(s, slot, reason)
    free_slot(s, slot)
    return False


@compiled
def join(s: Any, slot: int, lane_index: int, now_ns: int, more: bool) -> None:
    """The query enters the lane, and the lane's candidate is renewed: with each query its rank changes (figure 16).

    Where a worker is idle, no timer is due and nothing `more` comes first, the lane acts at once: setting its timer to
    now and letting that ring would do the same.
    """
    queries(s)[slot].status = Status.WAITING
    enqueue(s, lane_index, slot)
    if s.wake_ns > now_ns and not more and has_idle(s, lane_index):
        ring(s, lane_index, now_ns)
    else:
        refresh(s, lane_index, now_ns)


@compiled
def submit(
    state: Any,
    now_ns: int,
    application: int,
    deadline_ns: int,
    tag: int,
    client: int,
    query_class: int,
    priority: int,
    demand: int,
    more: bool,
    was_lost: bool,
) -> int:
    """A query came. Returns its ticket. The caller makes sure that a slot is free.

    `more`: another one comes at this very moment, and nothing starts before it is in. `was_lost`: the worker that had
    it is gone, in another dispatcher.
    """
    s = state[0]
    s.now_ns = max(s.now_ns, now_ns)
    now = s.now_ns
    slot = take_slot(s)
    query = queries(s)[slot]
    query.deadline_ns = min(deadline_ns, NEVER)
    query.arrival_ns = now
    query.sequence = s.sequence
    s.sequence += 1
    query.tag = tag
    query.application = application
    query.client = client
    query.query_class = query_class
    query.priority = priority
    query.demand = demand
    query.work = NONE
    query.was_lost = was_lost
    query.status = Status.WAITING
    ticket = ticket_of(s, slot)
    int64s(s.submitted_at, s.submitted_count)[application] += 1
    lane_index = route_query(s, slot)
    if s.counts_lanes:
        count_arrival(s, lane_meter(s, lane_index), now)
    if demand == NONE:
        count_arrival(s, application, now)
    if admit(s, slot, lane_index, now):
        join(s, slot, lane_index, now, more)
    if not more:
        due(s, now)
    return ticket


@compiled
def submit_many(
    state: Any,
    now_ns: int,
    applications: Any,
    deadlines_ns: Any,
    priorities: Any,
    others: Any,
    more: bool,
    tickets: Any,
    first: int,
) -> int:
    """Queries that came at this very moment, from `first` on; their tickets go into `tickets`. `others`: tag, client,
    class, demand and whether it was lost, a row for each query, or none where there is nothing to say. `more`: nothing
    starts yet.

    Returns how far it came: it stops behind one that something was decided of, and where no slot is free. -1, and
    none came: there is no application of such a number.
    """
    s = state[0]
    for application in applications:
        if not 0 <= application < s.applications:
            return -1
    place, last = first, len(applications) - 1
    while place <= last and s.free_slots > 0 and s.decision_count == 0:
        tag, client, query_class, demand, was_lost = NONE, NONE, NONE, NONE, False
        if len(others) > 0:
            tag, client, query_class, demand = others[place, 0], others[place, 1], others[place, 2], others[place, 3]
            was_lost = others[place, 4] != 0
        tickets[place] = submit(
            state,
            now_ns,
            applications[place],
            deadlines_ns[place],
            tag,
            client,
            query_class,
            priorities[place],
            demand,
            more or place < last,
            was_lost,
        )
        place += 1
    return place


@compiled
def withdraw(state: Any, now_ns: int, ticket: int, reason: int) -> bool:
    """The query ends now, for this reason. True if it was still waiting or running."""
    s = state[0]
    s.now_ns = max(s.now_ns, now_ns)
    slot = slot_of(s, ticket)
    is_live = slot != NONE and queries(s)[slot].status != Status.GONE
    if is_live:
        query = queries(s)[slot]
        if query.status == Status.WAITING:
            lane_index = query.lane
            drop_waiting(s, slot, reason)
            refresh(s, lane_index, s.now_ns)
        else:
            announce_drop(s, slot, reason)
            query.status = Status.GONE
            s.running -= 1
    due(s, s.now_ns)
    return is_live


@compiled
def classified(state: Any, now_ns: int, ticket: int, query_class: int) -> None:
    """Evidence of a query's class came after the query. Where classes have their own lanes, it moves to its own."""
    s = state[0]
    s.now_ns = max(s.now_ns, now_ns)
    slot = slot_of(s, ticket)
    if slot != NONE:
        query = queries(s)[slot]
        query.query_class = query_class
        by_class = routes(s)[query.application].rule == RouteRule.BY_CLASS
        if query.status == Status.WAITING and by_class and query.demand == NONE:
            before, after = query.lane, route_query(s, slot)
            if after != before:
                dequeue(s, before, slot)
                uncount_arrival(s, lane_meter(s, before))
                refresh(s, before, s.now_ns)
                count_arrival(s, lane_meter(s, after), s.now_ns)
                join(s, slot, after, s.now_ns, True)
    due(s, s.now_ns)


@compiled
def finished(state: Any, now_ns: int, worker_index: int, ok: bool, took_ns: int) -> None:
    """The worker's running batch (or load) ended; the run itself took so long, where that is not negative."""
    s = state[0]
    s.now_ns = max(s.now_ns, now_ns)
    if workers(s)[worker_index].depth > 0:
        finish_batch(s, worker_index, s.now_ns, ok, took_ns)
        look_around(s, worker_index, s.now_ns)
        if workers(s)[worker_index].depth > 0:
            expect_worker(s, worker_index, s.now_ns)
        else:
            serve(s, worker_index, s.now_ns)
        load_beside(s, worker_index, s.now_ns)  # what there was no room for while the batch ran
    due(s, s.now_ns)


@compiled
def loaded(state: Any, now_ns: int, worker_index: int, variant: int, ok: bool) -> bool:
    """A load beside the worker's work ended. Lanes that had another variant stand in look again."""
    s = state[0]
    s.now_ns = max(s.now_ns, now_ns)
    was_awaited = arrived(s, worker_index, variant, ok)
    if was_awaited:
        worker = workers(s)[worker_index]
        load_beside(s, worker_index, s.now_ns)
        for position in range(worker.lane_first, worker.lane_first + worker.lane_count):
            refresh(s, int64s(s.worker_lanes_at, s.worker_lanes_count)[position], s.now_ns)
        serve(s, worker_index, s.now_ns)
    due(s, s.now_ns)
    return was_awaited


@compiled
def return_query(s: Any, slot: int, lane_index: int, now_ns: int) -> None:
    """A query whose worker was lost: back to a lane if it can still make it, else it failed."""
    query = queries(s)[slot]
    after = query.next
    query.was_lost = 1
    s.running -= 1
    was_preformed = lane_index != NONE and lanes(s)[lane_index].select == SelectRule.WORKLIST
    if was_preformed or 0 <= query.demand < routes(s)[query.application].demand_count:
        lane_index = route_query(s, slot)  # a pre-formed batch may have taken it from another lane than its own
    target = lane_alive(s, slot, lane_index)
    if target == NONE:  # nobody is left to serve it; somebody may come
        target = lane_index if lane_index != NONE else route_query(s, slot)
    if can_make_it(lanes(s)[target], query.deadline_ns, now_ns):
        query.work = NONE
        query.next = NONE
        join(s, slot, target, now_ns, True)
        return
    query.next = after
    announce_drop(s, slot, Outcome.FAILED.value)
    free_slot(s, slot)


@compiled
def count_worker(s: Any, worker_index: int, change: int) -> None:
    """Each of the worker's lanes has one worker more or less."""
    worker = workers(s)[worker_index]
    for position in range(worker.lane_first, worker.lane_first + worker.lane_count):
        lanes(s)[int64s(s.worker_lanes_at, s.worker_lanes_count)[position]].alive += change


@compiled
def worker_left(state: Any, now_ns: int, worker_index: int) -> None:
    """The worker is gone, with what ran on it."""
    s = state[0]
    s.now_ns = max(s.now_ns, now_ns)
    worker = workers(s)[worker_index]
    if worker.alive:
        worker.alive = 0
        count_worker(s, worker_index, -1)
    forget_arriving(s, worker_index)
    set_idle(s, worker_index, False)
    while worker.depth > 0:
        batch = batches(s)[end_front_batch(s, worker_index, s.now_ns)]
        slot = batch.first
        lane_index = batch.lane
        while slot != NONE:
            after = queries(s)[slot].next
            if queries(s)[slot].status == Status.GONE:
                free_slot(s, slot)
            else:
                return_query(s, slot, lane_index, s.now_ns)
            slot = after
    look_around(s, worker_index, s.now_ns)
    due(s, s.now_ns)


@compiled
def worker_leaving(state: Any, now_ns: int, worker_index: int) -> None:
    """The worker is given nothing more. What it was given it still finishes."""
    s = state[0]
    s.now_ns = max(s.now_ns, now_ns)
    worker = workers(s)[worker_index]
    if worker.alive:
        worker.alive = 0
        count_worker(s, worker_index, -1)
        forget_arriving(s, worker_index)
        set_idle(s, worker_index, False)
    due(s, s.now_ns)


@compiled
def worker_joined(state: Any, now_ns: int, worker_index: int) -> None:
    """The worker is there; free, unless it was leaving and stays after all."""
    s = state[0]
    s.now_ns = max(s.now_ns, now_ns)
    worker = workers(s)[worker_index]
    if not worker.alive:
        worker.alive = 1
        if worker.depth == 0:
            worker.free_ns = s.now_ns
            set_idle(s, worker_index, True)
        count_worker(s, worker_index, 1)
        serve(s, worker_index, s.now_ns)
        load_beside(s, worker_index, s.now_ns)
    due(s, s.now_ns)


@compiled
def adopted(state: Any, now_ns: int) -> None:
    """All lanes and workers look around."""
    s = state[0]
    for lane_index in range(s.lanes_count):
        refresh(s, lane_index, s.now_ns)
    for worker_index in range(s.workers_count):
        serve(s, worker_index, s.now_ns)
        load_beside(s, worker_index, s.now_ns)
    advance(state, now_ns)


@compiled
def report(state: Any, event: int, now_ns: int, subject: int, value: int, took_ns: int) -> bool:
    """An event about one worker or ticket, the subject. True unless it came too late to change anything."""
    if event == Event.FINISHED:
        finished(state, now_ns, subject, value != 0, took_ns)
    elif event == Event.WITHDRAWN:
        return withdraw(state, now_ns, subject, value)
    elif event == Event.CLASSIFIED:
        classified(state, now_ns, subject, value)
    elif event == Event.WORKER_JOINED:
        worker_joined(state, now_ns, subject)
    elif event == Event.WORKER_LEFT:
        worker_left(state, now_ns, subject)
    elif event == Event.WORKER_LEAVING:
        worker_leaving(state, now_ns, subject)
    elif event == Event.LOADED:
        return loaded(state, now_ns, subject, value, took_ns != 0)
    elif event == Event.ADOPTED:
        adopted(state, now_ns)
    else:
        if event == Event.LEARNED:
            find_all_fastest(state[0])
        advance(state, now_ns)
    return True


@compiled_seldom
def move_in(state: Any, now_ns: int, slots: Any, staying: Any, by_lane: Any, answered: Any) -> None:
    """A new plan is in place, its lanes empty: the queries in `slots` (oldest first) move in. ADOPTED follows.

    `staying` holds the lane that a query stays in, or -1 where it is routed anew. Those in `answered` end. `by_lane`
    holds the same slots as they stood in the lanes before: whoever keeps to that order is appended, not inserted.
    """
    s = state[0]
    s.now_ns = max(s.now_ns, now_ns)
    find_all_fastest(s)
    for slot in answered:
        answer_now(s, slot, s.now_ns)
    for place in range(len(slots)):
        lane_index = staying[place]
        if lane_index == NONE:
            lane_index = route_query(s, slots[place])
        queries(s)[slots[place]].lane = lane_index
        lanes(s)[lane_index].length += 1  # which the route to the shortest lane looks at
    for lane_index in range(s.lanes_count):
        lanes(s)[lane_index].length = 0
    for slot in by_lane:
        enqueue(s, queries(s)[slot].lane, slot)
    for lane_index in range(s.lanes_count):
        lanes(s)[lane_index].filled_ns = NONE  # they came before


@compiled_seldom
def read_rates(state: Any, now_ns: int, rates: Any) -> None:
    """Every application's and every lane's λ as of now, in queries per nanosecond, into `rates`."""
    s = state[0]
    for meter_index in range(len(rates)):
        rates[meter_index] = rate_at(s, meter_index, max(now_ns, s.now_ns))
