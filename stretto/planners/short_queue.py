"""A short queue: batches that keep up start at once, and no more queries wait than can still be in good batches (ours).

A batch starts when `gathered` of the staggered batch are there, (1 + 1/N)·l(b) ≤ SLO (Symphony equation 2), or when the
head's slack would not let so many run together any more. Symphony's deferred batch waits longer, for one query more
each time, and its worker stands idle meanwhile. And when a free worker finds more than `longest` staggered batches
waiting, the oldest are given up until it is so many. Some of them would be lost anyway, and while they are at the head
of the queue they keep the batch small: those behind them have more time, and so a larger batch. It needs no measured
load, and it is what holds under overload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import GIVE_UP, Lane, Late, Order, Plan, Table, Tables, WorkerChoice, by_application
from stretto.core.profile import LatencyProfile
from stretto.core.view import View
from stretto.planners.parts.choose import choose_variants, serving_profiles, serving_workers
from stretto.planners.parts.rates import rates_of
from stretto.planners.parts.sharing import expected_work

WAIT = -1


@dataclass(frozen=True)
class ShortQueue:
    """`gathered` and `longest` are in staggered batches."""

    variants: Mapping[str, str] = field(default_factory=dict)
    gathered: float = 0.85
    longest: float = 2.25

    def __post_init__(self) -> None:
        if not 0 < self.gathered <= 1 <= self.longest:
            raise StrettoError(
                "a batch starts with up to one staggered batch and one or more may wait,"
                f" not {self.gathered} and {self.longest}"
            )

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        chosen = choose_variants(deployment, self.variants)
        work = expected_work(deployment, chosen, rates_of(view, 1.0))
        shares = work * len(view.present) / work.sum()  # of the workers that are there
        lanes = (self._lane(deployment, variant, share) for variant, share in zip(chosen, shares.tolist(), strict=True))
        return by_application(tuple(lanes), planner="short_queue")

    def _lane(self, deployment: Deployment, variant: int, workers: float) -> Lane:
        application = deployment.applications[deployment.application_of[variant]]
        within_ns = application.slo_ns * workers / (workers + 1)
        profiles = serving_profiles(deployment, variant)
        tables = (self._table(deployment, variant, profile, within_ns) for profile in profiles)
        return Lane(
            name=application.name,
            workers=serving_workers(deployment, variant),
            select=Tables(tuple(tables)),
            order=Order.EARLIEST_DEADLINE,
            late=Late.DROP_WHEN_INFEASIBLE,
            worker_choice=WorkerChoice.LOWEST_INDEX,
        )

    def _table(self, deployment: Deployment, variant: int, profile: LatencyProfile, within_ns: float) -> Table:
        """Two columns: too little slack for the batch to wait for, and enough. All that fit are taken."""
        staggered = max(1, profile.largest_batch_within(within_ns, deployment.quantile))
        gathered = max(1, round(self.gathered * staggered))
        longest = max(gathered, round(self.longest * staggered))
        variants = np.full((longest + 2, 2), variant, np.int32)
        variants[:gathered, 1] = WAIT
        batches = np.zeros_like(variants)
        batches[longest + 1] = GIVE_UP  # the last row holds for all longer queues
        return Table(1, variants, batches, profile.kind, edges_ns=(profile.latency_ns(gathered, deployment.quantile),))
