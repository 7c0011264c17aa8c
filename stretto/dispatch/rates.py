"""λ of a lane: arrivals counted in eight buckets that together span the plan's rate window.

The estimate in use is renewed by the first arrival of each bucket, and by every arrival while the first window is not
yet over. Reading it for telemetry changes nothing, so that nobody's looking changes a decision.
"""

from __future__ import annotations

from typing import Any

from stretto.core.compiled import compiled
from stretto.dispatch.records import RATE_BUCKETS, int64s, lanes


@compiled
def buckets_passed(s: Any, lane: Any, now_ns: int) -> int:
    """How many buckets have begun since the one in use."""
    if now_ns < lane.rate_edge_ns:
        return 0
    return int((now_ns - lane.rate_edge_ns) // s.rate_bucket_ns + 1)


@compiled
def rate_at(s: Any, lane_index: int, now_ns: int) -> float:
    """λ as of now, in queries per nanosecond: over seven full buckets and the part of the eighth that has passed."""
    lane = lanes(s)[lane_index]
    if lane.rate_first_ns < 0:
        return 0.0
    counts = int64s(s.rate_counts_at, s.rate_counts_count)
    passed = buckets_passed(s, lane, now_ns)
    total = lane.rate_total
    for step in range(1, min(passed, RATE_BUCKETS) + 1):
        total -= counts[lane_index * RATE_BUCKETS + (lane.rate_bucket + step) % RATE_BUCKETS]
    began_ns = lane.rate_edge_ns + (passed - 1) * s.rate_bucket_ns
    span = (RATE_BUCKETS - 1) * s.rate_bucket_ns + now_ns - began_ns
    age = now_ns - lane.rate_first_ns
    if age < span:  # the first window: the gaps since the first arrival
        return float(max(total - 1, 0) / max(age, 1))
    return float(total / span)


@compiled
def uncount_arrival(s: Any, lane_index: int) -> None:
    """One of the latest arrivals went on to another lane, which counts it."""
    lane = lanes(s)[lane_index]
    counts = int64s(s.rate_counts_at, s.rate_counts_count)
    for step in range(RATE_BUCKETS):
        bucket = lane_index * RATE_BUCKETS + (lane.rate_bucket - step) % RATE_BUCKETS
        if counts[bucket] > 0:
            counts[bucket] -= 1
            lane.rate_total -= 1
            return


@compiled
def count_arrival(s: Any, lane_index: int, now_ns: int) -> None:
    lane = lanes(s)[lane_index]
    counts = int64s(s.rate_counts_at, s.rate_counts_count)
    first = lane_index * RATE_BUCKETS
    if lane.rate_first_ns < 0:
        lane.rate_first_ns = now_ns
        lane.rate_edge_ns = now_ns + s.rate_bucket_ns
    passed = buckets_passed(s, lane, now_ns)
    for _ in range(min(passed, RATE_BUCKETS)):
        lane.rate_bucket = (lane.rate_bucket + 1) % RATE_BUCKETS
        lane.rate_total -= counts[first + lane.rate_bucket]
        counts[first + lane.rate_bucket] = 0
    lane.rate_edge_ns += passed * s.rate_bucket_ns
    counts[first + lane.rate_bucket] += 1
    lane.rate_total += 1
    if passed > 0 or now_ns - lane.rate_first_ns < RATE_BUCKETS * s.rate_bucket_ns:
        lane.rate = rate_at(s, lane_index, now_ns)
