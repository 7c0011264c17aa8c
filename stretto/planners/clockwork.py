"""Clockwork (Gujarati et al., OSDI 2020): one controller, one queue per model, every worker for every model.

Each request has a strategy for every batch size, with the latest moment at which that batch could start. A worker that
is free, or will be shortly, takes the strategy that must start soonest among those that are still possible and that
enough requests wait for; requests before it are given up. Size plays no part in the choice, so sizes are spread evenly
(Symphony section 5.2.2, figure 8). Batches aim to end somewhat before their deadline. Both 5 ms are the published
controller's. What cannot make its deadline is dropped at once; models load on demand.

`filling` is a friendlier rule, ours: the head's batch takes as many as its deadline lets in, and nobody is given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.plan import (
    Delays,
    Eager,
    Fixed,
    Lane,
    LaneChoice,
    Late,
    Order,
    Plan,
    Select,
    Strategies,
    Table,
    Tables,
    by_application,
)
from stretto.core.profile import NS_PER_MS
from stretto.core.view import View
from stretto.planners.parts.choose import choose_variants, serving_profiles, serving_workers

SLACK_STEPS = 256


@dataclass(frozen=True)
class Clockwork:
    """`ahead_ns` is how long before a worker is free its next batch is sent, `margin_ns` how long before its deadline a
    batch is to end.

    Batches are of any size, as Symphony's evaluation let them be; filling ones may be held to `powers_of_two`.
    """

    variants: Mapping[str, str] = field(default_factory=dict)
    ahead_ns: int = 5 * NS_PER_MS
    margin_ns: int = 5 * NS_PER_MS
    filling: bool = False
    powers_of_two: bool = False

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        chosen = choose_variants(deployment, self.variants)
        lanes = tuple(
            Lane(
                name=application.name,
                workers=serving_workers(deployment, variant),
                select=self._select(deployment, variant),
                order=Order.EARLIEST_DEADLINE,
                release=Eager(max(profile.max_batch for profile in serving_profiles(deployment, variant))),
                late=Late.DROP_WHEN_INFEASIBLE,
                delays=Delays(ahead_ns=self.ahead_ns),
            )
            for application, variant in zip(deployment.applications, chosen, strict=True)
        )
        label = "clockwork_filling" if self.filling else "clockwork"
        return by_application(lanes, lane_choice=LaneChoice.EARLIEST_START, planner=label)

    def _select(self, deployment: Deployment, variant: int) -> Select:
        if not self.filling:
            return Strategies(variant, self.margin_ns)
        return _power_tables(deployment, variant) if self.powers_of_two else Fixed(variant)


def _power_tables(deployment: Deployment, variant: int) -> Tables:
    """By kind: the largest power of two that is queued and that the head's slack, rounded down to a step, lets in."""
    step_ns = max(1, deployment.applications[deployment.application_of[variant]].slo_ns // SLACK_STEPS)
    slacks = step_ns * np.arange(SLACK_STEPS + 1)
    tables = []
    for profile in serving_profiles(deployment, variant):
        fitting = np.searchsorted(profile.table_ns[deployment.quantile], slacks, side="right") - 1
        queued = np.arange(max(1, int(fitting[-1])) + 1)
        sizes = np.maximum(1, np.minimum(queued[:, None], fitting[None, :]))
        batch = (1 << np.log2(sizes).astype(np.int32)).astype(np.int32)
        tables.append(Table(step_ns, np.full(batch.shape, variant, dtype=np.int32), batch, profile.kind))
    return Tables(tuple(tables))
