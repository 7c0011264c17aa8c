"""What workers hold when they begin, where their memory is too small for all variants: what the plan places on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stretto.core.application import Variant
from stretto.core.deployment import Deployment
from stretto.core.worker import Worker
from stretto.live.generation import Served
from stretto.planning.session import InForce


def beginning_as_planned(served: Served, in_force: InForce) -> tuple[Served, InForce]:
    """Then as many other variants as fit. Without this, workers would load the first variants of the deployment, and
    give them up for those that are planned.
    """
    plan, deployment = in_force.plan, served.deployment
    if plan.placement is None:
        return served, in_force
    near = plan.prefetch or ((),) * len(deployment.workers)
    workers = tuple(map(_beginning_with, [deployment] * len(near), deployment.workers, plan.placement, near))
    if workers == deployment.workers:
        return served, in_force
    changed = Deployment(deployment.applications, workers, deployment.quantile)
    return replace(served, deployment=changed), replace(in_force, deployment=changed)


def beginning_as_before(served: Served, before: Deployment) -> Served:
    """Workers that were there begin with what they began with; further ones have no place in a plan yet."""
    further = served.deployment.workers[len(before.workers) :]
    deployment = Deployment(served.deployment.applications, (*before.workers, *further), served.deployment.quantile)
    return replace(served, deployment=deployment)


def fitting(variants: Sequence[Variant], memory_bytes: int) -> list[int]:
    """The places of those that fit together into a worker's memory, taken in this order."""
    fits: list[int] = []
    held = peak = 0
    for place, variant in enumerate(variants):
        hungriest = max(peak, variant.dynamic_memory_bytes)
        if held + variant.memory_bytes + hungriest <= memory_bytes:
            fits.append(place)
            held, peak = held + variant.memory_bytes, hungriest
    return fits


def _beginning_with(deployment: Deployment, worker: Worker, placed: Sequence[int], near: Sequence[int]) -> Worker:
    """The worker as it is where it names what it holds, or has room for everything."""
    able = [number for number, variant in enumerate(deployment.variants) if variant.profile_on(worker.kind) is not None]
    wanted = list(dict.fromkeys((*placed, *near, *able)))
    fits = fitting([deployment.variants[number] for number in wanted], worker.memory_bytes)
    labels = [deployment.variant_label(wanted[place]) for place in fits]
    has_all = len(labels) == len(able)
    return worker if worker.resident is not None or has_all else replace(worker, resident=tuple(sorted(labels)))
