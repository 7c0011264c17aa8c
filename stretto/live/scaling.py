"""Autoscaling of a server: each period the autoscaler sees what was measured, and an actuator is told what it wants.

The actuator is a port: threads or processes of this machine, a webhook, or whatever else has `scale_to`. Without one
there is advice only. Numbers are absolute, so that telling them again does no harm; whoever fails is told again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from stretto.core.advice import Advice, FleetNeeds, JudgedFleet, Scaling
from stretto.core.errors import StrettoError
from stretto.core.telemetry import Telemetry
from stretto.live.changes import Changes
from stretto.live.generation import Generation
from stretto.live.judging import Judging
from stretto.live.running import Running
from stretto.live.scaling_options import LOCAL, WEBHOOK, ScalingOptions
from stretto.live.slots import LocalSlots
from stretto.live.state import State
from stretto.live.webhook import Webhook
from stretto.planning.autoscale import Autoscaler, Floor
from stretto.planning.fleet_reading import reading_between, speeds_of
from stretto.planning.judged_fleet import ABOVE, ASK_S, FollowedJudge

if TYPE_CHECKING:
    from stretto.core.deployment import Deployment

log = logging.getLogger("stretto.live")


class Actuator(Protocol):
    """Who brings workers and takes them away."""

    async def scale_to(self, kind: str, count: int) -> None:
        """So many workers of a kind, soon; those that are on their way count. StrettoError where that cannot be done;
        it is asked again then.
        """
        ...


class FloorMaker(Protocol):
    """What a promise of accuracy needs; stretto.sim has one."""

    def __call__(self, deployment: Deployment, accuracy: float, costs: Mapping[str, float]) -> Floor: ...


def named_actuator(service: Running, changes: Changes, given: ScalingOptions) -> Actuator | None:
    """The one that the options name."""
    if given.actuator == LOCAL:
        return LocalSlots(service, changes)
    if given.actuator == WEBHOOK:
        return Webhook(given.webhook, given.token)
    return None


class Scaler:
    """The service's: all of it on the loop's thread. `judging` also says which fleet its best plan would need."""

    def __init__(
        self,
        service: Running,
        given: ScalingOptions,
        actuator: Actuator | None,
        make_floor: FloorMaker | None,
        judging: Judging | None,
    ):
        self._service, self._given, self._actuator = service, given, actuator
        self._make_floor, self._judging = make_floor, judging
        self._control: Autoscaler | None = None  # from the first look on
        self._seen: Generation | None = None
        self._deployment: Deployment | None = None
        self._before: Telemetry | None = None
        self._acting: dict[str, asyncio.Task[None]] = {}
        self._ordered: dict[str, int] = {}  # by kind: the number that an actuator took
        self._ordered_s: dict[str, float] = {}
        self._judge_s = 0.0  # not before that
        workers = service.engine.generation.deployment
        self._options = given.for_kinds(workers.kinds)
        self._followed = FollowedJudge(self._options) if given.follows_judge else None
        bounds = {kind: (each.least, each.most) for kind, each in self._options.kinds.items()}
        first = Advice(service.engine.clock(), {}, self._present())
        self.state = Scaling(first, given.actuator, bounds)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._options.period_s)
            if self._service.state is not State.SERVING:
                continue
            self._ask_judge()
            try:
                advice = await self._look()
            except StrettoError as error:
                log.warning("no autoscaling this time: %s", error)
            except Exception:  # whatever it is, the next period may be another
                log.exception("no autoscaling this time")
            else:
                if advice is not None:
                    self._act(advice)

    def _present(self) -> dict[str, int]:
        engine = self._service.engine
        workers = engine.generation.deployment.workers
        counts = dict.fromkeys((worker.kind for worker in workers), 0)
        for slot, worker in enumerate(workers):
            counts[worker.kind] += engine.crew.is_ready(slot)
        return counts

    async def _look(self) -> Advice | None:
        engine = self._service.engine
        generation, before, seen = engine.generation, self._before, self._seen
        self._before, self._seen = generation.dispatcher.telemetry(engine.clock()), generation
        self._follow(generation.deployment)
        if before is None or seen is not generation:  # counters of another dispatcher
            return None
        reading = reading_between(generation.deployment, before, self._before, generation.dispatcher.plan)
        if reading is None or self._control is None:
            return None
        advice = await asyncio.to_thread(self._control, reading)  # what accuracy needs may take a moment
        was = self.state.advice.wanted
        if was and dict(advice.wanted) != dict(was):
            log.info("%s: %s", advice.reason, ", ".join(f"{kind} {count}" for kind, count in advice.wanted.items()))
            self.state = replace(self.state, changes=self.state.changes + 1)
        self.state = replace(self.state, advice=advice)
        return advice

    def _follow(self, deployment: Deployment) -> None:
        """Speeds, and what accuracy needs, are those of what is served."""
        if deployment is self._deployment:
            return
        before, self._deployment = self._deployment, deployment
        if self._followed is not None and before is not None and _labels(before) != _labels(deployment):
            self._followed.hear(None)  # it answered for others
            self._judge_s = math.inf if math.isinf(self._judge_s) else 0.0
        floor = None
        if self._given.accuracy is not None and self._make_floor is not None:
            costs = {kind: bounds.cost for kind, bounds in self._options.kinds.items()}
            floor = self._make_floor(deployment, self._given.accuracy, costs)
        if self._control is None:
            self._control = Autoscaler(self._options, judge=self._followed)
        self._control.follow(speeds_of(deployment), floor)

    def _ask_judge(self) -> None:
        """Where candidates are judged, it also says which fleet its best plan would need; at once where its answer is
        followed and the load is another.
        """
        now_s = self._service.engine.loop.time()
        is_behind = self._followed is not None and self._followed.is_behind and self._judge_s < math.inf
        if self._judging is not None and (now_s >= self._judge_s or is_behind):
            self._judge_s = math.inf  # while it is asked
            self._service.spawn(self._judge(self._judging))

    async def _judge(self, judging: Judging) -> None:
        costs = {kind: bounds.cost for kind, bounds in self._options.kinds.items()}
        above = 0.0 if self._followed is None else ABOVE
        needs = FleetNeeds(costs, self.state.bounds, self._options.bad_rate, self._given.accuracy or 0.0, above)
        pause_s, deployment = ASK_S, self._service.engine.generation.deployment
        try:
            judged = await judging.cheapest(needs)
        except StrettoError as error:
            log.info("the judge names no fleet: %s", error)
            self._heard(None)
        except Exception:
            log.exception("the judge could not look for a fleet")
        else:
            if judged is None or _labels(deployment) != _labels(self._service.engine.generation.deployment):
                pause_s = 0.0  # too little was measured of what is served; there may be more after the next period
            else:
                self._heard(replace(judged, now_ns=self._service.engine.clock()))
        self._judge_s = self._service.engine.loop.time() + pause_s

    def _heard(self, judged: JudgedFleet | None) -> None:
        self.state = replace(self.state, judged=judged)
        if self._followed is not None:
            self._followed.hear(judged)

    def _act(self, advice: Advice) -> None:
        if self._actuator is None:
            return
        now_s = self._service.engine.loop.time()
        patience_s = self._options.start_s + 2 * self._options.period_s
        for kind, count in advice.wanted.items():
            is_new = self._ordered.get(kind) != count
            is_overdue = advice.present.get(kind, 0) != count and now_s - self._ordered_s.get(kind, 0.0) > patience_s
            task = self._acting.get(kind)
            if is_overdue:
                self._ordered.pop(kind, None)
            if (is_new or is_overdue) and (task is None or task.done()):
                self._acting[kind] = self._service.spawn(self._carry_out(self._actuator, kind))

    async def _carry_out(self, actuator: Actuator, kind: str) -> None:
        """Until what it was told last is what is wanted; a number that is out of date by now is not told."""
        while (count := self.state.advice.wanted[kind]) != self._ordered.get(kind):
            try:
                await actuator.scale_to(kind, count)
            except Exception as error:  # also of an actuator that somebody else wrote
                problem = str(error)[:200] if isinstance(error, StrettoError) else "the actuator failed"
                log.warning("%d workers of kind %s are wanted: %s", count, kind, problem, exc_info=not problem)
                self.state = replace(self.state, failures=self.state.failures + 1, problem=problem)
                self._ordered.pop(kind, None)
                return
            self._ordered[kind], self._ordered_s[kind] = count, self._service.engine.loop.time()
            self.state = replace(self.state, problem="")


def _labels(deployment: Deployment) -> list[str]:
    return [deployment.variant_label(number) for number in range(len(deployment.variants))]
