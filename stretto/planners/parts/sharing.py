"""How workers are shared between applications: their time, by price; or whole workers, by the work that is expected.

Time is shared where every worker serves every application, and each should use its part only. Whole workers are dealt
where each serves one application (RAMSIS appendix G) or one sub-cluster (Symphony section 4.7): as many as the work
asks for, at least one each, and of every kind a share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S
from stretto.planners.parts.choose import serving_profiles, serving_workers
from stretto.planners.parts.fronts import Pace, frontier, slope

SOFTNESS = 0.4  # of a price: how far around it a step is taken in part
PRICE_STEPS = 50  # bisections


def time_shares(pace: Pace, rates: Sequence[float]) -> list[float]:
    """The share of all worker time that each application should have: upgrades are bought where they bring most.

    Every query starts on the cheapest variant. Steps to better ones are taken at one price, accuracy gained per worker
    time, for all; the price is that at which the time is used up. Around the price that a step is worth it is taken in
    part, because queues round the corners off: of two applications that gain nearly alike, both have some.
    """
    if len(rates) == 1:
        return [1.0]
    fronts = [frontier(pace, application) for application in range(len(rates))]
    steps = [(number, slope(before, after), after[0] - before[0]) for number, points in enumerate(fronts)
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


def workers_of_applications(
    deployment: Deployment,
    rates: Sequence[float] | NDArray[np.float64] | None,
    counts: Mapping[str, int],
    among: Sequence[int] | None = None,
) -> tuple[tuple[int, ...], ...]:
    """The workers of each application: as many as `counts` says, else in proportion to the least work that is expected.

    That is the load times the least time that a query takes, on the fastest variant in its best batch within the SLO.
    `among` are the workers to be dealt; left out, all of them.
    """
    dealt_out = range(len(deployment.workers)) if among is None else among
    names = [application.name for application in deployment.applications]
    seconds = np.array([[_seconds(deployment, n, kind) for kind in deployment.kinds] for n in range(len(names))])
    for name, row in zip(names, seconds, strict=True):
        if not np.isfinite(row).any():
            raise StrettoError(
                f"no variant of application {name} answers a single query within its SLO on any worker;"
                " raise the SLO or add a faster variant"
            )
    if counts:
        wanted = _as_stated(names, counts, len(dealt_out))
    else:
        if len(dealt_out) < len(names):
            raise StrettoError(
                f"{len(names)} applications need at least as many workers, one each; there are {len(dealt_out)}"
            )
        asked = np.ones(len(names)) if rates is None or not np.sum(rates) > 0 else np.asarray(rates, np.float64)
        wanted = apportioned(asked * seconds.min(axis=1), len(dealt_out))
    kind_of = [deployment.kinds.index(deployment.workers[worker].kind) for worker in dealt_out]
    dealt = deal(wanted, np.isfinite(seconds)[:, kind_of], all_of_them=not counts)
    for name, crew in zip(names, dealt, strict=True):
        if not crew:
            raise StrettoError(f"no worker is left for application {name}; add workers")
    return tuple(tuple(dealt_out[place] for place in crew) for crew in dealt)


def workers_of_groups(
    assignment: Sequence[int], work: Iterable[float], groups: int, workers: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Worker numbers by group, in proportion to the work of its members; a group without members has none."""
    is_held = np.bincount(assignment, minlength=groups) > 0
    if is_held.sum() > len(workers):
        raise StrettoError(f"{int(is_held.sum())} sub-clusters hold models, but there are only {len(workers)} workers")
    loads = np.bincount(assignment, weights=np.array(list(work)), minlength=groups).astype(np.float64)
    counts = np.zeros(groups, np.int64)
    counts[is_held] = apportioned(loads[is_held], len(workers))
    dealt = deal(counts, np.repeat(is_held[:, None], len(workers), axis=1))
    return tuple(tuple(workers[place] for place in crew) for crew in dealt)


def apportioned(work: NDArray[np.float64], workers: int) -> NDArray[np.int64]:
    """Whole numbers of workers in proportion to work, one at least: each goes where most work falls on a worker."""
    loads = work if work.sum() > 0 else np.ones(len(work))
    counts = np.ones(len(loads), np.int64)
    for _ in range(workers - len(loads)):
        counts[int(np.argmax(loads / counts))] += 1
    return counts


def deal(
    counts: NDArray[np.int64], able: NDArray[np.bool_], *, all_of_them: bool = True
) -> tuple[tuple[int, ...], ...]:
    """So many workers for each group, of those that are `able[group, worker]`, in turn: of every kind its share.

    Workers with the least choice are dealt first. One that only groups with their full number can use goes to one of
    those where `all_of_them` are to be used, and else to nobody.
    """
    given: list[list[int]] = [[] for _ in counts]
    order = sorted(range(able.shape[1]), key=lambda worker: int(able[:, worker].sum()))
    for place, worker in enumerate(order, start=1):
        sizes = np.array([len(crew) for crew in given])
        takers = able[:, worker] & (sizes < counts)
        if not takers.any():
            takers = able[:, worker] if all_of_them else takers
        if takers.any():
            due = counts * place / len(order) - sizes
            given[int(np.argmax(np.where(takers, due, -np.inf)))].append(worker)
    return tuple(tuple(sorted(crew)) for crew in given)


def expected_work(deployment: Deployment, chosen: Sequence[int], rates: Iterable[float]) -> NDArray[np.float64]:
    """How many workers each application keeps busy with its `chosen` variant, by Symphony's equations 2 and 3.

    Batches are those of staggered execution on the workers that serve it, (1 + 1/N)·l(b) ≤ SLO, and a load λ keeps
    λ·l(b)/b of them busy. On one worker that is equation 1, 2·l(b) ≤ SLO.
    """
    work = []
    for application, variant, rate in zip(deployment.applications, chosen, rates, strict=True):
        workers = len(serving_workers(deployment, variant))
        per_query_ns = []
        for profile in serving_profiles(deployment, variant):
            within_ns = application.slo_ns * workers // (workers + 1)
            batch = max(1, profile.largest_batch_within(within_ns, deployment.quantile))
            per_query_ns.append(profile.latency_ns(batch, deployment.quantile) / batch)
        work.append(rate * float(np.mean(per_query_ns)) / NS_PER_S)
    return np.array(work)


def _as_stated(names: Sequence[str], counts: Mapping[str, int], workers: int) -> NDArray[np.int64]:
    for name, count in counts.items():
        if name not in names:
            raise StrettoError(f"workers are set aside for application {name[:40]!r}; there are {', '.join(names)}")
        if count < 1:
            raise StrettoError(f"application {name} needs at least one worker, not {count}")
    if set(counts) != set(names) or sum(counts.values()) > workers:
        raise StrettoError(f"set workers aside for every application ({', '.join(names)}), at most {workers} in all")
    return np.array([counts[name] for name in names])


def _seconds(deployment: Deployment, application: int, kind: str) -> float:
    """The least time per query on a kind of worker; infinite where no query is answered within the SLO."""
    served = deployment.applications[application]
    least = np.inf
    for variant in served.variants:
        profile = variant.profile_on(kind)
        if profile is not None:
            largest = profile.largest_batch_within(served.slo_ns, deployment.quantile)
            if largest > 0:
                row = profile.table_ns[deployment.quantile, 1 : largest + 1]
                least = min(least, float((row / np.arange(1, largest + 1)).min()) * 1e-9)
    return float(least)
