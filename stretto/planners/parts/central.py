"""One queue per application from which idle workers pull, always the same variant, batches within half the SLO.

It is what RAMSIS compares itself with (section 7): Jellyfish+ and ModelSwitching differ in the choice of the variant.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Fixed, Lane, Late, Order, Table, Tables


def batch_cap(deployment: Deployment, variant: int, kind: str) -> int:
    """The largest batch that takes at most half the SLO; 0 where there is none."""
    profile = deployment.variants[variant].profile_on(kind)
    slo_ns = deployment.applications[deployment.application_of[variant]].slo_ns
    return 0 if profile is None else profile.largest_batch_within(slo_ns // 2, deployment.quantile)


def throughputs(deployment: Deployment, variant: int, kind: str) -> NDArray[np.float64]:
    """Queries/s of one worker in batches of 1 … the cap."""
    sizes = np.arange(1, batch_cap(deployment, variant, kind) + 1)
    rates: NDArray[np.float64] = sizes * 1e9 / deployment.profile(variant, kind).table_ns[deployment.quantile, sizes]
    return rates


def usable_variants(deployment: Deployment, application: int, workers: tuple[int, ...]) -> list[int]:
    """Variants that answer within half the SLO on every worker given."""
    kinds = {deployment.workers[worker].kind for worker in workers}
    usable = [
        variant
        for variant in deployment.variants_of(application)
        if all(batch_cap(deployment, variant, kind) > 0 for kind in kinds)
    ]
    if not usable:
        raise StrettoError(
            f"no variant of application {deployment.applications[application].name} answers a single query within"
            " half its SLO; raise the SLO or add a faster variant"
        )
    return usable


def central_lane(deployment: Deployment, application: int, workers: tuple[int, ...], variant: int) -> Lane:
    """First come first served, up to the cap of each worker's kind, nothing dropped."""
    caps = {
        kind: batch_cap(deployment, variant, kind)
        for kind in dict.fromkeys(deployment.workers[worker].kind for worker in workers)
    }
    cell = np.ones((1, 1), dtype=np.int32)
    by_kind = Tables(tuple(Table(1, variant * cell, cap * cell, kind) for kind, cap in caps.items()))
    return Lane(
        name=deployment.applications[application].name,
        workers=workers,
        select=Fixed(variant) if len(caps) == 1 else by_kind,
        order=Order.FIRST_COME,
        release=Eager(max(caps.values())),
        late=Late.KEEP,
    )
