"""Release: when a lane's candidate may start, and how urgent it is.

Deferred follows Symphony section 4.3 and figure 16: a candidate of b queries starts at dl − l(b+1), the latest moment
that still lets one more query join, or at once when it holds more than βλ queries or cannot grow any more. An eager
lane that staggers lets a batch below the floor wait for one step of a stagger at most.

A lane is as urgent as that moment is near. One that chooses by the head's slack can still start with its quickest
variant when the chosen one has no time left: by the chosen one a lane in need, which chooses quick ones, came last.
"""

from __future__ import annotations

from typing import Any

from stretto.core.compiled import compiled
from stretto.core.plan import ReleaseRule, SelectRule
from stretto.dispatch.queue import ORDER, first_in
from stretto.dispatch.rates import lane_meter
from stretto.dispatch.records import NEVER, float64s, lanes, meters, queries, rows
from stretto.dispatch.select import (
    WAIT,
    batch_limit,
    chooses_by_slack,
    latency_ns,
    quickest_row,
    ready_ns,
    select,
    strategy,
    table_changes_ns,
)


@compiled
def delay_ns(lane: Any, size: int) -> int:
    """d_ctrl + d_data·b."""
    return lane.control_ns + lane.data_ns * size


@compiled
def floor_for(s: Any, lane_index: int) -> int:
    """The batch below which, at the lane's present rate, a worker is not worth its time."""
    floors = float64s(s.floors_at, s.floors_count)
    lane = lanes(s)[lane_index]
    rate = meters(s)[lane_meter(s, lane_index)].rate * 1e9
    floor = 0
    while floor < lane.floor_count and floors[lane.floor_first + floor] <= rate:
        floor += 1
    return floor


@compiled
def accumulated_ns(s: Any, lane_index: int, row: int, size: int, limit: int, now_ns: int) -> int:
    """Now if enough are gathered, else when the head has waited long enough.

    Where timers may be late, no batch that can still end in time waits longer than a late timer would let it.
    """
    lane = lanes(s)[lane_index]
    if lane.length >= min(lane.min_batch, limit):
        return now_ns
    release = queries(s)[first_in(s, lane_index, ORDER)].arrival_ns + lane.timeout_ns
    latest = lane.head_ns - latency_ns(s, row, size) - delay_ns(lane, size)
    if lane.timer_ns > 0 and latest >= now_ns:
        release = min(release, latest - lane.timer_ns)
    return release


@compiled
def deferred_ns(s: Any, lane_index: int, row: int, size: int, limit: int, now_ns: int) -> int:
    """exec_at − delay(b) of figure 16, or now; earlier by what a timer may be late."""
    lane = lanes(s)[lane_index]
    if size < lane.length or size >= limit:  # one more could not join
        return now_ns
    if lane.when_gathered and size > rows(s)[row].beta_ns * meters(s)[lane_meter(s, lane_index)].rate:
        return now_ns
    return lane.head_ns - latency_ns(s, row, size + 1) - delay_ns(lane, size) - lane.timer_ns


@compiled
def staggered_ns(s: Any, lane_index: int, row: int, size: int, limit: int, now_ns: int) -> int:
    """Now if the batch keeps up with the load or cannot grow, else when its oldest query has waited a stagger's step.

    It waits no longer than one more query could still join.
    """
    lane = lanes(s)[lane_index]
    if lane.alive < 2 or size < lane.length or size >= limit or size >= floor_for(s, lane_index):
        return now_ns
    came = queries(s)[first_in(s, lane_index, ORDER)].arrival_ns
    latest = lane.head_ns - latency_ns(s, row, size + 1) - delay_ns(lane, size) - lane.timer_ns
    return min(came + latency_ns(s, row, size) // lane.alive, latest)


@compiled
def candidate(s: Any, lane_index: int, kind: int, worker: int, now_ns: int) -> tuple[int, int, int, int]:
    """(variant, size, release_ns, rank_ns) of a lane with queries waiting.

    Size 0 with a variant: the head does not fit any more, and a worker that looks at the lane will drop it. GIVE_UP: it
    drops it for the sake of those behind it.
    """
    lane = lanes(s)[lane_index]
    variant, size = select(s, lane_index, kind, worker, now_ns)
    if variant == WAIT:
        if lane.select == SelectRule.TABLE:
            return WAIT, 0, table_changes_ns(s, lane_index, kind, now_ns), NEVER
        return WAIT, 0, NEVER, NEVER
    row = variant * s.kinds + kind
    if size <= 0:
        return variant, size, now_ns, lane.head_ns - latency_ns(s, row, 1)
    limit = batch_limit(s, lane, row)
    last = quickest_row(s, lane, kind, size + 1) if chooses_by_slack(lane) else row
    rank = lane.head_ns - latency_ns(s, last, min(size + 1, rows(s)[last].max_batch))
    if lane.select == SelectRule.STRATEGIES:
        _, _, rank = strategy(s, lane_index, row, now_ns, ready_ns(s, worker, variant, now_ns))
    if lane.release == ReleaseRule.DEFERRED:
        return variant, size, deferred_ns(s, lane_index, row, size, limit, now_ns), rank
    if lane.release == ReleaseRule.ACCUMULATE:
        return variant, size, accumulated_ns(s, lane_index, row, size, limit, now_ns), rank
    if lane.staggers:
        return variant, size, staggered_ns(s, lane_index, row, size, limit, now_ns), rank
    return variant, size, now_ns, rank
