"""How long a query waits in an M/D/1 queue: Erlang's distribution in Franx's form, whose terms are all positive."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def queue_lengths(load: float, count: int) -> NDArray[np.float64]:
    """P(n queries in an M/D/1 system) for n < count, from the embedded chain; `load` is λD, below 1."""
    came = np.exp(
        -load + np.arange(count + 1) * math.log(load) - np.array([math.lgamma(n + 1) for n in range(count + 1)])
    )
    chances = np.zeros(count)
    chances[0] = 1.0 - load
    for n in range(count - 1):
        inside = chances[1 : n + 1] @ came[n:0:-1]
        chances[n + 1] = max(0.0, (chances[n] - chances[0] * came[n] - inside) / came[0])
    return chances


def waits_longer(load: float, services: float) -> float:
    """P(W > services · D) of an M/D/1 queue with this load."""
    if load <= 0:
        return 0.0
    if load >= 1:
        return 1.0
    periods = math.floor(services) + 1  # (periods - 1)·D ≤ t < periods·D
    lengths = queue_lengths(load, periods + 1)
    waiting = np.cumsum(np.concatenate(([lengths[0] + lengths[1]], lengths[2:])))  # P(at most n wait)
    mean = load * (periods - services)
    terms = [math.exp(-mean + j * math.log(mean) - math.lgamma(j + 1)) for j in range(periods)]
    return float(max(0.0, 1.0 - sum(waiting[periods - 1 - j] * terms[j] for j in range(periods))))


def is_late(rate: float, service_ns: float, slo_ns: float) -> float:
    """Share of the queries of an M/D/1 queue that end after their SLO; `rate` in queries/s."""
    if service_ns > slo_ns:
        return 1.0
    return waits_longer(rate * service_ns / 1e9, (slo_ns - service_ns) / service_ns)
