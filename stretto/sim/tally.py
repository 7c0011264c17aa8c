"""What a simulation counts while it runs: outcomes, latency and queueing histograms, batch sizes.

Histograms have 64 buckets per doubling, so a percentile read from one is within 0.8% of the true one, and memory does
not grow with the number of queries. Counts are exact.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled, leading_zeros
from stretto.dispatch.records import as_int64

STEPS = 64  # buckets per doubling
STEP_BITS = 6
BUCKETS = STEPS * 56


@compiled
def bucket_of(value_ns: int) -> int:
    """The histogram bucket of a time; exact below 64 ns."""
    if value_ns < STEPS:
        return max(value_ns, 0)
    exponent = 63 - as_int64(leading_zeros(np.uint64(value_ns)))
    shift = exponent - STEP_BITS
    return min((shift + 1) * STEPS + (value_ns >> shift) - STEPS, BUCKETS - 1)


@cache
def bucket_middles_ns() -> NDArray[np.float64]:
    """The middle of every bucket. Read-only."""
    index = np.arange(BUCKETS)
    shift = np.maximum(index // STEPS - 1, 0).astype(np.float64)
    low = np.where(index < STEPS, index, (index % STEPS + STEPS) * 2.0**shift)
    middles = np.where(index < STEPS, index, low + 0.5 * (2.0**shift - 1))
    middles.setflags(write=False)
    return middles


def percentile_ns(histogram: NDArray[np.int64], share: float) -> float:
    """The time below which `share` of the counted values lie; 0 where nothing was counted."""
    total = int(histogram.sum())
    if total == 0:
        return 0.0
    index = int(np.searchsorted(np.cumsum(histogram), share * total))
    return float(bucket_middles_ns()[min(index, BUCKETS - 1)])


def mean_ns(histogram: NDArray[np.int64]) -> float:
    """The mean of the counted values, to the width of a bucket."""
    total = int(histogram.sum())
    return float((histogram * bucket_middles_ns()).sum() / total) if total else 0.0


TALLIES: dict[str, Any] = {
    "counts": np.dtype("i8"),  # [application, outcome]
    "variant_counts": np.dtype("i8"),  # [variant, on time or late]
    "evidence_counts": np.dtype("i8"),  # [application, on time or late]
    "late_worth": np.dtype("f8"),  # [variant] what lateness left of its late answers, summed
    "late_evidence_worth": np.dtype("f8"),  # [application] the same of late answers by evidence
    "latency_histogram": np.dtype("i8"),  # [application, bucket], answers only
    "queueing_histogram": np.dtype("i8"),  # [application, bucket], answers only
    "batch_histogram": np.dtype("i8"),  # [variant, batch size], batches
}
