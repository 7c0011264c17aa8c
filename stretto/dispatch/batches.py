"""Batches: a lane's candidate becomes a running batch on a worker, and a batch ends."""

from __future__ import annotations

import math
from typing import Any

from stretto.core.compiled import compiled
from stretto.core.outcome import Outcome
from stretto.core.plan import GIVE_UP, SelectRule
from stretto.dispatch.correction import adapt_cap, measure
from stretto.dispatch.late import drop_infeasible, give_up_before, give_up_heads, give_up_in_crowd
from stretto.dispatch.ledger import count_outcome, decide, drop_waiting, free_slot, lateness_reason, name_ticket
from stretto.dispatch.pool import could_hold, holds, load, make_room, set_idle
from stretto.dispatch.queue import NONE, ORDER, dequeue, first_in
from stretto.dispatch.records import (
    IN_FLIGHT,
    DecisionKind,
    Status,
    batches,
    decisions,
    int64s,
    lanes,
    queries,
    resident,
    rows,
    workers,
)
from stretto.dispatch.release import candidate, delay_ns
from stretto.dispatch.select import WAIT, drops_late, latency_ns, ready_ns


@compiled
def head_is_lost(s: Any, lane_index: int, worker: int, variant: int, now_ns: int) -> bool:
    """The head does not fit on the worker at hand. Is there no better worker to wait for?"""
    lane = lanes(s)[lane_index]
    if lane.kind_count == 1 and workers(s)[worker].depth == 0 and holds(s, worker, variant):
        return True  # none is better than one that is free and has the variant
    for position in range(lane.worker_first, lane.worker_first + lane.worker_count):
        other = int64s(s.lane_workers_at, s.lane_workers_count)[position]
        if workers(s)[other].alive:
            wanted, size, _, _ = candidate(s, lane_index, workers(s)[other].kind, other, now_ns)
            if size > 0 and could_hold(s, lane, other, wanted):
                return False
    return True


@compiled
def open_batch(s: Any, lane_index: int, worker_index: int, variant: int, size: int, now_ns: int) -> Any:
    """A new batch record at the worker's end, with its Load and Run decisions. The caller adds the queries."""
    lane = lanes(s)[lane_index]
    worker = workers(s)[worker_index]
    row = variant * s.kinds + worker.kind
    ready = ready_ns(s, worker_index, variant, now_ns)
    load_time = 0
    if not holds(s, worker_index, variant):
        load(s, worker_index, variant, False, now_ns)
        load_time = rows(s)[row].load_ns
    resident(s)[worker_index * s.variants + variant].used_ns = now_ns
    batch = batches(s)[worker_index * IN_FLIGHT + ((worker.front + worker.depth) & 1)]
    batch.first = NONE
    batch.count = 0
    batch.lane = lane_index
    batch.variant = variant
    batch.start_ns = max(now_ns + delay_ns(lane, size), ready)
    batch.load_ns = load_time
    batch.expected_ns = batch.start_ns + latency_ns(s, row, size)
    worker.depth += 1
    worker.free_ns = batch.expected_ns
    set_idle(s, worker_index, False)
    decision = decide(s, DecisionKind.RUN.value, worker_index, variant)
    decision.start_ns = batch.start_ns
    decision.expected_ns = batch.expected_ns
    return batch


@compiled
def add_to_batch(s: Any, batch: Any, decision: Any, last: int, slot: int) -> None:
    query = queries(s)[slot]
    dequeue(s, query.lane, slot)
    query.status = Status.RUNNING
    query.next = NONE
    if last == NONE:
        batch.first = slot
    else:
        queries(s)[last].next = slot
    batch.count += 1
    lanes(s)[batch.lane].running += 1
    name_ticket(s, decision, slot)
    s.running += 1


@compiled
def commit(s: Any, lane_index: int, worker_index: int, now_ns: int) -> bool:
    """Give the worker the lane's candidate as it is at this moment, pruned; false where there is nothing to give."""
    lane = lanes(s)[lane_index]
    worker = workers(s)[worker_index]
    drop_infeasible(s, lane_index, now_ns)
    variant = WAIT
    size = 0
    while lane.length > 0:
        variant, size, release, _ = candidate(s, lane_index, worker.kind, worker_index, now_ns)
        if size > 0:
            if release > now_ns:
                return False
            break
        if size == GIVE_UP:
            drop_waiting(s, first_in(s, lane_index, ORDER), Outcome.DROPPED_OVERLOAD.value)
            continue
        if variant == WAIT or not drops_late(lane) or not head_is_lost(s, lane_index, worker_index, variant, now_ns):
            return False
        slot = first_in(s, lane_index, ORDER)
        drop_waiting(s, slot, lateness_reason(queries(s)[slot].deadline_ns, now_ns))
    if size <= 0:
        return False
    row = variant * s.kinds + worker.kind
    if lane.floor_count > 0 and give_up_heads(s, lane_index, worker_index, row, now_ns):
        variant, size, _, _ = candidate(s, lane_index, worker.kind, worker_index, now_ns)
        if size <= 0:
            return False
        row = variant * s.kinds + worker.kind
    if not could_hold(s, lane, worker_index, variant):
        return False
    if not holds(s, worker_index, variant) and not make_room(s, worker_index, variant):
        return False
    if lane.select == SelectRule.STRATEGIES:
        give_up_before(s, lane_index, row, now_ns, ready_ns(s, worker_index, variant, now_ns))
    if lane.crowd_heads > 0:
        size = give_up_in_crowd(s, lane_index, row, size, now_ns, ready_ns(s, worker_index, variant, now_ns))
    batch = open_batch(s, lane_index, worker_index, variant, size, now_ns)
    decision = last_decision(s)
    last = NONE
    for _ in range(size):
        slot = first_in(s, lane_index, ORDER)
        add_to_batch(s, batch, decision, last, slot)
        last = slot
    return True


@compiled
def last_decision(s: Any) -> Any:
    return decisions(s)[s.decision_count - 1]


@compiled
def end_front_batch(s: Any, worker_index: int, now_ns: int) -> int:
    """Take the running batch off the worker; its successor starts now at the earliest. Returns the batch's place."""
    worker = workers(s)[worker_index]
    place = worker_index * IN_FLIGHT + worker.front
    batch = batches(s)[place]
    if batch.lane >= 0:
        lanes(s)[batch.lane].running -= batch.count
    worker.front = (worker.front + 1) & 1
    worker.depth -= 1
    if worker.depth == 0:
        worker.free_ns = now_ns
        set_idle(s, worker_index, worker.alive != 0)
    else:
        after = batches(s)[worker_index * IN_FLIGHT + worker.front]
        run_ns = after.expected_ns - after.start_ns
        after.start_ns = max(after.start_ns, now_ns + after.load_ns)
        after.expected_ns = after.start_ns + run_ns
        worker.free_ns = after.expected_ns
    return place


@compiled
def left_running(s: Any, lane_index: int, now_ns: int) -> int:
    """Queries of the lane that run, a batch that is half done as half of it."""
    lane = lanes(s)[lane_index]
    crew = int64s(s.lane_workers_at, s.lane_workers_count)
    left = 0
    for position in range(lane.worker_first, lane.worker_first + lane.worker_count):
        worker = workers(s)[crew[position]]
        for ahead in range(worker.depth):
            batch = batches(s)[crew[position] * IN_FLIGHT + ((worker.front + ahead) & 1)]
            if batch.lane == lane_index and batch.count > 0:
                share = (batch.expected_ns - now_ns) / max(1, batch.expected_ns - batch.start_ns)
                left += max(1, min(batch.count, math.ceil(share * batch.count)))
    return left


@compiled
def finish_batch(s: Any, worker_index: int, now_ns: int, ok: bool, took_ns: int) -> None:
    """Every query of the worker's running batch gets its outcome."""
    worker = workers(s)[worker_index]
    place = end_front_batch(s, worker_index, now_ns)
    batch = batches(s)[place]
    worker.busy_ns += max(0, now_ns - (batch.start_ns - batch.load_ns))
    if batch.count == 0:
        return  # it was a load
    if ok:
        measured = took_ns if took_ns >= 0 else max(0, now_ns - batch.start_ns)
        if batch.lane >= 0 and lanes(s)[batch.lane].cap_target_ns > 0:
            adapt_cap(lanes(s)[batch.lane], batch.count, measured)
        if s.correction > 0:
            measure(s, batch.variant * s.kinds + worker.kind, batch.count, measured)
    slot = batch.first
    while slot != NONE:
        query = queries(s)[slot]
        after = query.next
        if query.status == Status.RUNNING:
            s.running -= 1
            if not ok:
                count_outcome(s, query.application, Outcome.FAILED.value)
            elif now_ns <= query.deadline_ns:
                count_outcome(s, query.application, Outcome.ON_TIME.value)
            else:
                count_outcome(s, query.application, Outcome.LATE.value)
        free_slot(s, slot)
        slot = after
