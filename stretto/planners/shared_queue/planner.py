"""The shared queue online: a lane for each application, served by all workers, that follows the table for its load.

The load is a moving average over 500 ms; the policy in force is that of the lowest load that covers it. Several
applications share the workers: each policy is for the part of the pool that its application should have, as the price
of worker time has it. While a policy is not made yet, one for a little more load serves, or else the table of `Priced`.

Workers that are slower than their profile by a factor ρ are as many workers under ρ times the load, whose slack is
worth 1/ρ: the policy for that load is taken, and its table stretched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Lane, Late, Order, Plan, Tables, by_application
from stretto.core.view import View
from stretto.planners.parts.fronts import as_profiled
from stretto.planners.parts.last_used import LastUsed, bytes_of_plan, bytes_of_policy
from stretto.planners.parts.laws import law_of_shape
from stretto.planners.parts.leaps import Leaps
from stretto.planners.parts.policies import Policies
from stretto.planners.parts.policy import Policy, Stored
from stretto.planners.parts.rates import RATE_WINDOW_NS, rates_of
from stretto.planners.parts.sharing import time_shares
from stretto.planners.parts.task import Task, kinds_for
from stretto.planners.ports import MakePolicy, PolicyPort, Trial
from stretto.planners.priced import Priced
from stretto.planners.shared_queue.belief import believed
from stretto.planners.shared_queue.options import Options
from stretto.planners.shared_queue.policy import make_policy

RUNG = 1.08  # policies made on demand are for loads this factor apart, unless told otherwise
PART_RUNG = 1.05  # and for parts of the pool this factor apart
SLOW_RUNG = 1.05
BURST_RUNG = 1.36  # loads that a burst may bring are told apart by this factor
MOST_BURST = 6.0  # times the load; a queue that tells of more has the policy for so much
STAND_IN = 1.3  # a policy for up to so many times the load may serve until the right one is there
MOST_MIXED, MOST_PLANS = 200, 64
MOST_BYTES = 256 << 20  # of policies: those in force must have room, of all applications and kinds
LEAST_SLOW, MOST_SLOW = 0.7, 4.0
QUIET = 0.1  # of what the workers can answer with the most accurate variant: below this all policies are the same
HIGHEST = 1.05  # of what they can answer at most: and above


@dataclass(eq=False)
class SharedQueue:
    """A planner that remembers its policies.

    `stored` policies are used where there are any; they must match. A policy that is missing is asked for at the port
    `policies`, and another serves until it is there; without that port it is computed on the spot. `trial` is what the
    safety of a policy is chosen by; without it none is made, and the tables of `Priced` serve. The defaults are for
    real workers, which are never quite on time; for exact ones there is nothing to fear: noise and margin 0.
    """

    slack_steps: int = 50
    max_late: float = 0.001
    noise: float = 0.1
    margin: float = 0.1
    caution: float = 0.0
    gamma_shape: float = 1.0
    queries: int = 50_000
    rung: float = RUNG
    gathers: bool = False  # a free worker may wait for company without holding up the others
    leaps: bool = False  # a load that leapt is taken for what it is since then
    prior: float = 3.0  # queries that the measured load is worth against what the queue shows; 0: it is all there is
    stored: Sequence[Stored] = ()
    policies: PolicyPort | None = None
    trial: Trial | None = None
    _policies: Policies = field(init=False, repr=False)
    _mixed: LastUsed[tuple[Policy, ...], Policy] = field(
        default_factory=lambda: LastUsed(MOST_MIXED, bytes_of_policy, MOST_BYTES), init=False, repr=False
    )
    _leaps: Leaps = field(default_factory=lambda: Leaps(RATE_WINDOW_NS / 1e9), init=False, repr=False)
    _fallback: Priced = field(default_factory=Priced, init=False, repr=False)
    _last: _Last | None = field(default=None, init=False, repr=False)
    _plans: LastUsed[tuple[object, ...], Plan] = field(  # of its deployment
        default_factory=lambda: LastUsed(MOST_PLANS, bytes_of_plan), init=False, repr=False
    )

    def __post_init__(self) -> None:
        self._policies = Policies(self.options, self.make, self.policies, self.stored)

    @property
    def options(self) -> Options:
        """How policies are computed."""
        return Options(
            slack_steps=self.slack_steps,
            max_late=self.max_late,
            noise=self.noise,
            margin=self.margin,
            caution=self.caution,
            queries=self.queries,
            gathers=self.gathers,
            law=law_of_shape(self.gamma_shape),
        )

    @property
    def make(self) -> MakePolicy:
        """How one is computed, for a library of them."""
        return partial(make_policy, trial=self.trial)

    @property
    def _can_make(self) -> bool:
        return self.trial is not None or self.caution > 0

    @property
    def uses_stored(self) -> bool:
        """Whether any of the stored policies is for what was planned."""
        return self._policies.uses_stored

    @property
    def is_prepared(self) -> bool:
        """Whether the last plan has all the policies that it wants."""
        return self._last is not None and self._last.missing is None

    def in_force(self) -> dict[tuple[str, str], Policy]:
        """The policies in force, by application and worker kind."""
        if self._last is None:
            return {}
        names = [application.name for application in self._last.deployment.applications]
        chosen = self._last.chosen.items()
        return {(names[number], kind): policy for (number, kind), policy in chosen if policy is not None}

    def __call__(self, view: View) -> Plan:
        deployment = view.deployment
        self._policies.collect()
        slow = _stepped(slow_down(view), SLOW_RUNG)
        rates = rates_of(view, 0.0)
        loads = ((self._leaps.rates(view.now_ns, rates) if self.leaps else rates) * slow).tolist()
        shares = time_shares(as_profiled(deployment), [max(load, 1e-3) for load in loads])
        is_whole = len(shares) == 1 and bool(view.alive.all())
        chosen: dict[tuple[int, str], Policy | None] = {}
        for number, application in enumerate(deployment.applications):
            if len(application.variants) > 1:
                for task in self._tasks(view, number, shares[number]):
                    chosen[number, task.kind] = self._believed(
                        task, loads[number], must_match=is_whole and self._last is None
                    )
        last = self._last
        is_complete = all(policy is not None for policy in chosen.values())
        is_known = is_complete and last is not None and last.deployment is deployment
        fallback = last.fallback if is_known and last is not None else self._fallback(view)  # it follows the load too
        missing = None if is_complete else fallback
        basis = (deployment, chosen, slow)
        if last is None or last.missing is not missing or (last.deployment, last.chosen, last.slow) != basis:
            if not is_known:
                self._plans.clear()
            key = (slow, *chosen.items())
            plan = self._plans.get(key) if is_complete else None
            if plan is None:
                lanes = tuple(
                    self._lane(view, number, lane, chosen, slow, shares[number])
                    for number, lane in enumerate(fallback.lanes)
                )
                plan = by_application(lanes, rate_window_ns=RATE_WINDOW_NS, planner="shared_queue")
                if is_complete:  # a load that comes back finds its plan
                    self._plans.put(key, plan)
            last = self._last = _Last(*basis, missing, fallback, plan)
        return last.plan

    def _tasks(self, view: View, application: int, share: float) -> list[Task]:
        """By kind of worker: the application as if its part of the pool were of that kind.

        Kinds whose workers are lost for now count too: they may come back.
        """
        count = len(view.present)
        workers = count if share == 1.0 else max(1, round(_stepped(max(share * count, 1.0), PART_RUNG)))
        kinds = kinds_for(view.deployment, application)
        return [self._policies.task(view.deployment, application, kind, workers) for kind in kinds]

    def _believed(self, task: Task, load: float, *, must_match: bool) -> Policy | None:
        """The policy for a load, ready for bursts; None until all that it needs for that are there."""
        policy = self._policy(task, load, must_match=must_match)
        if self.prior <= 0:
            return policy
        top = min(HIGHEST * task.capacity(), MOST_BURST * (load if policy is None else policy.load))
        above = BURST_RUNG ** (math.floor(math.log(max(load, QUIET * task.capacity_of_best()), BURST_RUNG) + 1e-6) + 1)
        ladder = [policy]
        while above < top * BURST_RUNG:  # the same loads for all, so that they are made once
            ladder.append(self._policy(task, above, must_match=must_match))
            above *= BURST_RUNG
        rising: list[Policy] = []
        for step in ladder:
            if step is None:
                return None
            if not rising or step.load > rising[-1].load * (1 + 1e-9):
                rising.append(step)
        key = tuple(rising)
        if (known := self._mixed.get(key)) is not None:
            return known
        return self._mixed.put(key, believed(rising, task.slo_ns, self.prior))

    def _policy(self, task: Task, load: float, *, must_match: bool) -> Policy | None:
        """The policy of the lowest load that covers this one, or, where the queue tells of more, the nearest; a missing
        one is made or asked for.
        """
        library = self._policies.library(task, must_match=must_match)
        wanted = min(max(load, QUIET * task.capacity_of_best()), HIGHEST * task.capacity())
        least = wanted / math.sqrt(self.rung) if self.prior > 0 else wanted
        covering = library.covering(least * (1 - 1e-9))
        if covering is not None and (wanted <= library.complete_to or covering.load <= least * self.rung * (1 + 1e-9)):
            return covering
        rung = self.rung ** math.ceil(math.log(least, self.rung) - 1e-9)
        if self._can_make and self.policies is None:
            # A stated load is taken as it is; measured ones waver, and share a rung.
            return self._policies.made(task, rung if library.policies else wanted)
        if self._can_make and load > 0:  # what nobody asks for can wait
            self._policies.ask(task, rung)
        return covering if covering is not None and covering.load <= wanted * STAND_IN else None

    def _lane(
        self,
        view: View,
        number: int,
        lane: Lane,
        chosen: Mapping[tuple[int, str], Policy | None],
        slow: float,
        share: float,
    ) -> Lane:
        """The lane of an application: as `lane` has it until all its policies are there."""
        tasks = [task for task in self._tasks(view, number, share) if (number, task.kind) in chosen]
        tables = []
        for task in tasks:
            policy = chosen[number, task.kind]
            if policy is None:
                return lane
            table = policy.table(task.numbers_in(view.deployment, number), task.kind)
            tables.append(replace(table, slack_step_ns=max(1, round(table.slack_step_ns * slow))))
        if not tables:
            return lane
        return Lane(
            lane.name,
            lane.workers,
            tables[0] if len(tables) == 1 else Tables(tuple(tables)),
            Order.EARLIEST_DEADLINE,
            Eager(),
            Late.DROP_WHEN_INFEASIBLE,
        )


@dataclass(frozen=True, eq=False)
class _Last:
    """What was planned last, and from what; `missing` is the fallback where any policy was. Where none was, its
    lanes serve for their names and workers alone.
    """

    deployment: Deployment
    chosen: Mapping[tuple[int, str], Policy | None]
    slow: float
    missing: Plan | None
    fallback: Plan
    plan: Plan


def slow_down(view: View) -> float:
    """Measured over profiled latency: the median over what was measured."""
    measured = view.latency_ratio[view.is_measured]
    return float(np.clip(np.median(measured), LEAST_SLOW, MOST_SLOW)) if measured.size else 1.0


def _stepped(value: float, rung: float) -> float:
    """The nearest power of `rung`."""
    return float(rung ** round(math.log(value, rung)))
