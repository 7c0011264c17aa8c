"""Which variants are worth considering: those that no other, or no mixture of others, beats.

Three fronts, from the coarsest to the finest: by the latency of one query (RAMSIS section 4.3.3), by every batch size,
and by worker time per query, of which mixtures count too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.planners.parts.task import Task, kinds_for


def pareto_front(task: Task) -> list[int]:
    """Section 4.3.3: the variants that no other beats in accuracy and in the latency of one query, fastest first."""
    front: list[int] = []
    best = -np.inf
    for m in np.lexsort((-task.accuracy, task.latency_ns[:, 1])):
        if task.accuracy[m] > best:
            front.append(int(m))
            best = float(task.accuracy[m])
    return front


def undominated(task: Task) -> list[int]:
    """The variants that no other beats in accuracy and at every batch size that both take within the SLO."""
    within = np.where((task.latency_ns > 0) & (task.latency_ns <= task.slo_ns), task.latency_ns, np.inf)[:, 1:]
    front: list[int] = []
    # The most accurate first, so that whatever beats a variant comes before it; equals keep the first.
    for m in np.lexsort((within[:, 0], -task.accuracy)):
        if np.isfinite(within[m, 0]) and not any((within[other] <= within[m]).all() for other in front):
            front.append(int(m))
    return front[::-1]


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


def as_profiled(deployment: Deployment) -> Pace:
    """The pace of workers that take as long as their profiles say."""
    return Pace(deployment, ((1.0,) * len(deployment.kinds),) * len(deployment.variants))


def frontier(pace: Pace, application: int, kind: str | None = None) -> list[tuple[float, float, int]]:
    """(worker seconds per query, accuracy, variant), of those that no mixture of others beats, cheapest first."""
    deployment = pace.deployment
    slo_ns = deployment.applications[application].slo_ns
    variants = deployment.variants_of(application)
    used = kinds_for(deployment, application)[0] if kind is None else kind  # else the first that can serve it
    points = []
    for number in variants:
        latency = pace.latency_ns(number, used)
        if latency is not None:
            largest = max(1, int(np.searchsorted(latency, slo_ns, side="right")) - 1)
            least = float((latency[1 : largest + 1] / np.arange(1, largest + 1)).min())
            points.append((least / 1e9, deployment.variants[number].accuracy, number))
    hull: list[tuple[float, float, int]] = []
    for point in sorted(points, key=lambda point: (point[0], -point[1])):
        if hull and point[1] <= hull[-1][1]:
            continue
        while len(hull) > 1 and slope(hull[-2], hull[-1]) <= slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def slope(before: tuple[float, float, int], after: tuple[float, float, int]) -> float:
    return (after[1] - before[1]) / (after[0] - before[0])
