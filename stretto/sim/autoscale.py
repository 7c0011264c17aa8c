"""A simulated fleet that follows an autoscaler: workers join after their start-up delay, and leave when they have
finished what they run.

A deployment has as many slots as there may ever be workers; those that are not wanted are empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stretto.core.advice import Advice, JudgedFleet
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.fleet import numbered
from stretto.core.profile import NS_PER_S
from stretto.core.worker import Worker
from stretto.dispatch.dispatcher import Dispatcher
from stretto.planning.autoscale import Autoscaler, Floor
from stretto.planning.autoscale_options import AutoscaleOptions
from stretto.planning.fleet_reading import Reading, reading_between, speeds_of
from stretto.planning.judged_fleet import ASK_S, FollowedJudge
from stretto.sim.bounds import fluid_fleet

FleetJudge = Callable[[tuple[float, ...]], JudgedFleet]  # for rates by application; stretto.twin has one


@dataclass(frozen=True)
class Autoscaling:
    """`begin` workers by kind are there at the start. A judge is asked about the rates of the last two periods."""

    options: AutoscaleOptions
    begin: Mapping[str, int]
    floor: Floor | None = None
    judge: FleetJudge | None = None  # whose fleets are followed
    judge_s: float = 0.0  # how long an answer of the judge takes


@dataclass(frozen=True)
class FleetTrace:
    """What became of the fleet. `advice` has one entry a period."""

    seconds: float  # of the run
    advice: tuple[Advice, ...]
    changes: tuple[tuple[float, str, int], ...]  # second, kind, workers there from then on
    worker_seconds: Mapping[str, float]  # by kind, of workers that were there
    cost: float  # of those that are scaled, at so much an hour


def with_slots(deployment: Deployment, options: AutoscaleOptions) -> tuple[Deployment, dict[str, int]]:
    """The deployment with a slot for every worker that may come, and how many of each kind it had."""
    begin = dict.fromkeys(options.kinds, 0)
    for worker in deployment.workers:
        if worker.kind in begin:
            begin[worker.kind] += 1
    slots: tuple[Worker, ...] = deployment.workers
    for kind, bounds in options.kinds.items():
        first = next((worker for worker in deployment.workers if worker.kind == kind), None)
        if first is None:
            raise StrettoError(f"the cluster has no worker of kind {kind}; give it one to begin with")
        more = max(0, bounds.most - begin[kind])
        slots += tuple(
            Worker(each.name, kind, first.memory_bytes, first.resident)
            for each in numbered(slots, kind, more, first.memory_bytes)
        )
    begin = {
        kind: min(max(count, options.kinds[kind].least), options.kinds[kind].most) for kind, count in begin.items()
    }
    return Deployment(deployment.applications, slots, deployment.quantile), begin


def accuracy_floor(deployment: Deployment, accuracy: float, costs: Mapping[str, float]) -> Floor:
    """Fewer workers than the cheapest mix of the fluid bound cannot answer so accurately. Kinds without a cost are as
    they are, and cost nothing.
    """
    counts = Counter(worker.kind for worker in deployment.workers)
    held = {kind: counts[kind] for kind in deployment.kinds if kind not in costs}
    prices = {kind: costs.get(kind, 0.0) for kind in deployment.kinds}

    def floor(rates: Sequence[float]) -> Mapping[str, float]:
        fleet = fluid_fleet(deployment, rates, prices, accuracy=accuracy, held=held)
        return {} if fleet is None else fleet.workers

    return floor


class _Asked:
    """A judge that takes its time: asked as in a server, it answers so many simulated seconds later."""

    def __init__(self, judge: FleetJudge, judge_s: float, options: AutoscaleOptions) -> None:
        self.followed = FollowedJudge(options)
        self._judge, self._judge_ns = judge, round(judge_s * NS_PER_S)
        self._answer: JudgedFleet | None = None
        self._is_asked = False
        self._due_ns = 0  # it answers then, or is asked again
        self._before: Reading | None = None

    def look(self, reading: Reading) -> None:
        before, self._before = self._before, reading
        if self._is_asked and reading.now_ns >= self._due_ns:
            self.followed.hear(self._answer)
            self._is_asked, self._due_ns = False, reading.now_ns + round(ASK_S * NS_PER_S)
        if self._is_asked or before is None or (reading.now_ns < self._due_ns and not self.followed.is_behind):
            return
        seconds = before.seconds + reading.seconds
        rates = tuple((a + b) / seconds for a, b in zip(before.came, reading.came, strict=True))
        if any(rates):
            try:
                self._answer = self._judge(rates)
            except StrettoError:  # no fleet within the bounds is enough
                self._answer = None
            self._is_asked, self._due_ns = True, reading.now_ns + self._judge_ns


class Run(Protocol):
    """The simulated run whose workers come and go."""

    deployment: Deployment
    dispatcher: Dispatcher

    @property
    def now_ns(self) -> int: ...

    def join(self, worker: int) -> None: ...

    def leave(self, worker: int) -> None: ...

    def replan(self) -> None: ...


class SimulatedFleet:
    """The actuator of one run, and who asks the autoscaler there."""

    def __init__(self, run: Run, scaling: Autoscaling) -> None:
        options = scaling.options
        self._run, self._options = run, options
        self._asked = None if scaling.judge is None else _Asked(scaling.judge, scaling.judge_s, options)
        judge = None if self._asked is None else self._asked.followed
        self._control = Autoscaler(options, speeds_of(run.deployment), scaling.floor, judge)
        self._slots: dict[str, list[int]] = {kind: [] for kind in (*options.kinds, *run.deployment.kinds)}
        for number, worker in enumerate(run.deployment.workers):
            self._slots[worker.kind].append(number)
        self._there = {kind: list(slots) for kind, slots in self._slots.items()}
        self._coming: dict[str, list[int]] = {kind: [] for kind in options.kinds}  # when each that was ordered joins
        self._advice: list[Advice] = []
        self._changes: list[tuple[float, str, int]] = []
        self._seconds = dict.fromkeys(self._slots, 0.0)
        self._counted_ns = 0
        for kind in options.kinds:
            slots, count = self._slots[kind], scaling.begin.get(kind, 0)
            if len(slots) < count:
                raise StrettoError(f"there are {len(slots)} slots of kind {kind} for {count} workers")
            self._there[kind] = slots[:count]
            for slot in slots[count:]:
                run.leave(slot)
            self._changes.append((0.0, kind, count))
        run.replan()
        self._before = run.dispatcher.telemetry(run.now_ns)

    def control(self) -> None:
        """A period is over."""
        now = self._run.dispatcher.telemetry(self._run.now_ns)
        reading = reading_between(self._run.deployment, self._before, now, self._run.dispatcher.plan)
        self._before = now
        if reading is None:
            return
        if self._asked is not None:
            self._asked.look(reading)
        advice = self._control(reading)
        self._advice.append(advice)
        has_changed = False
        for kind, count in advice.wanted.items():
            has_changed |= self._scale_to(kind, count)
        if has_changed:
            self._run.replan()

    def arrive(self) -> None:
        """Whoever was ordered long enough ago is there."""
        now_ns, has_changed = self._run.now_ns, False
        self._count()
        for kind, times in self._coming.items():
            due = [at_ns for at_ns in times if at_ns <= now_ns]
            if due:
                self._coming[kind] = [at_ns for at_ns in times if at_ns > now_ns]
                there = set(self._there[kind])
                for slot in [slot for slot in self._slots[kind] if slot not in there][: len(due)]:
                    self._there[kind].append(slot)
                    self._run.join(slot)
                self._changed(kind)
                has_changed = True
        if has_changed:
            self._run.replan()

    def trace(self, seconds: float) -> FleetTrace:
        """At the end of a run of that length."""
        self._count(round(seconds * NS_PER_S))
        cost = sum(bounds.cost * self._seconds[kind] / 3600 for kind, bounds in self._options.kinds.items())
        return FleetTrace(seconds, tuple(self._advice), tuple(self._changes), dict(self._seconds), cost)

    def _scale_to(self, kind: str, count: int) -> bool:
        """True where the workers that are there changed."""
        there, coming = self._there[kind], self._coming[kind]
        more = count - len(there) - len(coming)
        if more > 0:
            coming += [self._run.now_ns + round(self._options.start_s * NS_PER_S)] * more
            return False
        while more < 0 and coming:  # whoever has not come yet is not waited for
            coming.pop()
            more += 1
        if more == 0:
            return False
        self._count()
        there.sort()
        for slot in reversed(there[more:]):
            self._run.leave(slot)
        del there[more:]
        self._changed(kind)
        return True

    def _changed(self, kind: str) -> None:
        self._changes.append((self._run.now_ns / NS_PER_S, kind, len(self._there[kind])))

    def _count(self, until_ns: int | None = None) -> None:
        now_ns = self._run.now_ns if until_ns is None else until_ns
        for kind, there in self._there.items():
            self._seconds[kind] += len(there) * max(0, now_ns - self._counted_ns) / NS_PER_S
        self._counted_ns = max(self._counted_ns, now_ns)
