"""RAMSIS online (section 3.2): queries dealt to one lane per worker, each of which follows the table for the load.

The load is a moving average over 500 ms (section 6); the policy in force is that of the lowest load that covers it.
Several SLOs are several applications, each with workers of its own (appendix G). Within an application worker kinds may
differ: each kind has its own policy, for the same load and the same number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Lane, Late, Order, Plan, Route, RouteRule
from stretto.core.view import View
from stretto.planners.ramsis.laws import Gamma, Law, Poisson
from stretto.planners.ramsis.library import Library
from stretto.planners.ramsis.monitor import RATE_WINDOW_NS, lane_name, measured_load
from stretto.planners.ramsis.options import Balancing, Batching, LateRule, Objective, Options, Pruning
from stretto.planners.ramsis.policy import Policy, make_policy
from stretto.planners.ramsis.sharing import shared_out
from stretto.planners.ramsis.store import Stored, matching
from stretto.planners.ramsis.task import Task, task_of

RUNG = 1.05  # policies made on demand are for loads this factor apart
HIGHEST = 1.25  # of what the workers can answer: beyond, all policies are the same
UNKNOWN_LOAD = 0.5  # of what the workers can answer, until a load is known

Request = Callable[[Task, Options, float], None]


@dataclass(eq=False)
class Ramsis:
    """A planner that remembers its policies.

    `stored` policies are used where there are any; they must match. A policy that is missing is asked for through
    `request`, and the nearest one serves until `add` brings it; without `request` it is computed on the spot.
    `workers` says how many an application gets; otherwise they are shared out by the expected work.
    """

    slack_steps: int = 100
    max_queue: int = 32
    variable: bool = False
    drop: bool = False
    shortest: bool = False
    per_decision: bool = False
    every_batch: bool = False
    gamma_shape: float = 1.0
    workers: Mapping[str, int] = field(default_factory=dict)
    stored: Sequence[Stored] = ()
    request: Request | None = None
    _libraries: dict[tuple[str, str, int], Library] = field(default_factory=dict, init=False)
    _asked: set[tuple[str, str, int, float]] = field(default_factory=set, init=False)
    _deployment: Deployment | None = field(default=None, init=False)
    _shares: tuple[tuple[int, ...], ...] = field(default=(), init=False)
    _last: _Last | None = field(default=None, init=False)

    @property
    def options(self) -> Options:
        """How policies are computed."""
        law: Law = Poisson() if self.gamma_shape == 1 else Gamma(self.gamma_shape)
        return Options(
            slack_steps=self.slack_steps,
            max_queue=self.max_queue,
            batching=Batching.VARIABLE if self.variable else Batching.MAXIMAL,
            late=LateRule.DROP if self.drop else LateRule.SERVE,
            balancing=Balancing.SHORTEST if self.shortest else Balancing.ROUND_ROBIN,
            objective=Objective.DECISION if self.per_decision else Objective.QUERY,
            pruning=Pruning.EVERY_BATCH if self.every_batch else Pruning.ONE_QUERY,
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
        self._asked.discard((*key, load))

    def policies(self) -> dict[tuple[str, str], Policy]:
        """The policies in force, by application and worker kind."""
        if self._last is None:
            return {}
        return {(name, kind): policy for (name, kind, _), policy in self._last.chosen.items()}

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        if deployment is not self._deployment:
            self._deployment, self._last = deployment, None
            self._shares = shared_out(deployment, view.rates, self.workers)
            self._libraries.clear()
            self._asked.clear()
        served = self._served(view)
        chosen = {}
        for number, own in enumerate(served):
            for kind in dict.fromkeys(deployment.workers[worker].kind for worker in own):
                task = task_of(deployment, number, kind, len(own))
                key = (task.application, kind, len(own))
                if key not in self._libraries:
                    self._libraries[key] = self._library(task, is_whole=own == self._shares[number])
                chosen[key] = self._policy(key, measured_load(view, number))
        last = self._last
        same = last is not None and last.served == served and all(chosen[k] is last.chosen.get(k) for k in chosen)
        if last is None or not same:
            last = self._last = _Last(served, chosen, self._plan(deployment, served, chosen))
        return last.plan

    def _served(self, view: View) -> tuple[tuple[int, ...], ...]:
        """The workers of each application that are there: a policy is for as many as queries are dealt to."""
        return tuple(tuple(worker for worker in own if view.alive[worker]) or own for own in self._shares)

    def _library(self, task: Task, is_whole: bool) -> Library:
        """What is stored for a task. With workers lost there is nothing stored, and that is no mistake."""
        if not self.stored or not is_whole:
            return Library(task, self.options)
        return matching(self.stored, task, self.options)

    def _policy(self, key: tuple[str, str, int], load: float | None) -> Policy:
        """The policy of the lowest load that covers this one; a missing one is made or asked for."""
        library = self._libraries[key]
        capacity = library.task.capacity()
        wanted = min(UNKNOWN_LOAD * capacity if load is None else max(load, 1e-3 * capacity), HIGHEST * capacity)
        found = library.covering(wanted)
        if found is not None and (wanted <= library.complete_to or found.load <= wanted * RUNG):
            return found
        # A stated load is taken as it is; measured ones waver, and share a rung.
        exact = not library.policies
        rung = wanted if exact else RUNG ** math.ceil(math.log(wanted, RUNG) - 1e-9)
        if self.request is not None and library.policies:
            if (*key, rung) not in self._asked:
                self._asked.add((*key, rung))
                self.request(library.task, self.options, rung)
            return found or library.policies[-1]
        made = self.make(library.task, self.options, rung)
        self._libraries[key] = library.added(made)
        return made

    def _plan(
        self,
        deployment: Deployment,
        served: tuple[tuple[int, ...], ...],
        chosen: Mapping[tuple[str, str, int], Policy],
    ) -> Plan:
        options = self.options
        rule = RouteRule.SHORTEST if options.balancing is Balancing.SHORTEST else RouteRule.ROUND_ROBIN
        lanes: list[Lane] = []
        routes: list[Route] = []
        for number, (application, own) in enumerate(zip(deployment.applications, served, strict=True)):
            tasks = {
                kind: self._libraries[name, kind, count].task
                for name, kind, count in chosen
                if name == application.name
            }
            tables = {
                kind: chosen[application.name, kind, len(own)].table(_numbers(deployment, number, task), kind)
                for kind, task in tasks.items()
            }
            routes.append(Route(rule, tuple(range(len(lanes), len(lanes) + len(own)))))
            for worker in own:
                name, kind = deployment.workers[worker].name, deployment.workers[worker].kind
                lanes.append(
                    Lane(
                        name=lane_name(application.name, name),
                        workers=(worker,),
                        select=tables[kind],
                        order=Order.EARLIEST_DEADLINE,
                        release=Eager(tasks[kind].max_batch),
                        late=Late.DROP_WHEN_DISPATCHED if options.late is LateRule.DROP else Late.KEEP,
                    )
                )
        return Plan(tuple(lanes), tuple(routes), rate_window_ns=RATE_WINDOW_NS, planner="ramsis")


@dataclass(frozen=True, eq=False)
class _Last:
    """What was planned last, and from what."""

    served: tuple[tuple[int, ...], ...]
    chosen: Mapping[tuple[str, str, int], Policy]
    plan: Plan


def _numbers(deployment: Deployment, application: int, task: Task) -> list[int]:
    """The deployment's numbers of a task's variants."""
    by_name = {deployment.variants[number].name: number for number in deployment.variants_of(application)}
    return [by_name[name] for name in task.variants]
