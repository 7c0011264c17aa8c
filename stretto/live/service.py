"""What `stretto serve` runs: a repository, served. Its start, changes of repository and fleet, draining, the end.

Changes are picked up without a pause: new models are loaded beside the work, then the engine moves over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Collection, Coroutine, Sequence
from dataclasses import replace
from operator import is_
from typing import Any

import numpy as np

from stretto.core.client import Clients
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays
from stretto.core.telemetry import Telemetry
from stretto.core.view import View
from stretto.live.admission import Admission
from stretto.live.beginning import beginning_as_before, beginning_as_planned
from stretto.live.crew import Factory
from stretto.live.delays import DelayMeter
from stretto.live.engine import Engine
from stretto.live.fleet import WorkerSpec, read_worker
from stretto.live.generation import Served
from stretto.live.judging import Judging, Memory, Twin
from stretto.live.moves import Moves
from stretto.live.offer import Offer
from stretto.live.options import ServiceOptions
from stretto.live.policies import PolicyMaker
from stretto.live.probation import Probation
from stretto.live.quarantine import label_of
from stretto.live.readiness import Readiness
from stretto.live.recorder import Journal
from stretto.live.remembered import Remembered
from stretto.live.repairs import GRACE_S, Repairs
from stretto.live.replan import Replanner
from stretto.live.requests import NoSuchApplication, NotServed
from stretto.live.scaling import Actuator, FloorMaker, Scaler, scaler_for
from stretto.live.state import State
from stretto.live.witness import Evidence, Witness
from stretto.planners.data_aware import DataAware
from stretto.planners.parts.store import load_libraries
from stretto.planners.ports import Ports
from stretto.planners.promise import PolicyPlanner
from stretto.planning.door import is_beyond_share
from stretto.planning.served import served_session
from stretto.planning.session import InForce
from stretto.repository.application import ApplicationFiles
from stretto.repository.repository import Repository
from stretto.repository.reread import Reader
from stretto.repository.signature import signature

log = logging.getLogger("stretto.live")

DRAIN_STEP_S = 0.01
FINISH_S = 60.0  # at most, for what waits for an application that goes


class Service:
    """Every call is on the event loop's thread."""

    def __init__(
        self,
        options: ServiceOptions,
        repository: Repository,
        factory: Factory,
        journal: Journal | None = None,
        simulator: Ports | None = None,
        twin: Twin | None = None,
        memory: Memory | None = None,
        actuator: Actuator | None = None,
        make_floor: FloorMaker | None = None,
    ) -> None:
        """`simulator` is what planners are given of it; `twin` judges candidates for those that ask, and `memory` has
        what was judged before. `actuator` scales the fleet where the options ask for that, in the place of the one that
        they name; `make_floor` knows what an accuracy needs.
        """
        self.options = options
        self.state = State.STARTING
        self.files: dict[str, ApplicationFiles] = {}  # of what is served
        self.clients = Clients()
        share = None if options.share is None else options.share.applications
        self.offer = Offer(repository, options.fleet(), options.quantile, options.only, share)
        self._changing = asyncio.Lock()
        self._reader = Reader(options.repository)
        self._reading = asyncio.Lock()  # threads that read at the same time would take Python's time from queries
        self._tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        self.moves = None if options.share is None else Moves(self, options.share)
        self.readiness = Readiness(self)
        self.repairs = Repairs(self)
        probation = Probation(loop, options.load_s, options.worker_rss_bytes or 0)
        self.admission = Admission(self.offer, probation, Remembered(), time.monotonic_ns, self.repairs.look)
        self.maker = PolicyMaker(loop)
        self.judging = None if twin is None else Judging(loop, twin, self._measured, memory)
        self.session = served_session(
            options.planner,
            options.planner_options,
            ports=replace(
                simulator or Ports(),
                policies=self.maker,
                judge=self.judging,
                stored=() if options.policies is None else load_libraries(options.policies),
            ),
            data_aware=options.data_aware,
            period_s=options.replan_s,
        )
        self._journal = journal or Journal()
        self._journal.collected = self._collected
        self._factory = factory
        self._read = repository
        self._signature = signature(repository)
        self.engine: Engine  # from `start` on
        self._replanner: Replanner
        self.scaler: Scaler | None = None  # from `start` on, where the fleet is scaled
        self._actuator, self._make_floor = actuator, make_floor

    # -- life --------------------------------------------------------------------------------------------------------

    async def enlist(self) -> None:
        """Models that are new here are tried from now on. `start` does so too; who has other things to do before may
        call this first.
        """
        await self.repairs.enlist(self._read)

    async def start(self) -> None:
        """Returns when there is a plan; the service is ready when its first worker is."""
        options, journal, delays = self.options, self._journal, DelayMeter()
        journal.began(options.planner, options.planner_options, options.data_aware)
        ready = await self.repairs.first_ready(self._read)
        if options.autoscale is not None:
            options.autoscale.for_kinds(ready.deployment.kinds)  # refused before anything is started
        conditions = Conditions(delays=delays.delays)
        first = await asyncio.to_thread(self.session.first, ready.deployment, time.monotonic_ns(), conditions)
        ready, first = beginning_as_planned(ready, first)
        self._tell_unused()
        self.engine = Engine(
            ready,
            self.session,
            self._factory,
            first=first,
            hang_s=options.hang_s,
            load_s=options.load_s,
            memory_bytes=options.process_bytes,
            tells_failures=options.tells_failures,
            correction=options.correction,
            delays=delays,
            journal=journal,
        )
        self.engine.on_broken = self.repairs.found_broken
        self.engine.on_blamed = self.repairs.blamed
        self.engine.twin = None if self.judging is None else self.judging.twin
        if self.session.looks_at_evidence:
            self.engine.witness = Witness(self.engine.loop, self.engine.classified)
        period_s = self.session.rhythm.period_for(ready.deployment)
        self._replanner = Replanner(self.engine, period_s, self.clients)
        self.engine.on_fleet = self._fleet_changed
        await self._witness_all(ready)
        self.files = {files.name: files for files in ready.files}
        self.engine.start()
        self.state = State.SERVING
        self._replanner.start()
        self.spawn(self.repairs.try_again())
        self.repairs.look()  # a trial may have ended while the first plan was made
        if options.autoscale is not None:
            self.scaler = scaler_for(self, options.autoscale, self._actuator, self._make_floor)
            self.spawn(self.scaler.run())
        if self.options.reload_s > 0:
            self.spawn(self._watch())

    def _fleet_changed(self) -> None:
        self.readiness.look()
        self._replanner.hurry()

    def from_fast_to_accurate(self, application: str) -> tuple[str, ...]:
        """The variants of what is served under that name; none where it is not."""
        generation = self.engine.generation
        number = generation.numbers.get(application)
        if number is None:
            return ()
        return tuple(generation.names[each] for each in generation.deployment.from_fast_to_accurate(number))

    def is_ready(self, application: str | None = None, variant: str = "") -> bool:
        """A worker can serve it; or, of the server, something that is served (all of it, where that was asked for).
        KeyError for a name that the repository does not hold.
        """
        if application is None:
            return self.readiness.of_server()
        return self.readiness.of_application(application, variant)

    def heard_from(self, client: int, application: str, shape: tuple[int, ...], sent_bytes: int, **said: Any) -> bool:
        """Count what a client asks and note what it says of its network. False where that is more than it was planned
        with of a lane that it shares, while somebody waits there.
        """
        now_ns, generation, clients = self.engine.clock(), self.engine.generation, self.clients
        ratio = generation.frame_ratio(application, shape, sent_bytes)
        clients.asked(now_ns, client, application, shape[0], frame_ratio=ratio, **said)
        number, dispatcher = generation.numbers.get(application), generation.dispatcher
        if number is not None and is_beyond_share(
            now_ns, dispatcher.plan, number, clients, client, dispatcher.lane_length
        ):
            return False
        clients.admitted(now_ns, client, shape[0])
        return True

    async def drain(self, limit_s: float) -> bool:
        """Take nothing new, finish what waits and runs; true when nothing was left at the limit."""
        self.state = State.DRAINING
        end = self.engine.loop.time() + limit_s
        while self.engine.waiting and self.engine.loop.time() < end:
            await asyncio.sleep(DRAIN_STEP_S)
        return not self.engine.waiting

    async def stop(self, patience_s: float = 10.0) -> None:
        self.state = State.STOPPED
        self._replanner.stop()
        self.close_asides()
        for task in list(self._tasks):
            task.cancel()
        await self.engine.stop(patience_s)

    def close_asides(self) -> None:
        """The processes that work beside the serving end."""
        self.admission.close()
        self.maker.close()
        if self.judging is not None:
            self.judging.close()

    def _measured(self) -> tuple[Deployment, Telemetry, Delays]:
        """As of now, for the judge."""
        engine, generation = self.engine, self.engine.generation
        return generation.deployment, generation.dispatcher.telemetry(engine.clock()), engine.delays.delays

    def _collected(self) -> list[Any]:
        """What the planner was given from outside since the last call, for the journal."""
        return self.maker.collected() + ([] if self.judging is None else self.judging.collected())

    # -- changes -----------------------------------------------------------------------------------------------------

    async def load(self, *applications: str, at_once: int | None = None) -> None:
        """Read these applications anew and serve them. StrettoError where one cannot be; then all stays as it was.

        `at_once` is how many workers load at a time; None: all.
        """
        repository = await self.read_anew()
        for application in applications:
            repository.application(application)  # refused here where there is none of that name
        await self._try_on_demand(repository, applications)
        async with self._changing:
            offer = self.offer
            were_unloaded = offer.unloaded.intersection(applications)
            offer.unloaded.difference_update(applications)
            try:
                await self._change(await self.read_anew(), at_once)
            except BaseException:
                offer.unloaded |= were_unloaded
                raise
            for application in applications:
                if application not in self.files:
                    raise NotServed(self._why_not(application))

    async def read_anew(self) -> Repository:
        """The repository as it is now."""
        async with self._reading:
            return await asyncio.to_thread(self._reader.read)

    async def _try_on_demand(self, repository: Repository, applications: Sequence[str]) -> None:
        """Whatever of them is new or set aside is tried now. Others are served, changed and loaded meanwhile."""
        async with self._reading:
            everything = await asyncio.to_thread(self.offer.everything, repository)
        self.admission.enlist(everything)
        keys = [key for application in applications for key in self.admission.keys_of(application)]
        self.admission.try_again(key for key in keys if key in self.offer.quarantine.entries)
        await self.admission.settled(keys)

    def _why_not(self, application: str) -> str:
        """Why nothing of it is served, for an operator."""
        for key, entry in self.offer.quarantine.entries.items():
            if key.startswith(f"{application}/"):
                return f"{label_of(key)} is set aside, {entry.told(time.monotonic_ns())}"
        if application in self.offer.known and not self.offer.chosen(self.offer.known[application]).variants:
            return f"{application} is not served here: see --variant, --partition and GET /v2/partition"
        return f"no variant of {application} can be served"

    async def unload(self, application: str) -> None:
        """Stop serving it, once what waits for it has ended. NoSuchApplication where there is none of that name.

        Files are not read anew; but what has been removed cannot be served by a plan that is made now, this one or
        another.
        """
        async with self._changing:
            if application not in self.offer.known:
                raise NoSuchApplication(application)
            if application in self.offer.unloaded:
                return
            if not set(self.files) - {application}:
                raise StrettoError("it is the only application that is served; stop the server instead")
            self.offer.unloaded.add(application)
            try:
                await self._without({application})
            except BaseException:
                self.offer.unloaded.discard(application)
                raise

    async def let_go(self, applications: Collection[str]) -> None:
        """They are another scheduler's from now on: as above, once what waits for them has ended."""
        async with self._changing:
            share = self.offer.share
            assert share is not None
            self.offer.share = share.difference(applications)
            try:
                await self._without(applications)
            except BaseException:
                self.offer.share = share
                raise

    async def _without(self, applications: Collection[str]) -> None:
        """Nothing new for these is taken from here on."""
        files = self.files
        self.files = {name: each for name, each in files.items() if name not in applications}
        try:
            await self._finish(applications)
            await self._change(await asyncio.to_thread(self._read.still_there))
        except BaseException:
            self.files = files
            raise

    async def add_workers(self, worker: str) -> None:
        """Further workers, written as for --worker."""
        await self.add(read_worker(worker, self.options.worker_memory_bytes))

    async def plan_without(self, workers: Sequence[int]) -> None:
        """From now on the plan reckons with these workers no more, as far as its planner does as it is told."""
        async with self._changing:
            await self._replanner.replan(workers)

    async def add(self, more: WorkerSpec) -> None:
        """Further workers; they join when they are ready. What is served goes on meanwhile, with its rates, measured
        latencies and policies.
        """
        async with self._changing:
            if self.state is not State.SERVING:
                raise StrettoError("the server is starting or going down; workers can be added while it serves")
            before, self.offer.fleet = self.offer.fleet, (*self.offer.fleet, more)
            try:
                ready = await asyncio.to_thread(self.offer.served, self._read)
                async with self._replanner.turn:
                    self.engine.enlarge(beginning_as_before(ready, self.engine.generation.deployment))
            except BaseException:
                self.offer.fleet = before
                raise
        await self._replanner.replan()

    async def _finish(self, applications: Collection[str]) -> None:
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

    async def _change(self, repository: Repository, at_once: int | None = None) -> None:
        """Serve what the repository holds now and may be served: models first, on so many workers at a time, then the
        plan, then the move.
        """
        while True:
            everything = await asyncio.to_thread(self.offer.everything, repository)
            self.admission.enlist(everything)
            ready = await asyncio.to_thread(self.offer.served, repository)
            broken = await self.engine.hold(ready, at_once)
            if not broken and all(self.offer.may_serve(spec.key) for spec in ready.specs):
                break
            self.repairs.set_aside(broken)
        self.admission.keep(everything)
        if self._is_served(ready):
            self._read = repository
            return
        gone = set(self.files) - {files.name for files in ready.files}
        if gone:
            self.files = {name: files for name, files in self.files.items() if name not in gone}
            await self._finish({name for name in gone if name in self.offer.unloaded or name not in self.offer.known})
        await self._witness_all(ready)
        async with self._replanner.turn:
            self.maker.forget()
            ready, in_force = beginning_as_planned(ready, await self._planned(ready))
            self.files = {files.name: files for files in ready.files}
            self._read = repository
            self._replanner.period_s = self.session.rhythm.period_for(ready.deployment)
            self.engine.replace(ready, in_force)
            if self.judging is not None:
                self.judging.forget()

    def _is_served(self, ready: Served) -> bool:
        """No file of it was read anew, and all of its models are served already."""
        now = self.engine.generation.served
        is_same = len(now.files) == len(ready.files) and all(map(is_, now.files, ready.files))
        return is_same and (now.specs, now.by_slot) == (ready.specs, ready.by_slot)

    async def _planned(self, ready: Served) -> InForce:
        """The first plan for a new deployment: load and workers do not change because the repository did."""
        now_ns, old = self.engine.clock(), self.engine.generation
        telemetry = old.dispatcher.telemetry(now_ns)
        rates = [
            float(telemetry.rates[old.numbers[application.name]]) if application.name in old.numbers else 0.0
            for application in ready.deployment.applications
        ]
        delays = self.engine.delays.delays
        view = View(ready.deployment, now_ns, np.array(rates), alive=telemetry.worker_alive, delays=delays)
        conditions = Conditions(delays=delays)
        return await asyncio.to_thread(self.session.first, ready.deployment, now_ns, conditions, view=view)

    def _tell_unused(self) -> None:
        """A file of policies that nothing here can use is a mistake, though a server can do without."""
        planner = self.session.planner
        planner = planner.planner if isinstance(planner, DataAware) else planner
        if self.options.policies is not None and isinstance(planner, PolicyPlanner) and not planner.uses_stored:
            log.warning("%s: none of these policies is for what is served here", self.options.policies.name)

    async def _witness_all(self, ready: Served) -> None:
        """Load the evidence of what will be served. An application that has none is told of, and served without."""
        if self.engine.witness is not None:
            self.engine.witness.use(await asyncio.to_thread(_loaded_evidence, ready.files))

    async def take_up(self, repository: Repository | None = None) -> None:
        """Serve what this repository holds, or the one that is served already, as far as it may be by now."""
        async with self._changing:
            try:
                await self._change(repository or self._read)
            except (StrettoError, OSError) as error:  # a file may be gone between two looks
                log.error("%s", error)
                self.readiness.look_for_anything()
            except Exception:  # a planner's own; the next change is to be seen all the same
                log.exception("the change could not be taken up")
            finally:
                self.engine.join_ready()
                self.readiness.look()

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
                repository = await self.read_anew()
            except (StrettoError, OSError) as error:
                log.error("the repository changed and cannot be read; what was served before is served on: %s", error)
                continue
            log.info("the repository changed and is taken up")
            with contextlib.suppress(StrettoError, OSError):  # whoever takes it up meets the same, and says so
                self.admission.enlist(await asyncio.to_thread(self.offer.everything, repository))
                await self.admission.quiet(GRACE_S)
            await self.take_up(repository)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _loaded_evidence(files: Sequence[ApplicationFiles]) -> dict[str, Evidence]:
    from stretto.evidence.load import load_evidence

    loaded = {each.name: load_evidence(each) for each in files if math.prod(each.output.shape) == each.classes > 0}
    return {name: evidence for name, evidence in loaded.items() if evidence is not None}
