"""The world of a policy: many systems of fixed instances at once, seen and steered slot by slot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S
from stretto.planners.edge_rl.encoding import Setting, Situation, phase_features, situation
from stretto.planners.edge_rl.instances import BATCHES, by_speed, dealt_plan, gathering, instances_of
from stretto.planners.edge_rl.policy import Description
from stretto.sim.arrivals import Source
from stretto.sim.many import Case, ManySimulations, Slot
from stretto.sim.service import Deterministic, Service
from stretto.sim.switching import Switching
from stretto.sim.tape import tape_of


@dataclass(frozen=True)
class System:
    """One application on fixed instances, and its load."""

    deployment: Deployment
    load: Switching | Source
    service: Service = field(default_factory=Deterministic)

    def description(self, description: Description) -> Description:
        """A policy's, for these instances."""
        names = [variant.name for variant in self.deployment.variants]
        told = replace(description, latency=self.deployment.quantile.name.lower())
        return told.described(instances_of(self.deployment), names, self.deployment.applications[0].slo_ns)


def _phase_seconds(load: Switching | Source) -> tuple[float, float]:
    """Mean lengths of the phases; endless where none is known, so that nothing is told of how long one lasts."""
    return load.seconds if isinstance(load, Switching) else (math.inf, math.inf)


class World:
    """`copies` of every system; all have as many instances and variants. A policy of this description steers them."""

    def __init__(self, systems: Sequence[System], description: Description, copies: int = 1, seed: int = 1) -> None:
        self.description = description
        self.slot_s = description.slot_s
        self.systems = tuple(systems)
        self.has_phases = all(isinstance(system.load, Switching) for system in systems)
        if description.sees_phase and not self.has_phases:
            raise StrettoError(
                "a policy can be told the phase only of a load that switches between two rates (two_level, or markov of"
                " two states with arrivals on the diagonal of d1); leave --full out"
            )
        crews = [instances_of(system.deployment) for system in systems]
        self.instances = crews[0]
        self._many = ManySimulations(
            [_case(system, description, seed) for system in systems], copies, depth=description.buffer + 1, seed=seed
        )
        self.count = self._many.count
        slos = [system.deployment.applications[0].slo_ns for system in systems]
        self.setting = Setting.of([pair for pair in zip(crews, slos, strict=True) for _ in range(copies)])
        accuracy = [[variant.accuracy for variant in system.deployment.variants] for system in systems]
        self.accuracy = np.repeat(np.array(accuracy), copies, axis=0)
        heavy = [max(range(len(row)), key=row.__getitem__) for row in accuracy]
        self.heavy = np.repeat(np.array(heavy), copies)  # the most accurate variant, by system
        held = np.array([_phase_seconds(system.load) for system in systems]) * NS_PER_S
        self._held_ns = np.repeat(held, copies, axis=0)
        self._models = np.array(description.models, np.int64)
        self.requests = 0  # since it was made

    def restart(self, seed: int) -> Situation:
        """All systems empty, at a random moment of their load."""
        self._many.restart(seed)
        return self._seen(self._many.slot())

    def step(self, weights: NDArray[np.float64], batches: NDArray[np.int64] | None = None) -> tuple[Situation, Slot]:
        """A slot with these weights [system, instance] and, where instances batch, these of BATCHES [system, model]."""
        # [system, instance, smallest and largest]
        sizes = None if batches is None else np.array(BATCHES)[batches[:, self._models]]
        slot = self._many.run_slot(self.slot_s, weights, sizes)
        self.requests += int(slot.arrivals.sum())
        return self._seen(slot), slot

    def _seen(self, slot: Slot) -> Situation:
        seen = situation(slot.lines, slot.now_ns, slot.rates)
        if not self.description.sees_phase:
            return seen
        return replace(seen, phase=slot.phase.copy(), since=self._since(slot))

    def hidden(self) -> NDArray[np.float32]:
        """The phase of the load and how long it lasts already, [system, PHASE_FEATURES]: for a critic in training, also
        where the policy is not told.
        """
        slot = self._many.slot()
        return phase_features(slot.phase, self._since(slot))

    def _since(self, slot: Slot) -> NDArray[np.float64]:
        since: NDArray[np.float64] = slot.since_ns / self._held_ns[np.arange(self.count), slot.phase]
        return since


def _case(system: System, description: Description, seed: int) -> Case:
    deployment = system.deployment
    crew = instances_of(deployment)
    release = [gathering(deployment, instance, BATCHES[0], description.published_batches) for instance in crew]
    releases = [release if description.batching else [None] * len(crew)]
    plan = dealt_plan(deployment, [crew], [by_speed(crew)], releases, planner="edge_rl", buffer=description.buffer)
    load = system.load if isinstance(system.load, Switching) else tape_of(system.load, deployment, seed)
    return Case(deployment, plan, load, system.service)
