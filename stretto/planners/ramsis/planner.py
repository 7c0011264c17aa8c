"""RAMSIS online (section 3.2): queries dealt to one lane per worker, each of which follows the table for the load.

The load is a moving average over 500 ms (section 6); the policy in force is that of the lowest load that covers it,
made for the pattern of arrivals that was measured (section 3.2.2): their dispersion, in steps of a half.
Several SLOs are several applications, each with workers of its own (appendix G). Within an application worker kinds may
differ: each kind has its own policy, for the same load and the same number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Lane, Late, Order, Plan, Route, RouteRule
from stretto.core.view import View
from stretto.planners.parts.laws import law_of_shape
from stretto.planners.parts.policies import Policies
from stretto.planners.parts.policy import Policy, Stored
from stretto.planners.parts.rates import RATE_WINDOW_NS
from stretto.planners.parts.sharing import workers_of_applications
from stretto.planners.parts.task import Task
from stretto.planners.ports import MakePolicy, PolicyPort
from stretto.planners.ramsis.options import Options
from stretto.planners.ramsis.policy import make_policy

RUNG = 1.05  # policies made on demand are for loads this factor apart
HIGHEST = 1.25  # of what the workers can answer: beyond, all policies are the same
UNKNOWN_LOAD = 0.5  # of what the workers can answer, until a load is known
DISPERSION_RUNG, MOST_DISPERSION = 1.5, 60.0  # measured ones are told apart by this factor, and taken up to this


@dataclass(eq=False)
class Ramsis:
    """A planner that remembers its policies.

    `stored` policies are used where there are any; they must match. A policy that is missing is asked for at the port
    `policies`, and the nearest one serves until it is there; without that port it is computed on the spot. `workers`
    says how many an application gets; otherwise they are dealt by the expected work. `gamma_shape` 0 goes by the
    dispersion that was measured.
    """

    slack_steps: int = 100
    max_queue: int = 32
    variable: bool = False
    drop: bool = False
    shortest: bool = False
    per_decision: bool = False
    every_batch: bool = False
    gamma_shape: float = 0.0
    workers: Mapping[str, int] = field(default_factory=dict)
    stored: Sequence[Stored] = ()
    policies: PolicyPort | None = None
    _by_law: dict[Options, Policies] = field(default_factory=dict, init=False, repr=False)
    _crews: tuple[Deployment, tuple[tuple[int, ...], ...]] | None = field(default=None, init=False, repr=False)
    _last: _Last | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._of_law(self.options)

    @property
    def options(self) -> Options:
        """How policies are computed; where the pattern of arrivals is measured, those for independent ones."""
        flags = (self.variable, self.drop, self.shortest, self.per_decision, self.every_batch)
        return Options(self.slack_steps, self.max_queue, *flags, law=law_of_shape(self.gamma_shape or 1.0))

    @property
    def make(self) -> MakePolicy:
        """How one is computed, for a library of them."""
        return make_policy

    @property
    def uses_stored(self) -> bool:
        """Whether any of the stored policies is for what was planned."""
        return any(policies.uses_stored for policies in self._by_law.values())

    def in_force(self) -> dict[tuple[str, str], Policy]:
        """The policies in force, by application and worker kind."""
        if self._last is None:
            return {}
        names = [application.name for application in self._last.deployment.applications]
        return {(names[number], kind): policy for (number, kind), policy in self._last.chosen.items()}

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        for made in () if self.policies is None else self.policies.collect():
            self._of_law(made.options).take(made)
        if self._crews is None or self._crews[0] is not deployment:
            self._crews = (deployment, workers_of_applications(deployment, view.rates, self.workers))
        chosen: dict[tuple[int, str], Policy] = {}
        crews = []
        for number, whole in enumerate(self._crews[1]):
            # A policy is for as many workers as queries are dealt to: those that are there.
            crew = tuple(worker for worker in whole if view.alive[worker]) or whole
            crews.append(crew)
            load = None if view.rates is None else float(view.rates[number])
            policies = self._of_law(self._options_for(float(view.dispersion[number])))
            for kind in dict.fromkeys(deployment.workers[worker].kind for worker in crew):
                task = policies.task(deployment, number, kind, len(crew))
                must_match = crew == whole and self._last is None and policies is self._of_law(self.options)
                chosen[number, kind] = self._policy(policies, task, load, must_match=must_match)
        last = self._last
        if last is None or (last.deployment, last.crews, last.chosen) != (deployment, tuple(crews), chosen):
            plan = self._plan(deployment, crews, chosen)
            last = self._last = _Last(deployment, tuple(crews), chosen, plan)
        return last.plan

    def _of_law(self, options: Options) -> Policies:
        if options not in self._by_law:
            self._by_law[options] = Policies(options, make_policy, self.policies, self.stored)
        return self._by_law[options]

    def _options_for(self, dispersion: float) -> Options:
        """For the law of that dispersion, which is 1 for independent arrivals and smoother ones."""
        if self.gamma_shape:
            return self.options
        rungs = round(math.log(min(max(dispersion, 1.0), MOST_DISPERSION), DISPERSION_RUNG))
        return replace(self.options, law=law_of_shape(DISPERSION_RUNG**-rungs))

    def _policy(self, policies: Policies, task: Task, load: float | None, *, must_match: bool = False) -> Policy:
        """The policy of the lowest load that covers this one; a missing one is made or asked for."""
        library = policies.library(task, must_match=must_match)
        capacity = task.capacity()
        wanted = min(UNKNOWN_LOAD * capacity if load is None else max(load, 1e-3 * capacity), HIGHEST * capacity)
        covering = library.covering(wanted)
        if covering is not None and (wanted <= library.complete_to or covering.load <= wanted * RUNG):
            return covering
        usual = self._of_law(self.options)
        if not library.policies and policies is usual:  # a stated load is taken as it is; measured ones share a rung
            return policies.made(task, wanted)
        rung = RUNG ** math.ceil(math.log(wanted, RUNG) - 1e-9)
        if self.policies is None:
            return policies.made(task, rung)
        policies.ask(task, rung)
        if library.policies:
            return covering or library.policies[-1]
        return self._policy(usual, task, load)  # until there is one for these arrivals

    def _plan(
        self, deployment: Deployment, crews: Sequence[tuple[int, ...]], chosen: Mapping[tuple[int, str], Policy]
    ) -> Plan:
        rule = RouteRule.SHORTEST if self.shortest else RouteRule.ROUND_ROBIN
        lanes: list[Lane] = []
        routes: list[Route] = []
        for number, crew in enumerate(crews):
            application = deployment.applications[number].name
            usual = self._of_law(self.options)
            tasks = {kind: usual.task(deployment, number, kind, len(crew)) for owner, kind in chosen if owner == number}
            tables = {
                kind: chosen[number, kind].table(task.numbers_in(deployment, number), kind)
                for kind, task in tasks.items()
            }
            routes.append(Route(rule, tuple(range(len(lanes), len(lanes) + len(crew)))))
            for worker in crew:
                name, kind = deployment.workers[worker].name, deployment.workers[worker].kind
                lanes.append(
                    Lane(
                        name=f"{application}/{name}",
                        workers=(worker,),
                        select=tables[kind],
                        order=Order.EARLIEST_DEADLINE,
                        release=Eager(tasks[kind].max_batch),
                        late=Late.DROP_WHEN_DISPATCHED if self.drop else Late.KEEP,
                    )
                )
        return Plan(tuple(lanes), tuple(routes), rate_window_ns=RATE_WINDOW_NS, planner="ramsis")


@dataclass(frozen=True, eq=False)
class _Last:
    """What was planned last, and from what."""

    deployment: Deployment
    crews: tuple[tuple[int, ...], ...]
    chosen: Mapping[tuple[int, str], Policy]
    plan: Plan
