"""What a policy is computed for: one application's variants on one kind of worker, its SLO, and how many workers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.worker import workers as equal_workers

MAX_WORKERS = 4096


@dataclass(frozen=True, eq=False)
class Task:
    """`latency_ns[m, b]` is l(m, b), 0 where variant m takes no batch of b; column 0 is zero.

    `workers` are all that the application's queries are dealt to, of this kind or another.
    """

    application: str
    kind: str
    slo_ns: int
    workers: int
    variants: tuple[str, ...]
    accuracy: NDArray[np.float64]
    latency_ns: NDArray[np.int64]

    def __post_init__(self) -> None:
        if not self.variants:
            raise StrettoError(
                f"none of the variants of application {self.application} runs on worker kind {self.kind}"
            )
        if self.latency_ns.shape[0] != len(self.variants) or self.accuracy.shape != (len(self.variants),):
            raise StrettoError("a task needs one accuracy and one row of latencies for each variant")
        if not 1 <= self.workers <= MAX_WORKERS:
            raise StrettoError(f"a policy is for 1 to {MAX_WORKERS} workers, not {self.workers}")
        if int(self.latency_ns[:, 1].min()) > self.slo_ns:
            raise StrettoError(
                f"no variant of application {self.application} answers a single query within its SLO;"
                " raise the SLO or add a faster variant"
            )

    @property
    def max_batch(self) -> int:
        return int(self.latency_ns.shape[1]) - 1

    def fastest(self, batch: int) -> int:
        """The variant with the least latency for a batch of this size."""
        able = np.where(self.latency_ns[:, batch] > 0, self.latency_ns[:, batch], np.iinfo(np.int64).max)
        return int(able.argmin())

    def capacity(self) -> float:
        """Queries/s that all workers answer at most, each batch within the SLO."""
        return float(self._capacities.max())

    def capacity_of_best(self) -> float:
        """Queries/s that they answer with the most accurate variant that is quick enough."""
        able = (self.latency_ns[:, 1] > 0) & (self.latency_ns[:, 1] <= self.slo_ns)
        return float(self._capacities[np.argmax(np.where(able, self.accuracy, -np.inf))])

    @cached_property
    def _capacities(self) -> NDArray[np.float64]:
        """By variant. A planner that follows a load asks for them many times a plan."""
        sizes = np.arange(1, self.max_batch + 1)
        latency = self.latency_ns[:, 1:]
        within = (latency > 0) & (latency <= self.slo_ns)
        most: NDArray[np.float64] = np.where(within, sizes / np.maximum(latency, 1), 0.0).max(axis=1)
        return self.workers * most * 1e9

    def only(self, chosen: Sequence[int]) -> Task:
        """The same task with some of its variants."""
        index = list(chosen)
        return replace(
            self,
            variants=tuple(self.variants[m] for m in index),
            accuracy=self.accuracy[index],
            latency_ns=self.latency_ns[index],
        )

    def numbers_in(self, deployment: Deployment, application: int) -> list[int]:
        """The deployment's numbers of the task's variants."""
        by_name = {deployment.variants[number].name: number for number in deployment.variants_of(application)}
        return [by_name[name] for name in self.variants]

    def deployment(self) -> Deployment:
        """The task as a deployment of its own: one application on equal workers whose latencies are exactly these."""
        variants = []
        for name, accuracy, row in zip(self.variants, self.accuracy.tolist(), self.latency_ns, strict=True):
            largest = int(np.flatnonzero(row)[-1])
            profile = LatencyProfile(np.tile(row[: largest + 1], (len(Quantile), 1)), self.kind)
            variants.append(Variant(name, accuracy, (profile,)))
        application = Application(self.application, self.slo_ns, tuple(variants))
        return Deployment((application,), equal_workers(self.workers, self.kind))

    @cached_property
    def key(self) -> tuple[str, ...]:
        """Tasks of equal keys have equal policies, whatever deployment they come from."""
        return tuple(self.described().values())

    def described(self) -> dict[str, str]:
        """What a file of policies says of it; equal descriptions give equal policies."""
        digest = hashlib.sha256()
        for name, accuracy, row in zip(self.variants, self.accuracy, self.latency_ns, strict=True):
            digest.update(f"{name} {float(accuracy)!r} {row.tolist()}\n".encode())
        return {
            "application": self.application,
            "worker kind": self.kind,
            "SLO": f"{self.slo_ns / 1e6:g} ms",
            "workers": str(self.workers),
            "variants": ", ".join(self.variants),
            "profile": digest.hexdigest()[:32],
        }


def kinds_for(deployment: Deployment, application: int) -> tuple[str, ...]:
    """The kinds of worker that can run any of the application's variants."""
    variants = deployment.applications[application].variants
    return tuple(kind for kind in deployment.kinds if any(variant.profile_on(kind) for variant in variants))


def task_of(deployment: Deployment, application: int, kind: str | None = None, workers: int | None = None) -> Task:
    """The task on a kind of worker (the first that can serve it where none is named), dealt to `workers` (all)."""
    wanted = kinds_for(deployment, application)[0] if kind is None else kind
    served = deployment.applications[application]
    able = [(variant, profile) for variant in served.variants if (profile := variant.profile_on(wanted)) is not None]
    largest = max((profile.max_batch for _, profile in able), default=1)
    latency = np.zeros((len(able), largest + 1), dtype=np.int64)
    for row, (_, profile) in zip(latency, able, strict=True):
        row[: profile.max_batch + 1] = profile.table_ns[deployment.quantile]
    return Task(
        application=served.name,
        kind=wanted,
        slo_ns=served.slo_ns,
        workers=len(deployment.workers) if workers is None else workers,
        variants=tuple(variant.name for variant, _ in able),
        accuracy=np.array([variant.accuracy for variant, _ in able]),
        latency_ns=latency,
    )
