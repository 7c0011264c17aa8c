"""λ, of every application and of every lane: arrivals counted in eight buckets that together span the rate window.

A lane's estimate in use is renewed by the first arrival of each bucket, and by every arrival while the first window is
not yet over; an application's is in use by no rule, and worked out where it is read. Reading one for telemetry changes
nothing, so that nobody's looking changes a decision.

The dispersion of an application's arrivals, the variance of a count over its mean, comes from neighbouring buckets:
with n and m arrivals, (n − m)²/(n + m) has the dispersion for its mean whatever the load is, and a load that moves
slowly hardly shows. Older pairs count for less.

An application's λ is what planners go by: the queries that any of its variants may answer, whatever lanes they are
routed to. A lane's λ is what the lane's own rules go by. Meters are numbered: applications first, then lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.dispatch.records import RATE_BUCKETS, int64s, meters

PAIRS = 512  # of buckets that the dispersion is a mean over: half a minute of a window of half a second
POISSON_PAIRS = 16.0  # as if so many pairs of independent arrivals had been seen before


@compiled
def lane_meter(s: Any, lane_index: int) -> int:
    """The meter of a lane."""
    return s.applications + lane_index


@compiled
def buckets_passed(s: Any, meter: Any, now_ns: int) -> int:
    """How many buckets have begun since the one in use."""
    if now_ns < meter.edge_ns:
        return 0
    return int((now_ns - meter.edge_ns) // s.rate_bucket_ns + 1)


@compiled
def rate_at(s: Any, meter_index: int, now_ns: int) -> float:
    """λ as of now, in queries per nanosecond: over seven full buckets and the part of the eighth that has passed."""
    meter = meters(s)[meter_index]
    if meter.first_ns < 0:
        return 0.0
    counts = int64s(s.rate_counts_at, s.rate_counts_count)
    passed = buckets_passed(s, meter, now_ns)
    total = meter.total
    for step in range(1, min(passed, RATE_BUCKETS) + 1):
        total -= counts[meter_index * RATE_BUCKETS + (meter.bucket + step) % RATE_BUCKETS]
    began_ns = meter.edge_ns + (passed - 1) * s.rate_bucket_ns
    span = (RATE_BUCKETS - 1) * s.rate_bucket_ns + now_ns - began_ns
    age = now_ns - meter.first_ns
    if age < span:  # the first window: the gaps since the first arrival
        return float(max(total - 1, 0) / max(age, 1))
    return float(total / span)


@compiled
def uncount_arrival(s: Any, meter_index: int) -> None:
    """One of the latest arrivals went on to another lane, which counts it."""
    meter = meters(s)[meter_index]
    counts = int64s(s.rate_counts_at, s.rate_counts_count)
    for step in range(RATE_BUCKETS):
        bucket = meter_index * RATE_BUCKETS + (meter.bucket - step) % RATE_BUCKETS
        if counts[bucket] > 0:
            counts[bucket] -= 1
            meter.total -= 1
            return


@compiled
def _compare(meter: Any, count: int, before: int) -> None:
    """Two whole neighbouring buckets ended with so many arrivals."""
    if count + before > 0:
        meter.pairs += 1.0 - meter.pairs / PAIRS
        meter.spread += (count - before) ** 2 / (count + before) - meter.spread / PAIRS


@compiled
def count_arrival(s: Any, meter_index: int, now_ns: int) -> None:
    meter = meters(s)[meter_index]
    counts = int64s(s.rate_counts_at, s.rate_counts_count)
    first = meter_index * RATE_BUCKETS
    if meter.first_ns < 0:
        meter.first_ns = now_ns
        meter.edge_ns = now_ns + s.rate_bucket_ns
    passed = buckets_passed(s, meter, now_ns)
    for step in range(min(passed, RATE_BUCKETS)):
        if meter_index < s.applications and meter.edge_ns + (step - 2) * s.rate_bucket_ns >= meter.first_ns:
            before = (meter.bucket - 1) % RATE_BUCKETS
            _compare(meter, counts[first + meter.bucket], counts[first + before])
        meter.bucket = (meter.bucket + 1) % RATE_BUCKETS
        meter.total -= counts[first + meter.bucket]
        counts[first + meter.bucket] = 0
    meter.edge_ns += passed * s.rate_bucket_ns
    counts[first + meter.bucket] += 1
    meter.total += 1
    if meter_index >= s.applications and (passed > 0 or now_ns - meter.first_ns < RATE_BUCKETS * s.rate_bucket_ns):
        meter.rate = rate_at(s, meter_index, now_ns)


def dispersions(meters_read: NDArray[np.void]) -> NDArray[np.float64]:
    """Variance of a count over its mean, on the scale of a bucket, by meter: 1 for independent arrivals."""
    found: NDArray[np.float64] = (POISSON_PAIRS + meters_read["spread"]) / (POISSON_PAIRS + meters_read["pairs"])
    return found
