"""How the arrivals of all queries become those of one worker: every K-th one (section 4.4.2), or by its queue (I.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.planners.parts.laws import Law
from stretto.planners.parts.task import Task
from stretto.planners.ramsis.options import Options

SHORT_QUEUE = 2  # appendix I.1: up to here a worker gets its average share


@dataclass(frozen=True)
class Stream:
    """One of `phases` arrivals of a law at `rate` (queries/s) goes to the worker, in turn."""

    phases: int
    rate: float
    law: Law

    def mean(self, ns: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
        """λT."""
        return np.asarray(ns, dtype=np.float64) * (self.rate * 1e-9)


def streams_of(task: Task, load: float, options: Options) -> list[tuple[Stream, NDArray[np.int64]]]:
    """Each stream with the queue lengths (1 … N) at which it feeds the worker."""
    lengths = np.arange(1, options.max_queue + 1)
    if not options.shortest:
        return [(Stream(task.workers, load, options.law), lengths)]
    share = load / task.workers
    rate = _service_rate(task, share)
    beyond = min(1.0, share / rate) ** task.workers * rate
    short, long = lengths[lengths <= SHORT_QUEUE], lengths[lengths > SHORT_QUEUE]
    streams = [(Stream(1, share, options.law), short)]
    if len(long):
        streams.append((Stream(1, max(beyond, 1e-9 * share), options.law), long))
    return streams


def _service_rate(task: Task, share: float) -> float:
    """μ: what the slowest variant answers that sustains a worker's share of the load within half the SLO.

    The appendix calls μ a latency and takes l(m, 1); the rule it cites needs a service rate, and with batches that is
    b / l(m, b). Where no variant keeps up, the best there is.
    """
    sizes = np.arange(1, task.max_batch + 1)
    latency = task.latency_ns[:, 1:]
    within = (latency > 0) & (latency <= task.slo_ns // 2)
    best = np.max(np.where(within, sizes * 1e9 / np.maximum(latency, 1), 0.0), axis=1)
    if not best.any():
        best = 1e9 / task.latency_ns[:, 1]
    able = np.flatnonzero(best >= share)
    return float(best[able[np.argmax(task.latency_ns[able, 1])]] if len(able) else best.max())
