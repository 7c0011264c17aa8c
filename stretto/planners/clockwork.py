"""Clockwork (Gujarati et al., OSDI 2020, section 5): one controller, one queue per model, every worker for every model.

A free worker takes the model whose head must start soonest, with as many queries as its deadline lets in, and is given
its next batch shortly before it is free. What cannot make its deadline is dropped at once; models load on demand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.plan import Delays, Eager, Fixed, Lane, LaneChoice, Late, Order, Plan, Table, Tables, by_application
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.planners.parts.choose import choose_variants, serving_profiles, serving_workers

SLACK_STEPS = 256


@dataclass(frozen=True)
class Clockwork:
    """`ahead_ns` is how long before a worker is free its next batch is sent.

    Batches are of any size, as Symphony's evaluation let them be; `powers_of_two` is Clockwork as it was published.
    """

    variants: Mapping[str, str] = field(default_factory=dict)
    ahead_ns: int = 5 * NS_PER_MS
    powers_of_two: bool = False

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        chosen = choose_variants(deployment, self.variants)
        lanes = tuple(
            Lane(
                name=application.name,
                workers=serving_workers(deployment, variant),
                select=_power_tables(deployment, variant) if self.powers_of_two else Fixed(variant),
                order=Order.EARLIEST_DEADLINE,
                release=Eager(max(profile.max_batch for profile in serving_profiles(deployment, variant))),
                late=Late.DROP_WHEN_INFEASIBLE,
                delays=Delays(ahead_ns=self.ahead_ns),
            )
            for application, variant in zip(deployment.applications, chosen, strict=True)
        )
        return by_application(lanes, lane_choice=LaneChoice.EARLIEST_START, planner="clockwork")


def _power_tables(deployment: Deployment, variant: int) -> Tables:
    slo_ns = deployment.applications[deployment.application_of[variant]].slo_ns
    step_ns = max(1, slo_ns // SLACK_STEPS)
    profiles = serving_profiles(deployment, variant)
    return Tables(tuple(_power_table(deployment, variant, profile, step_ns) for profile in profiles))


def _power_table(deployment: Deployment, variant: int, profile: LatencyProfile, step_ns: int) -> Table:
    """The largest power of two that is queued and that the head's slack, rounded down to a step, lets in."""
    slacks = step_ns * np.arange(SLACK_STEPS + 1)
    fitting = np.searchsorted(profile.table_ns[deployment.quantile], slacks, side="right") - 1
    queued = np.arange(max(1, int(fitting[-1])) + 1)
    sizes = np.maximum(1, np.minimum(queued[:, None], fitting[None, :]))
    batch = (1 << np.log2(sizes).astype(np.int32)).astype(np.int32)
    return Table(step_ns, np.full(batch.shape, variant, dtype=np.int32), batch, profile.kind)
