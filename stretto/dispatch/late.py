"""Late: what becomes of queries that can no longer make it, and of heads that stand in the way of a full batch."""

from __future__ import annotations

import math
from typing import Any

from stretto.core.compiled import compiled
from stretto.core.outcome import Outcome
from stretto.core.plan import Late, Order
from stretto.dispatch.ledger import drop_waiting, lateness_reason
from stretto.dispatch.queue import DEADLINE, NONE, ORDER, first_in, has_deadline_list, next_in
from stretto.dispatch.records import NEVER, int64s, lanes, queries, workers
from stretto.dispatch.release import delay_ns, floor_for
from stretto.dispatch.select import (
    batch_limit,
    chooses_by_slack,
    finish_ns,
    fitting,
    latency_ns,
    quickest_row,
    runs_beyond,
    strategy,
)

MOST_DEAR = 50.0  # the logarithm of a price: nothing is worth that


@compiled
def can_make_it(lane: Any, deadline_ns: int, now_ns: int) -> bool:
    """Alone, on the lane's fastest variant and kind, started now."""
    return now_ns + delay_ns(lane, 1) + lane.fastest_ns <= deadline_ns


@compiled
def infeasible_from_ns(lane: Any) -> int:
    """The first moment at which the lane's most pressing query cannot make it any more; NEVER where nobody minds."""
    if lane.late != Late.DROP_WHEN_INFEASIBLE or lane.length == 0:
        return NEVER
    return lane.head_ns - lane.fastest_ns - delay_ns(lane, 1) + 1


@compiled
def drop_infeasible(s: Any, lane_index: int, now_ns: int) -> None:
    lane = lanes(s)[lane_index]
    if lane.late != Late.DROP_WHEN_INFEASIBLE:
        return
    which = DEADLINE if has_deadline_list(lane) else ORDER
    while lane.length > 0 and not can_make_it(lane, lane.head_ns, now_ns):
        drop_waiting(s, first_in(s, lane_index, which), lateness_reason(lane.head_ns, now_ns))


@compiled
def in_the_way(s: Any, lane_index: int, size: int) -> int:
    """Of a batch and the query that would join it next: the one with the earliest deadline, which binds them all."""
    soonest = first_in(s, lane_index, ORDER)
    if lanes(s)[lane_index].order == Order.EARLIEST_DEADLINE:
        return soonest
    slot = soonest
    for _ in range(size):
        slot = next_in(s, ORDER, slot)
        if slot == NONE:
            break
        if queries(s)[slot].deadline_ns < queries(s)[soonest].deadline_ns:
            soonest = slot
    return soonest


@compiled
def most_together(s: Any, lane_index: int, row: int, limit: int, now_ns: int, ready: int) -> int:
    """The largest batch that giving up heads can lead to: of the first query from which on all that wait fit."""
    lane = lanes(s)[lane_index]
    slot = first_in(s, lane_index, ORDER)
    for waiting in range(lane.length, 0, -1):
        size = min(waiting, limit)
        if finish_ns(s, lane, row, size, now_ns, ready) <= queries(s)[slot].deadline_ns:
            return size
        slot = next_in(s, ORDER, slot)
    return 0


@compiled
def give_up_heads(s: Any, lane_index: int, worker_index: int, row: int, now_ns: int) -> bool:
    """Drop the heads that leave no time for a batch of the floor, or of as many as could run together without them.
    True if any was dropped.

    A lane that chooses by the head's slack might run another variant for the next head: there the one that is quickest
    with such a batch says whether there is time for it. So a small batch that a lane chooses of its own accord stands,
    and one that an old head forces on it does not. A head that had no time for such a batch when it came is not old.
    """
    lane = lanes(s)[lane_index]
    worker = workers(s)[worker_index]
    floor = min(floor_for(s, lane_index), lane.length)
    if floor == 0:
        return False
    if chooses_by_slack(lane):
        row = quickest_row(s, lane, worker.kind, floor)
    batch = min(floor, batch_limit(s, lane, row))
    size = fitting(s, lane_index, row, batch, now_ns, worker.free_ns)
    if size >= batch:
        return False
    batch = min(batch, most_together(s, lane_index, row, batch_limit(s, lane, row), now_ns, worker.free_ns))
    was_any_dropped = False
    while size < batch:
        head = in_the_way(s, lane_index, size)
        query = queries(s)[head]
        if finish_ns(s, lane, row, batch, query.arrival_ns, query.arrival_ns) > query.deadline_ns:
            break
        drop_waiting(s, head, Outcome.DROPPED_OVERLOAD.value)
        was_any_dropped = True
        batch = min(batch, lane.length)
        size = fitting(s, lane_index, row, batch, now_ns, worker.free_ns)
    return was_any_dropped


@compiled
def give_up_before(s: Any, lane_index: int, row: int, now_ns: int, ready: int) -> None:
    """Strategies: drop the heads that stand before the batch that is about to start."""
    _, heads, _ = strategy(s, lane_index, row, now_ns, ready)
    for _ in range(heads):
        drop_waiting(s, first_in(s, lane_index, ORDER), Outcome.DROPPED_OVERLOAD.value)


@compiled
def give_up_in_crowd(s: Any, lane_index: int, row: int, size: int, now_ns: int, ready: int) -> int:
    """Drop the heads that the larger batch behind them is worth. Its size."""
    lane = lanes(s)[lane_index]
    limit = batch_limit(s, lane, row)
    crowd = lane.length + runs_beyond(s, lane_index, now_ns)
    price = math.exp(min((lane.crowded - crowd) / lane.crowd_width, MOST_DEAR))
    slot = first_in(s, lane_index, ORDER)
    larger, chosen, given_up = size, size, 0
    for heads in range(1, min(lane.crowd_heads, lane.length - 1) + 1):
        if limit - price * heads <= chosen - price * given_up:
            break
        slot = next_in(s, ORDER, slot)
        most = min(limit, lane.length - heads)
        larger = min(larger, most)
        while larger < most and finish_ns(s, lane, row, larger + 1, now_ns, ready) <= queries(s)[slot].deadline_ns:
            larger += 1
        if larger - price * heads > chosen - price * given_up:
            chosen, given_up = larger, heads
    for _ in range(given_up):
        drop_waiting(s, first_in(s, lane_index, ORDER), Outcome.DROPPED_OVERLOAD.value)
    return chosen


@compiled
def would_be_late(s: Any, lane_index: int, deadline_ns: int, now_ns: int) -> bool:
    """At the door: whether a query that joined now would end late, the batches before it spread over the workers."""
    lane = lanes(s)[lane_index]
    row = lane.fastest_row
    if row < 0:
        return False
    limit = batch_limit(s, lane, row)
    first_free = NEVER
    for position in range(lane.worker_first, lane.worker_first + lane.worker_count):
        worker = workers(s)[int64s(s.lane_workers_at, s.lane_workers_count)[position]]
        if worker.alive:
            first_free = min(first_free, max(worker.free_ns, now_ns))
    if first_free == NEVER:
        return True
    ahead = (lane.length // limit) * latency_ns(s, row, limit) // lane.alive
    run_ns = latency_ns(s, row, lane.length % limit + 1)
    return max(first_free + ahead, now_ns + delay_ns(lane, 1)) + run_ns > deadline_ns
