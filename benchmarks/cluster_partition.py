"""Symphony figure 15: 800 models in 20 partitions, 10 s at most, against the paper's random solver at equal time.

Configurations draw models from the paper's table 1 (static and dynamic memory) and from the networks that we measured
on an H200, each model several times, with exponential rates. Time is CPU time, for the machine is shared; the random
solver is compiled, and spared the limit on rate, within which it finds nothing. The mixed integer program, by HiGHS and
started from nothing, is shown beside some of them. Then rates change, and a new partition may move one model in twenty.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from harness import Benchmark
from numpy.typing import NDArray
from partition_program import random_partition, solve_partition

from stretto.planners.partition.hierarchy import hierarchical
from stretto.planners.partition.problem import Balance, Change, PartitionProblem, balance_of, keeps_limits
from stretto.planners.partition.search import partition

MODELS, PARTS, LIMIT_S = 800, 20, 10.0
CONFIGURATIONS, WITH_PROGRAM = 10, 3
MAX_BYTES = 24e9  # a worker's memory
HEADROOM = 1.05  # times the mean rate, that a dispatcher takes
MAX_MOVES = MODELS // 20
TABLE_1 = ((99, 2172), (88, 1519), (230, 3386), (84, 2653), (170, 2798), (822, 6200))  # static and dynamic, MB
DOCS = Path(__file__).resolve().parents[1] / "docs"


def measured_sizes() -> NDArray[np.float64]:
    """Static and dynamic bytes of torchvision's networks on an H200."""
    text = (resources.files("stretto") / "data" / "torchvision_gpu-nvidia-h200.json").read_text("utf-8")
    profiles = [entry["profile"] for entry in json.loads(text).values()]
    return np.array([[each["memory_bytes"], each["dynamic_memory_bytes"]] for each in profiles], np.float64)


def configuration(seed: int) -> PartitionProblem:
    """A random selection of a zoo, every other one of the paper's."""
    draw = np.random.default_rng([seed, 15])
    zoo = np.array(TABLE_1) * 1e6 if seed % 2 else measured_sizes()
    chosen = zoo[draw.choice(draw.choice(len(zoo), max(4, len(zoo) // 2), replace=False), MODELS)]
    rates = draw.exponential(1000.0, MODELS)
    max_rate = HEADROOM * float(rates.sum()) / PARTS
    return PartitionProblem(rates, chosen[:, 0], chosen[:, 1], PARTS, max_rate, MAX_BYTES)


def loosened(problem: PartitionProblem) -> PartitionProblem:
    """For the random solver, which finds nothing at all within the limit on rate."""
    return replace(problem, max_rate=float("inf"))


def main() -> None:
    """Figure 15, and bounded change."""
    bench = Benchmark("cluster_partition", seed=1501)
    ours: list[Balance] = []
    random: list[Balance] = []
    slowest = 0.0
    kept_limits, drawn_within = 0, 0
    worst_cost = worst_left = 0.0
    for number in bench.steps(range(CONFIGURATIONS), CONFIGURATIONS, "configurations"):
        asked = configuration(bench.seed + number)
        began = time.process_time()
        homes = partition(asked)
        took = time.process_time() - began
        slowest = max(slowest, took)
        kept_limits += keeps_limits(asked, homes)
        ours.append(balance_of(asked, homes))
        drawn, tries = random_partition(loosened(asked), number, seconds=LIMIT_S)
        assert drawn is not None
        drawn_within += keeps_limits(asked, drawn)
        random.append(balance_of(asked, drawn))
        row = {
            "zoo": "table 1" if (bench.seed + number) % 2 else "h200",
            "our_cpu_s": took,
            "our_load": ours[-1].rate_imbalance,
            "our_memory": ours[-1].bytes_imbalance,
            "random_tries": tries,
            "random_load": random[-1].rate_imbalance,
            "random_memory": random[-1].bytes_imbalance,
        }
        if number < WITH_PROGRAM:
            solved, _ = solve_partition(asked, time_limit_s=LIMIT_S)
            found = None if solved is None else balance_of(asked, solved)
            row |= {"program_load": found.rate_imbalance if found else "none found"}
            row |= {"program_memory": found.bytes_imbalance if found else "none found"}
        change, after, free = moved(asked, homes, bench.seed + number)
        worst_cost = max(worst_cost, change.cost(after) / change.max_cost)
        before = balance_of(change.problem, homes).rate_imbalance
        left = balance_of(change.problem, after).rate_imbalance / before
        worst_left = max(worst_left, left)
        row |= {
            "changed_load": before,
            "moved": int((np.array(homes) != np.array(after)).sum()),
            "moved_load": balance_of(change.problem, after).rate_imbalance,
            "moved_without_limit": int((np.array(homes) != np.array(free)).sum()),
        }
        bench.row(**row)
    for what, name in (("load", "rate_imbalance"), ("memory", "bytes_imbalance")):
        pairs = zip(ours, random, strict=True)
        worst = max(getattr(our, name) / getattr(drawn, name) for our, drawn in pairs)
        bench.claim(
            f"figure 15: {what} imbalance over the random solver's, worst of {CONFIGURATIONS} configurations",
            paper="far less",
            target="≤ 0.2",
            ours=worst,
            met=worst <= 0.2,
        )
    bench.claim(
        "CPU seconds, slowest configuration", paper=10, target=f"≤ {LIMIT_S:g}", ours=slowest, met=slowest <= LIMIT_S
    )
    bench.claim(
        f"limits on rate (mean × {HEADROOM}) and memory kept, of {CONFIGURATIONS} (random solver: {drawn_within})",
        paper="constraints",
        target=f"= {CONFIGURATIONS}",
        ours=kept_limits,
        met=kept_limits == CONFIGURATIONS,
    )
    bench.claim(
        f"cost of change over its limit ({MAX_MOVES} moves), worst",
        paper="bounded",
        target="≤ 1",
        ours=worst_cost,
        met=worst_cost <= 1,
    )
    bench.claim(
        "load imbalance left after so many moves, of what new rates made, worst",
        paper="—",
        target="≤ 0.5",
        ours=worst_left,
        met=worst_left <= 0.5,
    )
    two_levels(bench)
    if find_spec("matplotlib") is not None:
        draw(ours, random)
    bench.finish()


def moved(problem: PartitionProblem, homes: list[int], seed: int) -> tuple[Change, list[int], list[int]]:
    """Other rates: the change with its limit, what is found within it, and what would be found without."""
    factors = np.random.default_rng([seed, 16]).lognormal(0.0, 0.3, MODELS)
    rates = problem.rates * factors
    changed = replace(problem, rates=rates, max_rate=1.3 * float(rates.sum()) / PARTS)
    change = Change(changed, tuple(homes), 2.0 * MAX_MOVES)
    return change, partition(changed, change), partition(changed, Change(changed, tuple(homes)))


def two_levels(bench: Benchmark) -> None:
    """The same models in four clusters of five sub-clusters each."""
    asked = configuration(bench.seed + CONFIGURATIONS)
    homes = hierarchical(asked, 4, max_cluster_rate=HEADROOM * float(asked.rates.sum()) / 4)
    found = balance_of(asked, homes)
    bench.row(zoo="two levels, 4 × 5", our_load=found.rate_imbalance, our_memory=found.bytes_imbalance)
    bench.claim(
        "two levels (4 clusters of 5): the larger imbalance of load and memory",
        paper="hierarchical",
        target="≤ 0.05",
        ours=max(found.rate_imbalance, found.bytes_imbalance),
        met=max(found.rate_imbalance, found.bytes_imbalance) <= 0.05 and keeps_limits(asked, homes),
    )


def draw(ours: list[Balance], random: list[Balance]) -> None:
    """The CDF of both imbalances, as in figure 15; on a logarithmic axis, or ours would be a line at zero."""
    from stretto.report.plots import grid_figure, save

    title = f"{MODELS} models in {PARTS} partitions, {LIMIT_S:g} s"
    with grid_figure(8, 3.2, 1, 2, title) as (figure, axes):
        for axis, (what, name) in zip(
            axes[0], (("load", "rate_imbalance"), ("static memory", "bytes_imbalance")), strict=True
        ):
            for label, balances, colour in (("ours", ours, "#0b6e4f"), ("random solver", random, "#e76f51")):
                values = np.sort([getattr(balance, name) for balance in balances])
                axis.step(values, np.arange(1, len(values) + 1) / len(values), where="post", color=colour, label=label)
            axis.set_xscale("log")
            axis.set_xlabel(f"imbalance of {what}, (max − min) / mean")
        axes[0][0].set_ylabel("share of configurations")
        axes[0][0].legend()
    save(figure, DOCS / "cluster_partition.png")


if __name__ == "__main__":
    main()
