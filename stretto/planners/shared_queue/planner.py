"""The shared queue online: a lane for each application, served by all workers, that follows the table for its load.

The load is a moving average over 500 ms; the policy in force is that of the lowest load that covers it. Several
applications share the workers: each policy is for the part of the pool that its application should have, as the price
of worker time has it (`priced`). While a policy is not made yet, one for a little more load serves, or else that
planner's own table.

Workers that are slower than their profile by a factor ρ are as many workers under ρ times the load, whose slack is
worth 1/ρ: the policy for that load is taken, and its table stretched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Lane, Late, Order, Plan, Table, Tables, by_application
from stretto.core.view import View
from stretto.planners.priced import RATE_WINDOW_NS, Pace, Priced, loads_of, pressure_of, worker_shares
from stretto.planners.ramsis.laws import Gamma, Law, Poisson
from stretto.planners.ramsis.library import Library
from stretto.planners.ramsis.policy import Policy
from stretto.planners.ramsis.store import Stored, matching
from stretto.planners.ramsis.task import Task, task_of
from stretto.planners.shared_queue.belief import believed
from stretto.planners.shared_queue.options import Options
from stretto.planners.shared_queue.policy import make_policy

RUNG = 1.08  # policies made on demand are for loads this factor apart
PART_RUNG = 1.05  # and for parts of the pool this factor apart
SLOW_RUNG = 1.05
BURST_RUNG = RUNG**4  # loads that a burst may bring are told apart by this factor
MOST_BURST = 6.0  # times the load; a queue that tells of more has the policy for so much
STAND_IN = 1.3  # a policy for up to so many times the load may serve until the right one is there
KEPT_TABLES = 200
MOST_PRESSURE = 1.5
OVERLOAD = 0.95  # of what the workers can answer at most, from where on small batches are avoided
GOOD_PACE = 0.97  # of the best pace: a batch that reaches it is large enough
BUSY = 0.8  # of what the workers can answer
LEAST_SLOW, MOST_SLOW = 0.7, 4.0
QUIET = 0.1  # of what the workers can answer with the most accurate variant: below this all policies are the same
HIGHEST = 1.05  # of what they can answer at most: and above

Request = Callable[[Task, Options, float], None]
Key = tuple[str, str, int]  # application, kind, workers


@dataclass(eq=False)
class SharedQueue:
    """A planner that remembers its policies.

    `stored` policies are used where there are any; they must match. A policy that is missing is asked for through
    `request`, and another serves until `add` brings it; without `request` it is computed on the spot. The defaults are
    for real workers, which are never quite on time; for exact ones there is nothing to fear: noise and margin 0.
    """

    slack_steps: int = 100
    max_late: float = 0.001
    noise: float = 0.1
    margin: float = 0.1
    gamma_shape: float = 1.0
    queries: int = 50_000
    prior: float = 10.0  # queries that the measured load is worth against what the queue shows; 0: it is all there is
    stored: Sequence[Stored] = ()
    request: Request | None = None
    _libraries: dict[Key, Library] = field(default_factory=dict, init=False)
    _asked: set[tuple[Key, float]] = field(default_factory=set, init=False)
    _deployment: Deployment | None = field(default=None, init=False)
    _mixed: dict[tuple[int, ...], tuple[Policy, list[Policy]]] = field(default_factory=dict, init=False)
    _pressure: float = field(default=1.0, init=False)
    _fallback: Priced = field(default_factory=Priced, init=False)
    _last: tuple[object, Plan] | None = field(default=None, init=False)
    _chosen: dict[tuple[str, str], Policy] = field(default_factory=dict, init=False)

    @property
    def options(self) -> Options:
        """How policies are computed."""
        law: Law = Poisson() if self.gamma_shape == 1 else Gamma(self.gamma_shape)
        return Options(
            slack_steps=self.slack_steps,
            max_late=self.max_late,
            noise=self.noise,
            margin=self.margin,
            queries=self.queries,
            law=law,
        )

    @staticmethod
    def make(task: Task, options: Options, load: float) -> Policy:
        """What `request` stands for."""
        return make_policy(task, options, load)

    def add(self, task: Task, policy: Policy) -> None:
        """A policy that was asked for has been made; one for another deployment than that in use is not taken."""
        key = (task.application, task.kind, task.workers)
        library = self._libraries.get(key)
        if library is not None and library.task.described() == task.described():
            self._libraries[key] = library.added(policy)

    def missed(self, task: Task, load: float) -> None:
        """A policy that was asked for could not be made; it may be asked for again."""
        key = (task.application, task.kind, task.workers)
        self._asked.discard((key, load))

    @property
    def uses_stored(self) -> bool:
        """Whether any of the stored policies is for what is planned."""
        return any(library.complete_to > 0 for library in self._libraries.values())

    def policies(self) -> dict[tuple[str, str], Policy]:
        """The policies in force, by application and worker kind."""
        return dict(self._chosen)

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        if deployment is not self._deployment:
            self._deployment, self._last = deployment, None
            self._libraries.clear()
            self._asked.clear()
        slow = self._slow(view)
        loads = [load * slow for load in loads_of(view)]
        pace = Pace(deployment, ((1.0,) * len(deployment.kinds),) * len(deployment.variants))
        shares = worker_shares(pace, [max(load, 1e-3) for load in loads])
        alive = self._alive(view)
        is_whole = len(shares) == 1 and len(alive) == len(deployment.workers)
        chosen: dict[tuple[int, str], Policy | None] = {}
        workers: dict[int, int] = {}
        for number, application in enumerate(deployment.applications):
            if len(application.variants) > 1:
                for kind, task in self._tasks(number, shares[number], alive).items():
                    chosen[number, kind] = self._believed(task, loads[number], is_whole)
                    workers[number] = task.workers
        fallback = self._fallback(view)  # asked each time: it follows the load too
        complete = all(policy is not None for policy in chosen.values())
        policies = tuple((key, id(policy)) for key, policy in chosen.items())
        what = (policies, slow, None if complete else id(fallback))
        if self._last is None or self._last[0] != what:
            self._chosen = {
                (deployment.applications[number].name, kind): policy
                for (number, kind), policy in chosen.items()
                if policy is not None
            }
            self._last = (what, self._plan(deployment, chosen, fallback, slow, workers))
        return self._last[1]

    def _slow(self, view: View) -> float:
        """How much slower than profiled the workers are to be taken, in steps. What is lost to too much load is no sign
        of slow workers.
        """
        slow = slow_down(view)
        self._pressure = min(pressure_of(view, self._pressure), MOST_PRESSURE)
        busy = 0.0
        for number, load in enumerate(loads_of(view)):
            kind = self._kind(number)
            busy += load * slow / task_of(view.deployment, number, kind).capacity()
        return _stepped(slow * (self._pressure if busy < BUSY else 1.0), SLOW_RUNG)

    def _kind(self, application: int) -> str:
        """The first kind of worker that can serve an application."""
        deployment = self._deployment
        assert deployment is not None
        variants = deployment.variants_of(application)
        return next(k for k in deployment.kinds if any(deployment.variants[v].profile_on(k) for v in variants))

    def _alive(self, view: View) -> list[int]:
        return list(view.present)

    def _tasks(self, application: int, share: float, alive: list[int]) -> dict[str, Task]:
        """By kind of worker: the application as if its part of the pool were of that kind."""
        deployment = self._deployment
        assert deployment is not None
        tasks = {}
        for kind in deployment.kinds:  # those that are lost for now, too: their workers may come back
            if any(deployment.variants[v].profile_on(kind) for v in deployment.variants_of(application)):
                part = share * len(alive)
                workers = len(alive) if share == 1.0 else max(1, round(_stepped(max(part, 1.0), PART_RUNG)))
                tasks[kind] = task_of(deployment, application, kind, workers)
        return tasks

    def _believed(self, task: Task, load: float, is_whole: bool) -> Policy | None:
        """The policy for a load, ready for bursts; None until all that it needs for that are there."""
        policy = self._policy(task, load, is_whole)
        if self.prior <= 0:
            return policy
        top = min(HIGHEST * task.capacity(), MOST_BURST * (load if policy is None else policy.load))
        above = BURST_RUNG ** (math.floor(math.log(max(load, QUIET * capacity_of_best(task)), BURST_RUNG) + 1e-6) + 1)
        ladder = [policy]
        while above < top * BURST_RUNG:  # the same loads for all, so that they are made once
            ladder.append(self._policy(task, above, is_whole))
            above *= BURST_RUNG
        rising: list[Policy] = []
        for one in ladder:
            if one is None:
                return None
            if not rising or one.load > rising[-1].load * (1 + 1e-9):
                rising.append(one)
        key = tuple(id(one) for one in rising)
        if key not in self._mixed:
            if len(self._mixed) > KEPT_TABLES:
                self._mixed.clear()
            self._mixed[key] = (believed(rising, task.slo_ns, self.prior), rising)
        return self._mixed[key][0]

    def _policy(self, task: Task, load: float, is_whole: bool) -> Policy | None:
        """The policy of the lowest load that covers this one, or, where the queue tells of more, the nearest; a missing
        one is made or asked for.
        """
        key = (task.application, task.kind, task.workers)
        if key not in self._libraries:
            self._libraries[key] = self._library(task, is_whole)
        library = self._libraries[key]
        capacity = task.capacity()
        wanted = min(max(load, QUIET * capacity_of_best(task)), HIGHEST * capacity)
        least = wanted / math.sqrt(RUNG) if self.prior > 0 else wanted
        found = library.covering(least * (1 - 1e-9))
        if found is not None and (wanted <= library.complete_to or found.load <= least * RUNG * (1 + 1e-9)):
            return found
        exact = not library.policies and self.request is None  # a stated load is taken as it is; measured ones waver
        rung = wanted if exact else RUNG ** math.ceil(math.log(least, RUNG) - 1e-9)
        if self.request is None:
            made = self.make(task, self.options, rung)
            self._libraries[key] = library.added(made)
            return made
        if load > 0 and (key, rung) not in self._asked:  # what nobody asks for can wait
            self._asked.add((key, rung))
            self.request(task, self.options, rung)
        return found if found is not None and found.load <= wanted * STAND_IN else None

    def _library(self, task: Task, is_whole: bool) -> Library:
        """What is stored for a task. For a part of the pool there may be nothing stored, and that is no mistake."""
        if not self.stored:
            return Library(task, self.options)
        try:
            return matching(self.stored, task, self.options)
        except StrettoError:
            if is_whole:
                raise
            return Library(task, self.options)

    def _plan(
        self,
        deployment: Deployment,
        chosen: dict[tuple[int, str], Policy | None],
        fallback: Plan,
        slow: float,
        workers: dict[int, int],
    ) -> Plan:
        lanes = []
        for number, lane in enumerate(fallback.lanes):
            own = {kind: policy for (owner, kind), policy in chosen.items() if owner == number}
            ready = {kind: policy for kind, policy in own.items() if policy is not None}
            if own and len(own) == len(ready):
                lane = self._lane(deployment, number, lane, ready, slow, workers[number])
            lanes.append(lane)
        return by_application(tuple(lanes), rate_window_ns=RATE_WINDOW_NS, planner="shared_queue")

    def _lane(
        self,
        deployment: Deployment,
        number: int,
        lane: Lane,
        policies: dict[str, Policy],
        slow: float,
        workers: int,
    ) -> Lane:
        tables: list[Table] = []
        for kind, policy in policies.items():
            able = [v for v in deployment.variants_of(number) if deployment.variants[v].profile_on(kind) is not None]
            table = policy.table(able, kind)
            tables.append(replace(table, slack_step_ns=max(1, round(table.slack_step_ns * slow))))
        return Lane(
            lane.name,
            lane.workers,
            tables[0] if len(tables) == 1 else Tables(tuple(tables)),
            Order.EARLIEST_DEADLINE,
            Eager(floor_rates=overload_floors(task_of(deployment, number, self._kind(number), workers), slow)),
            Late.DROP_WHEN_INFEASIBLE,
        )


def overload_floors(task: Task, slow: float) -> tuple[float, ...]:
    """Near the most that can be answered no batch is worth a worker that is much smaller than the best ones: heads that
    would make it so are given up. Without that, small batches make the next heads wait, which makes smaller ones still.
    """
    sizes = np.arange(1, task.max_batch + 1)
    usable = (task.latency_ns[:, 1:] > 0) & (task.latency_ns[:, 1:] <= task.slo_ns * task.workers / (task.workers + 1))
    pace = np.where(usable, sizes / np.maximum(task.latency_ns[:, 1:], 1), 0.0).max(axis=0)
    if pace.max() <= 0:
        return ()
    enough = int(np.argmax(pace >= GOOD_PACE * pace.max())) + 1
    most = float(pace.max()) * 1e9 * task.workers / slow
    chance = math.sqrt(most / (RATE_WINDOW_NS / 1e9))  # by which the measured load may be too high
    return (OVERLOAD * most + chance,) * enough


def capacity_of_best(task: Task) -> float:
    """Queries/s that all workers answer with the most accurate variant that is quick enough."""
    able = [m for m in np.argsort(-task.accuracy) if 0 < task.latency_ns[m, 1] <= task.slo_ns]
    return task.only([int(able[0])]).capacity()


def slow_down(view: View) -> float:
    """Measured over profiled latency: the median over what was measured."""
    measured = view.latency_ratio[view.is_measured]
    return float(np.clip(np.median(measured), LEAST_SLOW, MOST_SLOW)) if measured.size else 1.0


def _stepped(value: float, rung: float) -> float:
    """The nearest power of `rung`."""
    return float(rung ** round(math.log(value, rung)))
