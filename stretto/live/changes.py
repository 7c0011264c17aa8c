"""What is served changes: applications come, go and are read anew, workers are added. One change at a time.

A change is taken up without a pause: new models are loaded beside the work, then the engine moves over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Sequence
from operator import is_

from stretto.core.errors import StrettoError
from stretto.live.admission import GRACE_S, Admission
from stretto.live.beginning import beginning_as_before
from stretto.live.fleet import WorkerSpec, check_variants, read_worker
from stretto.live.generation import Served
from stretto.live.quarantine import label_of
from stretto.live.readiness import Readiness
from stretto.live.requests import NoSuchApplication, NotServed
from stretto.live.running import Running
from stretto.live.state import State
from stretto.live.takeover import Takeover
from stretto.repository.repository import Repository
from stretto.repository.reread import Reader
from stretto.repository.signature import signature

log = logging.getLogger("stretto.live")

LOOK_S = 0.01  # how often it is seen whether anything is left
FINISH_S = 60.0  # at most, for what waits for an application that goes


class Changes:
    """The service's: on the loop's thread. `read` is the repository as it was read for what is served. `set_aside` is
    told of models that a worker could not load, with the reason.
    """

    def __init__(
        self,
        service: Running,
        repository: Repository,
        admission: Admission,
        readiness: Readiness,
        takeover: Takeover,
        set_aside: Callable[[dict[str, str]], None],
    ):
        self.read = repository
        self._service, self._offer = service, service.offer
        self._admission, self._readiness, self._takeover = admission, readiness, takeover
        self._set_aside = set_aside
        self._lock = asyncio.Lock()
        self._reader = Reader(service.options.repository)
        self._reading = asyncio.Lock()  # threads that read at the same time would take Python's time from queries
        self._signature = signature(repository)
        self._told = ""  # of the last change that could not be taken up
        self._warned = self._offer.warnings

    async def load(self, *applications: str, at_once: int | None = None) -> None:
        """Read these applications anew and serve them. StrettoError where one cannot be; then all stays as it was.

        `at_once` is how many workers load at a time; None: all.
        """
        repository = await self.read_anew()
        for application in applications:
            repository.application(application)  # refused here where there is none of that name
        await self._try_on_demand(repository, applications)
        async with self._lock:
            offer = self._offer
            were_unloaded = offer.unloaded.intersection(applications)
            offer.unloaded.difference_update(applications)
            try:
                await self._change(await self.read_anew(), at_once)
            except BaseException:
                offer.unloaded |= were_unloaded
                raise
            for application in applications:
                if application not in self._service.files:
                    raise NotServed(self._why_not(application))

    async def read_anew(self) -> Repository:
        """The repository as it is now."""
        async with self._reading:
            return await asyncio.to_thread(self._reader.read, self.read.applications)

    async def _try_on_demand(self, repository: Repository, applications: Sequence[str]) -> None:
        """Whatever of them is new or set aside is tried now. Others are served, changed and loaded meanwhile."""
        async with self._reading:
            everything = await asyncio.to_thread(self._offer.everything, repository)
        self._admission.enlist(everything)
        keys = [key for application in applications for key in self._admission.keys_of(application)]
        self._admission.try_again(key for key in keys if key in self._offer.quarantine.entries)
        await self._admission.settled(keys)

    def _why_not(self, application: str) -> str:
        """Why nothing of it is served, for an operator."""
        for key, entry in self._offer.quarantine.entries.items():
            if key.startswith(f"{application}/"):
                return f"{label_of(key)} is set aside, {entry.told(time.monotonic_ns())}"
        known = self._offer.known.get(application)
        reasons = {
            f"{application}/{variant.name}: {self._offer.why_not(application, variant.name)}"
            for variant in (() if known is None else known.variants)
            if variant.enabled
        }
        return "; ".join(sorted(reasons)) or f"no variant of {application} can be served"

    async def unload(self, application: str) -> None:
        """Stop serving it, once what waits for it has ended. NoSuchApplication where there is none of that name.

        Files are not read anew; but what has been removed cannot be served by a plan that is made now, this one or
        another.
        """
        async with self._lock:
            if application not in self._offer.known:
                raise NoSuchApplication(application)
            if application in self._offer.unloaded:
                return
            if not set(self._service.files) - {application}:
                raise StrettoError("it is the only application that is served; stop the server instead")
            self._offer.unloaded.add(application)
            try:
                await self._without({application})
            except BaseException:
                self._offer.unloaded.discard(application)
                raise

    async def let_go(self, applications: Collection[str]) -> None:
        """They are another scheduler's from now on: as above, once what waits for them has ended."""
        async with self._lock:
            share = self._offer.share
            assert share is not None
            self._offer.share = share.difference(applications)
            try:
                await self._without(applications)
            except BaseException:
                self._offer.share = share
                raise

    async def _without(self, applications: Collection[str]) -> None:
        """Nothing new for these is taken from here on."""
        files = self._service.files
        self._service.files = {name: each for name, each in files.items() if name not in applications}
        try:
            await self._finish(applications)
            await self._change(await asyncio.to_thread(self.read.still_there))
        except BaseException:
            self._service.files = files
            raise

    async def add_workers(self, worker: str) -> None:
        """Further workers, written as for --worker."""
        more = read_worker(worker, self._service.options.worker_memory_bytes)
        check_variants((more,), self.read)
        await self.add(more)

    async def plan_without(self, workers: Sequence[int]) -> None:
        """From now on the plan reckons with these workers no more, as far as its planner does as it is told."""
        async with self._lock:
            await self._service.replanner.replan(workers)

    async def add(self, more: WorkerSpec) -> None:
        """Further workers; they join when they are ready. What is served goes on meanwhile, with its rates, measured
        latencies and policies.
        """
        async with self._lock:
            if self._service.state is not State.SERVING:
                raise StrettoError("the server is starting or going down; workers can be added while it serves")
            before, self._offer.fleet = self._offer.fleet, (*self._offer.fleet, more)
            try:
                ready = await asyncio.to_thread(self._offer.served, self.read)
                async with self._service.replanner.turn:
                    engine = self._service.engine
                    engine.succession.enlarge(beginning_as_before(ready, engine.generation.deployment))
            except BaseException:
                self._offer.fleet = before
                raise
        await self._service.replanner.replan()

    async def _finish(self, applications: Collection[str]) -> None:
        """Wait until nothing is left for these; at most until the last deadline among it, and never for ever."""
        end = self._service.engine.loop.time() + FINISH_S
        while self._service.engine.loop.time() < end:
            deadlines = [
                query.request.deadline_ns
                for generation in self._service.engine.generations()
                for query in generation.queries.values()
                if query.request.application in applications
            ]
            if not deadlines or max(deadlines) < self._service.engine.clock():
                return
            await asyncio.sleep(LOOK_S)

    async def _change(self, repository: Repository, at_once: int | None = None) -> None:
        """Serve what the repository holds now and may be served: models first, on so many workers at a time, then the
        plan, then the move.
        """
        while True:
            everything = await asyncio.to_thread(self._offer.everything, repository)
            self._admission.enlist(everything)
            ready = await asyncio.to_thread(self._offer.served, repository)
            broken = await self._service.engine.succession.hold(ready, at_once)
            if not broken and all(self._offer.may_serve(spec.key) for spec in ready.specs):
                break
            self._set_aside(broken)
        self._admission.keep(everything, self._service.engine.generation.served.keys)
        if self._is_served(ready):
            self.read = repository
            return
        gone = set(self._service.files) - {files.name for files in ready.files}
        if gone:
            self._service.files = {name: files for name, files in self._service.files.items() if name not in gone}
            await self._finish({name for name in gone if name in self._offer.unloaded or name not in self._offer.known})
        await self._takeover.move_over(ready)
        self.read = repository
        self._warn()

    def _warn(self) -> None:
        """What is new to tell about profiles and accuracies of what is served now."""
        for warning in self._offer.warnings:
            if warning not in self._warned:
                log.warning("%s", warning)
        self._warned = self._offer.warnings

    def _is_served(self, ready: Served) -> bool:
        """No file of it was read anew, and all of its models are served already."""
        now = self._service.engine.generation.served
        is_same = len(now.files) == len(ready.files) and all(map(is_, now.files, ready.files))
        return is_same and (now.specs, now.by_slot) == (ready.specs, ready.by_slot)

    async def take_up(self, repository: Repository | None = None) -> bool:
        """Serve what this repository holds, or the one that is served already, as far as it may be by now. False where
        that failed, and may be tried again; the same error is told once.
        """
        async with self._lock:
            try:
                await self._change(repository or self.read)
                self._told = ""
                return True
            except (StrettoError, OSError) as error:  # a file may be gone between two looks
                self._tell(error)
                self._readiness.look_for_anything()
            except Exception as error:  # a planner's own; the next change is to be seen all the same
                self._tell(error, "the change could not be taken up")
            finally:
                self._service.engine.succession.join_ready()
                self._readiness.look()
            return False

    def _tell(self, error: Exception, what: str = "") -> None:
        if self._told != repr(error):
            log.error("%s", what or error, exc_info=error if what else None)
        self._told = repr(error)

    async def watch(self) -> None:
        """A change is taken up when the files have been the same for one look, so that half a copy is not read. One
        that could not be, as where the planner failed, is tried again at the next look.
        """
        settled, is_taken_up = self._signature, True
        while True:
            await asyncio.sleep(self._service.options.reload_s)
            now = await asyncio.to_thread(signature, self.read)
            is_new = now != self._signature
            if now != settled or (is_taken_up and not is_new):
                settled = now
                continue
            self._signature, is_taken_up = now, True
            try:
                repository = await self.read_anew()
            except (StrettoError, OSError) as error:
                log.error("the repository changed and cannot be read; what was served before is served on: %s", error)
                continue
            if is_new:
                log.info("the repository changed and is taken up")
            with contextlib.suppress(StrettoError, OSError):  # whoever takes it up meets the same, and says so
                self._admission.enlist(await asyncio.to_thread(self._offer.everything, repository))
                await self._admission.quiet(GRACE_S)
            is_taken_up = await self.take_up(repository)
            if is_taken_up and not is_new:
                log.info("the change that could not be taken up before is served now")
