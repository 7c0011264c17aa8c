"""Model instances: one worker that holds one variant, with a small buffer of its own, and a lane in the plan.

An instance answers one query at a time (or a batch of several, in the adaptive-batching variant), first come first
served. What finds its buffer full is refused (edge RL, section 3.1.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Accumulate, Eager, Fixed, Lane, Late, Missing, Order, Plan, Release, Route, RouteRule
from stretto.core.profile import NS_PER_MS, NS_PER_S

BUFFER = 15  # queries that an instance holds, the running one among them, unless a policy was trained with another
BUFFERS = (1, 1024)
RATE_WINDOW_NS = 500 * NS_PER_MS
# (smallest, largest) batch of the adaptive-batching variant (section 5.2.2).
BATCHES = ((1, 1), (1, 3), (1, 5), (3, 3), (3, 5), (5, 5))
LARGEST_BATCH = 5
PUBLISHED_SIZES = (1, 3, 5)
WITHOUT_END_NS = 86_400 * NS_PER_S


@dataclass(frozen=True)
class Instance:
    """A worker with its variant."""

    worker: int
    variant: int
    service_ns: int  # of one query
    accuracy: float


def instances_of(deployment: Deployment, application: int = 0) -> tuple[Instance, ...]:
    """Every worker that can answer the application, with the most accurate variant that it answers within half the SLO
    (or, where it has none, with its quickest). Where a worker answers several applications, each waits for what runs of
    the others: the shortest of their SLOs counts for all.
    """
    instances = []
    for number in range(len(deployment.workers)):
        able = _able(deployment, application, number)
        others = (other for other in range(len(deployment.applications)) if _able(deployment, other, number))
        half_ns = min((deployment.applications[other].slo_ns for other in others), default=0) // 2
        quick = [instance for instance in able if instance.service_ns <= half_ns]
        if quick:
            instances.append(max(quick, key=lambda instance: (instance.accuracy, -instance.service_ns)))
        elif able:
            instances.append(min(able, key=lambda instance: instance.service_ns))
    if not instances:
        raise StrettoError(f"no worker can answer application {deployment.applications[application].name}")
    return tuple(instances)


def can_batch(deployment: Deployment, instances: Sequence[Instance]) -> bool:
    """Whether one of them can answer two queries together."""
    profiles = (deployment.profile(each.variant, deployment.workers[each.worker].kind) for each in instances)
    return any(profile.max_batch > 1 for profile in profiles)


def _able(deployment: Deployment, application: int, number: int) -> list[Instance]:
    """A worker with each variant of an application that it may hold."""
    worker = deployment.workers[number]
    return [
        Instance(number, variant, profile.latency_ns(1, deployment.quantile), deployment.variants[variant].accuracy)
        for variant in deployment.variants_of(application)
        if (profile := deployment.variants[variant].profile_on(worker.kind)) is not None
        and (worker.resident is None or deployment.variant_label(variant) in worker.resident)
    ]


def instance_lane(
    deployment: Deployment,
    application: int,
    instance: Instance,
    release: Release | None = None,
    buffer: int = BUFFER,
) -> Lane:
    """The instance as a lane that only its worker serves."""
    return Lane(
        name=f"{deployment.applications[application].name}@{deployment.workers[instance.worker].name}",
        workers=(instance.worker,),
        select=Fixed(instance.variant),
        order=Order.FIRST_COME,
        release=release or Eager(1),
        late=Late.KEEP,
        capacity=buffer,
        missing=Missing.WAIT,
    )


def gathering(
    deployment: Deployment, instance: Instance, batch: tuple[int, int], as_published: bool = False
) -> Accumulate:
    """A batch of the smallest size at least, and of the largest at most. Published, an instance waits for the smallest
    one without end, and batches have 1, 3 or 5 queries. Here a head that would be late otherwise starts with what there
    is, and batches of 2 and 4 are allowed.
    """
    if as_published:
        return Accumulate(batch[0], WITHOUT_END_NS, batch[1], sizes=PUBLISHED_SIZES)
    profile = deployment.profile(instance.variant, deployment.workers[instance.worker].kind)
    slo_ns = deployment.applications[deployment.application_of[instance.variant]].slo_ns
    last_ns = profile.latency_ns(min(LARGEST_BATCH, profile.max_batch), deployment.quantile)
    return Accumulate(batch[0], max(0, slo_ns - last_ns), batch[1])


def dealt_plan(
    deployment: Deployment,
    instances: Sequence[Sequence[Instance]],
    weights: Sequence[NDArray[np.float64]],
    releases: Sequence[Sequence[Release | None]] | None = None,
    *,
    planner: str,
    buffer: int = BUFFER,
) -> Plan:
    """One lane for each application and instance, and for each application a route that deals by its weights."""
    lanes: list[Lane] = []
    routes = []
    for application, crew in enumerate(instances):
        first = len(lanes)
        kinds = [None] * len(crew) if releases is None else releases[application]
        lanes += [instance_lane(deployment, application, *pair, buffer) for pair in zip(crew, kinds, strict=True)]
        numbers = tuple(range(first, len(lanes)))
        routes.append(Route(RouteRule.WEIGHTED, numbers, tuple(weights[application].tolist())))
    return Plan(tuple(lanes), tuple(routes), rate_window_ns=RATE_WINDOW_NS, planner=planner)


def by_speed(instances: Sequence[Instance]) -> NDArray[np.float64]:
    """Shares that make every instance equally busy."""
    speed = np.array([1.0 / instance.service_ns for instance in instances])
    shares: NDArray[np.float64] = speed / speed.sum()
    return shares
