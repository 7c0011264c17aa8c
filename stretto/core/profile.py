"""Latency profiles: l(b), the time a variant needs for a batch of b on one kind of worker.

A profile is a table per quantile and batch size, never decreasing in the batch size. It comes from measured points or
from a line α·b + β. Batch sizes that were not measured are filled by the least-squares line through those that were,
or, where batches run padded, by the next larger one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import ProfileError

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
MAX_BATCH_LIMIT = 4096
MAX_LATENCY_MS = 3_600_000.0
LEAST_RATIO, MOST_RATIO = 0.25, 16.0  # measured over profiled latency, as far as it is believed


class Quantile(IntEnum):
    """Which of the measured latencies a reader wants."""

    MEAN = 0
    P50 = 1
    P95 = 2
    P99 = 3


@dataclass(frozen=True, eq=False)
class LatencyProfile:
    """`table_ns[quantile, b]` for b = 0 … max_batch; column 0 is zero. Read-only."""

    table_ns: NDArray[np.int64]
    kind: str = "default"
    alpha_ns: NDArray[np.float64] = field(init=False)
    beta_ns: NDArray[np.float64] = field(init=False)

    def __post_init__(self) -> None:
        table = np.array(self.table_ns, dtype=np.int64)
        if table.ndim != 2 or table.shape[0] != len(Quantile) or table.shape[1] < 2:
            raise ProfileError(f"a profile table needs {len(Quantile)} rows and at least two columns")
        if table.shape[1] - 1 > MAX_BATCH_LIMIT:
            raise ProfileError(f"a profile may go up to batch {MAX_BATCH_LIMIT}, not {table.shape[1] - 1}")
        if (table[:, 1:] <= 0).any():
            raise ProfileError(f"every latency of kind {self.kind!r} must be above zero")
        if (np.diff(table, axis=1) < 0).any():
            raise ProfileError(f"latency of kind {self.kind!r} falls as the batch grows; use LatencyProfile.measured")
        table.setflags(write=False)
        object.__setattr__(self, "table_ns", table)
        lines = [_line(np.arange(1, table.shape[1]), row[1:].astype(np.float64)) for row in table]
        object.__setattr__(self, "alpha_ns", np.array([slope for slope, _ in lines]))
        object.__setattr__(self, "beta_ns", np.array([max(0.0, intercept) for _, intercept in lines]))

    @property
    def max_batch(self) -> int:
        return int(self.table_ns.shape[1]) - 1

    def latency_ns(self, batch: int, quantile: Quantile = Quantile.P95) -> int:
        """l(batch) at `quantile`."""
        return int(self.table_ns[quantile, batch])

    def largest_batch_within(self, budget_ns: float, quantile: Quantile = Quantile.P95) -> int:
        """The largest b with l(b) ≤ budget; 0 where even one query takes longer."""
        return int(np.searchsorted(self.table_ns[quantile], budget_ns, side="right")) - 1

    @staticmethod
    def linear(alpha_ms: float, beta_ms: float, max_batch: int = 256, kind: str = "default") -> LatencyProfile:
        """The line of Symphony section 3.1, l(b) = α·b + β, the same at every quantile."""
        if not (0 <= alpha_ms <= MAX_LATENCY_MS and 0 <= beta_ms <= MAX_LATENCY_MS) or alpha_ms + beta_ms <= 0:
            raise ProfileError(
                f"alpha_ms={alpha_ms} and beta_ms={beta_ms} must be finite, not negative and not both zero"
            )
        _check_max_batch(max_batch)
        sizes = np.arange(max_batch + 1)
        row = np.rint((alpha_ms * sizes + beta_ms) * NS_PER_MS).astype(np.int64)
        row[0] = 0
        return LatencyProfile(np.tile(row, (len(Quantile), 1)), kind)

    @staticmethod
    def measured(
        points_ms: Mapping[int, Mapping[str, float]],
        max_batch: int | None = None,
        kind: str = "default",
        padded: bool = False,
    ) -> LatencyProfile:
        """From `{batch: {"mean": ms, "p50": ms, "p95": ms, "p99": ms}}`, made monotone from the right.

        A quantile that no point has is taken from the nearest higher one that is there, else the nearest lower. With
        `padded` a batch takes as long as the next larger one that was measured: the table is a staircase.
        """
        if not points_ms:
            raise ProfileError("a measured profile needs at least one batch size")
        largest = max(points_ms) if max_batch is None else max_batch
        _check_max_batch(largest)
        rows: dict[Quantile, NDArray[np.int64]] = {}
        for quantile in Quantile:
            points = {
                b: values[quantile.name.lower()] for b, values in points_ms.items() if quantile.name.lower() in values
            }
            if points:
                rows[quantile] = _filled_row(points, largest, quantile.name.lower(), padded)
        if not rows:
            raise ProfileError("a measured profile needs a mean, p50, p95 or p99 for its batch sizes")
        table = np.stack([rows[_nearest(quantile, rows)] for quantile in Quantile])
        return LatencyProfile(table, kind)


def _check_max_batch(max_batch: int) -> None:
    if not 1 <= max_batch <= MAX_BATCH_LIMIT:
        raise ProfileError(f"the largest batch must be between 1 and {MAX_BATCH_LIMIT}, not {max_batch}")


def _nearest(quantile: Quantile, rows: Mapping[Quantile, NDArray[np.int64]]) -> Quantile:
    higher = [known for known in rows if known >= quantile]
    return min(higher) if higher else max(rows)


def _line(sizes: NDArray[np.int64], latency: NDArray[np.float64]) -> tuple[float, float]:
    if len(sizes) == 1:
        return 0.0, float(latency[0])
    slope, intercept = np.polyfit(sizes.astype(np.float64), latency, 1)
    return float(slope), float(intercept)


def _filled_row(points_ms: Mapping[int, float], largest: int, name: str, padded: bool) -> NDArray[np.int64]:
    """One quantile for every batch size up to `largest`: measured, else on the fitted line; then monotone. `padded`:
    as the next larger one that was measured, where there is one.
    """
    for batch, value in points_ms.items():
        if not 1 <= batch <= MAX_BATCH_LIMIT:
            raise ProfileError(f"batch size {batch} is not between 1 and {MAX_BATCH_LIMIT}")
        if not 0 < value <= MAX_LATENCY_MS:
            raise ProfileError(f"{name} latency {value} ms of batch {batch} is not a time above zero")
    sizes = np.array(sorted(points_ms))
    slope, intercept = _line(sizes, np.array([points_ms[int(b)] for b in sizes]))
    row = slope * np.arange(largest + 1) + intercept
    if padded:
        places = np.searchsorted(sizes, np.arange(largest + 1))
        within = places < len(sizes)
        row[within] = [points_ms[int(sizes[place])] for place in places[within]]
    for batch, value in points_ms.items():
        if batch <= largest:
            row[batch] = value
    # A fit with a falling slope may reach zero or below; no batch is faster than the fastest one measured.
    row = np.maximum(row, min(points_ms.values()))
    row[1:] = np.minimum.accumulate(row[:0:-1])[::-1]
    row[0] = 0.0
    whole: NDArray[np.int64] = np.rint(row * NS_PER_MS).astype(np.int64)
    return whole
