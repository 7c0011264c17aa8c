"""The judged default on Symphony's model zoos: applications of one variant, beside Symphony, Clockwork and others.

With one variant each there is nothing to choose but when and in which batch: the default must not be below the best of
those that were made for just that. Models of tables 5 and 6, alone on 8 workers and several together on 16, at 80, 100
and 115% of the goodput of Symphony's batch-aware form; all as they are served, on seeds that nothing was chosen on
(see judged.py). `points` is the share answered on time less that of the best other planner.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from statistics import fmean

from harness import Benchmark, goodput, zoo
from judged import NEVER_BELOW, SECONDS, TESTED_ON, TESTED_QUERIES, Ground, rows_of

from stretto.core.deployment import Deployment
from stretto.core.published import PublishedModel, published_table
from stretto.planners.symphony import Symphony
from stretto.sim.arrivals import Load
from stretto.sim.bounds import fluid_goodput
from stretto.sim.processes import Poisson
from stretto.sim.service import Deterministic

CLUSTERS = ("symphony_1080ti", "symphony_a100")
OTHERS = (
    *("symphony", "symphony_batch_aware", "symphony_eager", "clockwork", "clockwork_filling"),
    *("fixed_delay", "nexus", "clipper"),
)
EVERY, TOGETHER = 6, 4
WORKERS_ALONE, WORKERS_TOGETHER = 8, 16
SHARES = (0.8, 1.0, 1.15)
SEARCHED_ON, SEARCHED_S = (1, 2, 3), 10.0


@dataclass(frozen=True)
class Zoo(Ground):
    """One application for each model."""

    models: tuple[PublishedModel, ...] = ()

    def deployment(self) -> Deployment:
        return zoo(self.models, self.workers)


def groups() -> list[tuple[str, int, tuple[PublishedModel, ...]]]:
    """What is served together: a name, how many workers, and the models."""
    served = []
    for cluster in CLUSTERS:
        models = published_table(cluster)[::EVERY]
        served += [(f"{cluster}: {model.name}", WORKERS_ALONE, (model,)) for model in models]
        served.append((f"{cluster}: {TOGETHER} together", WORKERS_TOGETHER, models[:TOGETHER]))
    return served


def grounds(name: str, workers: int, models: tuple[PublishedModel, ...]) -> list[Zoo]:
    """At some shares of what Symphony's batch-aware form carries."""
    deployment = zoo(models, workers)
    most = goodput(
        deployment,
        Symphony(batch_aware=True),
        lambda rate: Load(Poisson(), rate),
        guess=0.75 * fluid_goodput(deployment, [1.0] * len(models)),
        seeds=SEARCHED_ON,
        seconds=SEARCHED_S,
    )
    return [
        Zoo(
            name=name,
            workers=workers,
            slo_ms=max(model.slo_ms for model in models),
            load=share * most,
            source=Load(Poisson(), share * most),
            service=Deterministic(),
            seconds=max(SECONDS, TESTED_QUERIES / (share * most)),
            models=models,
        )
        for share in SHARES
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes; all cores")
    parser.add_argument("--only", default="", help="groups of this name alone; nothing is written")
    options = parser.parse_args()
    bench = Benchmark("judged_zoos", seed=TESTED_ON[0])
    chosen = [group for group in groups() if options.only in group[0]]
    rows = rows_of(bench, [ground for group in chosen for ground in grounds(*group)], options.jobs, OTHERS)
    if options.only:
        return
    points = [row["points"] for row in rows]
    what = f"judged less the best of {len(OTHERS)} others, {len(rows)} rows, points on time"
    bench.claim(f"{what}: least", paper="", target="≥ -0.1", ours=min(points), met=min(points) >= 100 * NEVER_BELOW)
    bench.claim(f"{what}: mean", paper="", target="≥ 0", ours=fmean(points), met=fmean(points) >= 0)
    bench.finish()


if __name__ == "__main__":
    main()
