"""RAMSIS figure 8: nine variants against sixty, image task, 150 ms, 100 workers.

The sixty are made as in section 7.3.2 and table 2: linear between neighbours on the Pareto front of the nine, 0.5% of
accuracy apart. 30 s of Poisson arrivals per load and seed, two seeds, every batch at its p95, the load known; accuracy
is per on-time query. As in the figure, a point counts where less than 5% are late. ModelSwitching's p99 responses are
measured by simulation at the same loads. Needs shared/data/ramsis_image.csv.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

import numpy as np
from harness import Benchmark
from ramsis_ground import IMAGE
from ramsis_table2 import many_variants

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.view import Planner
from stretto.core.worker import workers
from stretto.planners.model_switching import ModelSwitching
from stretto.planners.parts.fronts import pareto_front
from stretto.planners.parts.task import Task, task_of
from stretto.planners.ramsis.planner import Ramsis
from stretto.sim.arrivals import Load
from stretto.sim.bounds import fluid_accuracy
from stretto.sim.processes import Poisson
from stretto.sim.responses import already_measured, measured_responses
from stretto.sim.simulator import simulate

WORKERS = 100
SLO_MS = 150.0
LOADS = tuple(range(400, 4001, 400))
SECONDS = 30.0
SEEDS = (1, 2)
SATISFIED = 0.05
COUNTS = (9, 60)


@dataclass(frozen=True)
class Seen:
    """Means over the seeds."""

    accuracy: float
    late: float


def deployment_of(task: Task) -> Deployment:
    """A task as something to serve; every quantile is that of the task."""
    variants = tuple(
        Variant(name, float(accuracy), (LatencyProfile(np.tile(row, (len(Quantile), 1))),))
        for name, accuracy, row in zip(task.variants, task.accuracy, task.latency_ns, strict=True)
    )
    return Deployment((Application(task.application, task.slo_ns, variants),), workers(task.workers))


def observe(deployment: Deployment, planner: Planner, load: float) -> Seen:
    source = Load(Poisson(), load)
    runs = [simulate(deployment, planner, source, seconds=SECONDS, seed=seed).summary for seed in SEEDS]
    return Seen(fmean(run.accuracy for run in runs), fmean(run.bad_rate for run in runs))


def main() -> None:
    """Both systems with both sets of variants at every load."""
    bench = Benchmark("ramsis_models")
    task = task_of(IMAGE.deployment(WORKERS, SLO_MS), 0)
    few = task.only(pareto_front(task))
    deployments = {len(one.variants): deployment_of(one) for one in (few, many_variants(task))}
    assert tuple(deployments) == COUNTS
    switching = {
        count: ModelSwitching(already_measured(measured_responses(one, LOADS))) for count, one in deployments.items()
    }
    seen: dict[tuple[str, int, int], Seen] = {}
    jobs = [(count, load) for count in COUNTS for load in LOADS]
    for count, load in bench.steps(jobs, len(jobs), "loads"):
        deployment = deployments[count]
        planners: dict[str, Planner] = {"ramsis": Ramsis(), "model_switching": switching[count]}
        for system, planner in planners.items():
            found = seen[system, count, load] = observe(deployment, planner, float(load))
            bench.row(
                system=system,
                variants=count,
                load=load,
                accuracy=found.accuracy,
                late=found.late,
                fluid_bound=fluid_accuracy(deployment, [float(load)]).accuracy,
            )

    def gains(ours: tuple[str, int], theirs: tuple[str, int]) -> list[float]:
        pairs = [(seen[(*ours, load)], seen[(*theirs, load)]) for load in LOADS]
        return [100 * (a.accuracy - b.accuracy) for a, b in pairs if max(a.late, b.late) < SATISFIED]

    for what, ours, theirs, paper, target, low, high, rule in (
        ("ramsis: 60 variants over 9", ("ramsis", 60), ("ramsis", 9), "negligible", "mean ≤ 1", -1.0, 1.0, fmean),
        (
            *("model_switching: 60 variants over 9", ("model_switching", 60), ("model_switching", 9)),
            *("significant", "mean ≥ 1", 1.0, 100.0, fmean),
        ),
        (
            *("ramsis over model_switching, 60 variants each", ("ramsis", 60), ("model_switching", 60)),
            *("above", "never below", -0.05, 100.0, min),
        ),
        (
            *("ramsis with 9 over model_switching with 60", ("ramsis", 9), ("model_switching", 60)),
            *("above", "mean ≥ 0", 0.0, 100.0, fmean),
        ),
    ):
        points = gains(ours, theirs)
        bench.claim(
            f"{what}: points, mean and range",
            paper=paper,
            target=target,
            ours=f"{fmean(points):.2f} ({min(points):.2f} to {max(points):.2f}, {len(points)} loads)",
            met=low <= rule(points) <= high,
        )
    bench.finish()


if __name__ == "__main__":
    main()
