"""The planner: each slot it shows the instances to a trained policy and deals queries by the weights that it gives.

A file of policies has one for each setting of instances that may be left when some fail (section 6.3). Whether it fits
an application is judged once, by the first plan. From then on a plan is always made: where workers came or went so that
no policy fits the instances, queries are dealt by speed. Between slots nothing but weights changes, so that drivers
reroute.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import as_file, files

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan, Release
from stretto.core.view import View
from stretto.planners.edge_rl.encoding import Setting, Situation, idle, situation
from stretto.planners.edge_rl.file import fitting, load_policies
from stretto.planners.edge_rl.instances import (
    BATCHES,
    Instance,
    by_speed,
    can_batch,
    dealt_plan,
    gathering,
    instances_of,
)
from stretto.planners.edge_rl.policy import Description, Policy
from stretto.planners.parts.rates import rates_of

DEFAULT_POLICY = "edge_rl.safetensors"  # trained on random settings, so that it fits any instances
UNKNOWN_RATE = 1.0


@cache
def default_policies() -> tuple[Policy, ...]:
    """Those that come with the package."""
    with as_file(files("stretto") / "data" / DEFAULT_POLICY) as path:
        return load_policies(path)


@dataclass
class EdgeRL:
    """`policy` names a file of `stretto train`; empty: the policy of the package, which fits any instances."""

    policy: str = ""
    policies: Sequence[Policy] = field(default=(), repr=False)
    _trained: tuple[Deployment, Deployment] | None = field(default=None, init=False, repr=False)
    _judged: dict[str, frozenset[tuple[str, float, float]]] = field(default_factory=dict, init=False, repr=False)
    _settings: dict[tuple[tuple[Instance, ...], int], Setting] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.policies:
            self.policies = load_policies(self.policy) if self.policy else default_policies()
        if any(policy.description.sees_phase for policy in self.policies):
            raise StrettoError(
                f"{self._name}: this policy is told the phase of the load, which nobody can measure; it is for"
                " comparisons in simulation alone. Train one without --full"
            )

    @property
    def _name(self) -> str:
        return os.path.basename(self.policy) or DEFAULT_POLICY

    @property
    def slot_s(self) -> float:
        """The slot that its policies were trained with. Weights are right for a slot of that length."""
        return self.policies[0].description.slot_s

    @property
    def knows_networks(self) -> bool:
        """True where a policy is for the one SLO that it was trained with: it is shown that SLO as the application has
        it, and not what networks and a busy event loop leave of it, which moves while it serves.
        """
        return any(policy.description.encoding == "joint" for policy in self.policies)

    def __call__(self, view: View) -> Plan:
        view = self._as_trained(view)
        deployment = view.deployment
        crews = [instances_of(deployment, application) for application in range(len(deployment.applications))]
        if view.plan is None:
            self._judge_fit(deployment, crews)
        rates = rates_of(view, UNKNOWN_RATE)
        weights, releases = [], []
        first = 0
        for application, crew in enumerate(crews):
            lanes = range(first, first + len(crew))
            shares, kinds = self._decided(view, application, crew, lanes, float(rates[application]))
            weights.append(shares)
            releases.append(kinds)
            first += len(crew)
        return dealt_plan(deployment, crews, weights, releases, planner="edge_rl", buffer=self._buffer)

    def _judge_fit(self, deployment: Deployment, crews: Sequence[Sequence[Instance]]) -> None:
        """StrettoError where no policy fits an application as it begins to be served, or once it has another variant or
        pace than it was judged with. One that lost instances, as where a model broke, is served with those left.
        """
        for application, crew in enumerate(crews):
            wanted = _wanted(deployment, application, crew)
            name, kinds = deployment.applications[application].name, frozenset(wanted.instances)
            if not kinds <= self._judged.get(name, frozenset()):
                fitting(self.policies, wanted, self._name)
                self._judged[name] = kinds

    def _decided(
        self, view: View, application: int, crew: Sequence[Instance], lanes: range, rate: float
    ) -> tuple[NDArray[np.float64], list[Release | None]]:
        """Weights and releases by instance; one whose worker is away gets nothing."""
        deployment = view.deployment
        there = [place for place, instance in enumerate(crew) if view.alive[instance.worker]] or list(range(len(crew)))
        present = [crew[place] for place in there]
        weights = np.zeros(len(crew))
        releases: list[Release | None] = [None] * len(crew)
        policy = self._policy_for(deployment, application, present)
        if policy is None:
            weights[there] = by_speed(present)
            return weights, releases
        setting = self._setting_of(tuple(present), deployment.applications[application].slo_ns)
        seen = _seen(view, [lanes[place] for place in there], rate, self._buffer + 1)
        shares, batches = policy.decide(seen, setting)
        weights[there] = shares[0]
        if batches is None:
            return weights, releases
        models = policy.description.models
        for place, instance, model in zip(there, present, models, strict=True):
            releases[place] = gathering(
                deployment, instance, BATCHES[int(batches[0, model])], policy.description.published_batches
            )
        return weights, releases

    @property
    def _buffer(self) -> int:
        return self.policies[0].description.buffer

    def _as_trained(self, view: View) -> View:
        """With service times as the policies know them; the last deployment is remembered."""
        if self._trained is None or self._trained[0] is not view.deployment:
            self._trained = (view.deployment, self.policies[0].description.as_trained(view.deployment))
        return view if self._trained[1] is view.deployment else replace(view, deployment=self._trained[1])

    def _setting_of(self, crew: tuple[Instance, ...], slo_ns: int) -> Setting:
        """Worked out once for each set of instances."""
        if (crew, slo_ns) not in self._settings:
            self._settings[crew, slo_ns] = Setting.of([(crew, slo_ns)])
        return self._settings[crew, slo_ns]

    def _policy_for(self, deployment: Deployment, application: int, present: Sequence[Instance]) -> Policy | None:
        """None where none fits those that are there."""
        try:
            return fitting(self.policies, _wanted(deployment, application, present), self._name)
        except StrettoError:
            return None


def _wanted(deployment: Deployment, application: int, crew: Sequence[Instance]) -> Description:
    """Of a policy for these instances."""
    names = [variant.name for variant in deployment.variants]
    wanted = Description("joint", 0.0, batching=can_batch(deployment, crew))
    return wanted.described(crew, names, deployment.applications[application].slo_ns)


def _seen(view: View, lanes: Sequence[int], rate: float, depth: int) -> Situation:
    if view.lines is None:
        return idle(len(lanes), rate, depth)
    lines = view.lines(depth)
    chosen = (array[list(lanes)] for array in (lines.length, lines.running, lines.started_ns, lines.arrival_ns))
    return situation(type(lines)(*chosen), view.now_ns, np.array([rate]))
