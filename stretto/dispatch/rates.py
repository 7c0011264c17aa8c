"""λ of a lane: arrivals counted in eight buckets that together span the plan's rate window.

The estimate is renewed whenever a bucket is full, and with every arrival while the first window is not yet over.
"""

from __future__ import annotations

from typing import Any

from stretto.dispatch.compiled import compiled
from stretto.dispatch.records import RATE_BUCKETS, int64s, lanes


@compiled
def roll(s: Any, lane_index: int, now_ns: int) -> None:
    """Forget the buckets that have left the window, and renew the estimate."""
    lane = lanes(s)[lane_index]
    counts = int64s(s.rate_counts_at, s.rate_counts_count)
    first = lane_index * RATE_BUCKETS
    if now_ns - lane.rate_edge_ns >= RATE_BUCKETS * s.rate_bucket_ns:
        for bucket in range(RATE_BUCKETS):
            counts[first + bucket] = 0
        lane.rate_total = 0
        lane.rate_edge_ns = now_ns - now_ns % s.rate_bucket_ns + s.rate_bucket_ns
    while now_ns >= lane.rate_edge_ns:
        lane.rate_bucket = (lane.rate_bucket + 1) % RATE_BUCKETS
        lane.rate_total -= counts[first + lane.rate_bucket]
        counts[first + lane.rate_bucket] = 0
        lane.rate_edge_ns += s.rate_bucket_ns
    # The window is seven full buckets and the part of the eighth that has passed.
    span = (RATE_BUCKETS - 1) * s.rate_bucket_ns + now_ns - (lane.rate_edge_ns - s.rate_bucket_ns)
    age = now_ns - lane.rate_first_ns
    if age < span:  # the first window: the gaps since the first arrival
        lane.rate = (lane.rate_total - 1) / max(age, 1)
    else:
        lane.rate = lane.rate_total / span


@compiled
def count_arrival(s: Any, lane_index: int, now_ns: int) -> None:
    lane = lanes(s)[lane_index]
    if lane.rate_first_ns < 0:
        lane.rate_first_ns = now_ns
        lane.rate_edge_ns = now_ns + s.rate_bucket_ns
    int64s(s.rate_counts_at, s.rate_counts_count)[lane_index * RATE_BUCKETS + lane.rate_bucket] += 1
    lane.rate_total += 1
    if now_ns >= lane.rate_edge_ns or now_ns - lane.rate_first_ns < RATE_BUCKETS * s.rate_bucket_ns:
        roll(s, lane_index, now_ns)
