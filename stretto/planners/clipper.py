"""Clipper (Crankshaw et al., NSDI 2017, section 4.3): each model finds its batch size by itself.

The cap grows by one while batches stay within the latency objective and shrinks by a tenth when one does not. Batches
start as soon as a worker is free, first come first served, and nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.core.plan import AdaptiveCap, Eager, Fixed, Lane, LaneChoice, Late, Order, Plan, by_application
from stretto.core.view import View
from stretto.planners.parts.choose import choose_variants, serving_profiles, serving_workers


@dataclass(frozen=True)
class Clipper:
    """`step` and `backoff` are the additive increase and the multiplicative decrease of the batch cap."""

    variants: Mapping[str, str] = field(default_factory=dict)
    step: float = 1.0
    backoff: float = 0.9

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        chosen = choose_variants(deployment, self.variants)
        lanes = tuple(
            Lane(
                name=application.name,
                workers=serving_workers(deployment, variant),
                select=Fixed(variant),
                order=Order.FIRST_COME,
                release=Eager(
                    max(profile.max_batch for profile in serving_profiles(deployment, variant)),
                    AdaptiveCap(application.slo_ns, self.step, self.backoff),
                ),
                late=Late.KEEP,
            )
            for application, variant in zip(deployment.applications, chosen, strict=True)
        )
        # Clipper's models know nothing of each other: those that share a worker take turns.
        return by_application(lanes, lane_choice=LaneChoice.ROUND_ROBIN, planner="clipper")
