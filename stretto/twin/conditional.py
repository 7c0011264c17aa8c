"""What candidates are tried under, and what a trial is worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays, Plan
from stretto.core.profile import NS_PER_S
from stretto.core.view import Planner, View
from stretto.planning.session import Session
from stretto.sim.arrivals import Source
from stretto.sim.results import Summary
from stretto.sim.service import Service
from stretto.sim.simulator import simulate
from stretto.twin.classes import Classes, Classified

LATE_PRICE = 0.2  # of accuracy, for each share of queries that is not answered on time beyond what may be
MOST_LATE = 0.005
MOST_WAITING = 512  # queries, of which a schedule is made
BRINK_PRICE = 0.001  # of accuracy, where p95 of the answers comes at the deadline; in proportion where it comes before


class Conditional(Protocol):
    """A Setting, or a scenario."""

    @property
    def delays(self) -> Delays: ...

    def source(self, factor: float) -> Source:
        """Arrivals of the setting's shape at so many times its rates."""
        ...

    def service(self) -> Service: ...


Worlds = Mapping[float, tuple[Deployment, Conditional]]  # by the tail of run times that profiles were moved to


@dataclass(frozen=True, eq=False)
class Drawn:
    """Arrivals that were drawn already, for one length and seed: a Source that several candidates are tried on."""

    arrays: tuple[NDArray[np.void], ...]
    rates: tuple[float, ...]
    classified: Classified | None = None  # their classes, where there is evidence of them

    @staticmethod
    def of(
        source: Source,
        deployment: Deployment,
        seconds: float,
        seed: int,
        classes: Classes | None = None,
        in_doubt: bool = False,
    ) -> Drawn:
        """`in_doubt`: classes as they may be as well."""
        rates = source.expected_rates(deployment, seconds)
        arrays = tuple(source.chunks(deployment, seconds, seed))
        if classes is None:
            return Drawn(arrays, rates)
        applications = np.concatenate([np.zeros(0, np.int32), *(chunk["application"] for chunk in arrays)])
        classified = (classes.resampled(seed) if in_doubt else classes).draw(applications, seed)
        told, first = classified.told(), 0
        for chunk in arrays:
            chunk["query_class"] = told[first : first + len(chunk)]
            first += len(chunk)
        return Drawn(arrays, rates, classified)

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[np.void]]:
        return iter(self.arrays)

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        return self.rates


@dataclass(frozen=True)
class Score:
    """Of one trial; by default of a candidate that cannot plan."""

    value: float = -math.inf
    correct: float = 0.0
    late: float = 1.0

    @staticmethod
    def of(summary: Summary, correct: float | None = None) -> Score:
        """`correct`: the share answered right and on time, where more is known of it than the summary says."""
        late, right = 1.0 - summary.on_time_rate, summary.correct_on_time if correct is None else correct
        value = right - LATE_PRICE * max(0.0, late - MOST_LATE)
        return Score(value - BRINK_PRICE * _brink(summary), right, late)


def bounded(planner: Planner) -> Planner:
    """A schedule by windows, that gives up where more wait than it could be served with: it takes too long to make."""

    def planned(view: View) -> Plan:
        if len(view.waiting()) > MOST_WAITING:
            raise StrettoError("more queries wait than a window holds")
        return planner(view)

    return planned


def tried(
    deployment: Deployment, planner: Planner | Session, drawn: Drawn, *, warmup_s: float, by_windows: bool, **run: Any
) -> Score:
    """One trial on these arrivals. Where their classes are known, answers count by the true ones, and a schedule by
    windows sees what evidence says of them.
    """
    classified = drawn.classified
    if classified is None:
        return Score.of(simulate(deployment, planner, drawn, warmup_s=warmup_s, **run).summary)
    theta = classified.theta() if by_windows else None
    ended = simulate(deployment, planner, drawn, warmup_s=warmup_s, record=True, evidence=theta, **run)
    assert ended.queries is not None
    return Score.of(ended.summary, classified.correct(ended.queries, int(warmup_s * NS_PER_S)))


def _brink(summary: Summary) -> float:
    """How much of their SLO answers take, at p95 and at most all of it. Of two plans that answer equally much the one
    that answers sooner is better to its users, and does not rest on every moment being as it was measured.
    """
    called = [application for application in summary.applications if application.submitted]
    taken = (min(1.0, each.latency_ms["p95"] / each.slo_ms) * each.submitted for each in called)
    return sum(taken) / max(1, sum(each.submitted for each in called))
