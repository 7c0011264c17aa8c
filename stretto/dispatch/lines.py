"""What the lanes hold, for planners that look at it: lengths, what runs, and how long the oldest queries are there."""

from __future__ import annotations

from typing import Any

from stretto.core.compiled import compiled, compiled_seldom
from stretto.dispatch.queue import NONE, ORDER, first_in, next_in
from stretto.dispatch.records import IN_FLIGHT, Status, batches, int64s, lanes, queries, workers


@compiled
def lane_of_batch(s: Any, batch: Any, worker: Any) -> int:
    """The lane that a batch came from; where a new plan has come meanwhile, the worker's only lane, or -1."""
    if batch.lane != NONE:
        return batch.lane
    if worker.lane_count == 1 and batch.count > 0:
        return int64s(s.worker_lanes_at, s.worker_lanes_count)[worker.lane_first]
    return NONE


@compiled
def add_oldest(s: Any, slot: int, lane_index: int, length: Any, arrival_ns: Any) -> None:
    """One more query of the lane; its arrival where there is room for it."""
    if length[lane_index] < arrival_ns.shape[1]:
        arrival_ns[lane_index, length[lane_index]] = queries(s)[slot].arrival_ns
    length[lane_index] += 1


@compiled_seldom
def read_lines(state: Any, length: Any, running: Any, started_ns: Any, arrival_ns: Any) -> None:
    """Into arrays by lane, as `core.view.Lines` has them."""
    s = state[0]
    length[:] = 0
    running[:] = 0
    started_ns[:] = NONE
    arrival_ns[:, :] = NONE
    for worker_index in range(s.workers_count):
        worker = workers(s)[worker_index]
        for ahead in range(worker.depth):
            batch = batches(s)[worker_index * IN_FLIGHT + ((worker.front + ahead) & 1)]
            lane_index = lane_of_batch(s, batch, worker)
            if lane_index == NONE:
                continue
            if ahead == 0:
                started_ns[lane_index] = max(started_ns[lane_index], batch.start_ns)
            slot = batch.first
            while slot != NONE:
                if queries(s)[slot].status == Status.RUNNING:
                    add_oldest(s, slot, lane_index, length, arrival_ns)
                    running[lane_index] += 1
                slot = queries(s)[slot].next
    for lane_index in range(s.lanes_count):
        slot = first_in(s, lane_index, ORDER)
        while slot != NONE and length[lane_index] < arrival_ns.shape[1]:
            add_oldest(s, slot, lane_index, length, arrival_ns)
            slot = next_in(s, ORDER, slot)
        length[lane_index] = running[lane_index] + lanes(s)[lane_index].length
