"""The scheduling problem of Jellyfish (section IV-A): clients, models and workers, and what (5) and (6) allow.

Models are numbered by rising accuracy. Rates are counted in whole steps, rounded up, so that what fits in steps never
breaks capacity (6). Workers may be of several kinds, each with latencies of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S

NEVER_NS = 2**60  # the latency of what cannot run
UNMAPPED = -1
PRICES = np.linspace(0.0, 2.0, 129) ** 2  # of worker time, that a bound is sought with: over that of the best answers


@dataclass(frozen=True, eq=False)
class Problem:
    """`latency_ns[kind, model, b]` for b = 0 … B (column 0 is zero). `budget_ns[client, model]` is L, what the network
    leaves of a client's SLO when it sends at that model's size. `queueing`: times a batch's own latency that a query
    may wait before it; published is 1, which makes the 2 of equation (5). `overhead_ns[b]` is spent besides, once.
    """

    accuracy: NDArray[np.float64]
    latency_ns: NDArray[np.int64]
    kind_of: NDArray[np.int64]  # by worker
    rate: NDArray[np.float64]  # by client, queries/s
    budget_ns: NDArray[np.int64]
    queueing: float = 1.0
    step: float = 5.0  # queries/s
    overhead_ns: NDArray[np.int64] | None = None
    steps: NDArray[np.int64] = field(init=False)  # by client: its rate in whole steps, rounded up
    largest: NDArray[np.int64] = field(init=False)  # [kind, model, client]: the largest batch that (5) allows; 0: none
    throughput: NDArray[np.float64] = field(init=False)  # [kind, model, b]: queries/s of batches of up to b
    capacity: NDArray[np.int64] = field(init=False)  # likewise, in whole steps
    order: NDArray[np.int64] = field(init=False)  # [model, place]: clients by falling budget

    def __post_init__(self) -> None:
        kinds, models, columns = self.latency_ns.shape
        if (np.diff(self.accuracy) < 0).any() or len(self.accuracy) != models:
            raise StrettoError("models must be given by rising accuracy, with a latency each")
        if self.budget_ns.shape != (len(self.rate), models):
            raise StrettoError("every client needs a latency budget for every model")
        if not (self.step > 0 and math.isfinite(self.step) and self.queueing >= 0):
            raise StrettoError("rates need a step above zero, and queueing is not negative")
        batches = np.arange(1, columns)
        needed = (1.0 + self.queueing) * self.latency_ns[:, :, 1:].astype(np.float64)
        if self.overhead_ns is not None:
            needed = needed + self.overhead_ns[1:]
        # Latency rises with the batch, so the batches that (5) allows are the first ones.
        allowed = needed[:, :, :, None] <= self.budget_ns.T[None, :, None, :]
        largest = allowed.sum(axis=2)
        throughput = np.zeros((kinds, models, columns))
        # Where a larger batch brings less through (a measured profile may say so), smaller ones are still allowed.
        throughput[:, :, 1:] = np.maximum.accumulate(batches * float(NS_PER_S) / self.latency_ns[:, :, 1:], axis=2)
        capacity = np.floor(throughput / self.step * (1 + 1e-12))
        steps = np.maximum(np.ceil(self.rate / self.step * (1 - 1e-12)), 1)
        for name, value in (
            ("steps", steps.astype(np.int64)),
            ("largest", np.ascontiguousarray(largest.astype(np.int64))),
            ("throughput", throughput),
            ("capacity", capacity.astype(np.int64)),
            ("order", np.argsort(-self.budget_ns.T, axis=1, kind="stable").astype(np.int64)),
        ):
            object.__setattr__(self, name, value)

    @property
    def clients(self) -> int:
        return len(self.rate)

    @property
    def models(self) -> int:
        return len(self.accuracy)

    @property
    def workers(self) -> int:
        return len(self.kind_of)

    def may_use(self, worker: int, model: int) -> bool:
        """Whether the worker's kind can run the model."""
        return int(self.latency_ns[self.kind_of[worker], model, 1]) < NEVER_NS


@dataclass(frozen=True, eq=False)
class Mapping:
    """What is chosen: a model and a batch size for each worker, and a worker for each client (UNMAPPED: none)."""

    models: NDArray[np.int64]
    batches: NDArray[np.int64]  # 0: the worker has no client
    worker_of: NDArray[np.int64]
    mapped: int  # clients that have a worker
    value: float  # equation (1), with nothing for clients that have none

    def is_better_than(self, other: Mapping) -> bool:
        """More clients mapped (O1), else more accurate answers (O2)."""
        return (self.mapped, self.value) > (other.mapped, other.value + 1e-9)


def mapping_of(
    problem: Problem, models: NDArray[np.int64], batches: NDArray[np.int64], worker_of: NDArray[np.int64]
) -> Mapping:
    """With its value."""
    mapped = worker_of >= 0
    value = float((problem.accuracy[models[worker_of[mapped]]] * problem.rate[mapped]).sum())
    return Mapping(models, batches, worker_of, int(mapped.sum()), value)


def most_value(problem: Problem) -> float:
    """No mapping that has a place for everybody is worth more: the best for each client of what (5) allows it less the
    price of its worker time (6), and the price of all workers' time; at whichever price that is least. Below all
    numbers where (5) allows somebody nothing, for then there is no such mapping.
    """
    throughput = np.zeros(problem.models)
    allowed = np.zeros((problem.clients, problem.models), np.bool_)
    for kind in set(problem.kind_of.tolist()):
        largest = problem.largest[kind]  # [model, client]
        sizes = np.arange(1, problem.latency_ns.shape[2])
        brought = sizes * float(NS_PER_S) / problem.latency_ns[kind, :, 1:]
        brought[sizes[None, :] > largest.max(axis=1, initial=0)[:, None]] = 0.0
        throughput = np.maximum(throughput, brought.max(axis=1))
        allowed |= largest.T > 0
    usable = allowed & (throughput > 0)
    if not usable.any(axis=1).all():
        return -math.inf
    price = PRICES * float(problem.accuracy.max() * throughput.max())  # of a second of a worker
    worth = problem.accuracy - price[:, None] / np.maximum(throughput, 1e-9)
    best = np.where(usable[None, :, :], worth[:, None, :], -np.inf).max(axis=2)
    return float((best @ problem.rate + price * problem.workers).min())


def faults(problem: Problem, mapping: Mapping) -> list[str]:
    """Which of the constraints (5) and (6) a mapping breaks, in words; none if all is well."""
    breaches = []
    for worker in range(problem.workers):
        clients = np.flatnonzero(mapping.worker_of == worker)
        if not len(clients):
            continue
        model, batch = int(mapping.models[worker]), int(mapping.batches[worker])
        latency_ns = problem.latency_ns[problem.kind_of[worker], model]
        if not 1 <= batch < len(latency_ns):
            breaches.append(f"worker {worker} has clients but batch {batch}")
            continue
        overhead_ns = 0 if problem.overhead_ns is None else int(problem.overhead_ns[batch])
        for client in clients.tolist():
            if (1.0 + problem.queueing) * latency_ns[batch] + overhead_ns > problem.budget_ns[client, model]:
                breaches.append(f"(5): client {client} on worker {worker} has too little time for batch {batch}")
        sizes = np.arange(1, batch + 1)
        throughput = float((sizes * NS_PER_S / latency_ns[1 : batch + 1]).max())
        if problem.rate[clients].sum() > throughput * (1 + 1e-9):
            breaches.append(f"(6): worker {worker} cannot bring through what its clients send")
    return breaches
