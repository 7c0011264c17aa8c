"""Arrivals that come in surges: the same queries, at times closer together and at times further apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S
from stretto.sim.arrivals import Source


@dataclass(frozen=True)
class Surges:
    """In each period, for `share` of it, `factor` times as many queries a second; the mean stays."""

    source: Source
    factor: float
    share: float
    period_s: float

    def __post_init__(self) -> None:
        if not (0 < self.share < 1 and 1 <= self.factor < 1 / self.share and self.period_s > 0):
            raise StrettoError("a surge takes a part of its period, and not all queries of it")

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        return self.source.expected_rates(deployment, seconds)

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[np.void]]:
        period_ns, end_ns = self.period_s * NS_PER_S, int(seconds * NS_PER_S)
        # Time runs by the source's clock in whole periods; within one it is stretched, evenly on either side of a bend.
        bend = np.array([0.0, self.share * self.factor, 1.0]) * period_ns
        becomes = np.array([0.0, self.share, 1.0]) * period_ns
        for chunk in self.source.chunks(deployment, seconds, seed):
            moved = chunk.copy()
            periods, within = np.divmod(chunk["time_ns"].astype(np.float64), period_ns)
            moved["time_ns"] = (periods * period_ns + np.interp(within, bend, becomes)).astype(np.int64)
            moved["deadline_ns"] += moved["time_ns"] - chunk["time_ns"]
            queries = moved[moved["time_ns"] < end_ns]
            if len(queries):
                yield queries
