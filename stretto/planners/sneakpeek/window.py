"""A window: the requests to be scheduled and the workers to run them, in plain arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.evidence import expected_accuracy, likeliest
from stretto.core.view import View, WaitingQuery
from stretto.planners.sneakpeek.catalogue import Catalogue


@dataclass(frozen=True, eq=False)
class Window:
    """Requests by place. Every request has arrived; workers are those alive, `worker` their numbers."""

    now_ns: int
    application: NDArray[np.int64]
    arrival_ns: NDArray[np.int64]
    deadline_ns: NDArray[np.int64]
    accuracy: NDArray[np.float64]  # [request, variant of its application]: profiled, or expected from evidence
    query_class: NDArray[np.int64]  # told by evidence: a kind of class, or a class; -1: inconclusive, or no evidence
    evidence_accuracy: NDArray[np.float64]  # as profiled, of an answer from evidence; -1: none can be given
    worker: NDArray[np.int64]
    site: NDArray[np.int64]  # by place in `worker`
    free_ns: NDArray[np.int64]
    load_ns: NDArray[np.int64]  # [worker, variant] before a variant that the worker did not run last
    first_load_ns: NDArray[np.int64]  # [worker, variant] before the worker's first batch
    latency_ns: NDArray[np.int64]  # [variant, site, batch], as measured lately
    catalogue: Catalogue

    def __len__(self) -> int:
        return len(self.application)


def window_of(
    catalogue: Catalogue,
    now_ns: int,
    queries: Sequence[WaitingQuery],
    view: View | None = None,
    *,
    data_aware: bool = True,
    short_circuit: bool = True,
    certainty: float = 0.0,
) -> Window:
    """What waits now. Without `data_aware`, or evidence, a query has the profiled accuracies and no class.

    A query is told to be of the kind of its likeliest class. With a `certainty` it is told to be of that class itself,
    and only where the class has more than so large a share of θ (as published, 0.5).
    """
    columns = np.array(
        [(query.application, query.arrival_ns, query.deadline_ns) for query in queries], dtype=np.int64
    ).reshape(len(queries), 3)
    application = columns[:, 0].copy()
    accuracy = catalogue.accuracy[application]
    query_class = np.full(len(queries), -1, np.int64)
    evidence = np.full(len(queries), -1.0)
    known: dict[int, list[int]] = {}
    for place, query in enumerate(queries):
        if query.theta is not None:
            known.setdefault(query.application, []).append(place)
    for number, places in known.items():
        recall = catalogue.recall[number]
        if recall is not None:  # a posterior over other classes than those that were profiled says nothing
            places = [place for place in places if len(queries[place].theta or ()) == recall.shape[1]]
        if short_circuit:
            evidence[places] = catalogue.evidence_accuracy[number]
        if data_aware and recall is not None and places:
            theta = np.array([queries[place].theta for place in places])
            accuracy[places, : len(recall)] = expected_accuracy(theta, recall)
            likely = likeliest(theta)
            told = likely if certainty > 0 else catalogue.kind_of[number][likely]
            query_class[places] = np.where(theta.max(axis=1) > certainty, told, -1)
    alive = np.arange(len(catalogue.site))
    free_ns = np.full(len(alive), now_ns)
    held = catalogue.resident
    latency_ns = catalogue.latency_ns
    if view is not None:
        alive = np.flatnonzero(view.alive)
        free_ns = np.maximum(view.free_ns[alive], now_ns)
        held = held if view.holds is None else view.holds
        if view.is_measured.any():
            ratio = view.latency_ratio[:, catalogue.site_kind]
            latency_ns = np.ceil(latency_ns * ratio[:, :, None]).astype(np.int64)
    # What a worker holds is free for its first batch. After that, one whose memory holds everything keeps it; another
    # is taken to hold only what it ran last.
    first_load_ns = np.where(held[alive], 0, catalogue.load_ns)
    load_ns = np.where(catalogue.holds_all[alive][:, None], first_load_ns, catalogue.load_ns)
    return Window(
        now_ns=now_ns,
        application=application,
        arrival_ns=columns[:, 1].copy(),
        deadline_ns=columns[:, 2].copy(),
        accuracy=accuracy,
        query_class=query_class,
        evidence_accuracy=evidence,
        worker=alive,
        site=catalogue.site[alive],
        free_ns=free_ns,
        load_ns=load_ns,
        first_load_ns=first_load_ns,
        latency_ns=latency_ns,
        catalogue=catalogue,
    )
