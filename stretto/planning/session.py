"""The session owns a planner: whoever wants a plan asks here, and there is one call at a time.

A planner may take long and remembers what it did, so two callers at once (the clock's, and a change of what is served)
would spoil its memory. A session knows no clock: a driver says when to plan and brings what it measured.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.client import Client
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment, with_slos
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan
from stretto.core.telemetry import Telemetry
from stretto.core.view import Lines, Planner, View, WaitingQuery
from stretto.planners.candidates import has_swaps
from stretto.planners.parts.last_used import LastUsed, bytes_of_plan
from stretto.planners.ports import MayUseEvidence
from stretto.planning.completion import complete, stepped
from stretto.planning.floors import Crew, crew_of
from stretto.planning.readings import view_of


@dataclass(frozen=True, eq=False)
class InForce:
    """The plan that a dispatcher follows, and what it was made from. The next one starts from here."""

    deployment: Deployment
    made: Plan  # by the planner
    plan: Plan  # completed: what the dispatcher follows
    conditions: Conditions
    latency_ratio: NDArray[np.float64] | None = None  # that its doors and floors were made for
    crew: Crew | None = None  # that its floors were made for
    expected_rates: tuple[float, ...] | None = None
    first_view: View | None = None  # that it was made from, where nothing was measured of this deployment
    last_reading: Telemetry | None = None  # of the planner's last look


def on_larger_fleet(in_force: InForce, deployment: Deployment, plan: Plan) -> InForce:
    """The same plans for the same deployment with further workers, which neither knows; `plan` as the dispatcher has it
    now. What was measured by worker or kind has another shape from here on, so the next view starts afresh.
    """
    made = replace(in_force.made, placement=plan.placement, prefetch=plan.prefetch, ratios=plan.ratios)
    return replace(
        in_force, deployment=deployment, made=made, plan=plan, latency_ratio=None, crew=None, last_reading=None
    )


WINDOW_SHARE = 1 / 3  # of the shortest SLO
LEAST_PERIOD_S, LEAST_IF_SWAPPED_S = 0.002, 0.02
MOST_COMPLETED = 64  # plans that are remembered with what was added to them


@dataclass(frozen=True)
class Rhythm:
    """When a planner wants to be asked. `by_windows`: queries wait for its next plan, so SLOs bound the period;
    `if_swapped`: they may, where workers swap variants.
    """

    period_s: float = 0.0  # 0: once
    by_windows: bool = False
    if_swapped: bool = False

    def period_for(self, deployment: Deployment) -> float:
        """Who waits for the next window waits for a part of the shortest SLO at most; where that may never come, the
        planner is not asked more often than some fifty times a second.
        """
        if not self.by_windows and not (self.if_swapped and has_swaps(deployment)):
            return self.period_s
        shortest_s = min(application.slo_ns for application in deployment.applications) / 1e9
        least_s = LEAST_PERIOD_S if self.by_windows else LEAST_IF_SWAPPED_S
        return min(self.period_s, max(WINDOW_SHARE * shortest_s, least_s))


class Session:
    """`has_doors` False follows a planner's lanes as they are: published systems have no doors."""

    def __init__(
        self,
        planner: Planner,
        *,
        has_doors: bool = True,
        rhythm: Rhythm | None = None,
        looks_at_evidence: bool = False,
        knows_networks: bool = False,
    ) -> None:
        self.planner = planner
        self.has_doors = has_doors
        self.rhythm = rhythm or Rhythm()
        self.looks_at_evidence = looks_at_evidence  # of queries' classes: worth computing for it
        self.sees_inputs = True  # False: queries are elsewhere, and there is no evidence of them
        self.knows_networks = knows_networks  # its planner reckons with them itself, and doors are for whole SLOs
        self._lock = threading.Lock()  # held while the planner is asked, which may take long
        self._known = LastUsed[int, tuple[_Terms, Plan]](  # by the planner's plan (its identity)
            MOST_COMPLETED, lambda known: bytes_of_plan(known[1])
        )
        self._known_lock = threading.Lock()  # plans are completed in the planner's thread and on the event loop
        self._shortened: tuple[Deployment, tuple[int, ...], Deployment] | None = None  # the last, with its SLOs

    def uses_evidence(self, deployment: Deployment) -> bool:
        """Whether it is worth computing."""
        planner = self.planner
        may_use = isinstance(planner, MayUseEvidence) and planner.may_use_evidence(deployment)
        return self.looks_at_evidence or (self.sees_inputs and may_use)

    def first(
        self,
        deployment: Deployment,
        now_ns: int = 0,
        conditions: Conditions | None = None,
        *,
        expected_rates: tuple[float, ...] | None = None,
        view: View | None = None,
    ) -> InForce:
        """For a deployment that nothing was measured of; `view` brings what is known from another one."""
        given = conditions or Conditions()
        seen = view or View(deployment, now_ns, expected_rates=expected_rates, delays=given.delays)
        made = self._made(seen)
        wanted = InForce(deployment, made, made, given, expected_rates=expected_rates, first_view=seen)
        return self._completed(wanted, seen)

    def next(
        self,
        current: InForce,
        telemetry: Telemetry,
        conditions: Conditions | None = None,
        *,
        clients: Callable[[], tuple[Client, ...]] = tuple,
        waiting: Callable[[], tuple[WaitingQuery, ...]] = tuple,
        lines: Callable[[int], Lines] | None = None,
    ) -> InForce:
        """Ask the planner. The plan is the very same object where it and the conditions are what they were."""
        given = conditions or current.conditions
        deployment, clients = self._shown(current.deployment, given, clients)
        view = view_of(
            deployment,
            telemetry,
            current.last_reading,
            expected_rates=current.expected_rates,
            plan=current.made,
            delays=given.delays,
            clients=clients,
            waiting=waiting,
            lines=lines,
        )
        made = self._made(view)
        return self._completed(
            replace(current, made=made, conditions=given, first_view=None, last_reading=telemetry), view, current
        )

    def _shown(
        self, deployment: Deployment, conditions: Conditions, clients: Callable[[], tuple[Client, ...]]
    ) -> tuple[Deployment, Callable[[], tuple[Client, ...]]]:
        """What the planner sees: SLOs without the network's share, unless it takes that off itself. Clients keep theirs
        from frame to answer.
        """
        if conditions.left_ns is None or self.knows_networks:
            return deployment, clients
        known = self._shortened
        if known is None or known[0] is not deployment or known[1] != conditions.left_ns:
            known = self._shortened = deployment, conditions.left_ns, with_slos(deployment, conditions.left_ns)
        whole = {application.name: application.slo_ns for application in deployment.applications}

        def with_own_slo() -> tuple[Client, ...]:
            return tuple(
                client if client.slo_ns is not None else replace(client, slo_ns=whole.get(client.application))
                for client in clients()
            )

        return known[2], with_own_slo

    def under(self, current: InForce, conditions: Conditions) -> InForce:
        """The same planner's plan under other conditions; the planner is not asked."""
        if conditions == current.conditions:
            return current
        return self._complete(replace(current, conditions=conditions), current.plan)

    def _made(self, view: View) -> Plan:
        with self._lock:
            made = self.planner(view)
        if not isinstance(made, Plan):
            raise StrettoError(f"a planner returns a Plan, not a {type(made).__name__}")
        return made

    def _completed(self, wanted: InForce, view: View, current: InForce | None = None) -> InForce:
        before = None if current is None else current.latency_ratio
        crew_before = None if current is None else current.crew
        crew = crew_of(view, crew_before)
        wanted = replace(wanted, latency_ratio=stepped(view.latency_ratio, before), crew=crew)
        if (
            current is not None
            and wanted.made is current.made
            and wanted.conditions == current.conditions
            and (not self.has_doors or (wanted.latency_ratio is before and crew == crew_before))
        ):
            return replace(wanted, plan=current.plan)
        return self._complete(wanted, None if current is None else current.plan)

    def _complete(self, wanted: InForce, before: Plan | None) -> InForce:
        """With the plan before, the very object, where the new one says the same. A planner that follows a load has the
        same plans again and again; what was added to one of them is remembered.
        """
        terms = _Terms(wanted.made, wanted.deployment, wanted.conditions, wanted.latency_ratio, wanted.crew)
        with self._known_lock:
            known = self._known.get(id(wanted.made))
        if known is None or not known[0].are(terms):
            plan = complete(
                terms.made,
                terms.deployment,
                terms.conditions,
                terms.latency_ratio,
                crew=terms.crew,
                has_doors=self.has_doors,
            )
            known = terms, before if before is not None and plan == before else plan
        with self._known_lock:
            self._known.put(id(wanted.made), known)
        return replace(wanted, plan=known[1])


@dataclass(frozen=True, eq=False)
class _Terms:
    """What a completed plan was made of."""

    made: Plan
    deployment: Deployment
    conditions: Conditions
    latency_ratio: NDArray[np.float64] | None
    crew: Crew | None

    def are(self, others: _Terms) -> bool:
        is_like = self.made is others.made and self.deployment is others.deployment
        same_pace = np.array_equal(self.latency_ratio, others.latency_ratio)  # type: ignore[arg-type]  # None is like None
        same_terms = (self.conditions, self.crew) == (others.conditions, others.crew)
        return is_like and same_terms and same_pace
