"""Jellyfish+ (Mendoza et al., EuroSys 2024, section 7): one variant for the load, a central queue, nothing dropped.

The variant is the most accurate one that answers a batch within half the SLO and whose average throughput on all
workers is above the load. Average means over the batch sizes that are allowed, which is how the published results read.
Batches are capped where adaptive batching settles, at the largest that takes half the SLO: the shared cap of a lane
swings around that point when sixty workers move it at once (a lane's adaptive cap would lose a third of the queries).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Fixed, Lane, Late, Order, Plan, Table, Tables, by_application
from stretto.core.view import View
from stretto.planners.ramsis.monitor import RATE_WINDOW_NS, lane_name, measured_load
from stretto.planners.ramsis.sharing import shared_out


@dataclass(frozen=True)
class JellyfishPlus:
    """`workers` says how many an application gets; otherwise they are shared out by the expected work."""

    workers: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        shares = worker_shares(deployment, view.expected_rates, self.workers)
        lanes = tuple(
            central_lane(
                deployment, number, own, self.variant_for(deployment, number, own, measured_load(view, number))
            )
            for number, own in enumerate(shares)
        )
        return by_application(lanes, rate_window_ns=RATE_WINDOW_NS, planner="jellyfish+")

    def variant_for(
        self, deployment: Deployment, application: int, workers: tuple[int, ...], load: float | None
    ) -> int:
        """The most accurate variant that keeps up; where none does, the one that comes closest."""
        rates = {
            variant: average_throughput(deployment, variant, workers)
            for variant in usable_variants(deployment, application, workers)
        }
        able = [variant for variant, rate in rates.items() if rate > (0.0 if load is None else load)]
        if not able:
            return max(rates, key=lambda variant: rates[variant])
        return max(able, key=lambda variant: (deployment.variants[variant].accuracy, rates[variant]))


def worker_shares(
    deployment: Deployment, rates: Sequence[float] | None, counts: Mapping[str, int]
) -> tuple[tuple[int, ...], ...]:
    """The workers of each application, by what its owner expects and not by what was measured: they must not move."""
    return shared_out(deployment, None if rates is None else np.array(rates, dtype=np.float64), counts)


def batch_cap(deployment: Deployment, variant: int, kind: str) -> int:
    """The largest batch that takes at most half the SLO; 0 where there is none."""
    profile = deployment.variants[variant].profile_on(kind)
    slo_ns = deployment.applications[deployment.application_of[variant]].slo_ns
    return 0 if profile is None else profile.largest_batch_within(slo_ns // 2, deployment.quantile)


def usable_variants(deployment: Deployment, application: int, workers: tuple[int, ...]) -> list[int]:
    """Variants that answer within half the SLO on every worker given."""
    kinds = {deployment.workers[worker].kind for worker in workers}
    found = [
        variant
        for variant in deployment.variants_of(application)
        if all(batch_cap(deployment, variant, kind) > 0 for kind in kinds)
    ]
    if not found:
        raise StrettoError(
            f"no variant of application {deployment.applications[application].name} answers a single query within"
            " half its SLO; raise the SLO or add a faster variant"
        )
    return found


def average_throughput(deployment: Deployment, variant: int, workers: tuple[int, ...]) -> float:
    """Queries/s: each worker's throughput, averaged over its allowed batch sizes, summed."""
    total = 0.0
    for kind, count in Counter(deployment.workers[worker].kind for worker in workers).items():
        sizes = np.arange(1, batch_cap(deployment, variant, kind) + 1)
        latency = deployment.profile(variant, kind).table_ns[deployment.quantile, sizes]
        total += count * float((sizes / latency).mean()) * 1e9
    return total


def central_lane(deployment: Deployment, application: int, workers: tuple[int, ...], variant: int) -> Lane:
    """One queue from which idle workers pull, first come first served, up to the cap of their kind."""
    caps = {
        kind: batch_cap(deployment, variant, kind)
        for kind in dict.fromkeys(deployment.workers[worker].kind for worker in workers)
    }
    one = np.ones((1, 1), dtype=np.int32)
    by_kind = Tables(tuple(Table(1, variant * one, cap * one, kind) for kind, cap in caps.items()))
    return Lane(
        name=lane_name(deployment.applications[application].name),
        workers=workers,
        select=Fixed(variant) if len(caps) == 1 else by_kind,
        order=Order.FIRST_COME,
        release=Eager(max(caps.values())),
        late=Late.KEEP,
    )
