"""Symphony (sections 4.2 to 4.4): one lane per application over the whole pool, deferred; and its work-conserving twin.

`when_gathered` adds condition (a) of section 4.3, to start once βλ are gathered. It is off by default: figure 16 as
printed overrides it, and with it workers are busy at low load, against section 4.4 (docs/design.md has the numbers).

Beyond the paper, *batch-aware pruning*: under load, a head whose slack leaves room only for a small batch costs a worker
more than it is worth, and is given up for a larger batch. How large follows from the profile and the load: the smallest
batch with which the lane's share of the workers keeps up, N·b/l(b) ≥ λ (equation 3), and never more than the staggered
batch, (1 + 1/N)·l(b) ≤ SLO (equation 2). At low load that is a batch of one, and nobody is given up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.plan import Deferred, Eager, Fixed, Lane, Late, Order, Plan, WorkerChoice, by_application
from stretto.core.profile import NS_PER_S, LatencyProfile, Quantile
from stretto.core.telemetry import View
from stretto.planners.choose import choose_variants


def floor_rates(profile: LatencyProfile, slo_ns: int, workers: float, quantile: Quantile) -> tuple[float, ...]:
    """By batch size from 1: the arrival rate (queries/s) above which `workers` workers cannot keep up with less."""
    largest = max(1, profile.largest_batch_within(slo_ns / (1 + 1 / workers), quantile))
    rates = [0.0]
    for batch in range(1, largest):
        rates.append(workers * batch * NS_PER_S / profile.latency_ns(batch, quantile))
    return tuple(rates)


def worker_shares(deployment: Deployment, chosen: Sequence[int], rates: Sequence[float]) -> list[float]:
    """The workers each application needs, scaled so that together they are all there are.

    An application at rate λ gathers the largest batch with b/λ + l(b) ≤ SLO, and then needs λ·l(b)/b workers.
    """
    needs = []
    for application, variant, rate in zip(deployment.applications, chosen, rates, strict=True):
        profile = deployment.profile(variant)
        latency = profile.table_ns[deployment.quantile, 1:]
        sizes = np.arange(1, profile.max_batch + 1)
        gathered = int(((sizes * (NS_PER_S / max(rate, 1e-9)) + latency) <= application.slo_ns).sum())
        batch = max(1, gathered)
        needs.append(max(rate, 1e-9) * profile.latency_ns(batch, deployment.quantile) / batch / NS_PER_S)
    return [need * len(deployment.workers) / sum(needs) for need in needs]


@dataclass(frozen=True)
class Symphony:
    """`deferred=False` is the work-conserving twin. `sub_clusters` gives each application's workers (default: all)."""

    deferred: bool = True
    when_gathered: bool = False
    batch_aware: bool = False
    control_ns: int = 0
    data_ns: int = 0
    variants: Mapping[str, str] = field(default_factory=dict)
    sub_clusters: Sequence[Sequence[int]] | None = None
    name: str = ""

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        chosen = choose_variants(deployment, self.variants)
        rates = view.rates()
        shares = worker_shares(deployment, chosen, [1.0] * len(chosen) if rates is None else rates.tolist())
        lanes = tuple(self._lane(deployment, number, chosen[number], shares[number]) for number in range(len(chosen)))
        label = self.name or f"symphony{'' if self.deferred else '_eager'}{'+batch_aware' if self.batch_aware else ''}"
        return by_application(lanes, planner=label)

    def _lane(self, deployment: Deployment, application: int, variant: int, share: float) -> Lane:
        workers = range(len(deployment.workers)) if self.sub_clusters is None else self.sub_clusters[application]
        floors: tuple[float, ...] = ()
        if self.batch_aware:
            kind = deployment.workers[workers[0]].kind
            slo_ns = deployment.applications[application].slo_ns
            floors = floor_rates(deployment.profile(variant, kind), slo_ns, share, deployment.quantile)
        return Lane(
            name=deployment.applications[application].name,
            workers=tuple(workers),
            select=Fixed(variant),
            order=Order.EARLIEST_DEADLINE,
            release=Deferred(when_gathered=self.when_gathered) if self.deferred else Eager(),
            late=Late.DROP_WHEN_INFEASIBLE,
            floor_rates=floors,
            worker_choice=WorkerChoice.LOWEST_INDEX,
            control_ns=self.control_ns,
            data_ns=self.data_ns,
        )
