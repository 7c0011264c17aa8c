"""Symphony figure 11. Left: what the scheduler alone can take a second. Right: goodput by the number of workers.

Left: each sub-cluster of section 4.7 (10 applications on 50 workers) has a dispatcher in a process of its own, and all
run at once. Counted are queries by second of the wall clock, from the start of the first to the end of the last.
Arrivals are made beforehand; a worker is an in-process object that ends its batch after l(b). The median of the rounds
counts. `cluster_fig11` has the same with messages to and from the scheduler.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import numpy as np
from harness import Benchmark, goodput, like
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.published import published_model
from stretto.planners.symphony import Symphony
from stretto.sim.arrivals import Load
from stretto.sim.bounds import staggered
from stretto.sim.processes import Poisson
from stretto.sim.simulator import Simulation

APPLICATIONS, WORKERS, SLO_MS = 10, 50, 100.0  # of a sub-cluster
RATE, SECONDS = 20_000.0, 250.0
PROCESSES = (1, 2, 4, 8, 16)
ROUNDS = 3
LINEAR = (0.8, 1.1)  # times as many processes
PER_WORKER = (0.95, 1.35)  # goodput by worker, many workers against few: large clusters hold bursts better


@dataclass(frozen=True, eq=False)
class Prepared:
    """Arrivals made beforehand, so that only the scheduler is timed."""

    chunk: NDArray[Any]

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[Any]]:
        """All at once."""
        yield self.chunk

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        """Counted."""
        counts = np.bincount(self.chunk["application"], minlength=len(deployment.applications))
        return tuple((counts / seconds).tolist())


def schedule(number: int, together: Any, told: Any) -> None:
    """One sub-cluster: it waits for the others, and tells when it began, when it ended, and how many queries it had."""
    deployment = like(published_model("symphony_1080ti:ResNet50").profile(), SLO_MS, APPLICATIONS, WORKERS)
    source = Prepared(np.concatenate(list(Load(Poisson(), RATE).chunks(deployment, SECONDS, number))))
    first = Simulation(deployment, Symphony(), Prepared(source.chunk[:1000]), seconds=SECONDS)
    first.run_to(int(SECONDS * 1e9))  # loads the compiled code
    run = Simulation(deployment, Symphony(), source, seconds=SECONDS)
    together.wait()
    began = time.monotonic()
    run.run_to(int(SECONDS * 1e9))
    told.put((began, time.monotonic(), int(run.submitted.sum())))


def at_once(count: int) -> float:
    """Queries by second of the wall clock, of so many sub-clusters."""
    context = get_context("spawn")
    together, told = context.Barrier(count), context.SimpleQueue()
    processes = [context.Process(target=schedule, args=(number, together, told)) for number in range(count)]
    for process in processes:
        process.start()
    runs = [told.get() for _ in processes]
    for process in processes:
        process.join()
    began, ended = min(run[0] for run in runs), max(run[1] for run in runs)
    return float(sum(run[2] for run in runs) / (ended - began))


def main() -> None:
    """Both halves of the figure."""
    bench = Benchmark("symphony_fig11")
    profile = published_model("symphony_1080ti:ResNet50").profile()
    counts = [count for count in PROCESSES if count <= len(os.sched_getaffinity(0))]
    rates: dict[int, list[float]] = {count: [] for count in counts}
    for _ in bench.steps(range(ROUNDS), ROUNDS, "processes"):
        for count in counts:
            rates[count].append(at_once(count))
    one = statistics.median(rates[1])
    for count, measured in rates.items():
        total = statistics.median(measured)
        bench.row(processes=count, scheduled_per_s=total, of_linear=total / count / one)
    bench.band(
        f"scheduler alone, queries by second of the wall clock, {counts[-1]} processes against 1",
        paper="linear in threads",
        between=(LINEAR[0] * counts[-1], LINEAR[1] * counts[-1]),
        ours=statistics.median(rates[counts[-1]]) / one,
    )
    rates_by_size: dict[int, float] = {}
    sizes = (16, 32, 64, 128, 256, 512)
    for size in bench.steps(sizes, len(sizes), "workers"):
        deployment = like(profile, SLO_MS, 2 * APPLICATIONS, size)
        bound = staggered(profile, int(SLO_MS * 1e6), size).throughput
        rates_by_size[size] = goodput(
            deployment,
            Symphony(),
            lambda rate: Load(Poisson(), rate),
            guess=0.8 * bound,
            seeds=(1, 2, 3),
            seconds=5.0,
            tolerance=0.01,
        )
        bench.row(
            workers=size,
            goodput=rates_by_size[size],
            per_worker=rates_by_size[size] / size,
            of_staggered=rates_by_size[size] / bound,
        )
    linear = rates_by_size[512] / rates_by_size[16] / (512 / 16)
    bench.band("goodput by worker at 512 workers against 16", paper="linear", between=PER_WORKER, ours=linear)
    bench.finish()


if __name__ == "__main__":
    main()
