"""Symphony (sections 4.2 to 4.4): one lane per application over the whole pool, deferred; and its work-conserving twin.

`when_gathered` adds condition (a) of section 4.3, to start once βλ are gathered. It is off by default: figure 16 as
printed overrides it, and with it workers are busy at low load, against section 4.4 (docs/design.md has the numbers).

*The drop rule.* Both drop a head that can no longer make it, and one that leaves no time for the staggered batch of
equations 2 and 3 (section 5.3: "maintain a desirable batch size"; the authors' scheduler does so by default). That
keeps goodput where it is under overload. `expiry_only` is without it.

Beyond the paper, `batch_aware` asks for less: for the smallest batch with which the application's share of the workers
keeps up, N·b/l(b) ≥ λ (equation 3), and never more than (1 + 1/N)·l(b) ≤ SLO allows (equation 2). At low load that is a
batch of one, and nobody is given up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stretto.core.errors import StrettoError
from stretto.core.plan import (
    Deferred,
    Delays,
    Eager,
    Fixed,
    Lane,
    Late,
    Missing,
    Order,
    Plan,
    WorkerChoice,
    by_application,
)
from stretto.core.view import View
from stretto.planners.parts.choose import choose_variants, serving_profiles, serving_workers
from stretto.planners.parts.floors import floor_rates, staggered_rates
from stretto.planners.parts.rates import rates_of
from stretto.planners.parts.sharing import expected_work
from stretto.planners.sub_clusters import EPOCH_S, LOOK_S, Layout, SubClusters

NOBODY_GIVEN_UP = (0.0,)  # the floors of a lane in which a batch of one is always worth a worker


@dataclass(frozen=True)
class Symphony:
    """`deferred=False` is the work-conserving twin.

    `room`: with `batch_aware`, times the workers that an application is taken to have. Its share follows the measured
    load, which is off by some percent, and a floor is a whole number: one more, or less, may be worth points.
    `sub_clusters` above 1 splits applications and workers as in section 4.7, and follows the load each `epoch_s`; the
    other options are those of `SubClusters`.
    """

    deferred: bool = True
    when_gathered: bool = False
    expiry_only: bool = False
    batch_aware: bool = False
    room: float = 1.0
    sub_clusters: int = 1
    epoch_s: float = EPOCH_S
    max_rate: float = math.inf
    max_moves: int | None = None
    at_once: int = 1
    variants: Mapping[str, str] = field(default_factory=dict)
    _parts: SubClusters = field(init=False, repr=False, compare=False)
    _last: dict[tuple[Layout, Delays], Plan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.expiry_only and self.batch_aware:
            raise StrettoError("expiry_only gives up no head and batch_aware some: set one of them")
        parts = SubClusters(self.sub_clusters, self.epoch_s, self.max_rate, self.max_moves, self.at_once)
        object.__setattr__(self, "_parts", parts)

    @property
    def replan_s(self) -> float | None:
        """One pool is planned for once; sub-clusters follow the load, and go there step by step."""
        return None if self.sub_clusters == 1 else LOOK_S

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        chosen = choose_variants(deployment, self.variants)
        if self.sub_clusters > 1:
            return self._split(view, chosen)
        work = expected_work(deployment, chosen, rates_of(view, 1.0))
        shares = work * len(view.present) / work.sum()  # of the workers that are there
        lanes = (
            self._lane(view, number, variant, serving_workers(deployment, variant), float(shares[number]))
            for number, variant in enumerate(chosen)
        )
        return by_application(tuple(lanes), planner=self._label)

    @property
    def _label(self) -> str:
        drops = "_batch_aware" if self.batch_aware else "_expiry_only" if self.expiry_only else ""
        return "symphony" + ("" if self.deferred else "_eager") + drops

    def _split(self, view: View, chosen: Sequence[int]) -> Plan:
        """With lanes that load nothing themselves: what workers hold is placed, and loaded beside their work."""
        layout = self._parts.layout(view, chosen)
        place = layout, view.delays
        if place not in self._last:
            lanes = (
                replace(
                    self._lane(view, number, variant, crew, float(layout.shares[number])),
                    missing=Missing.WAIT,
                )
                for number, (variant, crew) in enumerate(zip(chosen, layout.workers, strict=True))
            )
            nothing: tuple[tuple[int, ...], ...] = ((),) * len(layout.placement)
            plan = by_application(tuple(lanes), placement=layout.placement, prefetch=nothing, planner=self._label)
            self._last.clear()
            self._last[place] = plan
        return self._last[place]

    def _lane(self, view: View, number: int, variant: int, crew: tuple[int, ...], share: float) -> Lane:
        deployment = view.deployment
        floors = self._floors(view, number, variant, crew, share)
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

    def _floors(self, view: View, number: int, variant: int, crew: tuple[int, ...], share: float) -> tuple[float, ...]:
        """Every lane states its own floors, so that it has no others where it is served."""
        deployment = view.deployment
        slo_ns = deployment.applications[number].slo_ns
        if self.expiry_only:
            return NOBODY_GIVEN_UP
        if self.batch_aware:
            profile = deployment.profile(variant, deployment.workers[crew[0]].kind)
            return floor_rates(profile, slo_ns, self.room * share, deployment.quantile)
        return staggered_rates(serving_profiles(deployment, variant), slo_ns, view.delays, deployment.quantile)
