"""A plan tried on a deployment of one application, by the very loop that simulates and the very rules that serve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import Plan
from stretto.planners.ports import Seen, TrialConditions
from stretto.sim.arrivals import ARRIVAL, CHUNK
from stretto.sim.service import Deterministic, Lognormal
from stretto.sim.simulator import MAX_SECONDS, simulate


def simulated_trial(deployment: Deployment, plan: Plan, conditions: TrialConditions) -> Seen:
    """What becomes of the queries that the conditions draw (a `Trial`)."""
    if len(deployment.applications) != 1:
        raise StrettoError("a plan is tried for one application")
    source = _Drawn(drawn_arrivals(conditions), conditions.load)
    noise = conditions.noise
    run = simulate(
        deployment,
        lambda view: plan,
        source,
        seconds=float(source.times_ns[-1]) / 1e9 + 1.0,
        seed=conditions.seed,
        service=Lognormal(noise) if noise > 0 else Deterministic(),
        record=True,
        expected_rates=(conditions.load,),
    )
    assert run.queries is not None
    counted = run.queries[int(conditions.warm_up * len(run.queries)) :]
    is_on_time = counted["outcome"] == Outcome.ON_TIME
    accuracy_of = np.array([variant.accuracy for variant in deployment.variants])
    accuracy = np.where(is_on_time, accuracy_of[counted["variant"]], 0.0)
    block = np.arange(len(counted)) * conditions.blocks // len(counted)
    queries = np.bincount(block, minlength=conditions.blocks)
    on_time = np.bincount(block, is_on_time, conditions.blocks)
    right = np.bincount(block, accuracy, conditions.blocks)
    root = math.sqrt(conditions.blocks)
    return Seen(
        accuracy=float(right.sum() / max(on_time.sum(), 1)),
        late=float(1.0 - on_time.sum() / len(counted)),
        accuracy_error=float((right / np.maximum(on_time, 1)).std(ddof=1)) / root,
        late_error=float((on_time / np.maximum(queries, 1)).std(ddof=1)) / root,
        queries=len(counted),
    )


def drawn_arrivals(conditions: TrialConditions) -> NDArray[np.int64]:
    """Times in ns: gaps of the law's dispersion, gamma ones (exponential for Poisson); as many as a run may last."""
    random = np.random.default_rng([conditions.seed, 0x5A12ED])
    shape = 1.0 / conditions.law.dispersion
    count = max(1, min(conditions.queries, int(0.9 * MAX_SECONDS * conditions.load)))
    gaps = random.gamma(shape, 1.0 / (shape * conditions.load), count)
    return np.cumsum(gaps * 1e9).astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Arrivals that are drawn already, as a source."""

    times_ns: NDArray[np.int64]
    load: float

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        return (self.load,)

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[Any]]:
        arrivals = np.zeros(len(self.times_ns), dtype=ARRIVAL)
        arrivals["time_ns"] = self.times_ns
        arrivals["deadline_ns"] = self.times_ns + deployment.applications[0].slo_ns
        arrivals["client"] = arrivals["query_class"] = -1
        for first in range(0, len(arrivals), CHUNK):
            yield arrivals[first : first + CHUNK]
