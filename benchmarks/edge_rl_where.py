"""Where learned routing could still add something: the paper's instances on grounds that the paper does not have.

The package's policy (each 0.02 s, told nothing of the phase) beside planners that need no training, all served on the
same queries. Load and instances are the paper's, with phases a fifth as long, so that there are bursts enough. Where
instances have small buffers, those of a shared queue hold as many together; the judge knows nothing of such bounds and
is left out there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

from edge_rl_ground import ACCURACY, HELD_S, NAMES, RATES, SERVICE_MS, SLO_MS, hybrid, served
from harness import Benchmark

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Delays, Plan
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import Planner, View
from stretto.core.worker import workers
from stretto.planners.edge_rl.baselines import SingleQueue
from stretto.planners.edge_rl.planner import EdgeRL, default_policies
from stretto.planners.leave_it import LeaveIt
from stretto.sim.results import Summary
from stretto.sim.service import Deterministic, Lognormal, Service
from stretto.sim.simulator import simulate
from stretto.sim.switching import Switching
from stretto.training.world import System

SECONDS, SEED = 600.0, 90_003
LOAD = Switching(RATES, (HELD_S[0] / 5, HELD_S[1] / 5))
SERVED = ("edge_rl", "single_queue", "leave_it", "joint", "judged")
SMALL = 3  # queries that an instance with a small buffer holds, the running one among them
MARGIN = 0.1  # points; less is chance
WAY = Delays(control_ns=10 * NS_PER_MS, data_ns=5 * NS_PER_MS)


@dataclass(frozen=True)
class Ground:
    """What differs from the paper's."""

    name: str
    deployment: Deployment
    service: Service = Deterministic()  # noqa: RUF009
    delays: Delays = Delays()  # noqa: RUF009
    small_buffers: bool = False


def grounds() -> tuple[Ground, ...]:
    """The paper's, and those that the paper leaves open."""
    plain = hybrid()
    (task,) = plain.applications
    half = Deployment(tuple(replace(task, name=name) for name in ("one", "other")), plain.workers, plain.quantile)
    return (
        Ground("as published", plain),
        Ground("service times vary by half", plain, Lognormal(0.5)),
        Ground(f"buffers of {SMALL}", plain, small_buffers=True),
        Ground("any worker may run either variant", either()),
        Ground("SLO of 100 ms, three heavy runs", hybrid(100.0)),
        Ground("two applications that burst together", half),
        Ground("instances 15 ms away", plain, delays=WAY),
    )


def either() -> Deployment:
    """Four workers of one kind that hold both variants."""
    variants = tuple(
        Variant(name, accuracy, (LatencyProfile.linear(0.0, ms, 1, "any"),))
        for name, accuracy, ms in zip(NAMES, ACCURACY, SERVICE_MS, strict=True)
    )
    return Deployment((Application("task", round(SLO_MS * NS_PER_MS), variants),), workers(4, "any"), hybrid().quantile)


@dataclass
class Bounded:
    """A planner whose lanes hold as many queries as small buffers of their workers would."""

    planner: Planner

    def __call__(self, view: View) -> Plan:
        plan = self.planner(view)
        lanes = (replace(lane, capacity=(SMALL - 1) * len(lane.workers)) for lane in plan.lanes)
        return replace(plan, lanes=tuple(lanes))


def summary_of(ground: Ground, planner: str) -> Summary | None:
    """Of one run; None where the planner has no place on this ground."""
    system = System(ground.deployment, LOAD, ground.service)
    if not ground.small_buffers:
        return served(system, planner, SECONDS, SEED, ground.delays)
    bare: dict[str, Planner] = {"edge_rl": EdgeRL(), "single_queue": SingleQueue(), "leave_it": LeaveIt()}
    if planner not in bare:
        return None
    slot_s = default_policies()[0].description.slot_s if planner == "edge_rl" else None
    made = Bounded(bare[planner])
    return simulate(ground.deployment, made, LOAD.source(), seconds=SECONDS, seed=SEED, replan_s=slot_s).summary


def figures(number: int, planner: str) -> dict[str, float]:
    """In percent of the queries that came; in a process of its own."""
    summary = summary_of(grounds()[number], planner)
    if summary is None:
        return {}
    return {planner: 100 * summary.correct_on_time, f"{planner} late or refused": 100 * (1 - summary.on_time_rate)}


def main(arguments: Sequence[str]) -> None:
    """All grounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="all cores, unless given")
    given = parser.parse_args(arguments)
    bench = Benchmark("edge_rl_where", seed=SEED)
    numbers = range(len(grounds()))
    with ProcessPoolExecutor(given.processes, get_context("spawn")) as pool:
        waiting = {number: [pool.submit(figures, number, planner) for planner in SERVED] for number in numbers}
        for number in bench.steps(numbers, len(numbers), "grounds"):
            row: dict[str, Any] = {"ground": grounds()[number].name}
            for done in waiting[number]:
                row |= done.result()
            bench.row(**row)
            print(row, file=sys.stderr, flush=True)
    judged = [row for row in bench.rows if "judged" in row]
    below = sum(row["judged"] < row["edge_rl"] - MARGIN for row in judged)
    what = f"grounds of {len(judged)} on which the judged default is below learned routing by more than {MARGIN} points"
    bench.claim(what, paper=None, target="0", ours=below, met=below == 0)
    bench.finish()


if __name__ == "__main__":
    main(sys.argv[1:])
