"""Floors: the batch below which, at a load, a worker is not worth its time, so that heads in its way are given up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import Delays, Eager, Fixed, Lane, Late, Order
from stretto.core.profile import NS_PER_S, LatencyProfile, Quantile

EFFICIENT = 1.02  # a batch is large enough when a query takes at most so many times the least that it can
BATCH_COST_NS = 300_000  # what a batch costs around its run, whatever its size; a profile does not tell it


def staggered_rates(
    profiles: Sequence[LatencyProfile], slo_ns: int, delays: Delays, quantile: Quantile
) -> tuple[float, ...]:
    """Returns, by batch size from 1, the arrival rate (queries/s) from which staggered execution runs such a batch.

    Equation 3 of Symphony says how many workers a load needs with batches of b: N = λ·l(b)/b. With so many, equation 2
    is l(b) + b/λ ≤ SLO: a batch is gathered and run within the SLO, less what passes around its run. How many workers
    there are does not matter. Of unequal workers the slowest counts.
    """
    rates = [0.0]
    for batch in range(2, min(profile.max_batch for profile in profiles) + 1):
        run_ns = max(profile.latency_ns(batch, quantile) for profile in profiles)
        left_ns = slo_ns - delays.of_batch_ns(batch) - run_ns
        if left_ns <= 0:
            break
        rates.append(max(rates[-1], batch * NS_PER_S / left_ns))
    return tuple(rates)


def floor_rates(profile: LatencyProfile, slo_ns: int, workers: float, quantile: Quantile) -> tuple[float, ...]:
    """By batch size from 1: the arrival rate (queries/s) above which `workers` workers cannot keep up with less."""
    largest = max(1, profile.largest_batch_within(slo_ns * workers / (workers + 1), quantile))
    rates = [0.0]
    for batch in range(1, largest):
        rates.append(workers * batch * NS_PER_S / profile.latency_ns(batch, quantile))
    return tuple(rates)


def single_variant_lane(deployment: Deployment, variant: int, workers: tuple[int, ...]) -> Lane:
    """The lane where there is nothing to choose: it starts batches at once, none larger than is worth waiting for."""
    application = deployment.applications[deployment.application_of[variant]]
    kinds = {deployment.workers[worker].kind for worker in workers}
    profiles = (deployment.variants[variant].profile_on(kind) for kind in kinds)
    tables = [each.table_ns[deployment.quantile].astype(np.float64) for each in profiles if each is not None]
    largest = max(map(efficient_batch, tables))
    return Lane(
        application.name,
        workers,
        Fixed(variant),
        Order.EARLIEST_DEADLINE,
        Eager(largest),
        Late.DROP_WHEN_INFEASIBLE,
    )


def efficient_batch(latency_ns: NDArray[np.float64]) -> int:
    """The smallest batch in which a query takes hardly more worker time than in the best."""
    each = (latency_ns[1:] + BATCH_COST_NS) / np.arange(1, len(latency_ns))
    return int(np.argmax(each <= EFFICIENT * each.min())) + 1
