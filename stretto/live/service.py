"""What `stretto serve` runs: a repository, served. Its start, draining, the end; what changes is changes.py's."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from stretto.core.client import Clients
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.plan import Delays
from stretto.core.telemetry import Telemetry
from stretto.live.admission import Admission
from stretto.live.beginning import beginning_as_planned
from stretto.live.changes import Changes
from stretto.live.crew import Factory
from stretto.live.delays import DelayMeter
from stretto.live.engine import Engine
from stretto.live.fleet import slot_specs
from stretto.live.judging import Judging, Memory, Twin
from stretto.live.moves import Moves
from stretto.live.offer import Offer
from stretto.live.options import ServiceOptions
from stretto.live.policies import PolicyMaker
from stretto.live.probation import Probation
from stretto.live.readiness import Readiness
from stretto.live.recorder import Journal
from stretto.live.remembered import Remembered
from stretto.live.repairs import Repairs
from stretto.live.replan import Replanner
from stretto.live.scaling import Actuator, FloorMaker, Scaler, named_actuator
from stretto.live.state import State
from stretto.live.takeover import Takeover
from stretto.planners.data_aware import DataAware
from stretto.planners.parts.store import digest_of, load_libraries
from stretto.planners.ports import Ports
from stretto.planners.promise import PolicyPlanner
from stretto.planning.door import let_in
from stretto.planning.served import served_session
from stretto.repository.application import ApplicationFiles
from stretto.repository.repository import Repository

log = logging.getLogger("stretto.live")

DRAIN_STEP_S = 0.01


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
        self._tasks: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        self.readiness = Readiness(self)
        probation = Probation(loop, options.load_s, options.worker_rss_bytes or 0)
        self.admission = Admission(self.offer, probation, Remembered(), time.monotonic_ns, lambda: self.repairs.look())
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.loops = 1  # event loops of this server on this machine
        self.maker = PolicyMaker(loop, self._has_spare_core)
        policies = options.policies
        # For the journal: the path, and the digest of what is read here, for another file may be there later.
        self._policy_file = None if policies is None else (str(policies.resolve()), digest_of(policies))
        self.judging = None
        if twin is not None:
            judges, has_spare_core = options.judges, self._has_spare_core
            self.judging = Judging(loop, twin, self._measured, memory, judges=judges, has_spare_core=has_spare_core)
        self.session = served_session(
            options.planner,
            options.planner_options,
            ports=replace(
                simulator or Ports(),
                policies=self.maker,
                judge=self.judging,
                stored=() if policies is None else load_libraries(policies),
            ),
            data_aware=options.data_aware,
            period_s=options.replan_s,
        )
        self._journal = journal or Journal()
        self._journal.collected = self._collected
        self._factory = factory
        self._takeover = Takeover(self, self.session, self.maker, self.judging)
        self.changes = Changes(
            self,
            repository,
            self.admission,
            self.readiness,
            self._takeover,
            lambda broken: self.repairs.set_aside(broken),
        )
        self.repairs = Repairs(self, self.admission, self.changes.take_up)
        self.moves = None if options.share is None else Moves(self, self.changes, options.share)
        self.engine: Engine  # from `start` on
        self.replanner: Replanner
        self.scaler: Scaler | None = None  # from `start` on, where the fleet is scaled
        self._actuator, self._make_floor = actuator, make_floor

    # -- life --------------------------------------------------------------------------------------------------------

    async def enlist(self) -> None:
        """Models that are new here are tried from now on. `start` does so too; who has other things to do before may
        call this first.
        """
        await self.repairs.enlist(self.changes.read)

    async def start(self) -> None:
        """Returns when there is a plan; the service is ready when its first worker is."""
        options, journal, delays = self.options, self._journal, DelayMeter()
        journal.began(options.planner, options.planner_options, options.data_aware, self._policy_file)
        ready = await self.repairs.first_ready(self.changes.read)
        if options.autoscale is not None:
            options.autoscale.for_kinds(ready.deployment.kinds)  # refused before anything is started
        conditions = Conditions(delays=delays.delays)
        evidence, ready = await self._takeover.load_evidence(ready)
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
        self.engine.on_doubted = self.repairs.doubted
        self.engine.twin = None if self.judging is None else self.judging.twin
        period_s = self.session.rhythm.period_for(ready.deployment)
        self.replanner = Replanner(self.engine, period_s, self.clients)
        self.engine.on_fleet = self._fleet_changed
        self._takeover.use_evidence(evidence)
        self.files = {files.name: files for files in ready.files}
        self.engine.start()
        self.state = State.SERVING
        self.replanner.start()
        self.spawn(self.repairs.try_again())
        self.repairs.look()  # a trial may have ended while the first plan was made
        if options.autoscale is not None:
            actuator = self._actuator or named_actuator(self, self.changes, options.autoscale)
            self.scaler = Scaler(self, options.autoscale, actuator, self._make_floor, self.judging)
            self.spawn(self.scaler.run())
        if self.options.reload_s > 0:
            self.spawn(self.changes.watch())

    def sees_no_inputs(self) -> None:
        """Queries are elsewhere, and no evidence of them is looked at: to be said before the first comes."""
        self.session.sees_inputs = False
        self._takeover.forget_evidence()

    def _fleet_changed(self) -> None:
        self.readiness.look()
        self.replanner.hurry()

    def variants_of(self, application: str) -> tuple[str, ...]:
        """Those that are served under that name; none where it is not."""
        generation = self.engine.generation
        number = generation.numbers.get(application)
        if number is None:
            return ()
        return tuple(generation.names[each] for each in generation.deployment.variants_of(number))

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
        clients.asked(now_ns, client, shape[0], frame_ratio=ratio, **said)
        number, dispatcher = generation.numbers.get(application), generation.dispatcher
        if number is None:  # it is not served any more, which whoever takes it in says
            return True
        return let_in(now_ns, dispatcher.plan, number, clients, client, shape[0], dispatcher.lane_length)

    async def drain(self, limit_s: float) -> bool:
        """Take nothing new, finish what waits and runs; true when nothing was left at the limit."""
        self.state = State.DRAINING
        end = self.engine.loop.time() + limit_s
        while self.engine.waiting and self.engine.loop.time() < end:
            await asyncio.sleep(DRAIN_STEP_S)
        return not self.engine.waiting

    async def stop(self, patience_s: float = 10.0) -> None:
        self.state = State.STOPPED
        self.replanner.stop()
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

    def _has_spare_core(self) -> bool:
        """Beside those that event loops and busy workers take. Where there is but one core, while no worker is busy."""
        if self.state is State.STARTING:
            return True
        specs = slot_specs(self.offer.fleet)
        taken = sum(specs[worker].threads if worker < len(specs) else 1 for worker in self.engine.crew.busy_here())
        return max(self._cores - self.loops, 1) - taken >= 1

    def _collected(self) -> list[Any]:
        """What the planner was given from outside since the last call, for the journal."""
        return self.maker.collected() + ([] if self.judging is None else self.judging.collected())

    def _tell_unused(self) -> None:
        """A file of policies that nothing here can use is a mistake, though a server can do without."""
        planner = self.session.planner
        planner = planner.planner if isinstance(planner, DataAware) else planner
        if self.options.policies is not None and isinstance(planner, PolicyPlanner) and not planner.uses_stored:
            log.warning("%s: none of these policies is for what is served here", self.options.policies.name)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
