"""What a policy promises before anything runs, under one face for every planner that makes policies.

A planner that makes policies remembers those in force and what each expects. Whoever asks what a load would get asks
here, and need not know how the planner thinks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan, Table, Tables
from stretto.core.view import View
from stretto.planners.parts.library import Recipe
from stretto.planners.parts.policy import Policy
from stretto.planners.ports import MakePolicy


@runtime_checkable
class PolicyPlanner(Protocol):
    """A planner that follows policies, which it shows by application and worker kind."""

    def __call__(self, view: View) -> Plan: ...

    def in_force(self) -> Mapping[tuple[str, str], Policy]: ...

    @property
    def uses_stored(self) -> bool:
        """Whether any of the stored policies that it was given is for what was planned."""
        ...

    @property
    def options(self) -> Recipe:
        """What its policies depend on, besides task and load."""
        ...

    @property
    def make(self) -> MakePolicy:
        """How it computes one."""
        ...


@dataclass(frozen=True, eq=False)
class Promise:
    """What one application may expect on so many workers at a load, and the table that does it."""

    workers: int
    load: float
    accuracy: float
    violation: float
    table: Table
    median: float = 0.0  # half of the answers have at least this accuracy; 0 where that is not known
    p99: float = 0.0  # and 99 of 100 have at least this one

    def figures(self) -> dict[str, float]:
        """For people and for programs: what is known."""
        spread = {"median_accuracy": self.median, "p99_accuracy": self.p99} if self.median else {}
        return {"accuracy": self.accuracy, "violation": self.violation, **spread}


def promise_of(planner: PolicyPlanner, deployment: Deployment, load: float) -> Promise:
    """For a deployment of one application on workers of one kind."""
    if len(deployment.applications) != 1 or len(deployment.kinds) != 1:
        raise StrettoError("a promise is for one application on workers of one kind")
    plan = planner(View(deployment, expected_rates=(load,)))
    policies = tuple(planner.in_force().values())
    if len(policies) != 1:
        name = deployment.applications[0].name
        raise StrettoError(f"this planner makes no policy for application {name}; with one variant none is needed")
    select = plan.lanes[0].select
    table = select.tables[0] if isinstance(select, Tables) else select
    assert isinstance(table, Table), "a policy is followed as a table"
    policy = policies[0]
    expected = policy.expectation
    violation = expected.violation
    if policy.load < load:  # it is for the most that the workers can answer; what comes beyond has no answer in time
        violation = 1.0 - (1.0 - violation) * policy.load / load
    return Promise(len(deployment.workers), load, expected.accuracy, violation, table, expected.median, expected.p99)
