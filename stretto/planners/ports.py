"""What a planner may be given from outside: policies made elsewhere, a simulated trial, measured response latencies.

A planner declares in the registry which of these it takes, and gets them when it is made. Without one it does without:
policies are made on the spot, and what cannot be tried or was not measured is not planned with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from stretto.core.deployment import Deployment
    from stretto.core.plan import Plan
    from stretto.core.verdict import Verdict
    from stretto.planners.parts.laws import Law
    from stretto.planners.parts.policy import Policy, Stored
    from stretto.planners.parts.responses import Responses
    from stretto.planners.parts.task import Task

# Called in another process as make(task, options, load): a function of a module, or a functools.partial of one.
MakePolicy = Callable[["Task", Any, float], "Policy"]


@dataclass(frozen=True, eq=False)
class MadePolicy:
    """A policy that was asked for; None: it could not be made, and may be asked for again."""

    task: Task
    load: float
    policy: Policy | None
    options: Any = None  # that it was asked for with

    def named(self) -> list[Any]:
        """What a journal says of it: enough to know it by among those that were asked for."""
        return [*policy_name(self.task, self.options, self.load), self.policy is not None]


def policy_name(task: Task, options: Any, load: float) -> tuple[str, str, int, float, str]:
    """Application, kind, workers, load, and what stands for its options."""
    recipe = "" if options is None else hashlib.sha256(repr(options.described()).encode()).hexdigest()[:12]
    return task.application, task.kind, task.workers, load, recipe


class PolicyPort(Protocol):
    """Has policies made elsewhere. A planner calls it from the thread that it plans in."""

    def ask(self, task: Task, options: Any, load: float, make: MakePolicy) -> None:
        """Have a policy made; returns at once."""
        ...

    def collect(self) -> Sequence[MadePolicy]:
        """What was made, or could not be, since the last call."""
        ...


@dataclass(frozen=True)
class TrialConditions:
    """What a plan is tried under: arrivals of a law at a load, service times around the profile's, and for how long.

    The same seed gives the same arrivals and the same noise, batch by batch, so that plans are compared on equal terms.
    """

    load: float  # queries/s
    law: Law
    noise: float = 0.0  # coefficient of variation of service times: lognormal, of mean one
    queries: int = 50_000
    seed: int = 1
    blocks: int = 20  # that standard errors are computed from
    warm_up: float = 0.05  # share of the queries that are not counted


@dataclass(frozen=True)
class Seen:
    """What a trial showed: means over all queries but the first ones, with standard errors from blocks of them."""

    accuracy: float  # per answer on time
    late: float  # share of queries without an answer on time
    accuracy_error: float
    late_error: float
    queries: int

    @property
    def correct(self) -> float:
        """Share of queries answered right and on time."""
        return self.accuracy * (1.0 - self.late)


class Trial(Protocol):
    """A plan followed under virtual time, for a deployment of one application."""

    def __call__(self, deployment: Deployment, plan: Plan, conditions: TrialConditions) -> Seen: ...


class MeasureResponses(Protocol):
    """Response latencies of each variant at many loads, by application; `rates` share the workers out."""

    def __call__(self, deployment: Deployment, rates: Sequence[float] | None) -> Mapping[str, Responses]: ...


class JudgePort(Protocol):
    """Has candidates judged, here or elsewhere. A planner calls it from the thread that it plans in."""

    def known(self, deployment: Deployment) -> Sequence[Verdict]:
        """What was judged of this deployment before, to start with; asked once, when it is planned for first."""
        ...

    def ask(self, deployment: Deployment, rates: tuple[float, ...]) -> None:
        """Have the candidates for these rates judged."""
        ...

    def collect(self, deployment: Deployment) -> Sequence[Verdict]:
        """What was judged of this deployment since the last call."""
        ...

    def follows(self, rates: tuple[float, ...]) -> None:
        """What was judged for these rates is in force now; none of it, where there are no rates."""
        ...

    def broken(self, verdict: Verdict, late: float) -> None:
        """A promise was not kept: so many queries had no answer on time."""
        ...


@dataclass(frozen=True)
class Ports:
    """All that there is; a planner is given the ones that its entry names."""

    policies: PolicyPort | None = None
    stored: Sequence[Stored] = ()  # libraries of policies from a file
    trial: Trial | None = None
    responses: MeasureResponses | None = None
    judge: JudgePort | None = None


@runtime_checkable
class Prepares(Protocol):
    """A planner that may wait for policies, and has others serve meanwhile."""

    @property
    def is_prepared(self) -> bool:
        """Whether its last plan is what it wants to serve."""
        ...


@runtime_checkable
class HasRhythm(Protocol):
    """A planner whose options decide how often it wants to be asked; None: once, or as its entry says."""

    @property
    def replan_s(self) -> float | None: ...


@runtime_checkable
class HasSlot(Protocol):
    """A planner that must be asked in one rhythm and no other, as a policy that was trained for slots of one length."""

    @property
    def slot_s(self) -> float: ...


@runtime_checkable
class KnowsNetworks(Protocol):
    """A planner that reckons with clients' networks itself: its SLOs are those from frame to answer. Any other one is
    shown SLOs without the time that frames and answers are usually on their way.
    """

    @property
    def knows_networks(self) -> bool: ...


@runtime_checkable
class MayUseEvidence(Protocol):
    """A planner that follows others, which may look at evidence, or schedule by windows."""

    def may_use_evidence(self, deployment: Deployment) -> bool: ...


@runtime_checkable
class LooksAtEvidence(Protocol):
    """A planner to whom evidence of a query's class may make a difference."""

    @property
    def looks_at_evidence(self) -> bool: ...
