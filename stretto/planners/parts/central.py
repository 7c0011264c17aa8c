"""One queue per application from which idle workers pull, always the same variant: what RAMSIS is compared with.

Jellyfish+ and ModelSwitching (RAMSIS section 7) differ in the choice of the variant alone. Batches are capped alike, as
the published code has it: the cap is the largest batch with which the most accurate variant that keeps up does so
within half the SLO, so that a query may wait for one batch and run in the next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Fixed, Lane, Late, Order, Table, Tables
from stretto.planners.parts.fronts import pareto_front
from stretto.planners.parts.task import task_of

Caps = Mapping[str, int]  # the largest batch by kind of worker


def variants_within(deployment: Deployment, application: int, workers: tuple[int, ...], part: float) -> list[int]:
    """Returns the variants that answer a single query within this part of the SLO on every one of the workers.

    A variant that another one beats in accuracy and in the latency of one query is left out, as in the published code.
    """
    kinds = {deployment.workers[worker].kind for worker in workers}
    within = [
        variant
        for variant in deployment.variants_of(application)
        if all(_largest_batch(deployment, variant, kind, part) > 0 for kind in kinds)
    ]
    if not within:
        raise StrettoError(
            f"no variant of application {deployment.applications[application].name} answers a single query within"
            f" {'half its SLO' if part == 0.5 else 'its SLO'}; raise the SLO or add a faster variant"
        )
    task = task_of(deployment, application, deployment.workers[workers[0]].kind, len(workers))
    numbers = task.numbers_in(deployment, application)
    front = {numbers[place] for place in pareto_front(task)}
    return [variant for variant in within if variant in front] or within


def keeping_up(
    deployment: Deployment, variants: list[int], workers: tuple[int, ...], load: float
) -> tuple[int, dict[str, int]]:
    """Returns the most accurate of the variants that keeps up with a load (queries/s) in batches within half the SLO,
    and the largest batches with which it does. Where none keeps up: the fastest variant, in batches of any size.
    """
    counts = Counter(deployment.workers[worker].kind for worker in workers)
    able: list[tuple[float, float, int, dict[str, int]]] = []
    for variant in variants:
        caps = {kind: _largest_batch(deployment, variant, kind, 0.5) for kind in counts}
        if not all(caps.values()):
            continue
        sizes = np.arange(1, max(caps.values()) + 1)
        rate = np.zeros(len(sizes))
        for kind, count in counts.items():
            batch = np.minimum(sizes, caps[kind])
            rate += count * batch * 1e9 / deployment.profile(variant, kind).table_ns[deployment.quantile, batch]
        enough = sizes[rate >= load]
        if len(enough):
            most = {kind: min(int(enough[-1]), cap) for kind, cap in caps.items()}
            able.append((deployment.variants[variant].accuracy, float(rate.max()), variant, most))
    if able:
        _, _, variant, caps = max(able, key=lambda each: each[:2])
        return variant, caps
    fastest = min(variants, key=lambda each: max(_latency_ns(deployment, each, kind) for kind in counts))
    return fastest, {kind: deployment.profile(fastest, kind).max_batch for kind in counts}


def central_lane(deployment: Deployment, application: int, workers: tuple[int, ...], variant: int, caps: Caps) -> Lane:
    """First come first served, up to the cap of each worker's kind or what the variant takes, nothing dropped."""
    most = {kind: min(cap, deployment.profile(variant, kind).max_batch) for kind, cap in caps.items()}
    cell = np.ones((1, 1), dtype=np.int32)
    by_kind = Tables(tuple(Table(1, variant * cell, cap * cell, kind) for kind, cap in most.items()))
    return Lane(
        name=deployment.applications[application].name,
        workers=workers,
        select=Fixed(variant) if len(most) == 1 else by_kind,
        order=Order.FIRST_COME,
        release=Eager(max(most.values())),
        late=Late.KEEP,
    )


def _largest_batch(deployment: Deployment, variant: int, kind: str, part: float) -> int:
    profile = deployment.variants[variant].profile_on(kind)
    slo_ns = deployment.applications[deployment.application_of[variant]].slo_ns
    return 0 if profile is None else profile.largest_batch_within(part * slo_ns, deployment.quantile)


def _latency_ns(deployment: Deployment, variant: int, kind: str) -> int:
    return int(deployment.profile(variant, kind).table_ns[deployment.quantile, 1])
