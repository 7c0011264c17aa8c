"""Systems to learn from: that of a scenario, those that are left of it when instances fail, and random ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, LatencyProfile, Quantile
from stretto.core.worker import Worker, workers
from stretto.planners.edge_rl.instances import instances_of
from stretto.sim.service import Deterministic, Lognormal
from stretto.sim.switching import Switching
from stretto.training.world import System

INSTANCES = 4  # of a random setting
KINDS = ("light", "heavy")


def instance_deployment(
    counts: tuple[int, int],
    service_ms: tuple[float, float],
    accuracy: tuple[float, float],
    slo_ms: float,
    names: tuple[str, str] = KINDS,
) -> Deployment:
    """So many light and heavy instances, each kind with the one variant that it holds."""
    variants: list[Variant] = []
    crew: list[Worker] = []
    for kind, name, count, ms, share in zip(KINDS, names, counts, service_ms, accuracy, strict=True):
        if count:
            variants.append(Variant(name, share, (LatencyProfile.linear(0.0, ms, 1, kind),)))
            crew += workers(count, kind)
    return Deployment((Application("task", round(slo_ms * NS_PER_MS), tuple(variants)),), tuple(crew), Quantile.MEAN)


def random_systems(count: int, seed: int) -> tuple[System, ...]:
    """Fast and slow models, close and far apart in accuracy; lulls and bursts that the instances can carry together."""
    random = np.random.default_rng([seed, 0x5E771])

    def between(low: float, high: float) -> float:
        return float(math.exp(random.uniform(math.log(low), math.log(high))))

    systems = []
    for _ in range(count):
        heavy = int(random.integers(1, INSTANCES))
        light_ms = between(4, 20)
        heavy_ms = light_ms * between(1.8, 5)
        low = float(random.uniform(0.6, 0.8))
        accuracy = (low, low + float(random.uniform(0.02, 0.12)))
        slo_ms = heavy_ms * between(4, 12)
        deployment = instance_deployment((INSTANCES - heavy, heavy), (light_ms, heavy_ms), accuracy, slo_ms)
        by_heavy = heavy * 1e3 / heavy_ms  # queries/s
        by_all = by_heavy + (INSTANCES - heavy) * 1e3 / light_ms
        lull, burst = by_heavy * between(0.05, 0.6), by_all * float(random.uniform(0.5, 0.85))
        load = Switching((lull, max(burst, 1.5 * lull)), (between(20, 500), between(5, 60)))
        varies = float(random.uniform(0.0, 0.3)) if random.random() < 0.5 else 0.0
        systems.append(System(deployment, load, Lognormal(varies) if varies else Deterministic()))
    return tuple(systems)


def without(system: System, missing: tuple[int, ...]) -> System:
    """What is left of a system when these of its workers are away; the load stays."""
    deployment = system.deployment
    left = tuple(worker for number, worker in enumerate(deployment.workers) if number not in missing)
    if not left:
        raise StrettoError("no instance is left")
    kinds = {worker.kind for worker in left}
    (application,) = deployment.applications
    able = tuple(each for each in application.variants if any(each.profile_on(kind) for kind in kinds))
    return replace(system, deployment=Deployment((replace(application, variants=able),), left, deployment.quantile))


def after_failures(system: System) -> tuple[System, ...]:
    """One system for every different set of instances that is left when one of them fails."""
    crew = instances_of(system.deployment)
    seen: dict[tuple[int, ...], System] = {}
    for place, instance in enumerate(crew):
        left = tuple(each.variant for other, each in enumerate(crew) if other != place)
        seen.setdefault(left, without(system, (instance.worker,)))
    return tuple(seen.values())
