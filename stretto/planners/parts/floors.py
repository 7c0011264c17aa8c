"""Floors: the batch below which, at a load, a worker is not worth its time, so that heads in its way are given up."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Fixed, Lane, Late, Order
from stretto.core.profile import NS_PER_S, LatencyProfile, Quantile
from stretto.planners.parts.rates import RATE_WINDOW_NS
from stretto.planners.parts.task import Task

EFFICIENT = 1.02  # a batch is large enough when a query takes at most so many times the least that it can
BATCH_COST_NS = 300_000  # what a batch costs around its run, whatever its size; a profile does not tell it
OVERLOAD = 0.95  # of what the workers can answer at most, from where on small batches are avoided
GOOD_PACE = 0.97  # of the best pace: a batch that reaches it is large enough


def floor_rates(profile: LatencyProfile, slo_ns: int, workers: float, quantile: Quantile) -> tuple[float, ...]:
    """By batch size from 1: the arrival rate (queries/s) above which `workers` workers cannot keep up with less."""
    largest = max(1, profile.largest_batch_within(slo_ns * workers / (workers + 1), quantile))
    rates = [0.0]
    for batch in range(1, largest):
        rates.append(workers * batch * NS_PER_S / profile.latency_ns(batch, quantile))
    return tuple(rates)


def single_variant_lane(deployment: Deployment, variant: int, workers: tuple[int, ...]) -> Lane:
    """Where there is nothing to choose: started at once, and under overload kept from batches that are not worth it."""
    application = deployment.applications[deployment.application_of[variant]]
    profile = deployment.profile(variant, deployment.workers[workers[0]].kind)
    latency = profile.table_ns[deployment.quantile].astype(np.float64)
    floors = floor_rates(profile, application.slo_ns, len(workers), deployment.quantile)
    kinds = {deployment.workers[worker].kind for worker in workers}
    profiles = (deployment.variants[variant].profile_on(kind) for kind in kinds)
    tables = [each.table_ns[deployment.quantile].astype(np.float64) for each in profiles if each is not None]
    largest = max(map(efficient_batch, tables))
    return Lane(
        application.name,
        workers,
        Fixed(variant),
        Order.EARLIEST_DEADLINE,
        Eager(largest, floor_rates=floors[: efficient_batch(latency)]),
        Late.DROP_WHEN_INFEASIBLE,
    )


def efficient_batch(latency_ns: NDArray[np.float64]) -> int:
    """The smallest batch in which a query takes hardly more worker time than in the best."""
    each = (latency_ns[1:] + BATCH_COST_NS) / np.arange(1, len(latency_ns))
    return int(np.argmax(each <= EFFICIENT * each.min())) + 1


def overload_floors(task: Task, slow: float) -> tuple[float, ...]:
    """Near the most that can be answered no batch is worth a worker that is much smaller than the best ones: heads that
    would make it so are given up. Without that, small batches make the next heads wait, which makes smaller ones still.
    """
    sizes = np.arange(1, task.max_batch + 1)
    usable = (task.latency_ns[:, 1:] > 0) & (task.latency_ns[:, 1:] <= task.slo_ns * task.workers / (task.workers + 1))
    pace = np.where(usable, sizes / np.maximum(task.latency_ns[:, 1:], 1), 0.0).max(axis=0)
    if pace.max() <= 0:
        return ()
    enough = int(np.argmax(pace >= GOOD_PACE * pace.max())) + 1
    most = float(pace.max()) * 1e9 * task.workers / slow
    chance = math.sqrt(most / (RATE_WINDOW_NS / 1e9))  # by which the measured load may be too high
    return (OVERLOAD * most + chance,) * enough
