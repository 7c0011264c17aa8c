"""The default: at every load it follows the candidate that was judged best there.

Loads are told apart in rungs. For a rung that nobody judged yet the judge is asked, and the verdict of the nearest one
serves until the answer is there; where there is none at all, a start candidate does. Verdicts that were known before
serve from the start, but count as no answer. The candidate itself is a planner like any other: it follows the measured
load in its own finer steps.

A promise that is not kept is told to the judge, and the runner-up, a form of another planner where there is one, serves
until the rung is judged anew; at once where half of the queries are lost that should not be.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.client import Client, has_moved
from stretto.core.deployment import Deployment, with_latencies, with_slos
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import Plan
from stretto.core.profile import LEAST_RATIO, MOST_RATIO, NS_PER_S
from stretto.core.verdict import Candidate, Verdict
from stretto.core.view import Planner, View
from stretto.planners.candidates import has_swaps, make, start_for
from stretto.planners.data_aware import tells_classes_apart
from stretto.planners.judged.desk import Desk
from stretto.planners.judged.ledger import CHANCE, LEAST_RATE, Ledger, Rates, Rungs
from stretto.planners.parts.rates import RATE_WINDOW_NS, rates_of
from stretto.planners.ports import JudgePort, PolicyPort, Ports, Prepares
from stretto.planners.registry import planner_entry

START_WITH_CLIENTS = Candidate("jellyfish")  # where their networks are known: others tell them sizes that come too late
MANY = 0.1  # of the clients, that they are not what they were
SLOW_S = 2.0  # a change of the load counts for the rung when it has lasted; the candidate follows it at once
CAME_NS = 3 * RATE_WINDOW_NS // 2  # from when clients came or went on, until their queries are counted in full
STEADY_S, LONG_S = 4.0, 20.0  # over which the load is averaged while it differs by no more than chance
WELL_COUNTED = 1_600  # queries: a load of fewer in four seconds is averaged for longer
SURE = 2.0  # of the count of a steady load, from which on it is another load than the judged one
ENOUGH = 2_000  # queries that a promise is held against
BROKEN_LATE = 0.02  # more than promised
BROKEN_BY_HALF, ENOUGH_FOR_HALF = 0.5, 200  # more than promised, and of so few queries already
MOST_PLANNERS = 24
LOOK_NS = 100_000_000  # between two plans
EARLY_NS = 10_000_000  # so much before its time a candidate may plan


@dataclass(eq=False)
class Judged:
    """`judge` is asked for verdicts; `policies` is where candidates have their tables made."""

    judge: JudgePort | None = None
    policies: PolicyPort | None = None
    start: Candidate | None = None  # None: whatever suits the deployment
    _desk: Desk = field(init=False, repr=False)
    _deployment: Deployment | None = field(default=None, init=False, repr=False)
    _ledger: Ledger = field(default_factory=lambda: Ledger(1), init=False, repr=False)
    _lump: float = field(default=1.0, init=False, repr=False)  # queries that come together, as the judge saw them
    _followed: Rates = field(default=(), init=False, repr=False)  # of the verdict that the judge knows to be in force
    _planners: dict[Candidate, Planner] = field(default_factory=dict, init=False, repr=False)
    _served: Candidate | None = field(default=None, init=False, repr=False)
    _rates: NDArray[np.float64] | None = field(default=None, init=False, repr=False)  # a slow mean
    _steady: NDArray[np.float64] | None = field(default=None, init=False, repr=False)  # what the candidate is told
    _steady_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), init=False, repr=False)  # how long
    _looked_ns: int = field(default=0, init=False, repr=False)
    _began_ns: int = field(default=0, init=False, repr=False)  # when there was last no load
    _seen: tuple[Rungs, int, int] = field(default=((), 0, 0), init=False, repr=False)  # rung, queries, late ones
    _moved: dict[Any, Deployment] = field(default_factory=dict, init=False, repr=False)  # by ratios of latencies
    _has_networks: bool = field(default=False, init=False, repr=False)  # of clients, that were measured
    _clients: int = field(default=0, init=False, repr=False)  # with networks, that were there
    _came_ns: int = field(default=0, init=False, repr=False)  # when that changed
    _is_moving: bool = field(default=False, init=False, repr=False)  # it was just now
    _planned: _Planned | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._desk = Desk(self.policies)

    @property
    def knows_networks(self) -> bool:
        """Candidates are judged with the deadlines that queries came with."""
        return True

    def may_use_evidence(self, deployment: Deployment) -> bool:
        """Where it tells variants apart, or workers swap them and it may be worth more to answer from it."""
        known = [each for each in deployment.applications if each.has_evidence]
        may_answer = any(each.evidence_accuracy is not None for each in known)
        return any(map(tells_classes_apart, known)) or (may_answer and has_swaps(deployment))

    def __call__(self, view: View) -> Plan:
        if view.deployment is not self._deployment:
            self._deployment = view.deployment
            self._ledger, self._followed, self._lump = Ledger(len(view.deployment.applications)), (), 1.0
            self._planners.clear()
            self._moved.clear()
            self._rates, self._steady, self._has_networks = None, None, False
            self._seen = ((), 0, 0)
            self._take(() if self.judge is None else self.judge.known(view.deployment))
        self._collect(view.deployment)
        if not self._has_networks and any(client.network.bytes_per_s for client in view.clients()):
            self._has_networks = True
            self._ledger.begin_with_clients()
            self._seen = ((), 0, 0)
        is_moving, is_first = self._are_moving(view), self._rates is None or view.now_ns < self._looked_ns
        self._is_moving = is_moving
        counted, view = view, self._steadied(view, is_moving)
        rates = self._slow_rates(view, is_moving)
        counted_s = [math.inf] * len(rates) if view.rates is None else self._steady_s.tolist()
        self._ledger.move(rates, counted_s, self._lump)
        is_known = is_moving and self.in_force() is not None  # a load that is on its way up is not one to judge
        is_counted = view.rates is None or view.now_ns - self._began_ns >= RATE_WINDOW_NS  # stated, or for a window
        if self._ledger.is_to_ask(view.now_ns) and rates.sum() > 0 and not is_known and is_counted:
            self._ask(view, rates)
        self._settle(view)
        self._hold_to_promise(view)
        verdict = self.in_force()
        self._tell_of(verdict)
        if verdict is None:
            return self._begun(view, has_load=not is_first or rates.sum() > 0)
        if ("leaps", True) in verdict.candidate.options:
            view = counted  # a mean that is given up for what is counted looks like a leap
        elif self._is_at(verdict) and not self._has_networks:  # who looks at clients counts each of them
            view = replace(view, rates=np.array(verdict.rates))  # the very plan that was judged
        judged = self._as_judged(view, verdict)
        try:
            plan = self._plan(judged, verdict.candidate)
        except StrettoError:
            if self._ledger.is_answer(verdict):
                raise
            return self._begun(view)  # judged for fewer applications or workers, and there is no such plan here
        return plan if judged is view else replace(plan, ratios=self._dispatcher_ratios(verdict))

    def _begun(self, view: View, *, has_load: bool = True) -> Plan:
        """Before there is a verdict."""
        if self.start is None and self._has_networks and _has_sizes(view.deployment):
            with contextlib.suppress(StrettoError):  # it needs a worker for each application, and more
                return self._plan(view, START_WITH_CLIENTS)
        start = self.start or start_for(view.deployment, has_load=has_load)
        return self._plan(view if has_load else self._unknown(view), start)

    @staticmethod
    def _unknown(view: View) -> View:
        """A load that nobody has looked at yet may be anything. Taken for none it has slow variants on all workers at
        once, and near saturation what gathers behind them stays. So nothing should run for much longer than until the
        next look: plans leave about half of an SLO to queues, and two looks are the longest SLO that is planned for.
        """
        slos = tuple(min(application.slo_ns, 2 * LOOK_NS) for application in view.deployment.applications)
        return replace(view, deployment=with_slos(view.deployment, slos))

    def _ask(self, view: View, rates: NDArray[np.float64]) -> None:
        if self.judge is not None:
            self.judge.ask(view.deployment, self._ledger.ask(rates, view.now_ns))
            self._collect(view.deployment)  # it may have been judged on the spot

    def _tell_of(self, verdict: Verdict | None) -> None:
        """Whoever judged it looks whether the conditions stay those that it was judged under."""
        rates: Rates = ()
        if verdict is not None and self._ledger.is_answer(verdict):
            rates, self._lump = verdict.rates, verdict.lump
        if rates != self._followed and self.judge is not None:
            self._followed = rates
            self.judge.follows(rates)

    def _settle(self, view: View) -> None:
        """The first count of a load is that of half a second, and a plan for a load that is a few percent off is
        another plan. So once the load has been steady for so long that it is known well, it is judged again, once.
        """
        verdict, rungs = self._ledger.here(), self._ledger.rungs
        is_steady = self._steady is not None and bool(
            (self._steady_s >= known_after_s(self._steady / self._lump)).all()
        )
        if verdict is None or not is_steady or rungs in self._ledger.settled or self._has_networks:
            return
        if self._ledger.is_answer(verdict) and verdict.levels[0] == verdict.levels[1]:
            self._ledger.settled.add(rungs)
            if self._steady is not None and not self._is_at(verdict):
                self._ask(view, self._steady)

    def _is_at(self, verdict: Verdict) -> bool:
        """Whether the load differs from the one that was judged by no more than a count of some seconds does."""
        if self._steady is None or len(self._steady) != len(verdict.rates) or not (self._steady_s > 0).all():
            return False
        rates = np.array(verdict.rates)
        chance = SURE * np.sqrt(np.maximum(rates, LEAST_RATE) * self._lump / np.maximum(self._steady_s, STEADY_S))
        return bool((np.abs(self._steady - rates) <= chance).all())

    def _plan(self, view: View, wanted: Candidate) -> Plan:
        """By the candidate that is wanted; by the one before until the wanted one has what it needs."""
        planner, before = self._planner(wanted), self._served
        entry = planner_entry(wanted.planner)
        last = None if entry.by_windows else self._planned  # which knows nothing of what came since
        period_ns = round((entry.replan_s or 0.0) * NS_PER_S)
        clients = view.clients()
        if last is not None and not self._is_moving and last.still_holds(view, wanted, clients, period_ns):
            return last.plan
        plan = planner(view)
        self._planned = _Planned(view.deployment, wanted, view.now_ns, clients, plan) if clients else None
        if before in (None, wanted) or before not in self._planners or _is_prepared(planner):
            self._served = wanted
            return plan
        return self._planners[before](view)

    def _as_judged(self, view: View, verdict: Verdict) -> View:
        """With latencies as the candidate was tried with: what a dispatcher finds by the batch wavers around them, and
        when they are no longer true the load is judged anew.
        """
        if np.shape(verdict.ratios) != view.latency_ratio.shape:
            return view
        if verdict.ratios not in self._moved:
            self._moved.clear()
            self._moved[verdict.ratios] = with_latencies(view.deployment, verdict.ratios)
        ratio = np.ones_like(view.latency_ratio)
        return replace(view, deployment=self._moved[verdict.ratios], latency_ratio=ratio)

    @staticmethod
    def _dispatcher_ratios(verdict: Verdict) -> tuple[tuple[float, ...], ...]:
        """The latencies that it was tried with, as a dispatcher takes them: its own waver by the batch, and tables made
        for the one do not fit the other.
        """
        return tuple(tuple(min(max(ratio, LEAST_RATIO), MOST_RATIO) for ratio in row) for row in verdict.ratios)

    def in_force(self) -> Verdict | None:
        """The verdict that is followed."""
        return self._ledger.in_force()

    def _collect(self, deployment: Deployment) -> None:
        self._take(() if self.judge is None else self.judge.collect(deployment))

    def _take(self, verdicts: Sequence[Verdict]) -> None:
        """Without schedules by windows where nobody waits for a variant: a file may say anything, and plans are then
        made too seldom for them.
        """
        deployment = self._deployment
        swaps = deployment is not None and has_swaps(deployment)
        self._ledger.take([each for each in verdicts if swaps or not planner_entry(each.candidate.planner).by_windows])

    def _are_moving(self, view: View) -> bool:
        """Whether clients came or went just now: the load changes then, and not by chance."""
        clients = len(view.clients()) if self._has_networks else 0
        if abs(clients - self._clients) > MANY * self._clients or view.now_ns < self._came_ns:
            self._clients, self._came_ns = clients, view.now_ns
        return self._has_networks and view.now_ns - self._came_ns <= CAME_NS

    def _slow_rates(self, view: View, is_moving: bool) -> NDArray[np.float64]:
        """λ as a mean over the last seconds; at once where clients came or went, and as long as there was none before
        that was counted for a whole window.
        """
        rates, before = rates_of(view, 0.0), self._rates
        is_new = before is None or view.now_ns < self._looked_ns  # or another run has begun
        if before is not None and before.sum() <= 0:
            self._began_ns = self._looked_ns
        elif is_new:  # whoever counted before this planner came has a whole window
            self._began_ns = view.now_ns - RATE_WINDOW_NS
        if is_moving or is_new or before is None or view.now_ns - self._began_ns <= RATE_WINDOW_NS:
            self._rates = rates.copy()
        else:
            weight = 1.0 - math.exp(-(view.now_ns - self._looked_ns) / 1e9 / SLOW_S)
            self._rates = before + weight * (rates - before)
        self._looked_ns = view.now_ns
        return self._rates

    def _steadied(self, view: View, is_moving: bool) -> View:
        """With λ as a mean over the last seconds, as long as it differs by no more than chance: a plan for each breath
        of the count would be for a load that never was. What is more than chance counts at once.
        """
        counted, before = rates_of(view, 0.0), self._steady
        passed_s = (view.now_ns - self._looked_ns) / 1e9
        if view.rates is None:
            return view
        if before is None or len(before) != len(counted) or passed_s < 0:
            self._steady, self._steady_s = counted.copy(), np.zeros(len(counted))
            return view
        chance = CHANCE * np.sqrt(np.maximum(before, LEAST_RATE) * self._lump / (RATE_WINDOW_NS / 1e9))
        is_beginning = view.now_ns - self._began_ns <= RATE_WINDOW_NS  # its first whole count is taken as it is
        changed = (np.abs(counted - before) > chance) | is_moving | is_beginning
        self._steady_s = np.where(
            changed, 0.0, np.minimum(self._steady_s + passed_s, known_after_s(before / self._lump))
        )
        weight = np.where(changed, 1.0, passed_s / np.maximum(self._steady_s, passed_s + 1e-9))
        self._steady = before + weight * (counted - before)
        return replace(view, rates=self._steady.copy())

    def _planner(self, candidate: Candidate) -> Planner:
        if candidate not in self._planners:
            if len(self._planners) >= MOST_PLANNERS:
                del self._planners[next(iter(self._planners))]
            port = None if self.policies is None else self._desk.port()
            self._planners[candidate] = make(candidate, Ports(policies=port))
        return self._planners[candidate]

    def _hold_to_promise(self, view: View) -> None:
        """Counts what became of the queries at this rung; where many more are late than promised, it is judged anew."""
        ended = view.ended.sum(axis=0)
        queries = int(ended.sum() - ended[Outcome.DROPPED_CANCELLED])
        (rungs, before, late_before), here, broken = self._seen, self._ledger.rungs, self._ledger.broken
        if rungs != here:
            before = late_before = 0
        seen, late = before + queries, late_before + queries - int(ended[Outcome.ON_TIME])
        self._seen = (here, seen, late)
        verdict = self._ledger.here()
        if verdict is None or self.judge is None or not seen:
            return
        is_broken_by_half = seen >= ENOUGH_FOR_HALF and late / seen > verdict.promise.late + BROKEN_BY_HALF
        # Each time a promise was broken here the next one is given twice as long: the judge may know no better.
        if not is_broken_by_half and seen < ENOUGH << min(broken.get(here, 0), 10):
            return
        self._seen = (here, 0, 0)
        together = _largest_batch(view.deployment)  # queries of a batch are late together, so that few say little
        chance = CHANCE * math.sqrt(max(verdict.promise.late, 1e-3) * together / seen)
        if is_broken_by_half or late / seen > verdict.promise.late + BROKEN_LATE + chance:
            self.judge.broken(verdict, late / seen)
            broken[here] = broken.get(here, 0) + 1
            promise = replace(verdict.promise, late=late / seen)  # no more is expected of the runner-up
            self._ledger.verdicts[here] = replace(
                verdict,
                candidate=verdict.runner_up,
                runner_up=verdict.candidate,
                promise=promise,
                ratios=verdict.ratios if verdict.runner_up.tail == verdict.candidate.tail else (),
            )
            self._ledger.ask_anew()


def _largest_batch(deployment: Deployment) -> int:
    """That any worker answers within the SLO."""
    fitting = (
        profile.largest_batch_within(application.slo_ns, deployment.quantile)
        for application in deployment.applications
        for variant in application.variants
        for profile in variant.profiles
    )
    return max(1, *fitting)


def known_after_s(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """Seconds after which a steady load has been counted well, for each application."""
    return np.clip(WELL_COUNTED / np.maximum(rates, LEAST_RATE), STEADY_S, LONG_S)


@dataclass(frozen=True, eq=False)
class _Planned:
    """A candidate's last plan. One that is made to plan less often than it is asked here keeps to that, unless clients
    came or went, for what is known of them grows with each frame then, or networks have become others: that of one
    where there are few clients, of a tenth where there are many, for a plan for many takes long to make.
    """

    deployment: Deployment
    candidate: Candidate
    time_ns: int
    clients: tuple[Client, ...]
    plan: Plan

    def still_holds(self, view: View, wanted: Candidate, clients: tuple[Client, ...], period_ns: int) -> bool:
        is_like = self.deployment is view.deployment and self.candidate == wanted
        if not (is_like and 0 <= view.now_ns - self.time_ns < period_ns - EARLY_NS):
            return False
        if [client.slot for client in self.clients] != [client.slot for client in clients]:
            return False
        pairs = zip(self.clients, clients, strict=True)
        moved = sum(has_moved(before.network.bytes_per_s, now.network.bytes_per_s) for before, now in pairs)
        return moved <= MANY * len(clients)


def _has_sizes(deployment: Deployment) -> bool:
    """Whether some application takes frames of several sizes."""
    return any(
        len({variant.frame_bytes for variant in application.variants} - {0}) > 1
        for application in deployment.applications
    )


def _is_prepared(planner: Planner) -> bool:
    return not isinstance(planner, Prepares) or planner.is_prepared
