"""A deployment: the applications served and the workers that serve them, with the numbering that plans use.

Applications, workers and kinds are numbered by their place; variants are numbered across all applications in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.application import Application, Variant
from stretto.core.errors import StrettoError
from stretto.core.evidence import accuracy_by_class
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.worker import Worker

MAX_WORKERS = 65_536
MAX_VARIANTS = 65_536


@dataclass(frozen=True, eq=False)
class Deployment:
    """Frozen. `quantile` is the latency that decisions rest on (how sure "in time" must be)."""

    applications: tuple[Application, ...]
    workers: tuple[Worker, ...]
    quantile: Quantile = Quantile.P95
    kinds: tuple[str, ...] = field(init=False)
    variants: tuple[Variant, ...] = field(init=False)
    application_of: tuple[int, ...] = field(init=False)  # by variant number
    first_variant: tuple[int, ...] = field(init=False)  # by application number

    def __post_init__(self) -> None:
        if not self.applications:
            raise StrettoError("a deployment needs at least one application")
        if not 1 <= len(self.workers) <= MAX_WORKERS:
            raise StrettoError(f"a deployment needs between 1 and {MAX_WORKERS} workers, not {len(self.workers)}")
        for what, names in (
            ("applications", [application.name for application in self.applications]),
            ("workers", [worker.name for worker in self.workers]),
        ):
            if len(set(names)) != len(names):
                raise StrettoError(f"two {what} have the same name")
        variants: list[Variant] = []
        owners: list[int] = []
        first: list[int] = []
        kinds = tuple(dict.fromkeys(worker.kind for worker in self.workers))
        for number, application in enumerate(self.applications):
            first.append(len(variants))
            variants.extend(application.variants)
            owners.extend([number] * len(application.variants))
            if not any(variant.profile_on(kind) for variant in application.variants for kind in kinds):
                raise StrettoError(
                    f"no variant of application {application.name} has a profile for a worker kind in use"
                    f" ({', '.join(kinds)})"
                )
        if len(variants) > MAX_VARIANTS:
            raise StrettoError(f"a deployment holds at most {MAX_VARIANTS} variants")
        object.__setattr__(self, "kinds", kinds)
        object.__setattr__(self, "variants", tuple(variants))
        object.__setattr__(self, "application_of", tuple(owners))
        object.__setattr__(self, "first_variant", tuple(first))
        known = {self.variant_label(v) for v in range(len(variants))}
        for worker in self.workers:
            for label in worker.resident or ():
                if label not in known:
                    raise StrettoError(f"worker {worker.name} lists {label!r} as resident, which no application has")

    def variants_of(self, application: int) -> range:
        """The variant numbers of an application."""
        start = self.first_variant[application]
        return range(start, start + len(self.applications[application].variants))

    def variant_label(self, variant: int) -> str:
        """application/variant, for people."""
        return f"{self.applications[self.application_of[variant]].name}/{self.variants[variant].name}"

    def profile(self, variant: int, kind: str | None = None) -> LatencyProfile:
        """The profile of a variant on a kind (the first kind in use where none is named)."""
        wanted = self.kinds[0] if kind is None else kind
        profile = self.variants[variant].profile_on(wanted)
        if profile is None:
            raise StrettoError(f"variant {self.variant_label(variant)} has no profile for worker kind {wanted}")
        return profile


def with_latencies(deployment: Deployment, ratios: Sequence[Sequence[float]]) -> Deployment:
    """The same with each profile so many times as long, by variant and kind. Variants and workers keep numbers."""
    factors = {
        (variant, kind): ratios[variant][place]
        for variant in range(len(deployment.variants))
        for place, kind in enumerate(deployment.kinds)
    }
    variants = [
        replace(
            variant,
            profiles=tuple(_moved(profile, factors.get((number, profile.kind), 1.0)) for profile in variant.profiles),
        )
        for number, variant in enumerate(deployment.variants)
    ]
    applications = tuple(
        replace(application, variants=tuple(variants[number] for number in deployment.variants_of(place)))
        for place, application in enumerate(deployment.applications)
    )
    return Deployment(applications, deployment.workers, deployment.quantile)


def with_slos(deployment: Deployment, slos_ns: Sequence[int]) -> Deployment:
    """The same with other SLOs, by application."""
    applications = tuple(
        replace(application, slo_ns=slo_ns)
        for application, slo_ns in zip(deployment.applications, slos_ns, strict=True)
    )
    return Deployment(applications, deployment.workers, deployment.quantile)


def with_evidence(deployment: Deployment, posteriors: Mapping[str, NDArray[np.float64]]) -> Deployment:
    """The same with accuracies by class, for applications of which `posteriors` has θ of samples, [sample, class]."""
    applications = tuple(_told(each, posteriors.get(each.name)) for each in deployment.applications)
    return Deployment(applications, deployment.workers, deployment.quantile)


def _told(application: Application, theta: NDArray[np.float64] | None) -> Application:
    lengths = {len(variant.recall) for variant in application.variants}
    if theta is None or not len(theta) or lengths != {theta.shape[1]}:
        return application  # a posterior over other classes than those that were profiled says nothing
    accuracy, shares = accuracy_by_class(theta, [variant.recall for variant in application.variants])
    variants = tuple(
        replace(variant, accuracy_by_class=tuple(row))
        for variant, row in zip(application.variants, accuracy.clip(0, 1).tolist(), strict=True)
    )
    return replace(application, variants=variants, class_shares=tuple(shares.tolist()))


def _moved(profile: LatencyProfile, factor: float) -> LatencyProfile:
    table_ns = np.round(profile.table_ns * factor).astype(np.int64)
    table_ns[:, 1:] = np.maximum(table_ns[:, 1:], 1)
    return replace(profile, table_ns=table_ns)
