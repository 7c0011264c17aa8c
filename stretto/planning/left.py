"""How much of its SLO a query usually has left when it comes, by application: what planners that know nothing of
networks should plan with. Each query has its own deadline besides, which the dispatcher goes by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.core.application import Application
from stretto.core.client import Client, Told
from stretto.core.deployment import Deployment
from stretto.core.profile import NS_PER_S

LOW = 0.1  # this share of an application's queries may have less left
STEP = 1.1  # what is left is told in such steps, so that plans do not move with every frame
LEAST_SHARE = 0.1  # of an SLO: what has less left is given up anyway


def left_ns(
    deployment: Deployment,
    clients: Sequence[Client],
    told_by_slot: Mapping[int, Told],
    rates: NDArray[np.float64],
    before: tuple[int, ...] | None = None,
) -> tuple[int, ...] | None:
    """By application; None: all have their SLO. `rates` are of all queries, also of those that nobody is named with,
    which have no network. `before` stays where it is within a step. Clients with less left than any variant needs are
    dropped whatever the plan is, so nobody else is planned with a shorter SLO for their sake.
    """
    left_by_application: list[int] = []
    for number, application in enumerate(deployment.applications):
        frame_bytes = {variant.name: variant.frame_bytes for variant in application.variants}
        askers = [client for client in clients if client.application == application.name and client.rate > 0]
        left = [
            _left_of(client, frame_bytes, told_by_slot.get(client.slot, client.told), application.slo_ns)
            for client in askers
        ]
        least_ns = _quickest_ns(deployment, application)
        weights = [client.rate if ns >= least_ns else 0.0 for client, ns in zip(askers, left, strict=True)]
        unnamed = max(0.0, float(rates[number]) - sum(client.rate for client in askers))
        low = _quantile([*left, float(application.slo_ns)], [*weights, unnamed], LOW)
        share = min(max(low / application.slo_ns, LEAST_SHARE), 1.0)
        left_by_application.append(_stepped(share, application.slo_ns, None if before is None else before[number]))
    whole = tuple(application.slo_ns for application in deployment.applications)
    return None if tuple(left_by_application) == whole else tuple(left_by_application)


def after_waiting(deployment: Deployment, left_ns: tuple[int, ...] | None, waited_ns: int) -> tuple[int, ...] | None:
    """The same for queries that waited for so long before anybody read them."""
    if not waited_ns:
        return left_ns
    slos_ns = tuple(application.slo_ns for application in deployment.applications)
    return tuple(
        max(round(LEAST_SHARE * slo_ns), left - waited_ns)
        for slo_ns, left in zip(slos_ns, left_ns or slos_ns, strict=True)
    )


def _quickest_ns(deployment: Deployment, application: Application) -> int:
    """What one query takes at least."""
    profiles = (variant.profile_on(kind) for variant in application.variants for kind in deployment.kinds)
    return min((profile.latency_ns(1, deployment.quantile) for profile in profiles if profile is not None), default=0)


def _left_of(client: Client, frame_bytes: Mapping[str, int], told_size: Told, slo_ns: int) -> float:
    """Of a frame at the size that the client is told."""
    network, limit_ns = client.network, slo_ns if client.slo_ns is None else client.slo_ns
    sent = frame_bytes.get(told_size.variant, 0) * client.frame_ratio
    sending_ns = sent * NS_PER_S / network.bytes_per_s if network.bytes_per_s else 0.0
    return limit_ns - (network.delay_ns or 0) - sending_ns


def _quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """The least value that is not below this share of the weight; the last one where nothing has any."""
    total = sum(weights)
    if total <= 0:
        return values[-1]
    gathered = 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        gathered += weight
        if gathered > share * total:
            return value
    return max(values)


def _stepped(share: float, slo_ns: int, before_ns: int | None) -> int:
    if before_ns is not None and abs(math.log(share * slo_ns / before_ns)) < math.log(STEP):
        return before_ns
    steps = math.floor(math.log(share) / math.log(STEP) + 0.5)
    return max(1, round(slo_ns * STEP ** min(steps, 0)))
