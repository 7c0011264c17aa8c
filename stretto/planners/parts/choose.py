"""What a planner with one variant per application starts from: which variant, on which workers."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import LatencyProfile


def choose_variants(deployment: Deployment, named: Mapping[str, str] | None = None) -> tuple[int, ...]:
    """The variant number of each application: the one `named` (application → variant), else the default.

    The default is the most accurate variant that answers one query within half the SLO, so that a batch may wait for
    another one (Symphony equation 1); where none is that fast, the most accurate that answers within the SLO.
    """
    wanted = dict(named or {})
    known = [application.name for application in deployment.applications]
    for name in wanted:
        if name not in known:
            raise StrettoError(f"a variant is named for application {name[:40]!r}; there are {', '.join(known)}")
    return tuple(
        _named(deployment, number, wanted[name]) if name in wanted else _default(deployment, number)
        for number, name in enumerate(known)
    )


def _named(deployment: Deployment, application: int, name: str) -> int:
    numbers = deployment.variants_of(application)
    for number in numbers:
        if deployment.variants[number].name == name:
            if not _profiles(deployment, number):
                raise StrettoError(f"none of the workers can run variant {deployment.variant_label(number)}")
            return number
    has = ", ".join(deployment.variants[number].name for number in numbers)
    raise StrettoError(
        f"application {deployment.applications[application].name} has no variant {name[:40]!r}; it has {has}"
    )


def _default(deployment: Deployment, application: int) -> int:
    slo_ns = deployment.applications[application].slo_ns
    fastest = {
        number: min(profile.latency_ns(1, deployment.quantile) for profile in profiles)
        for number in deployment.variants_of(application)
        if (profiles := _profiles(deployment, number))
    }
    for budget_ns in (slo_ns // 2, slo_ns):
        fitting = [number for number, latency_ns in fastest.items() if latency_ns <= budget_ns]
        if fitting:
            return max(fitting, key=lambda number: (deployment.variants[number].accuracy, -fastest[number]))
    raise StrettoError(
        f"no variant of application {deployment.applications[application].name} answers a single query within its SLO;"
        " raise the SLO, add a faster variant, or name the variant to use"
    )


def _profiles(deployment: Deployment, variant: int) -> list[LatencyProfile]:
    profiles = (deployment.variants[variant].profile_on(kind) for kind in deployment.kinds)
    return [profile for profile in profiles if profile is not None]


def serving_workers(deployment: Deployment, variant: int) -> tuple[int, ...]:
    """The workers that answer one query within the SLO; where there are none, all that can run the variant."""
    kinds = {profile.kind for profile in serving_profiles(deployment, variant)}
    return tuple(number for number, worker in enumerate(deployment.workers) if worker.kind in kinds)


def serving_profiles(deployment: Deployment, variant: int) -> tuple[LatencyProfile, ...]:
    """The variant's profile on each kind of its serving workers."""
    slo_ns = deployment.applications[deployment.application_of[variant]].slo_ns
    able = _profiles(deployment, variant)
    in_time = [profile for profile in able if profile.latency_ns(1, deployment.quantile) <= slo_ns]
    return tuple(in_time or able)
