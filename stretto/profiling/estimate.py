"""From single runs to a latency: quantiles, how sure the p95 is, and the line α·b + β."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 200
MAX_BLOCKS = 64  # in the bootstrap; where there are more, neighbours are put together
RUNS_PER_BLOCK = 40  # of each block that the bootstrap looks at, evenly over its sorted runs
NS_PER_MS = 1e6


@dataclass(frozen=True)
class BatchLatency:
    """One batch size, in ms. `relative_error`: half of the 95% interval of p95, as a share of it."""

    mean: float
    p50: float
    p95: float
    p99: float
    runs: int
    relative_error: float
    is_noisy: bool = False


def summarised(blocks_ns: Sequence[NDArray[np.int64]], is_noisy: bool = False) -> BatchLatency:
    """Over all runs of all blocks."""
    runs = np.concatenate(blocks_ns)
    p50, p95, p99 = np.quantile(runs, (0.5, 0.95, 0.99)) / NS_PER_MS
    error = min(1.0, p95_error(blocks_ns))  # from 100% on it is simply not known
    mean = float(runs.mean()) / NS_PER_MS
    return BatchLatency(mean, float(p50), float(p95), float(p99), len(runs), error, is_noisy)


def p95_error(blocks_ns: Sequence[NDArray[np.int64]]) -> float:
    """By a bootstrap over whole blocks: runs next to one another share the state of the machine.

    One block says nothing about the next: infinite. The seed is fixed, so the same runs give the same error.
    """
    if len(blocks_ns) < 2:
        return float("inf")
    if len(blocks_ns) > MAX_BLOCKS:
        edges = np.linspace(0, len(blocks_ns), MAX_BLOCKS + 1).astype(int)
        blocks_ns = [np.concatenate(blocks_ns[first:end]) for first, end in pairwise(edges)]
    count = len(blocks_ns)
    width = min(RUNS_PER_BLOCK, max(len(block) for block in blocks_ns))
    sampled = np.stack([_spread(block, width) for block in blocks_ns]).astype(np.float64)
    chosen = np.random.default_rng(1).integers(0, count, (RESAMPLES, count))
    estimates = np.quantile(sampled[chosen].reshape(RESAMPLES, -1), 0.95, axis=1)
    low, middle, high = np.quantile(estimates, (0.025, 0.5, 0.975))
    return float((high - low) / 2 / middle)


def _spread(block: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    """`width` runs that stand for the block: its quantiles, evenly."""
    places = np.rint((np.arange(width) + 0.5) / width * len(block) - 0.5).astype(np.int64)
    return np.asarray(np.sort(block)[np.clip(places, 0, len(block) - 1)])


def fitted_line(latency_ms: Mapping[int, float]) -> tuple[float, float]:
    """(α, β) of the least-squares line through (batch, latency), neither below zero."""
    sizes = np.array(list(latency_ms), dtype=np.float64)
    values = np.array(list(latency_ms.values()), dtype=np.float64)
    if len(sizes) == 1:
        return 0.0, float(values[0])
    slope, intercept = (float(value) for value in np.polyfit(sizes, values, 1))
    if slope < 0:
        return 0.0, float(values.mean())
    if intercept < 0:
        return float((sizes * values).sum() / (sizes * sizes).sum()), 0.0
    return slope, intercept
