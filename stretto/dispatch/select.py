"""Select: which variant a lane would run now on a kind of worker, and how many of its queries fit together.

One function per rule. `worker` is the worker at hand, or -1 when the lane only asks what its candidate would be.
"""

from __future__ import annotations

import math
from typing import Any

from stretto.core.compiled import compiled
from stretto.core.plan import GIVE_UP, Late, Missing, Order, ReleaseRule, SelectRule
from stretto.dispatch.queue import NONE, ORDER, first_in, next_in
from stretto.dispatch.rates import lane_meter
from stretto.dispatch.records import (
    IN_FLIGHT,
    NEVER,
    as_int64,
    batches,
    cells,
    choices,
    int64s,
    lanes,
    meters,
    queries,
    resident,
    rows,
    tables,
    workers,
)

WAIT = -1  # a variant number that means: not yet


@compiled
def latency_ns(s: Any, row: int, size: int) -> int:
    """l(size) of a (variant, kind) row, as corrected."""
    return int64s(s.latency_at, s.latency_count)[row * s.latency_stride + size]


@compiled
def drops_late(lane: Any) -> bool:
    return lane.late == Late.DROP_WHEN_DISPATCHED or lane.late == Late.DROP_WHEN_INFEASIBLE


@compiled
def ready_ns(s: Any, worker: int, variant: int, now_ns: int) -> int:
    """When the worker could begin a batch of this variant: free, and the variant in its memory."""
    if worker < 0:
        return now_ns
    free = workers(s)[worker].free_ns
    if resident(s)[worker * s.variants + variant].loaded:
        return free
    return max(free, now_ns) + rows(s)[variant * s.kinds + workers(s)[worker].kind].load_ns


@compiled
def finish_ns(s: Any, lane: Any, row: int, size: int, now_ns: int, ready: int) -> int:
    """When a batch decided now would end: control and data delay, the worker's readiness, then l(size)."""
    return max(now_ns + lane.control_ns + lane.data_ns * size, ready) + latency_ns(s, row, size)


@compiled
def batch_limit(s: Any, lane: Any, row: int) -> int:
    """The most queries that a batch of this lane may hold on this row, whatever the deadlines."""
    limit = min(lane.max_batch, rows(s)[row].max_batch)
    if lane.cap_target_ns > 0:
        limit = min(limit, max(1, int(lane.cap)))
    return limit


@compiled
def fitting(s: Any, lane_index: int, row: int, limit: int, now_ns: int, ready: int) -> int:
    """The largest b ≤ limit such that the first b queries all end in time as one batch."""
    lane = lanes(s)[lane_index]
    slot = first_in(s, lane_index, ORDER)
    if limit <= 0 or slot == NONE:
        return 0
    deadline = queries(s)[slot].deadline_ns
    if lane.order == Order.EARLIEST_DEADLINE:  # the head's deadline binds the batch
        if finish_ns(s, lane, row, limit, now_ns, ready) <= deadline:
            return limit
        low, high = 0, limit  # low fits, high does not
        while high - low > 1:
            middle = (low + high) >> 1
            if finish_ns(s, lane, row, middle, now_ns, ready) <= deadline:
                low = middle
            else:
                high = middle
        return low
    size = 0
    while size < limit and slot != NONE:
        deadline = min(deadline, queries(s)[slot].deadline_ns)
        if finish_ns(s, lane, row, size + 1, now_ns, ready) > deadline:
            break
        size += 1
        slot = next_in(s, ORDER, slot)
    return size


@compiled
def allowed(sizes: int, size: int) -> int:
    """The largest of these sizes, a bit each, that is not above `size`."""
    if sizes == 0:
        return size
    while size > 0 and not (sizes >> size) & 1:
        size -= 1
    return size


@compiled
def size_on(s: Any, lane_index: int, row: int, now_ns: int, ready: int) -> int:
    """How many of the lane's queries a batch would take: those that fit, or all where late ones are kept."""
    lane = lanes(s)[lane_index]
    limit = allowed(lane.sizes, min(lane.length, batch_limit(s, lane, row)))
    if drops_late(lane):
        return allowed(lane.sizes, fitting(s, lane_index, row, limit, now_ns, ready))
    if lane.release == ReleaseRule.DEFERRED:
        size = fitting(s, lane_index, row, limit, now_ns, ready)
        return size if size > 0 else limit
    return limit


@compiled
def by_load(s: Any, lane_index: int, kind: int) -> int:
    """The variant for the lane's arrival rate: the first whose rate covers it, of those that run on the kind."""
    lane = lanes(s)[lane_index]
    rate = meters(s)[lane_meter(s, lane_index)].rate * 1e9
    chosen = WAIT
    for position in range(lane.choice_count):
        choice = choices(s)[lane.choice_first + position]
        if rows(s)[choice.variant * s.kinds + kind].max_batch > 0:
            chosen = choice.variant
            if rate <= choice.rate:
                break
    return chosen


@compiled
def most_accurate(s: Any, lane_index: int, kind: int, worker: int, now_ns: int) -> int:
    """The first variant that brings the whole batch in by the head's deadline; else the last that runs on the kind."""
    lane = lanes(s)[lane_index]
    chosen = WAIT
    for position in range(lane.choice_count):
        variant = choices(s)[lane.choice_first + position].variant
        row = variant * s.kinds + kind
        limit = min(lane.length, batch_limit(s, lane, row))
        if limit > 0:
            chosen = variant
            if fitting(s, lane_index, row, limit, now_ns, ready_ns(s, worker, variant, now_ns)) == limit:
                break
    return chosen


@compiled
def fastest(s: Any, lane: Any, kind: int) -> int:
    """The lane's variant with the smallest l(1) on a kind."""
    chosen = WAIT
    least = NEVER
    for position in range(lane.choice_count):
        variant = choices(s)[lane.choice_first + position].variant
        row = variant * s.kinds + kind
        if rows(s)[row].max_batch > 0 and latency_ns(s, row, 1) < least:
            chosen = variant
            least = latency_ns(s, row, 1)
    return chosen


@compiled
def column_of(table: Any, slack: int) -> int:
    """The column that a slack falls into."""
    if table.edges_count == 0:
        return min(max(slack, 0) // table.step_ns, table.slacks - 1)
    edges = int64s(table.edges_at, table.edges_count)
    low, high = as_int64(0), table.edges_count
    while low < high:
        middle = (low + high) >> 1
        if edges[middle] <= slack:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def least_slack_ns(table: Any, column: int) -> int:
    """The smallest slack of a column."""
    if table.edges_count == 0 or column == 0:
        return column * table.step_ns
    return int64s(table.edges_at, table.edges_count)[column - 1]


@compiled
def runs_beyond(s: Any, lane_index: int, now_ns: int) -> float:
    """Queries that the lane's workers still run, beyond the usual."""
    lane = lanes(s)[lane_index]
    crew = int64s(s.lane_workers_at, s.lane_workers_count)
    busy_ns = 0
    for position in range(lane.worker_first, lane.worker_first + lane.worker_count):
        worker = workers(s)[crew[position]]
        for ahead in range(worker.depth if worker.alive else 0):
            batch = batches(s)[crew[position] * IN_FLIGHT + ((worker.front + ahead) & 1)]
            if batch.count > 0:  # else it loads
                busy_ns += max(batch.expected_ns - max(batch.start_ns, now_ns), 0)
    count = max(lane.worker_count, 1)
    return lane.crowd_rate * busy_ns / count - lane.crowd_usual * lane.alive / count


@compiled
def from_table(s: Any, lane_index: int, kind: int, worker: int, now_ns: int) -> tuple[int, int]:
    """The cell for (queued, slack of the head)."""
    lane = lanes(s)[lane_index]
    table = tables(s)[lane_index * s.kinds + kind]
    slack = queries(s)[first_in(s, lane_index, ORDER)].deadline_ns - now_ns
    queued = min(lane.length, table.queued - 1)
    if lane.crowd_lean > 0.0 and queued < table.queued - 1:
        fewer = as_int64(math.floor(lane.crowd_lean * runs_beyond(s, lane_index, now_ns) + 0.5))
        queued = min(max(queued - fewer, 1), table.queued - 2)
    column = column_of(table, slack)
    # What would start while a timer may still be late starts now: when the timer rings it could be too late for it.
    least = column_of(table, slack - lane.timer_ns)
    while column > least and cells(table)[queued * table.slacks + column].variant == WAIT:
        column -= 1
    cell = cells(table)[queued * table.slacks + column]
    variant = as_int64(cell.variant)
    row = variant * s.kinds + kind
    if variant == WAIT or rows(s)[row].max_batch == 0:
        return WAIT, 0
    if cell.batch == GIVE_UP and drops_late(lane):
        return variant, GIVE_UP
    size = min(lane.length, batch_limit(s, lane, row))
    if cell.batch > 0:
        size = min(size, as_int64(cell.batch))
    if drops_late(lane):
        size = fitting(s, lane_index, row, size, now_ns, ready_ns(s, worker, variant, now_ns))
        if size == 0:  # the table is coarser than time: save the head if a faster variant can
            variant = fastest(s, lane, kind)
            ready = ready_ns(s, worker, variant, now_ns)
            size = size_on(s, lane_index, variant * s.kinds + kind, now_ns, ready)
    return variant, size


@compiled
def strategy(s: Any, lane_index: int, row: int, now_ns: int, ready: int) -> tuple[int, int, int]:
    """(size, heads to give up, latest start) of the batch that must start soonest; size 0: none is possible any more.

    Larger batches begin at later queries, so one walk along the queue finds the first query of every size.
    """
    lane = lanes(s)[lane_index]
    limit = min(lane.length, batch_limit(s, lane, row))
    slot = first_in(s, lane_index, ORDER)
    passed, chosen, given_up = 0, 0, 0
    latest = NEVER
    for size in range(1, limit + 1):
        end = finish_ns(s, lane, row, size, now_ns, ready) + lane.margin_ns
        while slot != NONE and queries(s)[slot].deadline_ns < end:
            slot = next_in(s, ORDER, slot)
            passed += 1
        if lane.length - passed < size:
            break
        start = queries(s)[slot].deadline_ns - lane.margin_ns - latency_ns(s, row, size)
        if start < latest:
            chosen, given_up, latest = size, passed, start
    return chosen, given_up, latest


@compiled
def table_changes_ns(s: Any, lane_index: int, kind: int, now_ns: int) -> int:
    """When the head's slack falls into the next column, after a WAIT cell; earlier by what a timer may be late."""
    table = tables(s)[lane_index * s.kinds + kind]
    deadline = queries(s)[first_in(s, lane_index, ORDER)].deadline_ns - lanes(s)[lane_index].timer_ns
    return deadline - least_slack_ns(table, column_of(table, deadline - now_ns)) + 1


@compiled
def chooses_by_slack(lane: Any) -> bool:
    """Whether another variant runs when the head has less time."""
    return lane.select == SelectRule.TABLE or lane.select == SelectRule.MOST_ACCURATE


@compiled
def quickest_row(s: Any, lane: Any, kind: int, size: int) -> int:
    """The row of the variant that is quickest with a batch of this size, per query where it takes fewer."""
    chosen, least = -1, math.inf
    for position in range(lane.choice_count):
        row = choices(s)[lane.choice_first + position].variant * s.kinds + kind
        batch = min(size, batch_limit(s, lane, row))
        if batch > 0 and latency_ns(s, row, batch) / batch < least:
            chosen, least = row, latency_ns(s, row, batch) / batch
    return chosen


@compiled
def stand_in(s: Any, lane: Any, worker: int, variant: int) -> int:
    """The variant itself where the worker holds it, or where the lane takes no other; else the one of the same
    application that the worker ran last, of those that it holds.
    """
    first = worker * s.variants
    if lane.missing != Missing.STAND_IN or worker < 0 or resident(s)[first + variant].loaded:
        return variant
    kind = workers(s)[worker].kind
    application = rows(s)[variant * s.kinds + kind].application
    chosen = variant
    used_ns = -2
    for other in range(s.variants):
        row = rows(s)[other * s.kinds + kind]
        entry = resident(s)[first + other]
        could_answer = row.application == application and row.max_batch > 0 and entry.loaded != 0
        if could_answer and entry.used_ns > used_ns:
            chosen = other
            used_ns = entry.used_ns
    return chosen


@compiled
def only_worker(s: Any, lane: Any) -> int:
    """The worker of a lane that has just one, else -1."""
    return int64s(s.lane_workers_at, s.lane_workers_count)[lane.worker_first] if lane.worker_count == 1 else NONE


@compiled
def select(s: Any, lane_index: int, kind: int, worker: int, now_ns: int) -> tuple[int, int]:
    """(variant, batch) for a lane with queries waiting.

    Variant WAIT: nothing yet; batch 0: none of them fits; batch GIVE_UP: the head is to be dropped.
    """
    lane = lanes(s)[lane_index]
    if lane.select == SelectRule.TABLE:
        return from_table(s, lane_index, kind, worker, now_ns)
    if lane.select == SelectRule.FIXED:
        variant = choices(s)[lane.choice_first].variant
        if rows(s)[variant * s.kinds + kind].max_batch == 0:
            return WAIT, 0
    elif lane.select == SelectRule.BY_LOAD:
        variant = by_load(s, lane_index, kind)
    elif lane.select == SelectRule.MOST_ACCURATE:
        variant = most_accurate(s, lane_index, kind, worker, now_ns)
    elif lane.select == SelectRule.STRATEGIES:
        variant = choices(s)[lane.choice_first].variant
        row = variant * s.kinds + kind
        if rows(s)[row].max_batch == 0:
            return WAIT, 0
        return variant, strategy(s, lane_index, row, now_ns, ready_ns(s, worker, variant, now_ns))[0]
    else:
        return WAIT, 0
    if variant == WAIT:
        return WAIT, 0
    variant = stand_in(s, lane, worker if worker >= 0 else only_worker(s, lane), variant)
    ready = ready_ns(s, worker, variant, now_ns)
    return variant, size_on(s, lane_index, variant * s.kinds + kind, now_ns, ready)
