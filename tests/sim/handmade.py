"""A source of arrivals made by hand, and small deployments and plans to feed them to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Plan
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import Planner, View
from stretto.core.worker import workers
from stretto.sim.arrivals import ARRIVAL


@dataclass(frozen=True)
class Handmade:
    """Gives these arrivals, (application, time_ns, deadline_ns) in order of time, in chunks of `size`."""

    arrivals: Sequence[tuple[int, int, int]]
    size: int = 10**6

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[np.void]]:
        rows = np.zeros(len(self.arrivals), dtype=ARRIVAL)
        rows["application"], rows["time_ns"], rows["deadline_ns"] = np.array(self.arrivals, dtype=np.int64).T
        rows["client"] = rows["query_class"] = -1
        for first in range(0, len(rows), self.size):
            yield rows[first : first + self.size]

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        counts = np.bincount([one[0] for one in self.arrivals], minlength=len(deployment.applications))
        return tuple((counts / seconds).tolist())


def always(plan: Plan) -> Planner:
    """A planner that never changes its mind."""

    def planner(view: View) -> Plan:
        return plan

    return planner


def linear(
    count: int, applications: int = 1, alpha_ms: float = 1.0, beta_ms: float = 5.0, slo_ms: float = 50.0
) -> Deployment:
    """`count` equal workers and applications with one variant, l(b) = α·b + β."""
    variant = Variant("only", 0.9, (LatencyProfile.linear(alpha_ms, beta_ms, 64),))
    slo_ns = round(slo_ms * NS_PER_MS)
    return Deployment(
        tuple(Application(f"a{number}", slo_ns, (variant,)) for number in range(applications)), workers(count)
    )
