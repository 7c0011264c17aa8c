"""What finished batches teach: a corrected latency table, and an adaptive batch cap."""

from __future__ import annotations

from typing import Any

from stretto.core.compiled import compiled
from stretto.core.profile import LEAST_RATIO, MOST_RATIO
from stretto.dispatch.records import NEVER, choices, int64s, lane_kinds, lanes, rows
from stretto.dispatch.timers import set_timer


@compiled
def adapt_cap(lane: Any, count: int, measured_ns: int) -> None:
    """Additive increase while full batches are fast enough, multiplicative decrease when one is not."""
    if measured_ns > lane.cap_target_ns:
        lane.cap = max(1.0, lane.cap * lane.cap_backoff)
    elif count >= int(lane.cap):
        lane.cap = min(lane.cap + lane.cap_step, float(lane.max_batch))


@compiled
def measure(s: Any, row_index: int, count: int, measured_ns: int) -> None:
    """Move the ratio of measured to profiled latency, and rewrite the table when it has moved enough.

    For a profile at quantile q the ratio follows that quantile (up by q steps when exceeded, down by 1 − q steps
    otherwise), for one of means it follows the mean. No step goes beyond what was seen: run times that are all alike
    stay where they are.
    """
    row = rows(s)[row_index]
    profiled = int64s(s.profiled_at, s.profiled_count)
    latency = int64s(s.latency_at, s.latency_count)
    first = row_index * s.latency_stride
    row.runs += 1
    seen = measured_ns / profiled[first + count]
    quantile = s.correction_quantile
    if quantile <= 0:
        row.ratio += s.correction_step * (seen - row.ratio)
    elif seen > row.ratio:
        row.ratio = min(row.ratio * (1 + s.correction_step * quantile), seen)
    else:
        row.ratio = max(row.ratio * (1 - s.correction_step * (1 - quantile)), seen)
    row.ratio = min(max(row.ratio, LEAST_RATIO), MOST_RATIO)
    if abs(row.ratio / row.written - 1) > s.worth_writing:
        row.written = row.ratio
        for size in range(1, row.max_batch + 1):
            latency[first + size] = int(profiled[first + size] * row.ratio)
        for lane_index in range(s.lanes_count):
            find_fastest(s, lane_index)
            if lanes(s)[lane_index].length > 0:  # what was planned with the old table is looked at afresh
                set_timer(s, lane_index, s.now_ns)


@compiled
def find_fastest(s: Any, lane_index: int) -> None:
    """Renew the lane's smallest possible latency, which says when a query is infeasible."""
    lane = lanes(s)[lane_index]
    latency = int64s(s.latency_at, s.latency_count)
    lane.fastest_ns = NEVER
    lane.fastest_row = -1
    for position in range(lane.choice_first, lane.choice_first + lane.choice_count):
        for place in range(lane.kind_first, lane.kind_first + lane.kind_count):
            row = choices(s)[position].variant * s.kinds + lane_kinds(s)[place].kind
            if rows(s)[row].max_batch > 0 and latency[row * s.latency_stride + 1] < lane.fastest_ns:
                lane.fastest_ns = latency[row * s.latency_stride + 1]
                lane.fastest_row = row
    if lane.fastest_row < 0:
        lane.fastest_ns = 0


@compiled
def find_all_fastest(s: Any) -> None:
    """Of every lane."""
    for lane_index in range(s.lanes_count):
        find_fastest(s, lane_index)
