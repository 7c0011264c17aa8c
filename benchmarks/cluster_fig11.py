"""Symphony figure 11 once more, over the message face: schedulers at the same time, and goodput by workers.

Left: a scheduler is a process with a sub-cluster of its own, as `stretto scheduler --partition` has it; schedulers know
nothing of each other. Each takes 100,000 queries/s for 1,000 simulated workers, as in `cluster_scheduler`, under a
clock that the benchmark moves. What is counted is queries by second of processor time while all of them run.

Right: the highest rate that holds (at most 1% bad) when queries come as messages, one a millisecond, and batches end as
profiles say. Neither the clock nor what else runs on the machine changes a decision.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import uvloop
from cluster_scheduler import APPLICATIONS, MODEL, SLO_MS, TARGET, TURN_S, at_no_time
from harness import Benchmark

from stretto.core.published import published_model
from stretto.sim.bounds import staggered
from stretto.sim.goodput import find_goodput

SCHEDULERS = (1, 2, 4, 8, 16)
ROUNDS = 3
SECONDS = 5.0  # of simulated time, of which the first two are not counted
SIZES = (16, 64, 256, 512)
PLANNER = "symphony_batch_aware"
TOLERANCE = 0.02


@dataclass(frozen=True)
class Held:
    """What a search for goodput wants to know of a run; applications are alike, and none is the worst."""

    submitted: int
    worst_bad_rate: float
    goodput: float


def schedule_once() -> None:
    """One of several schedulers: it says that it is ready, waits for a line, and tells what it took."""

    def begin() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    print(json.dumps(asyncio.run(at_no_time(TARGET, SECONDS, TURN_S, begin=begin))), flush=True)


def at_once(count: int) -> list[dict[str, Any]]:
    """So many schedulers, from the same moment on."""
    command = [sys.executable, __file__, "--scheduler"]
    made = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        for process in made:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in made:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [json.loads(process.communicate()[0]) for process in made]
    finally:
        for process in made:
            process.kill()


def goodput_of(workers: int, guess: float) -> float:
    def run(rate: float, seed: int) -> Held:
        found = asyncio.run(at_no_time(rate, SECONDS, TURN_S, workers=workers, planner=PLANNER, seed=seed))
        return Held(1, found["bad_rate"], rate * (1 - found["bad_rate"]))

    return find_goodput(run, guess=guess, tolerance=TOLERANCE).rate  # type: ignore[arg-type]


def main() -> None:
    uvloop.install()
    if sys.argv[1:] == ["--scheduler"]:
        schedule_once()
        return
    bench = Benchmark("cluster_fig11")
    counts = [count for count in SCHEDULERS if count <= (os.cpu_count() or 1)]
    totals: dict[int, list[float]] = {count: [] for count in counts}
    for _ in bench.steps(range(ROUNDS), ROUNDS, "schedulers"):
        for count in counts:
            rates = [found["queries_a_core_second"] for found in at_once(count)]
            totals[count].append(sum(rates))
    medians = {count: statistics.median(values) for count, values in totals.items()}
    for count, total in medians.items():
        bench.row(schedulers=count, scheduled_per_s=total, of_linear=total / count / medians[1])
    most = counts[-1]
    bench.claim(
        f"{most} schedulers at once over one, queries by second of their processors",
        paper="linear in threads (figure 11, left)",
        target=f"≥ {0.85 * most:g}",
        ours=medians[most] / medians[1],
        met=medians[most] >= 0.85 * most * medians[1],
    )
    profile, by_size = published_model(MODEL).profile(), dict[int, float]()
    for workers in bench.steps(SIZES, len(SIZES), "workers"):
        bound = staggered(profile, int(SLO_MS * 1e6), workers).throughput
        by_size[workers] = rate = goodput_of(workers, 0.9 * bound)
        bench.row(workers=workers, goodput=rate, per_worker=rate / workers, of_staggered=rate / bound)
    first, last = SIZES[0], SIZES[-1]
    linear = by_size[last] / by_size[first] / (last / first)
    bench.claim(
        f"goodput by worker over the face, {APPLICATIONS} applications: {last} workers against {first}",
        paper="linear (figure 11, right)",
        target="≥ 0.95",
        ours=linear,
        met=linear >= 0.95,
    )
    bench.finish()


if __name__ == "__main__":
    main()
