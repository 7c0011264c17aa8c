"""One policy trained on random settings, on 20 that it has not seen, beside what needs no training.

    python benchmarks/edge_rl_settings.py --processes 16

Service times vary in half of the settings. SQ, SA (told the phase each second, exact shares) and the policy (each
fiftieth of a second, told nothing) run in the same systems; beside it the weights that it begins with, before any
learning. The judged default is what `stretto simulate --planner judged` would serve: candidates tried on other seeds at
the loads that it measures. It runs beside `joint`, `leave_it` and the policy, all served (columns `served …`): the same
queries come to each. A setting is one process's work, with seeds of its own, so rows do not depend on how many run.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import numpy as np
from edge_rl_ground import in_world, of_plan, served, stationary
from harness import Benchmark
from numpy.typing import NDArray

from stretto.planners.edge_rl.baselines import SingleQueue
from stretto.planners.edge_rl.encoding import BEGINNING, Setting, Situation
from stretto.planners.edge_rl.instances import instances_of
from stretto.planners.edge_rl.planner import default_policies
from stretto.planners.edge_rl.policy import Description, Policy, softmax
from stretto.planners.leave_it import LeaveIt
from stretto.training.evaluate import Decide
from stretto.training.settings import random_systems

SETTINGS, SETTINGS_SEED = 20, 90_001  # training has seed 11
SLOT_SECONDS, SEED = 24_000, 90_002
SERVED_SECONDS = 1200.0
SERVED = ("edge_rl", "leave_it", "joint", "judged")
AIM = 18
LOAD_KEYS = ("setting", "lull", "burst")  # that have no mean


def begins_with(policy: Policy) -> Decide:
    """The policy without its network."""

    def decide(seen: Situation, setting: Setting) -> tuple[NDArray[np.float64], None]:
        return softmax(policy.encode(seen, setting)[..., BEGINNING].astype(np.float64)), None

    return decide


def row_of(number: int) -> dict[str, Any]:
    """One setting: every approach in percent of the queries that came."""
    system = random_systems(SETTINGS, SETTINGS_SEED)[number]
    (policy,) = default_policies()
    crew = instances_of(system.deployment)
    slo_ns = system.deployment.applications[0].slo_ns
    told = system.description(Description("joint", 1.0, sees_phase=True))
    learned, begun, approximated = (
        in_world(system, description, decide, slots=SLOT_SECONDS, seed=SEED).overall
        for description, decide in (
            (policy.description, policy.decide),
            (policy.description, begins_with(policy)),
            (told, stationary(crew, system.load, slo_ns)),
        )
    )
    single, left = (
        of_plan(system.deployment, planner, system.load, slots=SLOT_SECONDS, seed=SEED, service=system.service).overall
        for planner in (SingleQueue(), LeaveIt())
    )
    return {
        "setting": number,
        "lull": system.load.rates[0],
        "burst": system.load.rates[1],
        "learned": 100 * learned.goodput,
        "learned_violations": 100 * learned.violations,
        "before_learning": 100 * begun.goodput,
        "SQ": 100 * single.goodput,
        "SA": 100 * approximated.goodput,
        "SA_violations": 100 * approximated.violations,
        "leave_it": 100 * left.goodput,
        "leave_it_violations": 100 * left.violations,
        **{f"served {name}": 100 * served(system, name, SERVED_SECONDS, SEED).correct_on_time for name in SERVED},
    }


def warm() -> None:
    """Compiles what the processes will run."""
    (system, *_) = random_systems(SETTINGS, SETTINGS_SEED)
    (policy,) = default_policies()
    in_world(system, policy.description, policy.decide, slots=1, seed=SEED)


def main(arguments: Sequence[str]) -> None:
    """All settings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="all cores, unless given")
    parser.add_argument("--only", default="", help="numbers of settings with commas between them; nothing is written")
    given = parser.parse_args(arguments)
    numbers = [int(part) for part in given.only.split(",")] if given.only else range(SETTINGS)
    bench = Benchmark("edge_rl_settings", seed=SEED)
    warm()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
        waiting = [pool.submit(row_of, number) for number in numbers]
        for done in bench.steps(as_completed(waiting), len(waiting), "settings"):
            rows.append(done.result())
            print(rows[-1], file=sys.stderr, flush=True)
    rows.sort(key=lambda row: row["setting"])
    for row in rows:
        bench.row(**row)
    claims(bench, rows)
    means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key not in LOAD_KEYS}
    bench.row(setting="mean", **means)
    bench.row(setting="in which the policy is above", **above(rows))
    bench.show() if given.only else bench.finish()


def above(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """In how many settings the policy is above each of the others; served, above those that were served."""
    counts = {rival: sum(row["learned"] > row[rival] for row in rows) for rival in ("SQ", "SA", "leave_it")}
    ours, *others = (f"served {name}" for name in SERVED)
    return counts | {rival: sum(row[ours] > row[rival] for row in rows) for rival in others}


def claims(bench: Benchmark, rows: Sequence[dict[str, Any]]) -> None:
    """In how many settings the policy is above what it must beat."""
    for name, rivals in {"SQ": ("SQ",), "SA": ("SA",), "both": ("SQ", "SA")}.items():
        count = sum(all(row["learned"] > row[rival] for rival in rivals) for row in rows)
        what = f"settings of {SETTINGS} not seen in training in which the policy is above {name}"
        bench.claim(what, paper=None, target=f"≥ {AIM}", ours=count, met=count >= AIM)


if __name__ == "__main__":
    main(sys.argv[1:])
