"""What of a repository is offered: the variants that were chosen, that were not unloaded and that can be loaded."""

from __future__ import annotations

import logging
from dataclasses import replace

from stretto.core.errors import StrettoError
from stretto.core.profile import Quantile
from stretto.live.fleet import WorkerSpec, deployed_workers
from stretto.live.generation import Served, served
from stretto.repository.application import ApplicationFiles
from stretto.repository.repository import Repository

log = logging.getLogger("stretto.live")


class Offer:
    """`only` names variants as NAME or APPLICATION/NAME; none: all. A name that no variant has is refused at once."""

    def __init__(
        self, repository: Repository, fleet: tuple[WorkerSpec, ...], quantile: Quantile, only: tuple[str, ...] = ()
    ) -> None:
        self.fleet = fleet
        self.known: dict[str, ApplicationFiles] = {}  # of what the repository holds
        self.warnings: tuple[str, ...] = ()
        self.broken: dict[str, str] = {}  # model keys that cannot be loaded, with the reason
        self.unloaded: set[str] = set()
        self._quantile = quantile
        self._only = only
        labels = [f"{files.name}/{variant.name}" for files in repository.applications for variant in files.variants]
        for name in only:
            if all(name not in (label, label.partition("/")[2]) for label in labels):
                raise StrettoError(f"{repository.reference} has no variant {name[:80]!r}; it has {', '.join(labels)}")

    def served(self, repository: Repository) -> Served:
        """The deployment of what may be served."""
        chosen = [self.chosen(files) for files in repository.applications if files.name not in self.unloaded]
        ready, self.warnings = self._without_broken(repository, [files for files in chosen if files.variants])
        self.known = {files.name: files for files in repository.applications}
        return ready

    def missing(self, ready: Served) -> list[str]:
        """Applications of the repository that should be served and are not."""
        sound = {
            ready.deployment.applications[ready.deployment.application_of[number]].name
            for number, spec in enumerate(ready.specs)
            if spec.key not in self.broken
        }
        wanted = [name for name, files in self.known.items() if self.chosen(files).variants]
        return [name for name in wanted if name not in self.unloaded and name not in sound]

    def chosen(self, files: ApplicationFiles) -> ApplicationFiles:
        if not self._only:
            return files
        wanted = tuple(v for v in files.variants if v.name in self._only or f"{files.name}/{v.name}" in self._only)
        return replace(files, variants=wanted)

    def tell_broken(self, broken: dict[str, str]) -> None:
        """These cannot be loaded, and are left out from now on."""
        for key, why in broken.items():
            log.error("%s is left out: %s", key.partition("@")[0], why)
        self.broken |= broken

    def _without_broken(
        self, repository: Repository, offered: list[ApplicationFiles]
    ) -> tuple[Served, tuple[str, ...]]:
        if not offered:
            raise StrettoError(f"{repository.reference}: nothing can be served; see the messages above")
        workers = deployed_workers(self.fleet, repository)
        deployment, warnings = replace(repository, applications=tuple(offered)).deployment(workers, self._quantile)
        ready = served(deployment, {files.name: files for files in offered}, self.fleet)
        bad = {deployment.variant_label(n) for n, spec in enumerate(ready.specs) if spec.key in self.broken}
        if not bad:
            return ready, warnings
        left = [
            replace(files, variants=tuple(v for v in files.variants if f"{files.name}/{v.name}" not in bad))
            for files in offered
        ]
        return self._without_broken(repository, [files for files in left if files.variants])
