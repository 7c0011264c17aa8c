"""Workers that run only the variants that they are named for: light and heavy instances of one application.

Those with the same variants are a kind of worker of their own, on which no other variant has a profile. Planners and
the dispatcher ask for profiles by kind, so that all of them keep to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from stretto.core.application import NAME, Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import LatencyProfile

Names = tuple[str, ...]  # of variants, each NAME, APPLICATION/NAME or APPLICATION/*; none: all


def is_named(names: Iterable[str], application: str, variant: str) -> bool:
    """Whether one of the names is this variant's."""
    return any(name in (variant, f"{application}/{variant}", f"{application}/*") for name in names)


def check_names(names: Names, labels: Sequence[str]) -> None:
    """StrettoError where a name is that of no variant; `labels` are APPLICATION/NAME of those that there are."""
    for name in names:
        if not any(is_named((name,), *label.split("/", 1)) for label in labels):
            raise StrettoError(f"there is no variant {name[:80]!r}; there are {', '.join(labels[:20])}")


def kind_of_instances(kind: str, names: Names) -> str:
    """The kind of workers that run only these variants, by the profiles of a kind of machine."""
    if not names:
        return kind
    made = ":".join((kind, *(name.replace("/", ".").replace("*", "all") for name in names)))
    return made if NAME.fullmatch(made) else f"{kind[:80]}:{hashlib.sha256(made.encode()).hexdigest()[:12]}"


def with_instances(deployment: Deployment, names_of: Sequence[Names]) -> Deployment:
    """The deployment whose workers run only the variants that are named for each; without those that none runs."""
    if not any(names_of):
        return deployment
    kinds = {
        kind_of_instances(worker.kind, names): (worker.kind, names)
        for worker, names in zip(deployment.workers, names_of, strict=True)
    }
    workers = tuple(
        replace(worker, kind=kind_of_instances(worker.kind, names))
        for worker, names in zip(deployment.workers, names_of, strict=True)
    )
    applications = []
    for application in deployment.applications:
        on_kinds = ((variant, _profiles_on(kinds, application, variant)) for variant in application.variants)
        variants = tuple(replace(variant, profiles=profiles) for variant, profiles in on_kinds if profiles)
        if not variants:
            raise StrettoError(
                f"no worker runs a variant of application {application.name}; name one of "
                f"{', '.join(variant.name for variant in application.variants[:20])} for a worker"
            )
        applications.append(replace(application, variants=variants))
    return Deployment(tuple(applications), workers, deployment.quantile)


def _profiles_on(
    kinds: dict[str, tuple[str, Names]], application: Application, variant: Variant
) -> tuple[LatencyProfile, ...]:
    """Its profiles on the kinds that run it."""
    return tuple(
        replace(profile, kind=kind)
        for kind, (machine, names) in kinds.items()
        if (not names or is_named(names, application.name, variant.name))
        and (profile := variant.profile_on(machine)) is not None
    )
