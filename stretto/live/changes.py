"""What is served changes: applications come, go and are read anew, workers are added. One change at a time.

A change is taken up without a pause: new models are loaded beside the work, then the engine moves over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Sequence
from operator import is_
from typing import TYPE_CHECKING

from stretto.core.conditions import Conditions
from stretto.core.errors import StrettoError
from stretto.live.beginning import beginning_as_before, beginning_as_planned
from stretto.live.fleet import WorkerSpec, read_worker
from stretto.live.generation import Served
from stretto.live.quarantine import label_of
from stretto.live.repairs import GRACE_S
from stretto.live.requests import NoSuchApplication, NotServed
from stretto.live.state import State
from stretto.planning.readings import view_after_change
from stretto.planning.session import InForce
from stretto.repository.repository import Repository
from stretto.repository.reread import Reader
from stretto.repository.signature import signature

if TYPE_CHECKING:
    from stretto.live.service import Service

log = logging.getLogger("stretto.live")

LOOK_S = 0.01  # how often it is seen whether anything is left
FINISH_S = 60.0  # at most, for what waits for an application that goes


class Changes:
    """The service's: on the loop's thread. `read` is the repository as it was read for what is served."""

    def __init__(self, service: Service, repository: Repository):
        self.read = repository
        self._service = service
        self._offer, self._admission = service.offer, service.admission
        self._lock = asyncio.Lock()
        self._reader = Reader(service.options.repository)
        self._reading = asyncio.Lock()  # threads that read at the same time would take Python's time from queries
        self._signature = signature(repository)

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
            return await asyncio.to_thread(self._reader.read)

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
        if application in self._offer.known and not self._offer.chosen(self._offer.known[application]).variants:
            return f"{application} is not served here: see --variant, --partition and GET /v2/partition"
        return f"no variant of {application} can be served"

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
        await self.add(read_worker(worker, self._service.options.worker_memory_bytes))

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
                    self._service.engine.enlarge(beginning_as_before(ready, self._service.engine.generation.deployment))
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
            broken = await self._service.engine.hold(ready, at_once)
            if not broken and all(self._offer.may_serve(spec.key) for spec in ready.specs):
                break
            self._service.repairs.set_aside(broken)
        self._admission.keep(everything)
        if self._is_served(ready):
            self.read = repository
            return
        gone = set(self._service.files) - {files.name for files in ready.files}
        if gone:
            self._service.files = {name: files for name, files in self._service.files.items() if name not in gone}
            await self._finish({name for name in gone if name in self._offer.unloaded or name not in self._offer.known})
        await self._service.witness_all(ready)
        async with self._service.replanner.turn:
            self._service.maker.forget()
            ready, in_force = beginning_as_planned(ready, await self._planned(ready))
            self._service.files = {files.name: files for files in ready.files}
            self.read = repository
            self._service.replanner.period_s = self._service.session.rhythm.period_for(ready.deployment)
            self._service.engine.replace(ready, in_force)
            if self._service.judging is not None:
                self._service.judging.forget()

    def _is_served(self, ready: Served) -> bool:
        """No file of it was read anew, and all of its models are served already."""
        now = self._service.engine.generation.served
        is_same = len(now.files) == len(ready.files) and all(map(is_, now.files, ready.files))
        return is_same and (now.specs, now.by_slot) == (ready.specs, ready.by_slot)

    async def _planned(self, ready: Served) -> InForce:
        """The first plan for a new deployment: load and workers do not change because the repository did."""
        now_ns, old = self._service.engine.clock(), self._service.engine.generation
        conditions = Conditions(delays=self._service.engine.delays.delays)
        telemetry = old.dispatcher.telemetry(now_ns)
        view = view_after_change(ready.deployment, old.deployment, telemetry, conditions.delays)
        return await asyncio.to_thread(self._service.session.first, ready.deployment, now_ns, conditions, view=view)

    async def take_up(self, repository: Repository | None = None) -> None:
        """Serve what this repository holds, or the one that is served already, as far as it may be by now."""
        async with self._lock:
            try:
                await self._change(repository or self.read)
            except (StrettoError, OSError) as error:  # a file may be gone between two looks
                log.error("%s", error)
                self._service.readiness.look_for_anything()
            except Exception:  # a planner's own; the next change is to be seen all the same
                log.exception("the change could not be taken up")
            finally:
                self._service.engine.join_ready()
                self._service.readiness.look()

    async def watch(self) -> None:
        """A change is taken up when the files have been the same for one look, so that half a copy is not read."""
        settled = self._signature
        while True:
            await asyncio.sleep(self._service.options.reload_s)
            now = await asyncio.to_thread(signature, self.read)
            if now == self._signature or now != settled:
                settled = now
                continue
            self._signature = now
            try:
                repository = await self.read_anew()
            except (StrettoError, OSError) as error:
                log.error("the repository changed and cannot be read; what was served before is served on: %s", error)
                continue
            log.info("the repository changed and is taken up")
            with contextlib.suppress(StrettoError, OSError):  # whoever takes it up meets the same, and says so
                self._admission.enlist(await asyncio.to_thread(self._offer.everything, repository))
                await self._admission.quiet(GRACE_S)
            await self.take_up(repository)
