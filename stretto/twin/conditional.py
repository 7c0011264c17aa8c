"""What candidates are tried under, and what a trial is worth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.plan import Delays
from stretto.sim.arrivals import Source
from stretto.sim.results import Summary
from stretto.sim.service import Service

LATE_PRICE = 0.2  # of accuracy, for each share of queries that is not answered on time beyond what may be
MOST_LATE = 0.005
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

    @staticmethod
    def of(source: Source, deployment: Deployment, seconds: float, seed: int) -> Drawn:
        rates = source.expected_rates(deployment, seconds)
        return Drawn(tuple(source.chunks(deployment, seconds, seed)), rates)

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
    def of(summary: Summary) -> Score:
        late = 1.0 - summary.on_time_rate
        value = summary.correct_on_time - LATE_PRICE * max(0.0, late - MOST_LATE)
        return Score(value - BRINK_PRICE * _brink(summary), summary.correct_on_time, late)


def _brink(summary: Summary) -> float:
    """How much of their SLO answers take, at p95 and at most all of it. Of two plans that answer equally much the one
    that answers sooner is better to its users, and does not rest on every moment being as it was measured.
    """
    called = [application for application in summary.applications if application.submitted]
    taken = (min(1.0, each.latency_ms["p95"] / each.slo_ms) * each.submitted for each in called)
    return sum(taken) / max(1, sum(each.submitted for each in called))
