"""The cheapest fleet whose judged plan keeps a promise, under the conditions that a server measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from stretto.core.advice import FleetNeeds, JudgedFleet
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.verdict import Verdict
from stretto.sim.bounds import FluidFleet, fluid_fleet
from stretto.sim.capacity import Requirement
from stretto.sim.cheapest import cheapest_fleet

Rates = tuple[float, ...]
JudgeFleet = Callable[[Deployment, Rates], Verdict]


@dataclass(frozen=True)
class Judged:
    """One fleet, as the search looks at it."""

    workers: int
    verdict: Verdict

    @property
    def accuracy(self) -> float:
        return self.verdict.promise.accuracy

    @property
    def violation(self) -> float:
        return self.verdict.promise.late


def cheapest_judged(deployment: Deployment, rates: Rates, needs: FleetNeeds, judge: JudgeFleet) -> JudgedFleet:
    """StrettoError where no fleet within the bounds keeps it, or some workers of the deployment have no bounds."""
    if set(deployment.kinds) != set(needs.costs):
        raise StrettoError("some workers are of a kind that is not scaled")
    rates = tuple(rate * (1 + needs.above) for rate in rates)
    requirement = Requirement(sum(rates), needs.accuracy, needs.late)
    most = {kind: bounds[1] for kind, bounds in needs.bounds.items()}

    def promise(fleet: dict[str, int]) -> Judged:
        return Judged(sum(fleet.values()), judge(_on(deployment, fleet), rates))

    def bound(held: Mapping[str, int]) -> FluidFleet | None:
        fleet = fluid_fleet(
            deployment,
            rates,
            needs.costs,
            accuracy=needs.accuracy,
            answered=1 - needs.late,
            held=held,
            most=sum(most.values()),
        )
        is_within = fleet is None or all(fleet.workers[kind] <= most[kind] for kind in most)
        return fleet if is_within or not held else None

    largest = promise(most)
    if not requirement.is_met(largest):  # more workers never make a promise worse
        raise StrettoError(
            f"as many workers as there may be would have {largest.violation:.2%} not on time and an accuracy of "
            f"{largest.accuracy:.4f} at {requirement.load:.4g} queries/s; allow more workers"
        )
    cheapest = cheapest_fleet(promise, bound, requirement, needs.costs, most=sum(most.values()))
    wanted = {
        kind: min(max(count, needs.bounds[kind][0]), needs.bounds[kind][1]) for kind, count in cheapest.fleet().items()
    }
    verdict = cheapest.best.promise.verdict
    is_known = all(variant.has_accuracy for variant in deployment.variants)
    return JudgedFleet(
        wanted,
        sum(needs.costs[kind] * count for kind, count in wanted.items()),
        requirement.load,
        verdict.promise.late,
        verdict.promise.accuracy if is_known else None,
        str(verdict.candidate),
        all(wanted[kind] >= count for kind, count in cheapest.fleet().items()),
    )


def _on(deployment: Deployment, fleet: Mapping[str, int]) -> Deployment:
    """The same on so many workers of each kind, each like the first of its kind."""
    like = {worker.kind: worker for worker in reversed(deployment.workers)}
    workers = [replace(like[kind], name=f"{kind}-{number}") for kind in fleet for number in range(fleet[kind])]
    return replace(deployment, workers=tuple(workers))
