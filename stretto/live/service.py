"""What `stretto serve` runs: a repository, served. Starting, changes of the repository, draining and the end.

Changes are picked up without a pause: new models are loaded beside the work, then the engine moves over.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from stretto.backends.source import MAX_THREADS
from stretto.core.errors import StrettoError
from stretto.core.profile import Quantile
from stretto.core.view import Planner, View
from stretto.core.worker import UNLIMITED_MEMORY
from stretto.live.crew import Factory
from stretto.live.engine import Engine, MakeDispatcher
from stretto.live.generation import Served, served
from stretto.live.policies import PolicyMaker
from stretto.live.replan import Replanner
from stretto.live.watched import signature
from stretto.live.witness import Evidence, Witness
from stretto.planners.data_aware import DataAware
from stretto.planners.parts.store import load_libraries
from stretto.planners.ports import LooksAtEvidence, Ports, Trial
from stretto.planners.promise import PolicyPlanner
from stretto.planners.registry import planner_entry
from stretto.repository.application import ApplicationFiles
from stretto.repository.read import read_repository
from stretto.repository.repository import Repository

log = logging.getLogger("stretto.live")

DEFAULT_PLANNER = "shared_queue"
EXECUTORS = ("thread", "process")
DRAIN_STEP_S = 0.01
WINDOW_SHARE = 1 / 3  # of the shortest SLO
LEAST_WINDOW_S = 0.002
FINISH_S = 60.0  # at most, for what waits for an application that goes


class State(Enum):
    """Of the service as a whole."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPED = "stopped"


@dataclass(frozen=True)
class ServiceOptions:
    """How a repository is served. `workers` 0: one for each core but one, which is left for the sockets."""

    repository: str
    workers: int = 0
    executor: str = "thread"
    threads: int = 1
    device: str = "cpu"
    kind: str | None = None
    quantile: Quantile = Quantile.MEAN
    worker_memory_bytes: int = UNLIMITED_MEMORY
    planner: str = DEFAULT_PLANNER
    planner_options: Mapping[str, bool | int | float] = field(default_factory=dict)
    data_aware: bool = False  # accuracies by class for a planner that does not look at evidence itself
    policies: Path | None = None  # a file of stretto plan --out, for a planner that follows policies
    trial: Trial | None = None  # for a planner that tries its policies before it follows them
    only: tuple[str, ...] = ()  # variants to serve, as NAME or APPLICATION/NAME; none: all
    replan_s: float | None = None  # how often the planner is asked; None: as often as it is made for
    hang_s: float = 10.0
    reload_s: float = 2.0  # how often the repository is looked at; 0: only when told
    correction: float = 0.02

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise StrettoError(f"there is no executor {self.executor[:40]!r}; there are {', '.join(EXECUTORS)}")
        if not 0 <= self.workers <= 1024:
            raise StrettoError(f"workers is {self.workers}; it must be from 1 to 1024, or 0 for the default")
        if not 1 <= self.threads <= MAX_THREADS:
            raise StrettoError(f"threads is {self.threads}; it must be from 1 to {MAX_THREADS}")
        if self.replan_s is not None and not LEAST_WINDOW_S <= self.replan_s <= 3600:
            raise StrettoError(
                f"the planner is asked each {LEAST_WINDOW_S * 1e3:g} ms to an hour, not {self.replan_s} s"
            )
        if not self.hang_s > 0 or not self.reload_s >= 0:
            raise StrettoError("hang_s must be above 0, and reload_s must not be negative")

    @property
    def worker_count(self) -> int:
        return self.workers or max(1, len(os.sched_getaffinity(0)) - 1 if hasattr(os, "sched_getaffinity") else 1)


class Service:
    """Make it with `await Service.begin(options)`; every call is on the event loop's thread."""

    def __init__(self, options: ServiceOptions, repository: Repository, factory: Factory, make: MakeDispatcher):
        self.options = options
        self.state = State.STARTING
        self.files: dict[str, ApplicationFiles] = {}  # of what is served
        self.known: dict[str, ApplicationFiles] = {}  # of what the repository holds
        self.broken: dict[str, str] = {}  # model keys that cannot be loaded, with the reason
        self.warnings: tuple[str, ...] = ()
        self._unloaded: set[str] = set()
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._repair: asyncio.Task[None] | None = None  # on the way to a generation without what is broken
        entry = planner_entry(options.planner)
        follows_policies = "policies" in entry.ports
        if options.policies is not None and not follows_policies:
            raise StrettoError(f"planner {entry.name} follows no policies; leave the file of policies out")
        stored = () if options.policies is None else load_libraries(options.policies)
        self.maker = PolicyMaker(asyncio.get_running_loop()) if follows_policies else None
        self.planner: Planner = entry.make(options.planner_options, ports=Ports(self.maker, stored, options.trial))
        if options.data_aware and not looks_at_evidence(self.planner):
            self.planner = DataAware(self.planner)
        self._read = repository
        self._check_only(repository)
        ready = self._served(repository)
        self._signature = signature(repository)
        self.engine = Engine(
            ready,
            self.planner,
            factory,
            hang_s=options.hang_s,
            correction=options.correction,
            make_dispatcher=make,
        )
        self.engine.on_broken = self._found_broken
        if looks_at_evidence(self.planner):
            self.engine.witness = Witness(self.engine.loop, self.engine.classified)
        self._entry = entry
        period_s = self._period_s(ready)
        self._replanner = Replanner(self.engine, self.planner, period_s) if period_s else None
        self._tell_unused()

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns at once; the service is ready when its first worker is."""
        await self._witness_all(self.engine.generation.served)
        self.engine.start()
        self.state = State.SERVING
        if self._replanner is not None:
            self._replanner.start()
        if self.options.reload_s > 0:
            self._spawn(self._watch())

    def is_ready(self, application: str | None = None, variant: str = "") -> bool:
        """A worker can serve it, or every application; KeyError for a name that the repository does not hold."""
        if application is None:
            return self.state is State.SERVING and self.engine.crew.ready_count > 0 and not self.missing()
        if application not in self.known:
            raise KeyError(application)
        files = self.files.get(application)
        if variant:
            known = (*self.known[application].variants, *(() if files is None else files.variants))
            if all(each.name != variant for each in known):
                raise KeyError(variant)
        if files is None or self.state is not State.SERVING or self.engine.crew.ready_count == 0:
            return False
        generation = self.engine.generation
        number = generation.numbers.get(application)
        if number is None:
            return False
        names = [
            generation.names[each]
            for each in generation.deployment.variants_of(number)
            if generation.served.specs[each].key not in self.broken
        ]
        return variant in names if variant else bool(names)

    def missing(self) -> list[str]:
        """Applications of the repository that should be served and are not."""
        generation = self.engine.generation
        sound = {
            label.partition("/")[0]
            for number, spec in enumerate(generation.served.specs)
            if spec.key not in self.broken and (label := generation.deployment.variant_label(number))
        }
        wanted = [name for name, files in self.known.items() if self._chosen(files).variants]
        return [name for name in wanted if name not in self._unloaded and name not in sound]

    async def drain(self, limit_s: float) -> bool:
        """Take nothing new, finish what waits and runs; true when nothing was left at the limit."""
        self.state = State.DRAINING
        end = self.engine.loop.time() + limit_s
        while self.engine.waiting and self.engine.loop.time() < end:
            await asyncio.sleep(DRAIN_STEP_S)
        return not self.engine.waiting

    async def stop(self, patience_s: float = 10.0) -> None:
        self.state = State.STOPPED
        if self._replanner is not None:
            self._replanner.stop()
        if self.maker is not None:
            self.maker.close()
        for task in list(self._tasks):
            task.cancel()
        await self.engine.stop(patience_s)

    # -- changes -----------------------------------------------------------------------------------------------------

    async def load(self, application: str) -> None:
        """Read the application anew and serve it. StrettoError where it cannot be; then all stays as it was."""
        async with self._changing:
            repository = await asyncio.to_thread(read_repository, self.options.repository)
            repository.application(application)  # refused here where there is none of that name
            before = set(self._unloaded)
            self._unloaded.discard(application)
            broken = dict(self.broken)
            self.broken = {key: why for key, why in self.broken.items() if not key.startswith(f"{application}/")}
            try:
                await self._change(repository)
            except BaseException:
                self._unloaded, self.broken = before, broken
                raise

    async def unload(self, application: str) -> None:
        """Stop serving it, once what waits for it has ended. KeyError where there is none of that name."""
        async with self._changing:
            if application not in self.known:
                raise KeyError(application)
            if application in self._unloaded:
                return
            rest = set(self.files) - {application}
            if not rest:
                raise StrettoError("it is the only application that is served; stop the server instead")
            self._unloaded.add(application)  # nothing new for it is taken from here on
            self.files.pop(application, None)
            await self._finish({application})
            await self._change(self._read)

    async def _finish(self, applications: set[str]) -> None:
        """Wait until nothing is left for these; at most until the last deadline among it, and never for ever."""
        end = self.engine.loop.time() + FINISH_S
        while self.engine.loop.time() < end:
            deadlines = [
                query.request.deadline_ns
                for generation in self.engine.generations()
                for query in generation.queries.values()
                if query.request.application in applications
            ]
            if not deadlines or max(deadlines) < self.engine.clock():
                return
            await asyncio.sleep(DRAIN_STEP_S)

    async def _change(self, repository: Repository) -> None:
        """Serve what the repository holds now: models first, then the plan, then the move."""
        while True:
            ready = await asyncio.to_thread(self._served, repository)
            held = {spec.key for spec in self.engine.generation.served.specs}
            new = [spec for spec in ready.specs if spec.key not in held]
            broken = await self.engine.hold(new) if new else {}
            if not broken:
                break
            self._tell_broken(broken)
        gone = set(self.files) - {files.name for files in ready.files}
        if gone:
            self.files = {name: files for name, files in self.files.items() if name not in gone}
            await self._finish(gone)
        now_ns = self.engine.clock()
        rates = self.engine.generation.rates(now_ns)  # the load does not change because the repository did
        expected = tuple(rates.get(application.name, 0.0) for application in ready.deployment.applications)
        plan = await asyncio.to_thread(self.planner, View(ready.deployment, now_ns, expected_rates=expected))
        await self._witness_all(ready)
        self.files = {files.name: files for files in ready.files}
        self._read = repository
        if self.maker is not None:
            self.maker.forget()
        if self._replanner is not None:
            self._replanner.period_s = self._period_s(ready)
        self.engine.replace(ready, plan)

    def _period_s(self, ready: Served) -> float:
        """How often to plan; 0: once. Who waits for the next window waits for a part of the shortest SLO at most."""
        if self.options.replan_s is not None:
            return self.options.replan_s
        shortest_s = min(application.slo_ns for application in ready.deployment.applications) / 1e9
        usual_s = self._entry.replan_s or 0.0
        return min(usual_s, max(WINDOW_SHARE * shortest_s, LEAST_WINDOW_S)) if self._entry.by_windows else usual_s

    def _tell_unused(self) -> None:
        """A file of policies that nothing here can use is a mistake, though a server can do without."""
        inner = self.planner.planner if isinstance(self.planner, DataAware) else self.planner
        if self.options.policies is not None and isinstance(inner, PolicyPlanner) and not inner.uses_stored:
            log.warning("%s: none of these policies is for what is served here", self.options.policies.name)

    async def _witness_all(self, ready: Served) -> None:
        """Load the evidence of what will be served. An application that has none is told of, and served without."""
        if self.engine.witness is not None:
            self.engine.witness.use(await asyncio.to_thread(_loaded_evidence, ready.files))

    def _served(self, repository: Repository) -> Served:
        """The deployment of what may be served: chosen, not unloaded, not broken."""
        ready, files, warnings = self._without_broken(repository)
        self.known = {each.name: each for each in repository.applications}
        self.warnings = warnings
        if not self.files:
            self.files = files
        return ready

    def _without_broken(self, repository: Repository) -> tuple[Served, dict[str, ApplicationFiles], tuple[str, ...]]:
        chosen = [self._chosen(files) for files in repository.applications if files.name not in self._unloaded]
        whole = [files for files in chosen if files.variants]
        if not whole:
            raise StrettoError(f"{repository.reference}: nothing can be served; see the messages above")
        options = self.options
        deployment, warnings = replace(repository, applications=tuple(whole)).deployment(
            options.worker_count, options.kind, options.quantile, options.worker_memory_bytes
        )
        by_name = {files.name: files for files in whole}
        ready = served(deployment, by_name, options.threads, options.device)
        bad = [number for number, spec in enumerate(ready.specs) if spec.key in self.broken]
        if bad:
            labels = {deployment.variant_label(number) for number in bad}
            left = tuple(
                replace(files, variants=tuple(v for v in files.variants if f"{files.name}/{v.name}" not in labels))
                for files in whole
            )
            return self._without_broken(replace(repository, applications=left))
        return ready, by_name, warnings

    def _check_only(self, repository: Repository) -> None:
        """Each name that was chosen is that of a variant, at the start; later it may go."""
        labels = [f"{files.name}/{variant.name}" for files in repository.applications for variant in files.variants]
        for name in self.options.only:
            if all(name not in (label, label.partition("/")[2]) for label in labels):
                raise StrettoError(f"{repository.reference} has no variant {name[:80]!r}; it has {', '.join(labels)}")

    def _chosen(self, files: ApplicationFiles) -> ApplicationFiles:
        only = self.options.only
        if not only:
            return files
        kept = tuple(v for v in files.variants if v.name in only or f"{files.name}/{v.name}" in only)
        return replace(files, variants=kept)

    def _found_broken(self, broken: dict[str, str]) -> bool:
        """A worker could not load a model: serve without that variant; true where that is on its way."""
        new = {key: why for key, why in broken.items() if key not in self.broken}
        if new:
            self._tell_broken(new)
            self._repair = self._spawn(self._reread(self._read))
        return self._repair is not None and not self._repair.done()

    def _tell_broken(self, broken: dict[str, str]) -> None:
        for key, why in broken.items():
            log.error("%s is left out: %s", key.partition("@")[0], why)
        self.broken |= broken

    async def _reread(self, repository: Repository) -> None:
        async with self._changing:
            try:
                await self._change(repository)
            except (StrettoError, OSError) as error:  # a file may be gone between two looks
                log.error("%s", error)
            except Exception:  # a planner's own; the next change is to be seen all the same
                log.exception("the change could not be taken up")
            finally:
                self.engine.join_ready()

    async def _watch(self) -> None:
        """A change is taken up when the files have been the same for one look, so that half a copy is not read."""
        settled = self._signature
        while True:
            await asyncio.sleep(self.options.reload_s)
            now = await asyncio.to_thread(signature, self._read)
            if now == self._signature or now != settled:
                settled = now
                continue
            self._signature = now
            try:
                repository = await asyncio.to_thread(read_repository, self.options.repository)
            except (StrettoError, OSError) as error:
                log.error("the repository changed and cannot be read; what was served before is served on: %s", error)
                continue
            log.info("the repository changed and is taken up")
            self.broken.clear()
            await self._reread(repository)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def looks_at_evidence(planner: Planner) -> bool:
    """Whether evidence of classes makes a difference to a planner."""
    return isinstance(planner, LooksAtEvidence) and planner.looks_at_evidence


def _loaded_evidence(files: Sequence[ApplicationFiles]) -> dict[str, Evidence]:
    from stretto.evidence.load import load_evidence

    loaded = {each.name: load_evidence(each) for each in files if math.prod(each.output.shape) == each.classes > 0}
    return {name: evidence for name, evidence in loaded.items() if evidence is not None}
