"""What a deployment says to a window scheduler, in plain arrays; made once for each deployment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.planners.data_aware import alike

KINDS = 8  # of class, that groups are split by
MOST_BATCH = 256  # larger batches bring no more throughput worth a window's time


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Sites are kinds of workers told apart by what they can run: a kind and its memory."""

    first_variant: NDArray[np.int64]  # by application
    variants: NDArray[np.int64]  # how many, by application
    accuracy: NDArray[np.float64]  # [application, variant of it], as profiled; zero beyond the last
    recall: tuple[NDArray[np.float64] | None, ...]  # [variant, class] by application, where every variant has it
    kind_of: tuple[NDArray[np.int64], ...]  # by application and class, where it has recall: classes alike are one kind
    penalty: NDArray[np.int64]  # by application
    evidence_accuracy: NDArray[np.float64]  # by application; -1: it has no evidence
    latency_ns: NDArray[np.int64]  # [variant, site, batch]
    most: NDArray[np.int64]  # [variant, site] the largest batch; 0: cannot run
    load_ns: NDArray[np.int64]  # by variant
    site: NDArray[np.int64]  # by worker
    site_kind: NDArray[np.int64]  # the kind in the deployment, by site
    holds_all: NDArray[np.bool_]  # by worker: all that it can run fit into its memory together
    resident: NDArray[np.bool_]  # [worker, variant] at the start


def catalogue_of(deployment: Deployment) -> Catalogue:
    """The arrays of a deployment."""
    applications = deployment.applications
    recalls = [_recall(deployment, number) for number in range(len(applications))]
    widest = max(len(application.variants) for application in applications)
    accuracy = np.zeros((len(applications), widest))
    for number, application in enumerate(applications):
        accuracy[number, : len(application.variants)] = [variant.accuracy for variant in application.variants]
    sites = list(dict.fromkeys((worker.kind, worker.memory_bytes) for worker in deployment.workers))
    latency_ns, most = _latencies(deployment, sites)
    memory = np.array([(variant.memory_bytes, variant.dynamic_memory_bytes) for variant in deployment.variants])
    site = np.array([sites.index((worker.kind, worker.memory_bytes)) for worker in deployment.workers])
    fits = [
        memory[able, 0].sum() + memory[able, 1].max(initial=0) <= sites[place][1]
        for place, able in enumerate((most > 0).T)
    ]
    from_evidence = [application.evidence_accuracy for application in applications]
    labels = [deployment.variant_label(variant) for variant in range(len(deployment.variants))]
    residents = [worker.resident for worker in deployment.workers]
    return Catalogue(
        first_variant=np.array(deployment.first_variant),
        variants=np.array([len(application.variants) for application in applications]),
        accuracy=accuracy,
        recall=tuple(recalls),
        kind_of=tuple(np.zeros(0, np.int64) if recall is None else kinds_of(recall) for recall in recalls),
        penalty=np.array([int(application.penalty) for application in applications]),
        evidence_accuracy=np.array([-1.0 if accuracy is None else accuracy for accuracy in from_evidence]),
        latency_ns=latency_ns,
        most=most,
        load_ns=np.array([variant.load_ns for variant in deployment.variants]),
        site=site,
        site_kind=np.array([deployment.kinds.index(kind) for kind, _ in sites]),
        holds_all=np.array(fits)[site],
        resident=np.array([[held is None or label in held for label in labels] for held in residents]),
    )


def _latencies(deployment: Deployment, sites: list[tuple[str, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """l(b) at the deployment's quantile by variant, site and batch, and the largest batch."""
    profiles = [
        [
            None if model.memory_bytes + model.dynamic_memory_bytes > memory else model.profile_on(kind)
            for kind, memory in sites
        ]
        for model in deployment.variants
    ]
    largest = max(profile.max_batch for row in profiles for profile in row if profile is not None)
    width = min(largest, MOST_BATCH) + 1
    latency_ns = np.zeros((len(profiles), len(sites), width), np.int64)
    most = np.zeros((len(profiles), len(sites)), np.int64)
    for variant, row in enumerate(profiles):
        for site, profile in enumerate(row):
            if profile is not None:
                known = profile.table_ns[deployment.quantile][:width]
                latency_ns[variant, site, : len(known)] = known
                most[variant, site] = len(known) - 1
    return latency_ns, most


def kinds_of(recall: NDArray[np.float64]) -> NDArray[np.int64]:
    """The kind of each class. All classes count alike, for which of them are frequent differs between windows."""
    return alike(recall, np.ones(recall.shape[1]), KINDS)


def _recall(deployment: Deployment, application: int) -> NDArray[np.float64] | None:
    recalls = [deployment.variants[variant].recall for variant in deployment.variants_of(application)]
    if not recalls[0] or len({len(recall) for recall in recalls}) != 1:
        return None
    return np.array(recalls)
