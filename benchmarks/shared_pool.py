"""The 35 models of Symphony's table 5 on 64 shared workers at 7,400 queries/s: the share answered on time.

Each planner is run as `stretto simulate` runs it, from the same scenario file. The workers are busy for four fifths of
what the best batches would need, so a planner that gives a worker to the wrong application loses many queries here: it
is the row that shows whether a lane that waits is ranked by all that it holds (Symphony figure 16).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from harness import Benchmark

from stretto.cli.inputs import under_planners
from stretto.cli.run import run_scenario
from stretto.cli.scenario.read import read_scenario

RATE, WORKERS, SECONDS = 7400.0, 64, 30.0
SEEDS = (1, 2, 3)
PLANNERS = ("shared_queue", "priced", "judged", "symphony_eager", "symphony", "symphony_batch_aware")
CLAIMED = PLANNERS[:4]
ON_TIME = 0.995
SCENARIO = """
name = "35 models on {workers} workers"
seconds = {seconds}
seed = {seed}

[cluster]
workers = {workers}

[zoo]
table = "symphony_1080ti"

[load]
kind = "poisson"
rate = {rate}
"""


def measure(job: tuple[str, int, float]) -> dict[str, Any]:
    """A planner on one seed."""
    name, seed, seconds = job
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scenario.toml"
        file.write_text(SCENARIO.format(workers=WORKERS, rate=RATE, seconds=seconds, seed=seed), encoding="utf-8")
        (scenario,) = under_planners(read_scenario(file), name, None).values()
        summary = run_scenario(scenario).summary
    return {
        "planner": name,
        "seed": seed,
        "on_time": 1 - summary.bad_rate,
        "worst_model": 1 - summary.worst_bad_rate,
        "batch_mean": summary.batch_mean,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of simulated time; fewer: nothing is written")
    parser.add_argument("--planners", default=",".join(PLANNERS), help="these alone; nothing is written")
    given = parser.parse_args()
    bench = Benchmark("shared_pool")
    names = given.planners.split(",")
    for row in bench.at_once(measure, [(name, seed, given.seconds) for name in names for seed in SEEDS], "runs"):
        bench.row(**row)
    for name in (name for name in CLAIMED if name in names):
        ours = min(row["on_time"] for row in bench.rows if row["planner"] == name)
        bench.claim(f"{name}: on time, least of the seeds", paper="", target="≥ 99.5%", ours=ours, met=ours >= ON_TIME)
    if (given.seconds, given.planners) == (SECONDS, ",".join(PLANNERS)):
        bench.finish()
    else:
        bench.show()


if __name__ == "__main__":
    main()
