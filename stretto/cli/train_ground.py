"""What `stretto train` learns on: a scenario, a repository or a recording, and the load that it learns from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stretto.cli.output import progress_bar
from stretto.cli.scenario.load import read_load
from stretto.cli.scenario.read import read_scenario
from stretto.config.fields import read_fields
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS
from stretto.live.fleet import check_variants, deployment_on
from stretto.live.options import ServiceOptions
from stretto.planners.edge_rl.instances import instances_of
from stretto.repository.read import read_repository
from stretto.sim.arrivals import Source
from stretto.sim.query_log import QueryLog
from stretto.sim.service import Empirical, Service
from stretto.twin.measure import Recording, recording_of

LOADS = "EVENTS.jsonl of stretto serve --record, a query log (.csv or .npz), or a .toml with a [load]"


@dataclass(frozen=True)
class Ground:
    """One application on its workers, the queries that come, and how long they run."""

    deployment: Deployment
    source: Source
    service: Service
    seed: int
    warnings: tuple[str, ...]

    def summary(self, slot_ms: float) -> str:
        """A line that says on what a policy is trained."""
        (application,), crew = self.deployment.applications, instances_of(self.deployment)
        names = [self.deployment.variants[instance.variant].name for instance in crew]
        listed = ", ".join(
            f"{name} in {instance.service_ns / NS_PER_MS:.3g} ms" for name, instance in zip(names, crew, strict=True)
        )
        return f"{application.name} within {application.slo_ns / NS_PER_MS:g} ms: {listed}; slots of {slot_ms:g} ms"


def read_ground(what: str, load: Path | None, workers: int, worker: tuple[str, ...]) -> Ground:
    """`load` is a file with queries for a repository, or in place of those of a scenario or a recording."""
    seed = 1
    warnings: tuple[str, ...] = ()
    source: Source | None = None
    suffix = Path(what).suffix.lower()
    if suffix in (".toml", ".jsonl") and (workers or worker):
        raise StrettoError(f"--workers and --worker are for a repository; {what} says which workers there are")
    service: Service = Empirical()
    if suffix == ".toml":
        scenario = read_scenario(Path(what))
        deployment, source, service, seed = scenario.deployment, scenario.source, scenario.service, scenario.seed
    elif suffix == ".jsonl":
        recording = _recording(Path(what))
        deployment, source, service = recording.deployment, recording.queries, recording.setting.service()
    else:
        deployment, warnings = _served(what, ServiceOptions(what, workers=workers, worker=worker))
    _check_one_application(what, deployment)
    if load is not None and load.suffix.lower() == ".jsonl":
        recording = _recording(load)
        source, service = recording.queries, recording.setting.service()
    elif load is not None:
        source = _read_load(load, deployment)
    if source is None:
        raise StrettoError(f"{what} does not say what load there is; give --load FILE: {LOADS}")
    variants = {deployment.variants[instance.variant].name for instance in instances_of(deployment)}
    if len(variants) == 1:
        alike = f"every worker runs {variants.pop()}, so no accuracy can be gained; name others"
        warnings = (*warnings, f"{alike}, as --worker cpu,variant=NAME")
    return Ground(deployment, source, service, seed, warnings)


def _served(what: str, options: ServiceOptions) -> tuple[Deployment, tuple[str, ...]]:
    """The repository on the workers that `stretto serve` would have with these options."""
    repository, fleet = read_repository(what), options.fleet()
    check_variants(fleet, repository)
    return deployment_on(fleet, repository, options.quantile)


def _recording(file: Path) -> Recording:
    with progress_bar(f"reading {file.name}") as progress:
        return recording_of(file, progress)


def _read_load(file: Path, deployment: Deployment) -> Source:
    """The [load] of a .toml, whatever else that holds, or a query log."""
    if file.suffix.lower() == ".toml":
        return read_load(read_fields(file), deployment.applications)
    if file.suffix.lower() in (".csv", ".npz"):
        return QueryLog.read(file)
    raise StrettoError(f"--load {file}: this is no load; give {LOADS}")


def _check_one_application(what: str, deployment: Deployment) -> None:
    names = [application.name for application in deployment.applications]
    if len(names) == 1:
        return
    how = "name one application of a repository, as zoo:fashion; of a server, record it while it serves one"
    raise StrettoError(f"a policy is trained for one application, and {what} has {len(names)}; {how}")
