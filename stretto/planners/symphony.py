"""Symphony (sections 4.2 to 4.4): one lane per application over the whole pool, deferred; and its work-conserving twin.

Beyond the paper, *batch-aware pruning*: under load, a head whose slack leaves room only for a small batch costs a worker
more than it is worth, and is given up for a full batch. What counts as full follows from the profile and the load: at
arrival rate λ a lane can gather b queries and still run them within its SLO while b/λ + l(b) ≤ SLO, the general form of
the staggered batch of section 4.2 (where b/λ = l(b)/N).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stretto.core.deployment import Deployment
from stretto.core.plan import Deferred, Eager, Fixed, Lane, Late, Order, Plan, WorkerChoice, by_application
from stretto.core.profile import NS_PER_S, LatencyProfile, Quantile
from stretto.core.telemetry import View
from stretto.planners.choose import choose_variants


def floor_rates(profile: LatencyProfile, slo_ns: int, quantile: Quantile) -> tuple[float, ...]:
    """By batch size from 1: the arrival rate (queries/s) from which that many can be gathered and run within the SLO."""
    rates = []
    for batch in range(1, profile.largest_batch_within(slo_ns - 1, quantile) + 1):
        rates.append(batch * NS_PER_S / (slo_ns - profile.latency_ns(batch, quantile)))
    return tuple(rates)


@dataclass(frozen=True)
class Symphony:
    """`deferred=False` is the work-conserving twin. `sub_clusters` gives each application's workers (default: all)."""

    deferred: bool = True
    batch_aware: bool = False
    control_ns: int = 0
    data_ns: int = 0
    variants: Mapping[str, str] = field(default_factory=dict)
    sub_clusters: Sequence[Sequence[int]] | None = None
    name: str = ""

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        chosen = choose_variants(deployment, self.variants)
        lanes = tuple(self._lane(deployment, number, variant) for number, variant in enumerate(chosen))
        label = self.name or f"symphony{'' if self.deferred else '_eager'}{'+batch_aware' if self.batch_aware else ''}"
        return by_application(lanes, planner=label)

    def _lane(self, deployment: Deployment, application: int, variant: int) -> Lane:
        workers = range(len(deployment.workers)) if self.sub_clusters is None else self.sub_clusters[application]
        floors: tuple[float, ...] = ()
        if self.batch_aware:
            kind = deployment.workers[workers[0]].kind
            slo_ns = deployment.applications[application].slo_ns
            floors = floor_rates(deployment.profile(variant, kind), slo_ns, deployment.quantile)
        return Lane(
            name=deployment.applications[application].name,
            workers=tuple(workers),
            select=Fixed(variant),
            order=Order.EARLIEST_DEADLINE,
            release=Deferred() if self.deferred else Eager(),
            late=Late.DROP_WHEN_INFEASIBLE,
            floor_rates=floors,
            worker_choice=WorkerChoice.LOWEST_INDEX,
            control_ns=self.control_ns,
            data_ns=self.data_ns,
        )
