"""The default plan for applications with several variants: the most accurate one that fits the slack, at a price.

Worker time has a price that follows from the load. With K workers and λ queries a second, a query can be given K/λ of
it; of the variants on the frontier of (worker time, accuracy) the two around that point, c and the next better one, are
what an ideal mixture would use, and anything better is too dear. A table over (queued n, slack s of the head) says
which: the best that lets the rest of the queue, and what comes meanwhile, be cleared by variant c before the head's
slack is over. When a queue grows beyond that, cheaper variants follow. When the load changes, the table does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Lane, Late, Order, Plan, Table, Tables, by_application
from stretto.core.view import View
from stretto.planners.parts.floors import efficient_batch, single_variant_lane
from stretto.planners.parts.fronts import Pace, frontier
from stretto.planners.parts.last_used import LastUsed, bytes_of_plan
from stretto.planners.parts.rates import RATE_WINDOW_NS, rates_of
from stretto.planners.parts.sharing import time_shares
from stretto.planners.parts.task import kinds_for

SLACKS = 64  # columns of the table
LEAST_QUEUED, MOST_QUEUED = 64, 2048  # rows; longer queues are treated like the last
RATE_STEP = 1.1  # loads within this factor share a plan
LEAST_RATE = 0.1
MOST_PLANS = 64

Steps = tuple[int, ...]


@dataclass
class Priced:
    """Plans by measured arrival rates and latencies; the same ones, within 10%, give the very same Plan object."""

    caution: float = 1.05  # > 1 takes worker time for dearer than the load alone makes it
    margin: float = 0.5  # of the slack, kept for what no profile knows; more than half of it is hardly ever worth more
    _deployment: Deployment | None = field(default=None, repr=False)
    _plans: LastUsed[tuple[Steps, tuple[Steps, ...]], Plan] = field(  # for that deployment
        default_factory=lambda: LastUsed(MOST_PLANS, bytes_of_plan), repr=False
    )

    def __call__(self, view: View) -> Plan:
        rates = tuple(_step(max(rate, LEAST_RATE)) for rate in rates_of(view, 0.0).tolist())
        ratios = _ratios(view)
        if view.deployment is not self._deployment:
            self._deployment = view.deployment
            self._plans.clear()
        if (known := self._plans.get((rates, ratios))) is not None:
            return known
        pace = Pace(view.deployment, tuple(tuple(RATE_STEP**step for step in row) for row in ratios))
        return self._plans.put((rates, ratios), self._plan(pace, [RATE_STEP**step for step in rates]))

    def _plan(self, pace: Pace, rates: list[float]) -> Plan:
        shares = time_shares(pace, rates)
        lanes = tuple(
            self._lane(pace, number, rates[number] * self.caution, shares[number]) for number in range(len(rates))
        )
        return by_application(lanes, rate_window_ns=RATE_WINDOW_NS, planner="priced")

    def _lane(self, pace: Pace, application: int, rate: float, share: float) -> Lane:
        deployment = pace.deployment
        variants = deployment.variants_of(application)
        kinds = kinds_for(deployment, application)
        workers = tuple(number for number, worker in enumerate(deployment.workers) if worker.kind in kinds)
        if len(variants) == 1:
            return single_variant_lane(deployment, variants[0], workers)
        tables = tuple(
            price_table(pace, application, kind, rate, share * len(workers), len(workers), self.margin)
            for kind in kinds
        )
        return Lane(
            deployment.applications[application].name,
            workers,
            tables[0] if len(tables) == 1 else Tables(tables),
            Order.EARLIEST_DEADLINE,
            Eager(),
            Late.DROP_WHEN_INFEASIBLE,
        )


def _step(value: float) -> int:
    return math.ceil(math.log(value) / math.log(RATE_STEP) - 0.5)


def _ratios(view: View) -> tuple[Steps, ...]:
    """Measured over profiled latency by variant and kind, in steps. What slows most variants slows those, too, that
    were not measured lately: none is taken to be faster than the median of those that were.
    """
    ratio, measured = view.latency_ratio, view.latency_ratio[view.is_measured]
    least = float(np.median(measured)) if measured.size else 1.0
    return tuple(tuple(_step(max(value, least)) for value in row) for row in ratio.tolist())


def price_table(
    pace: Pace,
    application: int,
    kind: str,
    rate: float,
    capacity: float,
    workers: int,
    margin: float,
) -> Table:
    """The table for one kind of worker. `capacity`: workers' worth of time that the application may use."""
    slo_ns = pace.deployment.applications[application].slo_ns
    step_ns = max(1, math.ceil(slo_ns / SLACKS))
    most = min(max(math.ceil(2 * rate * slo_ns / 1e9), LEAST_QUEUED), MOST_QUEUED)  # twice what comes within the SLO
    queued = np.maximum(np.arange(most + 1), 1)[:, None]
    columns = np.arange(SLACKS + 1, dtype=np.int32)[None, :]
    slack_ns = columns.astype(np.int64) * step_ns * (1.0 - margin)  # the least slack of each column
    # No batch may block a worker for so long that the next query finds none in time.
    blocking_ns = slo_ns * workers / (workers + 1)
    points = frontier(pace, application, kind)
    sustained = max((place for place, point in enumerate(points) if point[0] * rate <= capacity), default=0)
    clearing_ns = points[sustained][0] * 1e9
    chosen = np.full((most + 1, SLACKS + 1), -1, np.int32)
    batch = np.zeros(chosen.shape, np.int32)
    latencies = {number: latency for _, _, number in points if (latency := pace.latency_ns(number, kind)) is not None}
    for least_s, _, number in reversed(points[: sustained + 2]):
        latency = latencies[number]
        wanted = efficient_batch(latency)
        fitting = np.searchsorted(latency, np.minimum(slack_ns, blocking_ns), side="right") - 1
        size = np.minimum(np.minimum(queued, wanted), fitting)
        takes_ns = latency[np.maximum(size, 0)]
        rest = queued - size + rate * takes_ns / 1e9 / workers
        cleared_ns = takes_ns + rest * min(clearing_ns, least_s * 1e9) / capacity
        clears = (size > 0) & (cleared_ns <= slack_ns)
        # A larger batch may not clear where a smaller one did with less slack: that one is then taken.
        last = np.maximum.accumulate(np.where(clears, columns, -1), axis=1)
        taken = (chosen < 0) & (last >= 0)
        chosen[taken], batch[taken] = number, np.take_along_axis(size, np.maximum(last, 0), axis=1)[taken]
    # Nothing clears the queue in time: as many as the dispatcher finds to fit, at the least worker time each.
    cheapest = points[0][2]
    fastest = min(latencies, key=lambda number: float(latencies[number][1]))
    chosen = np.where(chosen >= 0, chosen, np.where(latencies[cheapest][1] <= slack_ns, cheapest, fastest))
    return Table(step_ns, _frozen(chosen.astype(np.int32)), _frozen(batch), kind)


def _frozen(array: NDArray[np.int32]) -> NDArray[np.int32]:
    array.setflags(write=False)
    return array
