"""Jellyfish+ (Mendoza et al., EuroSys 2024, section 7): one variant for the load, a central queue, nothing dropped.

The variant is the most accurate one that answers a batch within half the SLO and whose average throughput on all
workers is above the load. Average means over the batch sizes that are allowed, which is how the published results read.
Batches are capped where adaptive batching settles, at the largest that takes half the SLO: the shared cap of a lane
swings around that point when sixty workers move it at once (a lane's adaptive cap would lose a third of the queries).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.core.deployment import Deployment
from stretto.core.plan import Plan, by_application
from stretto.core.view import View
from stretto.planners.parts.central import central_lane, throughputs, usable_variants
from stretto.planners.parts.rates import RATE_WINDOW_NS, rates_of
from stretto.planners.parts.sharing import workers_of_applications


@dataclass(frozen=True)
class JellyfishPlus:
    """`workers` says how many an application gets; otherwise they are dealt by the work that its owner expects."""

    workers: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, view: View) -> Plan:
        deployment, rates = view.deployment, rates_of(view, 0.0)
        # By what is expected and not by what was measured: workers must not move.
        crews = workers_of_applications(deployment, view.expected_rates, self.workers)
        lanes = tuple(
            central_lane(deployment, number, crew, self.variant_for(deployment, number, crew, float(rates[number])))
            for number, crew in enumerate(crews)
        )
        return by_application(lanes, rate_window_ns=RATE_WINDOW_NS, planner="jellyfish+")

    def variant_for(self, deployment: Deployment, application: int, crew: tuple[int, ...], load: float) -> int:
        """The most accurate variant that keeps up; where none does, the one that comes closest."""
        rates = {
            variant: average_throughput(deployment, variant, crew)
            for variant in usable_variants(deployment, application, crew)
        }
        able = [variant for variant, rate in rates.items() if rate > load]
        if not able:
            return max(rates, key=lambda variant: rates[variant])
        return max(able, key=lambda variant: (deployment.variants[variant].accuracy, rates[variant]))


def average_throughput(deployment: Deployment, variant: int, crew: tuple[int, ...]) -> float:
    """Queries/s: each worker's throughput, averaged over its allowed batch sizes, summed."""
    kinds = Counter(deployment.workers[worker].kind for worker in crew)
    return sum(count * float(throughputs(deployment, variant, kind).mean()) for kind, count in kinds.items())
