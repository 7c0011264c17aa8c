"""Worklists: batches formed beforehand by a planner, taken by each worker in their order."""

from __future__ import annotations

from typing import Any

from stretto.core.compiled import compiled
from stretto.core.plan import SelectRule
from stretto.dispatch.batches import add_to_batch, last_decision, open_batch
from stretto.dispatch.ledger import drop_waiting, lateness_reason, slot_of
from stretto.dispatch.pool import could_hold, holds, make_room
from stretto.dispatch.queue import NONE
from stretto.dispatch.records import Status, int64s, lanes, queries, workers, works
from stretto.dispatch.select import batch_limit, drops_late, finish_ns, ready_ns


@compiled
def waiting_slot(s: Any, work_index: int, position: int) -> int:
    """The query at a place of a work, if it still waits for that work."""
    slot = slot_of(s, int64s(s.work_tickets_at, s.work_tickets_count)[position])
    if slot != NONE and queries(s)[slot].status == Status.WAITING and queries(s)[slot].work == work_index:
        return slot
    return NONE


@compiled
def still_waiting(s: Any, work_index: int) -> int:
    work = works(s)[work_index]
    count = 0
    for position in range(work.ticket_first, work.ticket_first + work.ticket_count):
        if waiting_slot(s, work_index, position) != NONE:
            count += 1
    return count


@compiled
def most_pressing(s: Any, work_index: int) -> int:
    """The waiting query of a work with the earliest deadline, or -1."""
    work = works(s)[work_index]
    pressing = NONE
    for position in range(work.ticket_first, work.ticket_first + work.ticket_count):
        slot = waiting_slot(s, work_index, position)
        if slot != NONE and (pressing == NONE or queries(s)[slot].deadline_ns < queries(s)[pressing].deadline_ns):
            pressing = slot
    return pressing


@compiled
def drop_lost(s: Any, lane: Any, work_index: int, row: int, limit: int, now_ns: int, ready: int) -> None:
    """Where the lane drops late queries: the most pressing ones, until the batch of those left ends in time."""
    while True:
        slot = most_pressing(s, work_index)
        if slot == NONE:
            return
        size = min(still_waiting(s, work_index), limit)
        if finish_ns(s, lane, row, size, now_ns, ready) <= queries(s)[slot].deadline_ns:
            return
        drop_waiting(s, slot, lateness_reason(queries(s)[slot].deadline_ns, now_ns))


@compiled
def commit_work(s: Any, lane_index: int, worker_index: int, now_ns: int) -> bool:
    """Start the worker's next work that still has queries waiting; false where there is none."""
    lane = lanes(s)[lane_index]
    worker = workers(s)[worker_index]
    for work_index in range(lane.work_first, lane.work_first + lane.work_count):
        work = works(s)[work_index]
        if work.done or work.worker != worker_index:
            continue
        variant = work.variant
        row = variant * s.kinds + worker.kind
        if not could_hold(s, lane, worker_index, variant):
            work.done = 1  # it can never run here; its queries wait for the next plan
            continue
        limit = batch_limit(s, lane, row)
        if drops_late(lane):
            drop_lost(s, lane, work_index, row, limit, now_ns, ready_ns(s, worker_index, variant, now_ns))
        size = min(still_waiting(s, work_index), limit)
        if size == 0:
            work.done = 1
            continue
        if not holds(s, worker_index, variant):
            make_room(s, worker_index, variant)
        batch = open_batch(s, lane_index, worker_index, variant, size, now_ns)
        decision = last_decision(s)
        last = NONE
        for position in range(work.ticket_first, work.ticket_first + work.ticket_count):
            slot = waiting_slot(s, work_index, position)
            if slot != NONE and batch.count < size:
                add_to_batch(s, batch, decision, last, slot)
                last = slot
        work.done = 1 if still_waiting(s, work_index) == 0 else 0
        return True
    return False


@compiled
def take_work(s: Any, worker_index: int, now_ns: int) -> bool:
    """The first worklist among the worker's lanes that has something for it."""
    worker = workers(s)[worker_index]
    for position in range(worker.lane_first, worker.lane_first + worker.lane_count):
        lane_index = int64s(s.worker_lanes_at, s.worker_lanes_count)[position]
        if lanes(s)[lane_index].select == SelectRule.WORKLIST and commit_work(s, lane_index, worker_index, now_ns):
            return True
    return False
