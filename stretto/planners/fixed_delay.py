"""A dynamic batcher with a fixed delay, as Triton Inference Server's: wait for a preferred batch, but never too long.

A batch starts when the preferred size is gathered or its head has waited the delay. Nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.core.errors import StrettoError
from stretto.core.plan import Accumulate, Fixed, Lane, LaneChoice, Late, Order, Plan, by_application
from stretto.core.view import View
from stretto.planners.parts.choose import choose_variants, serving_profiles, serving_workers


@dataclass(frozen=True)
class FixedDelay:
    """What is left at None comes from the profile.

    The largest batch runs within half the SLO on every kind of worker it may meet, the preferred one is as large, and
    the delay is `delay_share` of the SLO: what remains is for the batch that a worker is still busy with.
    """

    variants: Mapping[str, str] = field(default_factory=dict)
    preferred_batch: int | None = None
    max_batch: int | None = None
    delay_ns: int | None = None
    delay_share: float = 0.25

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        if not 0 <= self.delay_share <= 1:
            raise StrettoError(f"the delay is a share of the SLO between 0 and 1, not {self.delay_share}")
        lanes = []
        chosen = choose_variants(deployment, self.variants)
        for application, variant in zip(deployment.applications, chosen, strict=True):
            profiles = serving_profiles(deployment, variant)
            half_ns = application.slo_ns // 2
            largest = min(profile.largest_batch_within(half_ns, deployment.quantile) for profile in profiles)
            largest = max(1, largest, self.preferred_batch or 0) if self.max_batch is None else self.max_batch
            largest = min(largest, *(profile.max_batch for profile in profiles))
            preferred = largest if self.preferred_batch is None else min(self.preferred_batch, largest)
            delay_ns = round(self.delay_share * application.slo_ns) if self.delay_ns is None else self.delay_ns
            lanes.append(
                Lane(
                    name=application.name,
                    workers=serving_workers(deployment, variant),
                    select=Fixed(variant),
                    order=Order.FIRST_COME,
                    release=Accumulate(preferred, delay_ns, largest),
                    late=Late.KEEP,
                )
            )
        return by_application(tuple(lanes), lane_choice=LaneChoice.ROUND_ROBIN, planner="fixed_delay")
