"""Symphony (sections 4.2 to 4.4): one lane per application over the whole pool, deferred; and its work-conserving twin.

`when_gathered` adds condition (a) of section 4.3, to start once βλ are gathered. It is off by default: figure 16 as
printed overrides it, and with it workers are busy at low load, against section 4.4 (docs/design.md has the numbers).

Beyond the paper, *batch-aware pruning*: under load, a head whose slack leaves room only for a small batch costs a
worker more than it is worth, and is given up for a larger batch. How large follows from the profile and the load: the
smallest batch with which the lane's share of the workers keeps up, N·b/l(b) ≥ λ (equation 3), and never more than the
staggered batch, (1 + 1/N)·l(b) ≤ SLO (equation 2). At low load that is a batch of one, and nobody is given up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import Deferred, Eager, Fixed, Lane, Late, Order, Plan, WorkerChoice, by_application
from stretto.core.view import View
from stretto.planners.partition import greedy_partition, partition_problem
from stretto.planners.parts.choose import choose_variants, serving_workers
from stretto.planners.parts.floors import floor_rates
from stretto.planners.parts.rates import rates_of
from stretto.planners.parts.sharing import expected_work, workers_of_groups


@dataclass(frozen=True)
class Symphony:
    """`deferred=False` is the work-conserving twin.

    `sub_clusters` above 1 splits applications and workers as in section 4.7, by greedy placement and moves: the mixed
    integer program of appendix A stops by the clock, and the same view must give the same plan.
    """

    deferred: bool = True
    when_gathered: bool = False
    batch_aware: bool = False
    sub_clusters: int = 1
    variants: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        chosen = choose_variants(deployment, self.variants)
        work = expected_work(deployment, chosen, rates_of(view, 1.0))
        shares = work * len(view.present) / work.sum()  # of the workers that are there
        crews = self._crews(view, chosen, work)
        lanes = tuple(
            self._lane(deployment, number, chosen[number], crews[number], float(shares[number]))
            for number in range(len(chosen))
        )
        label = "symphony" + ("" if self.deferred else "_eager") + ("_batch_aware" if self.batch_aware else "")
        return by_application(lanes, planner=label)

    def _crews(self, view: View, chosen: Sequence[int], work: NDArray[np.float64]) -> list[tuple[int, ...]]:
        """The workers of each application."""
        able = [serving_workers(view.deployment, variant) for variant in chosen]
        if self.sub_clusters == 1:
            return able
        assignment = greedy_partition(partition_problem(view, chosen, self.sub_clusters))
        parts = workers_of_groups(assignment, work, self.sub_clusters, range(len(view.deployment.workers)))
        crews = [tuple(sorted(set(parts[assignment[number]]) & set(able[number]))) for number in range(len(chosen))]
        return [crew or able[number] for number, crew in enumerate(crews)]

    def _lane(self, deployment: Deployment, number: int, variant: int, crew: tuple[int, ...], share: float) -> Lane:
        floors: tuple[float, ...] = ()
        if self.batch_aware:
            profile = deployment.profile(variant, deployment.workers[crew[0]].kind)
            floors = floor_rates(profile, deployment.applications[number].slo_ns, share, deployment.quantile)
        return Lane(
            name=deployment.applications[number].name,
            workers=crew,
            select=Fixed(variant),
            order=Order.EARLIEST_DEADLINE,
            release=Deferred(when_gathered=self.when_gathered, floor_rates=floors)
            if self.deferred
            else Eager(floor_rates=floors),
            late=Late.DROP_WHEN_INFEASIBLE,
            worker_choice=WorkerChoice.LOWEST_INDEX,  # so that idle workers stay idle and can be released
        )
