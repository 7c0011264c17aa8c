"""What a dispatcher learned by measuring, as plain arrays with names, for the dispatcher of another deployment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Estimates:
    """Arrival counts of applications, then of lanes; batch caps of lanes; latencies by variant and kind of worker."""

    rate_window_ns: int
    applications: tuple[str, ...]
    lanes: tuple[str, ...]
    counting: NDArray[np.int64]  # [meter, 4]: first_ns, edge_ns, bucket, total
    rates: NDArray[np.float64]  # [meter], queries per nanosecond, as the rules last used them
    arrivals: NDArray[np.int64]  # [meter, bucket]
    caps: NDArray[np.float64]  # [lane]; 0 where the lane has no adaptive cap
    variants: tuple[str, ...]  # application/variant
    kinds: tuple[str, ...]
    profiled: NDArray[np.int64]  # [variant, kind, batch]: the latencies that the ratios are ratios to
    ratio: NDArray[np.float64]  # [variant, kind], measured over profiled
    written: NDArray[np.float64]  # [variant, kind], the ratio that decisions were last made with
    runs: NDArray[np.int64]  # [variant, kind], batches that were measured
