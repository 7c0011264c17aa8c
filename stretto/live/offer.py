"""What of a repository is offered: the variants that were chosen, that were not unloaded and that may be served."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.instances import is_named
from stretto.core.profile import Quantile
from stretto.live.fleet import WorkerSpec, check_variants, deployed_workers, deployment_on
from stretto.live.generation import Served, served
from stretto.live.quarantine import Quarantine
from stretto.repository.application import ApplicationFiles
from stretto.repository.repository import Repository

log = logging.getLogger("stretto.live")


class NothingToServe(StrettoError):
    """Nothing of the repository may be served at present."""


class Offer:
    """`only` names variants as NAME, APPLICATION/NAME or APPLICATION/*; none: all. What no variant is named by is
    refused at once. `share` names the applications that are served here and not by another scheduler; None: all.
    """

    def __init__(
        self,
        repository: Repository,
        fleet: tuple[WorkerSpec, ...],
        quantile: Quantile,
        only: tuple[str, ...] = (),
        share: Iterable[str] | None = None,
    ) -> None:
        self.fleet = fleet
        self.known: dict[str, ApplicationFiles] = {}  # of what the repository holds
        self.unreadable: dict[str, str] = {}  # applications that cannot be read as they are now, and why
        self.left_out: dict[str, str] = {}  # APPLICATION/VARIANT of what could not be served were it sound, and why
        self.warnings: tuple[str, ...] = ()
        self.quarantine = Quarantine()  # models that are set aside
        self.passed: set[str] = set()  # keys of models that passed their probation
        self.unloaded: set[str] = set()
        self._quantile = quantile
        self._only = only
        self.share = None if share is None else frozenset(share)
        unreadable = {each.name for each in repository.unreadable}
        for name in self.share or ():
            if name not in unreadable:
                repository.application(name)  # refused here where there is none of that name
        labels = [f"{files.name}/{variant.name}" for files in repository.applications for variant in files.variants]
        for name in only if not unreadable else ():  # what cannot be read may have it
            if not any(is_named((name,), *label.split("/", 1)) for label in labels):
                raise StrettoError(f"{repository.reference} has no variant {name[:80]!r}; it has {', '.join(labels)}")
        check_variants(fleet, repository)
        for files in self._offered(repository):
            if not self._runs(files):
                variants = ", ".join(variant.name for variant in files.variants)
                raise StrettoError(f"no worker runs application {files.name}; name one of {variants} for a worker")

    def served(self, repository: Repository) -> Served:
        """The deployment of what may be served. NothingToServe where that is nothing."""
        offered = [files for files in self._offered(repository) if files.name not in self.unloaded]
        return self._deployed(repository, offered, self.may_serve)

    def everything(self, repository: Repository) -> Served:
        """The deployment of what could be served if every model were sound and nothing was unloaded. Whatever else the
        repository holds is told of, with the reason, once.
        """
        self.known = {files.name: files for files in repository.applications}
        unreadable, self.unreadable = self.unreadable, {each.name: each.reason for each in repository.unreadable}
        for name, reason in self.unreadable.items():
            if unreadable.get(name) != reason:
                what = "is served on as it was read before" if name in self.known else "is left out"
                log.error("application %s cannot be read and %s: %s", name, what, reason)
        offered = self._offered(repository)
        ready = self._deployed(repository, offered, lambda key: True)
        deployed = {ready.deployment.variant_label(number) for number in range(len(ready.specs))}
        kinds = tuple(dict.fromkeys(worker.kind for worker in deployed_workers(self.fleet, repository)))
        before, part = self.left_out, replace(repository, applications=tuple(offered))
        self.left_out = part.left_out(deployed, kinds)
        for label, reason in self.left_out.items():
            if before.get(label) != reason:
                log.warning("%s is left out: %s", label, reason)
        return ready

    def why_not(self, application: str, variant: str) -> str:
        """Why a variant that is enabled, and was never tried or passed its trial, is not served."""
        if application in self.unloaded:
            return "it was unloaded; load it to serve it again"
        if all(each.name != variant for each in self.chosen(self.known[application]).variants):
            return "it is not served here: see --variant, --partition and GET /v2/partition"
        return self.left_out.get(f"{application}/{variant}", "no worker has loaded it yet")

    def may_serve(self, key: str) -> bool:
        return key in self.passed and key not in self.quarantine.entries

    def deployment_of(self, repository: Repository, names: Collection[str]) -> Deployment:
        """Of these applications alone, if every model were sound."""
        named = [self._named(files) for files in repository.applications if files.name in names]
        return self._deployed(repository, [files for files in named if files.variants], lambda key: True).deployment

    def _offered(self, repository: Repository) -> list[ApplicationFiles]:
        return [files for files in map(self.chosen, repository.applications) if files.variants]

    def _runs(self, files: ApplicationFiles) -> bool:
        """Whether some worker may run one of its variants."""
        named = [spec.variants for spec in self.fleet]
        return not all(named) or any(is_named(names, files.name, v.name) for names in named for v in files.variants)

    def missing(self, ready: Served) -> list[str]:
        """Applications of the repository that should be served and are not."""
        sound = {
            ready.deployment.applications[ready.deployment.application_of[number]].name
            for number, spec in enumerate(ready.specs)
            if self.may_serve(spec.key)
        }
        wanted = [name for name, files in self.known.items() if self.chosen(files).variants]
        wanted += [name for name in self.unreadable if name not in self.known]
        return [name for name in wanted if name not in self.unloaded and name not in sound]

    def chosen(self, files: ApplicationFiles) -> ApplicationFiles:
        if self.share is not None and files.name not in self.share:
            return replace(files, variants=())
        return self._named(files)

    def _named(self, files: ApplicationFiles) -> ApplicationFiles:
        if not self._only:
            return files
        wanted = tuple(v for v in files.variants if is_named(self._only, files.name, v.name))
        return replace(files, variants=wanted)

    def _deployed(
        self, repository: Repository, offered: list[ApplicationFiles], may_serve: Callable[[str], bool]
    ) -> Served:
        offered = [files for files in offered if self._runs(files)]
        if not offered:
            raise NothingToServe(f"{repository.reference}: nothing can be served; see the messages above")
        part = replace(repository, applications=tuple(offered), unreadable=())
        deployment, warnings = deployment_on(self.fleet, part, self._quantile)
        ready = served(deployment, {files.name: files for files in offered}, self.fleet)
        bad = {deployment.variant_label(n) for n, spec in enumerate(ready.specs) if not may_serve(spec.key)}
        if not bad:
            self.warnings = warnings
            return ready
        left = [
            replace(files, variants=tuple(v for v in files.variants if f"{files.name}/{v.name}" not in bad))
            for files in offered
        ]
        return self._deployed(repository, [files for files in left if files.variants], may_serve)
