"""The default: at every load it follows the candidate that was judged best there.

Loads are told apart in rungs. For a rung that nobody judged yet the judge is asked, and the verdict of the nearest one
serves until the answer is there; where there is none at all, a start candidate does. The candidate itself is a planner
like any other: it follows the measured load in its own finer steps.

A promise that is not kept is told to the judge, and the runner-up serves until the rung is judged anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Plan
from stretto.core.view import Planner, View
from stretto.planners.candidates import Candidate
from stretto.planners.parts.rates import rates_of
from stretto.planners.ports import JudgePort, PolicyPort, Ports, Verdict

START = Candidate("shared_queue", (("noise", 0.2), ("margin", 0.1), ("caution", 1.0)))
RUNG = 1.12  # loads of one application that are judged apart
RUNG_OF_SEVERAL = 1.4  # of each of several applications
LEAST_RATE = 1.0
STAY = 0.6  # of a rung: so far from its middle a load must be before another rung counts
ENOUGH = 2_000  # queries that a promise is held against
BROKEN_LATE = 0.02  # more than promised
MOST_PLANNERS = 24

Rungs = tuple[int, ...]


@dataclass(eq=False)
class Judged:
    """`judge` is asked for verdicts; `policies` is where candidates have their tables made."""

    judge: JudgePort | None = None
    policies: PolicyPort | None = None
    start: Candidate = START
    _deployment: Deployment | None = field(default=None, init=False, repr=False)
    _verdicts: dict[Rungs, Verdict] = field(default_factory=dict, init=False, repr=False)
    _asked: set[Rungs] = field(default_factory=set, init=False, repr=False)
    _planners: dict[Candidate, Planner] = field(default_factory=dict, init=False, repr=False)
    _rungs: Rungs = field(default=(), init=False, repr=False)
    _seen: tuple[Rungs, int, int] = field(default=((), 0, 0), init=False, repr=False)  # rung, queries, late ones

    def __call__(self, view: View) -> Plan:
        if view.deployment is not self._deployment:
            self._deployment = view.deployment
            for memory in (self._verdicts, self._asked, self._planners):
                memory.clear()
            self._rungs = ()
            self._seen = ((), 0, 0)
        self._collect(view.deployment)
        self._rungs = self._rungs_for(view)
        if self.judge is not None and self._rungs not in self._asked and rates_of(view, 0.0).sum() > 0:
            self._asked.add(self._rungs)
            self.judge.ask(view.deployment, self._rates(self._rungs))
            self._collect(view.deployment)  # it may have been judged on the spot
        self._hold_to_promise(view)
        verdict = self.in_force()
        return self._planner(self.start if verdict is None else verdict.candidate)(view)

    def in_force(self) -> Verdict | None:
        """The verdict that is followed: that of the rung, else of the nearest."""
        if not self._verdicts:
            return None
        return self._verdicts[min(self._verdicts, key=self._distance)]

    def _distance(self, rungs: Rungs) -> float:
        return max((abs(one - other) for one, other in zip(rungs, self._rungs, strict=True)), default=0.0)

    def _collect(self, deployment: Deployment) -> None:
        for verdict in () if self.judge is None else self.judge.collect(deployment):
            self._verdicts[tuple(round(self._height(rate)) for rate in verdict.rates)] = verdict

    @property
    def _rung(self) -> float:
        several = self._deployment is not None and len(self._deployment.applications) > 1
        return RUNG_OF_SEVERAL if several else RUNG

    def _height(self, rate: float) -> float:
        return math.log(max(rate, LEAST_RATE)) / math.log(self._rung)

    def _rates(self, rungs: Rungs) -> tuple[float, ...]:
        return tuple(float(self._rung**step) for step in rungs)

    def _rungs_for(self, view: View) -> Rungs:
        """The nearest rungs; the ones before as long as the load is near enough to them."""
        heights = [self._height(rate) for rate in rates_of(view, 0.0).tolist()]
        if self._rungs and all(abs(height - step) <= STAY for height, step in zip(heights, self._rungs, strict=True)):
            return self._rungs
        return tuple(round(height) for height in heights)

    def _planner(self, candidate: Candidate) -> Planner:
        if candidate not in self._planners:
            if len(self._planners) >= MOST_PLANNERS:
                del self._planners[next(iter(self._planners))]
            self._planners[candidate] = candidate.make(Ports(policies=self.policies))
        return self._planners[candidate]

    def _hold_to_promise(self, view: View) -> None:
        """Counts what became of the queries at this rung; where many more are late than promised, it is judged anew."""
        ended = view.ended.sum(axis=0)
        queries = int(ended.sum() - ended[Outcome.DROPPED_CANCELLED])
        rungs, before, late_before = self._seen
        if rungs != self._rungs:
            before = late_before = 0
        seen, late = before + queries, late_before + queries - int(ended[Outcome.ON_TIME])
        self._seen = (self._rungs, seen, late)
        verdict = self._verdicts.get(self._rungs)
        if verdict is None or self.judge is None or seen < ENOUGH:
            return
        self._seen = (self._rungs, 0, 0)
        allowed = verdict.promise.late + BROKEN_LATE + 3 * math.sqrt(max(verdict.promise.late, 1e-3) / seen)
        if late / seen > allowed:
            self.judge.broken(verdict, late / seen)
            promise = replace(verdict.promise, late=late / seen)  # no more is expected of the runner-up
            self._verdicts[self._rungs] = replace(
                verdict, candidate=verdict.runner_up, runner_up=verdict.candidate, promise=promise
            )
            self._asked.discard(self._rungs)
