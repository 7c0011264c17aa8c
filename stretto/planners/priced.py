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
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Eager, Fixed, Lane, Late, Order, Plan, Table, Tables, by_application
from stretto.core.profile import NS_PER_MS
from stretto.core.view import View
from stretto.planners.symphony import floor_rates

SLACKS = 64  # columns of the table
LEAST_QUEUED, MOST_QUEUED = 64, 2048  # rows; longer queues are treated like the last
EFFICIENT = 1.02  # a batch is large enough when a query takes at most so many times the least that it can
BATCH_COST_NS = 300_000  # what a batch costs around its run, whatever its size; a profile does not tell it
RATE_STEP = 1.1  # loads within this factor share a plan
RATE_WINDOW_NS = 500 * NS_PER_MS
LEAST_RATE = 0.1
KEPT_PLANS = 200
LOST_SHARE = 0.01
PRESSURE_STEP = 1.25
PRESSURE_RELIEF = 0.98
MOST_PRESSURE = 4.0
SOFTNESS = 0.4  # of a price: how far around it a step is taken in part
PRICE_STEPS = 50  # bisections


@dataclass(frozen=True, eq=False)
class Pace:
    """Latencies that decisions rest on, as measured: the profile's times the ratio of its variant and kind."""

    deployment: Deployment
    ratios: tuple[tuple[float, ...], ...]  # by variant and kind

    def latency_ns(self, variant: int, kind: str) -> NDArray[np.float64] | None:
        """By batch size, 0 first; None where the variant cannot run on the kind."""
        profile = self.deployment.variants[variant].profile_on(kind)
        if profile is None:
            return None
        ratio = self.ratios[variant][self.deployment.kinds.index(kind)]
        scaled: NDArray[np.float64] = profile.table_ns[self.deployment.quantile] * ratio
        return scaled


Key = tuple[int, tuple[int, ...], tuple[tuple[int, ...], ...]]


@dataclass
class Priced:
    """Plans by measured arrival rates and latencies; the same ones, within 10%, give the very same Plan object."""

    caution: float = 1.05  # > 1 takes worker time for dearer than the load alone makes it
    margin: float = 0.5  # of the slack, kept for what no profile knows; more than half of it is hardly ever worth more
    _pressure: float = field(default=1.0, repr=False)  # what latencies are multiplied by; grows while queries are lost
    _plans: dict[Key, tuple[Deployment, Plan]] = field(default_factory=dict, repr=False)

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        rates = tuple(_step(max(rate, LEAST_RATE)) for rate in loads_of(view))
        self._pressure = pressure_of(view, self._pressure)
        ratios = _ratios(view, self._pressure)
        key = (id(deployment), rates, ratios)
        known = self._plans.get(key)
        if known is None or known[0] is not deployment:
            if len(self._plans) > KEPT_PLANS:
                self._plans.clear()
            pace = Pace(deployment, tuple(tuple(RATE_STEP**step for step in row) for row in ratios))
            known = self._plans[key] = (deployment, self._plan(pace, [RATE_STEP**step for step in rates]))
        return known[1]

    def _plan(self, pace: Pace, rates: list[float]) -> Plan:
        shares = worker_shares(pace, rates)
        lanes = tuple(
            self._lane(pace, number, rates[number] * self.caution, shares[number]) for number in range(len(rates))
        )
        return by_application(lanes, rate_window_ns=RATE_WINDOW_NS, planner="priced")

    def _lane(self, pace: Pace, application: int, rate: float, share: float) -> Lane:
        deployment = pace.deployment
        variants = deployment.variants_of(application)
        able = {kind for kind in deployment.kinds if any(deployment.variants[v].profile_on(kind) for v in variants)}
        workers = tuple(number for number, worker in enumerate(deployment.workers) if worker.kind in able)
        kinds = dict.fromkeys(deployment.workers[number].kind for number in workers)
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


def single_variant_lane(deployment: Deployment, variant: int, workers: tuple[int, ...]) -> Lane:
    """Where there is nothing to choose: started at once, and under overload kept from batches that are not worth it."""
    application = deployment.applications[deployment.application_of[variant]]
    profile = deployment.profile(variant, deployment.workers[workers[0]].kind)
    latency = profile.table_ns[deployment.quantile].astype(np.float64)
    floors = floor_rates(profile, application.slo_ns, len(workers), deployment.quantile)
    return Lane(
        application.name,
        workers,
        Fixed(variant),
        Order.EARLIEST_DEADLINE,
        Eager(floor_rates=floors[: efficient_batch(latency)]),
        Late.DROP_WHEN_INFEASIBLE,
    )


def efficient_batch(latency_ns: NDArray[np.float64]) -> int:
    """The smallest batch in which a query takes hardly more worker time than in the best."""
    each = (latency_ns[1:] + BATCH_COST_NS) / np.arange(1, len(latency_ns))
    return int(np.argmax(each <= EFFICIENT * each.min())) + 1


def _step(value: float) -> int:
    return math.ceil(math.log(value) / math.log(RATE_STEP) - 0.5)


def loads_of(view: View) -> list[float]:
    """λ by application; nothing, where nobody knows."""
    return [0.0] * len(view.deployment.applications) if view.rates is None else view.rates.tolist()


def pressure_of(view: View, before: float) -> float:
    """Rises while more than a few queries end late or without an answer, and falls slowly when none do.

    It covers what no profile tells: another program on the same cores, say, which makes some batches late by far.
    """
    ended = view.ended.sum(axis=0)
    ended[Outcome.DROPPED_CANCELLED] = ended[Outcome.DROPPED_OVERLOAD] = 0  # refused at the door: λ tells that already
    if ended.sum() - ended[Outcome.ON_TIME] > LOST_SHARE * ended.sum():
        return min(before * PRESSURE_STEP, MOST_PRESSURE)
    return max(1.0, before * PRESSURE_RELIEF)


def _ratios(view: View, pressure: float) -> tuple[tuple[int, ...], ...]:
    """Measured over profiled latency by variant and kind, in steps. What slows most variants slows those, too, that
    were not measured lately: none is taken to be faster than the median of those that were.
    """
    ratio, measured = view.latency_ratio, view.latency_ratio[view.is_measured]
    least = float(np.median(measured)) if measured.size else 1.0
    return tuple(tuple(_step(max(value, least) * pressure) for value in row) for row in ratio.tolist())


def worker_shares(pace: Pace, rates: list[float]) -> list[float]:
    """The share of all worker time that each application should have: upgrades are bought where they bring most.

    Every query starts on the cheapest variant. Steps to better ones are taken at one price, accuracy gained per worker
    time, for all; the price is that at which the time is used up. Around the price that a step is worth it is taken in
    part, because queues round the corners off: of two applications that gain nearly alike, both have some.
    """
    if len(rates) == 1:
        return [1.0]
    fronts = [frontier(pace, application) for application in range(len(rates))]
    steps = [(number, _slope(before, after), after[0] - before[0]) for number, points in enumerate(fronts)
             for before, after in pairwise(points)]  # fmt: skip

    def spent(price: float) -> NDArray[np.float64]:
        time = np.array([rate * points[0][0] for rate, points in zip(rates, fronts, strict=True)])
        for number, worth, cost in steps:
            part = ((1 + SOFTNESS) * worth - price) / (2 * SOFTNESS * worth)
            time[number] += rates[number] * cost * min(max(part, 0.0), 1.0)
        return time

    low, high = 0.0, (1 + SOFTNESS) * max((worth for _, worth, _ in steps), default=1.0)
    if spent(low).sum() > len(pace.deployment.workers):
        for _ in range(PRICE_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if spent(middle).sum() > len(pace.deployment.workers) else (low, middle)
    time = spent(high if low > 0 else low)
    total = float(time.sum())
    return [value / total for value in time.tolist()]


def frontier(pace: Pace, application: int, kind: str | None = None) -> list[tuple[float, float, int]]:
    """(worker seconds per query, accuracy, variant), of those that no mixture of others beats, cheapest first."""
    deployment = pace.deployment
    slo_ns = deployment.applications[application].slo_ns
    variants = deployment.variants_of(application)
    if kind is None:  # the first one that can serve it at all
        kind = next(k for k in deployment.kinds if any(deployment.variants[v].profile_on(k) for v in variants))
    points = []
    for number in variants:
        latency = pace.latency_ns(number, kind)
        if latency is not None:
            largest = max(1, int(np.searchsorted(latency, slo_ns, side="right")) - 1)
            least = float((latency[1 : largest + 1] / np.arange(1, largest + 1)).min())
            points.append((least / 1e9, deployment.variants[number].accuracy, number))
    hull: list[tuple[float, float, int]] = []
    for point in sorted(points, key=lambda point: (point[0], -point[1])):
        if hull and point[1] <= hull[-1][1]:
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _slope(before: tuple[float, float, int], after: tuple[float, float, int]) -> float:
    return (after[1] - before[1]) / (after[0] - before[0])


def price_table(
    pace: Pace, application: int, kind: str, rate: float, capacity: float, workers: int, margin: float
) -> Table:
    """The table for one kind of worker. `capacity`: workers' worth of time that the application may use."""
    slo_ns = pace.deployment.applications[application].slo_ns
    step_ns = max(1, math.ceil(slo_ns / SLACKS))
    most = min(max(math.ceil(2 * rate * slo_ns / 1e9), LEAST_QUEUED), MOST_QUEUED)  # twice what comes within the SLO
    queued = np.maximum(np.arange(most + 1), 1)[:, None]
    slack_ns = (np.arange(SLACKS + 1) * step_ns)[None, :] * (1.0 - margin)  # the least slack of each column
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
        for column in range(1, SLACKS + 1):  # a larger batch may not clear where a smaller one did with less slack
            kept = clears[:, column - 1] & ~clears[:, column]
            clears[kept, column], size[kept, column] = True, size[kept, column - 1]
        taken = (chosen < 0) & clears
        chosen[taken], batch[taken] = number, size[taken]
    # Nothing clears the queue in time: as many as fit, at the least worker time each.
    cheapest = points[0][2]
    fitting = np.minimum(np.searchsorted(latencies[cheapest], slack_ns, side="right") - 1, queued)
    fastest = min(latencies, key=lambda number: float(latencies[number][1]))
    lost = chosen < 0
    chosen[lost] = np.where(fitting > 0, cheapest, fastest)[lost]
    batch[lost] = np.maximum(fitting, 0)[lost]  # 0: as many as the dispatcher finds to fit
    return Table(step_ns, _frozen(chosen), _frozen(batch), kind)


def _frozen(array: NDArray[np.int32]) -> NDArray[np.int32]:
    array.setflags(write=False)
    return array
