"""Response latencies measured by simulation, for the planner that goes by them (ModelSwitching, RAMSIS section 7).

Each variant that answers a single query within the SLO runs alone on its application's workers, one central queue, caps
of batches as when it is planned, Poisson arrivals at each load of a grid; the p99 is the median over the seeds. What is
measured does not depend on the load of the run that it is for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan, by_application
from stretto.core.profile import MAX_BATCH_LIMIT
from stretto.core.view import Planner, View
from stretto.planners.model_switching import caps_at, measured_task
from stretto.planners.parts.central import Caps, central_lane, variants_within
from stretto.planners.parts.responses import Responses
from stretto.planners.parts.sharing import workers_of_applications
from stretto.planners.parts.task import Task
from stretto.planners.ports import MeasureResponses
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.service import Service
from stretto.sim.simulator import simulate

QUERIES = 20_000  # of a measurement: 200 of them lie beyond the p99
SHORTEST_S, LONGEST_S = 5.0, 600.0
LOAD_STEP = 1.1  # from one load to the next
LOWEST_LOAD = 0.02  # of what the fastest variant answers
MAX_LOADS = 400
HOPELESS = 2.0  # times the SLO: from such a load on, a variant is measured no further with the same caps

Measure = Callable[[Deployment, Planner, float], float]  # p99 response in ns at a load (queries/s)


def measured_responses(
    deployment: Deployment,
    loads: Sequence[float] | None = None,
    *,
    rates: Sequence[float] | None = None,
    workers: Mapping[str, int] | None = None,
    service: Service | None = None,
    seconds: float | None = None,
    seeds: Sequence[int] = (1,),
    progress: Callable[[float], None] | None = None,
) -> dict[str, Responses]:
    """What `ModelSwitching(responses=…)` takes, by application.

    `rates` share the workers out between applications, as they will when it plans. Without `loads`, a grid up to what
    the fastest variant answers; without `seconds`, as long as it takes to see enough queries.
    """
    if not seeds:
        raise StrettoError("response latencies are measured with at least one seed")

    def measure(alone: Deployment, planner: Planner, load: float) -> float:
        length = min(max(QUERIES / load, SHORTEST_S), LONGEST_S) if seconds is None else seconds
        runs = (simulate(alone, planner, Load(Poisson(), load), seconds=length, seed=s, service=service) for s in seeds)
        return median(run.summary.latency_ms["p99"] for run in runs) * 1e6

    def report_share(done: int, total: int) -> None:
        assert progress is not None
        progress(done / total)

    return measure_responses(
        deployment,
        load_grid(deployment, rates, workers) if loads is None else loads,
        measure,
        rates=rates,
        workers=workers,
        progress=None if progress is None else report_share,
    )


def load_grid(
    deployment: Deployment, rates: Sequence[float] | None = None, workers: Mapping[str, int] | None = None
) -> tuple[float, ...]:
    """Loads in even ratios, up to the most that any application's workers answer with its fastest variant."""
    most = []
    for number, crew in enumerate(workers_of_applications(deployment, rates, workers or {})):
        alone = alone_on(deployment, number, crew)
        able = variants_within(alone, 0, tuple(range(len(crew))), 1.0)
        largest = {worker.kind: MAX_BATCH_LIMIT for worker in alone.workers}
        most.append(max(largest_throughput(alone, variant, largest) for variant in able))
    count = min(MAX_LOADS, 1 + math.ceil(math.log(max(most) / (LOWEST_LOAD * min(most)), LOAD_STEP)))
    return tuple(max(most) / LOAD_STEP**step for step in reversed(range(count)))


@dataclass(frozen=True)
class _Always:
    """The central queue with one variant, as it is measured."""

    variant: int
    caps: Caps

    def __call__(self, view: View) -> Plan:
        every = tuple(range(len(view.deployment.workers)))
        lane = central_lane(view.deployment, 0, every, self.variant, self.caps)
        return by_application((lane,), planner="model_switching")


def measure_responses(
    deployment: Deployment,
    loads: Sequence[float],
    measure: Measure,
    *,
    rates: Sequence[float] | None = None,
    workers: Mapping[str, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Responses]:
    """p99 response per application, variant (on the Pareto front) and load, each on the workers of its application."""
    rising = tuple(sorted(set(loads)))
    if not rising or not 0 < rising[0] <= rising[-1] < math.inf:
        raise StrettoError("response latencies are measured at loads above zero")
    responses: dict[str, Responses] = {}
    done, total = 0, 0
    jobs: list[tuple[int, Deployment, Task, list[int]]] = []
    for number, crew in enumerate(workers_of_applications(deployment, rates, workers or {})):
        alone = alone_on(deployment, number, crew)
        task = measured_task(deployment, number, crew)
        chosen = variants_within(alone, 0, tuple(range(len(crew))), 1.0)
        jobs.append((number, alone, task, chosen))
        total += len(chosen)
    for number, alone, task, chosen in jobs:
        slo_ns = deployment.applications[number].slo_ns
        p99: dict[str, tuple[float, ...]] = {}
        every = tuple(range(len(alone.workers)))
        caps = [caps_at(alone, 0, every, load) for load in rising]
        for variant in chosen:
            measured: list[float] = []
            hopeless_with: Caps | None = None
            for load, most in zip(rising, caps, strict=True):
                if most == hopeless_with or load >= largest_throughput(alone, variant, most):
                    measured.append(math.inf)
                    continue
                measured.append(measure(alone, _Always(variant, most), load))
                hopeless_with = most if measured[-1] > HOPELESS * slo_ns else None
            p99[alone.variants[variant].name] = tuple(measured)
            done += 1
            if progress is not None:
                progress(done, total)
        responses[deployment.applications[number].name] = Responses(rising, p99, task.described())
    return responses


def alone_on(deployment: Deployment, application: int, workers: tuple[int, ...]) -> Deployment:
    """One application on its own workers, as it is measured."""
    return Deployment(
        (deployment.applications[application],), tuple(deployment.workers[w] for w in workers), deployment.quantile
    )


def largest_throughput(deployment: Deployment, variant: int, caps: Caps) -> float:
    """Queries/s that all workers answer with their best batch under the caps; at more, queues grow for ever."""
    total = 0.0
    for worker in deployment.workers:
        row = deployment.profile(variant, worker.kind).table_ns[deployment.quantile]
        sizes = np.arange(1, min(caps[worker.kind], len(row) - 1) + 1)
        total += float((sizes * 1e9 / row[sizes]).max())
    return total


def already_measured(responses: Mapping[str, Responses]) -> MeasureResponses:
    """For whoever has them: nothing is measured when they are asked for."""
    return lambda deployment, rates: responses
