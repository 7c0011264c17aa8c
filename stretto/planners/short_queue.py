"""A short queue: batches that keep up start at once, and no more queries wait than can still be in good batches (ours).

A batch starts when `gathered` of the staggered batch are there, (1 + 1/N)·l(b) ≤ SLO (Symphony equation 2), or when the
head's slack would not let so many run together any more. Symphony's deferred batch waits longer, for one query more
each time, and its worker stands idle meanwhile. And when a free worker finds more than `longest` staggered batches
waiting, the oldest are given up until it is so many. Some of them would be lost anyway, and while they are at the head
of the queue they keep the batch small: those behind them have more time, and so a larger batch. It needs no measured
load, and it is what holds under overload.

How many wait does not tell all: as many may wait behind workers that are soon free as behind workers that have just
begun. So both choices lean on what the workers still run (`Crowd` of the plan). With little before them they start
sooner, on smaller batches, and with much they wait for larger ones. And a batch that starts leaves out a few heads
where more can join for it, which pays once some of the crowd will be lost in any case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import GIVE_UP, Crowd, Lane, Late, Order, Plan, Table, Tables, WorkerChoice, by_application
from stretto.core.profile import NS_PER_S, LatencyProfile, Quantile
from stretto.core.view import View
from stretto.planners.parts.choose import choose_variants, serving_profiles, serving_workers
from stretto.planners.parts.rates import rates_of
from stretto.planners.parts.sharing import expected_work

WAIT = -1
LEAN, MOST_LEAN = 2.0, 0.25  # over the number of workers, at most so much: see `Crowd`
WIDTH, HEADS = 0.4, 0.5  # of a gathered batch: over which the price of a head falls, and the most heads for one batch


@dataclass(frozen=True)
class ShortQueue:
    """`gathered` and `longest` are in staggered batches, `crowded` is in gathered ones that wait."""

    variants: Mapping[str, str] = field(default_factory=dict)
    gathered: float = 0.85
    longest: float = 2.5
    crowded: float = 2.0

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
        batches = [
            _Batches.of(profile, within_ns, self.gathered, deployment.quantile)
            for profile in serving_profiles(deployment, variant)
        ]
        crew = serving_workers(deployment, variant)
        return Lane(
            name=application.name,
            workers=crew,
            select=Tables(
                tuple(self._table(variant, each) for each in batches),
                self._crowd([deployment.workers[worker].kind for worker in crew], batches, workers),
            ),
            order=Order.EARLIEST_DEADLINE,
            late=Late.DROP_WHEN_INFEASIBLE,
            worker_choice=WorkerChoice.LOWEST_INDEX,
        )

    def _crowd(self, kinds: Sequence[str], batches: Sequence[_Batches], workers: float) -> Crowd:
        """Workers that start one after the other have half of a batch before them on average."""
        of_workers = [each for kind in kinds for each in batches if each.kind == kind]
        gathered = fmean(each.gathered for each in of_workers)
        return Crowd(
            rate=workers * fmean(each.gathered / each.gathered_ns for each in of_workers) * NS_PER_S,
            usual=max(workers - 1, 0.0) / 2 * gathered,
            lean=min(LEAN / max(workers, 1.0), MOST_LEAN),
            crowded=self.crowded * gathered,
            width=WIDTH * gathered,
            heads=round(HEADS * gathered),
        )

    def _table(self, variant: int, batches: _Batches) -> Table:
        """Two columns: too little slack for the batch to wait for, and enough. All that fit are taken."""
        longest = max(batches.gathered, round(self.longest * batches.staggered))
        variants = np.full((longest + 2, 2), variant, np.int32)
        variants[: batches.gathered, 1] = WAIT
        sizes = np.zeros_like(variants)
        sizes[longest + 1] = GIVE_UP  # the last row holds for all longer queues
        return Table(1, variants, sizes, batches.kind, edges_ns=(batches.gathered_ns,))


@dataclass(frozen=True)
class _Batches:
    """Of a kind of worker."""

    kind: str
    staggered: int
    gathered: int
    gathered_ns: int  # that it takes

    @classmethod
    def of(cls, profile: LatencyProfile, within_ns: float, share: float, quantile: Quantile) -> _Batches:
        staggered = max(1, profile.largest_batch_within(within_ns, quantile))
        gathered = max(1, round(share * staggered))
        return cls(profile.kind, staggered, gathered, profile.latency_ns(gathered, quantile))
