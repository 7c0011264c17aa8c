"""Which workers serve which application (appendix G: each worker has one SLO).

The paper leaves the numbers to a resource manager. Ours are in proportion to the work that is expected: the load times
the least time that a query takes, on the fastest variant in its best batch within the SLO.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError


def shared_out(
    deployment: Deployment, rates: NDArray[np.float64] | None, counts: Mapping[str, int] | None = None
) -> tuple[tuple[int, ...], ...]:
    """The workers of each application: as many as `counts` says, else in proportion to expected work."""
    applications = deployment.applications
    cost = np.array(
        [[_seconds(deployment, number, kind) for kind in deployment.kinds] for number, _ in _numbered(deployment)]
    )
    able = np.isfinite(cost)
    for number, application in _numbered(deployment):
        if not able[number].any():
            raise StrettoError(
                f"no variant of application {application} answers a single query within its SLO on any worker;"
                " raise the SLO or add a faster variant"
            )
    wanted = _wanted(deployment, rates, cost, dict(counts or {}))
    given: list[list[int]] = [[] for _ in applications]
    kind_of = [deployment.kinds.index(worker.kind) for worker in deployment.workers]
    # Workers with the least choice first. Each goes to the application furthest from its number that it can serve; one
    # beyond every number goes to the same, unless the numbers were told.
    for worker in sorted(range(len(kind_of)), key=lambda worker: int(able[:, kind_of[worker]].sum())):
        need = [wanted[n] - len(given[n]) if able[n, kind_of[worker]] else -np.inf for n in range(len(applications))]
        neediest = int(np.argmax(need))
        if need[neediest] > 0 or (not counts and np.isfinite(need[neediest])):
            given[neediest].append(worker)
    for number, own in enumerate(given):
        if not own:
            raise StrettoError(f"no worker is left for application {applications[number].name}; add workers")
    return tuple(tuple(sorted(own)) for own in given)


def _numbered(deployment: Deployment) -> list[tuple[int, str]]:
    return [(number, application.name) for number, application in enumerate(deployment.applications)]


def _wanted(
    deployment: Deployment, rates: NDArray[np.float64] | None, cost: NDArray[np.float64], counts: dict[str, int]
) -> NDArray[np.float64]:
    names = [application.name for application in deployment.applications]
    workers = len(deployment.workers)
    if counts:
        for name, count in counts.items():
            if name not in names:
                raise StrettoError(f"workers are set aside for application {name[:40]!r}; there are {', '.join(names)}")
            if count < 1:
                raise StrettoError(f"application {name} needs at least one worker, not {count}")
        if set(counts) != set(names) or sum(counts.values()) > workers:
            raise StrettoError(
                f"set workers aside for every application ({', '.join(names)}), at most {workers} in all"
            )
        return np.array([counts[name] for name in names], dtype=np.float64)
    if workers < len(names):
        raise StrettoError(f"{len(names)} applications need at least as many workers, one each; there are {workers}")
    asked = np.ones(len(names)) if rates is None or not rates.sum() > 0 else np.maximum(rates, 1e-9 * rates.sum())
    work = asked * np.nanmin(np.where(np.isfinite(cost), cost, np.nan), axis=1)
    # In proportion to the work, but one each at least; whole numbers by largest remainders.
    share = np.ones(len(names))
    free = np.ones(len(names), dtype=np.bool_)
    while free.any():
        share[free] = work[free] / work[free].sum() * (workers - np.count_nonzero(~free))
        small = free & (share < 1.0)
        if not small.any():
            break
        share[small] = 1.0
        free &= ~small
    whole: NDArray[np.float64] = np.floor(share + 1e-9)
    for number in np.argsort(whole - share, kind="stable")[: round(workers - float(whole.sum()))]:
        whole[number] += 1
    return whole


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
