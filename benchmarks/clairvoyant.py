"""The most that any schedule can answer right and on time, knowing every arrival ahead: a bound, not a simulation.

The work of a query is its part of its batch's time, at least 1/throughput of the variant, and lies between its arrival
and its deadline. Time goes in steps, and a query may use every step that it touches; workers do no more in a step than
it is long. Batches need not be gathered nor be whole, and nothing is said of their order. What is left is a linear
program: how much of each step's arrivals is answered by which variant in which later step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

from stretto.core.deployment import Deployment
from stretto.core.profile import Quantile

STEP_S = 0.01

Numbers = NDArray[np.float64]


def throughput(deployment: Deployment, variant: int, slo_s: float) -> float:
    """Queries a second of one worker in the batches that go fastest, of those that end within an SLO."""
    profile = deployment.variants[variant].profile_on(deployment.kinds[0])
    if profile is None:
        return 0.0
    seconds = [profile.latency_ns(batch, Quantile.MEAN) / 1e9 for batch in range(1, profile.max_batch + 1)]
    return max((batch / took_s for batch, took_s in enumerate(seconds, 1) if took_s <= slo_s), default=0.0)


def most_correct_on_time(deployment: Deployment, arrivals_s: Numbers) -> float:
    """Share of these arrivals, for one application on workers of one kind."""
    (application,) = deployment.applications
    slo_s = application.slo_ns / 1e9
    variants = [number for number in range(len(deployment.variants)) if throughput(deployment, number, slo_s) > 0]
    work_s = np.array([1.0 / throughput(deployment, number, slo_s) for number in variants])
    accuracy = np.array([deployment.variants[number].accuracy for number in variants])
    reach = int(np.ceil(slo_s / STEP_S - 1e-9))  # a query that comes late in its step still touches that one
    came = np.bincount((arrivals_s / STEP_S).astype(np.int64))
    steps, ends = len(came), len(came) + reach
    step, variant, after = (each.ravel() for each in np.indices((steps, len(variants), reach + 1)))
    columns = np.arange(len(step))
    used = np.concatenate((np.ones(len(step)), work_s[variant]))
    places = np.concatenate((step, steps + step + after))
    limits = coo_array((used, (places, np.tile(columns, 2))), shape=(steps + ends, len(step))).tocsr()
    room_s = np.full(ends, len(deployment.workers) * STEP_S)
    solved = linprog(
        -accuracy[variant],
        A_ub=limits,
        b_ub=np.concatenate((came, room_s)),
        method="highs-ipm",
        options={"disp": False},
    )
    if solved.status != 0:
        raise RuntimeError(f"the program was not solved: {solved.message}")
    return float(-solved.fun / len(arrivals_s))
