"""Small scheduling problems, random and by hand, and an exhaustive search through them."""

from __future__ import annotations

from itertools import product
from math import isclose

import numpy as np
from hypothesis import strategies as st

from stretto.core.profile import NS_PER_MS
from stretto.planners.jellyfish.problem import UNMAPPED, Mapping, Problem, faults, mapping_of


def problem(
    rates: list[float],
    budgets_ms: list[float],
    latency_ms: list[list[list[float]]],
    kinds: list[int],
    **rest: float,
) -> Problem:
    """Of clients whose budget is the same whatever the model; `latency_ms[kind][model]` from batch 1 on."""
    latency = np.array(latency_ms) * NS_PER_MS
    models = latency.shape[1]
    return Problem(
        accuracy=np.linspace(0.3, 0.9, models),
        latency_ns=np.concatenate([np.zeros((*latency.shape[:2], 1)), latency], axis=2).astype(np.int64),
        kind_of=np.array(kinds, np.int64),
        rate=np.array(rates, np.float64),
        budget_ns=np.repeat((np.array(budgets_ms) * NS_PER_MS).astype(np.int64)[:, None], models, axis=1),
        **rest,  # type: ignore[arg-type]
    )


@st.composite
def problems(
    draw: st.DrawFn, *, most_clients: int = 6, most_workers: int = 2, most_models: int = 3, most_kinds: int = 2
) -> Problem:
    """Latencies that rise with model and batch, budgets that fall with the model, rates that are no whole steps."""
    kinds = draw(st.integers(1, most_kinds))
    models = draw(st.integers(1, most_models))
    batches = draw(st.integers(1, 4))
    workers = draw(st.lists(st.integers(0, kinds - 1), min_size=1, max_size=most_workers))
    clients = draw(st.integers(1, most_clients))
    whole = st.integers(1, 12)
    latency = np.zeros((kinds, models, batches + 1), np.int64)
    for kind in range(kinds):
        steps = np.array([[draw(whole) for _ in range(batches)] for _ in range(models)], np.int64)
        latency[kind, :, 1:] = (4 + np.cumsum(np.cumsum(steps, axis=1), axis=0)) * NS_PER_MS
    network = np.cumsum([[draw(whole) for _ in range(models)] for _ in range(clients)], axis=1)
    slos = np.array([draw(st.integers(10, 150)) for _ in range(clients)])
    rates = [draw(st.one_of(st.sampled_from([10.0, 15.0, 25.0]), st.floats(0.5, 60.0))) for _ in range(clients)]
    return Problem(
        accuracy=np.sort([draw(st.floats(0.1, 1.0)) for _ in range(models)]),
        latency_ns=latency,
        kind_of=np.array(workers, np.int64),
        rate=np.array(rates),
        budget_ns=(slos[:, None] - network) * NS_PER_MS,
        queueing=draw(st.sampled_from([0.0, 0.5, 1.0])),
        step=draw(st.sampled_from([1.0, 2.5, 5.0])),
    )


def fits(of: Problem, worker: int, model: int, clients: list[int]) -> int:
    """The batch with which a worker can serve these clients, reckoned from (5) and (6) in steps; 0: it cannot."""
    latency = of.latency_ns[of.kind_of[worker], model]
    steps = sum(int(np.ceil(of.rate[client] / of.step - 1e-9)) for client in clients)
    largest = 0
    for batch in range(1, len(latency)):
        if all((1 + of.queueing) * latency[batch] <= of.budget_ns[client, model] for client in clients):
            largest = batch
    reached = max((int(b * 1e9 / latency[b] / of.step + 1e-9) for b in range(1, largest + 1)), default=0)
    return largest if largest and steps <= reached else 0


def exhaustive(of: Problem) -> Mapping:
    """The best of all mappings there are."""
    best: Mapping | None = None
    for models in product(range(of.models), repeat=of.workers):
        for places in product(range(-1, of.workers), repeat=of.clients):
            worker_of = np.array(places, np.int64)
            batches = np.zeros(of.workers, np.int64)
            for worker in range(of.workers):
                clients = np.flatnonzero(worker_of == worker).tolist()
                batches[worker] = fits(of, worker, models[worker], clients) if clients else 0
                if clients and not batches[worker]:
                    break
            else:
                mapping = mapping_of(of, np.array(models, np.int64), batches, worker_of)
                if best is None or mapping.is_better_than(best):
                    best = mapping
    assert best is not None and not faults(of, best)
    return best


def is_sound(of: Problem, mapping: Mapping) -> bool:
    """Keeps (5) and (6), and its value is what it says."""
    again = mapping_of(of, mapping.models, mapping.batches, mapping.worker_of)
    counted = again.mapped == mapping.mapped and isclose(again.value, mapping.value, rel_tol=1e-9)
    return counted and not faults(of, mapping) and (mapping.worker_of >= UNMAPPED).all()
