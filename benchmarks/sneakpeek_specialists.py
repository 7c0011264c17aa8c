"""What evidence earns where variants are specialists, and where it does not: the default, SneakPeek, and others.

The ground is that of benchmarks/specialists.py. In simulation every planner is as it is served, over loads from what
the best variant carries to six times that, on seeds that the judge has not seen. Live, each runs in the shipped server
on loopback from a fresh start, the first query counted. `without evidence` is the default on the same application with
its evidence left out. `correct` is the share of all queries answered right and on time. Needs faiss (faiss-cpu).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import specialists
from harness import Benchmark
from measured import measured_setting

from stretto.cli.started import started_server
from stretto.client.load import LoadSpec, run_load
from stretto.core.plan import Delays
from stretto.planners.judged.planner import Judged
from stretto.planners.registry import DEFAULT_PLANNER
from stretto.planning.served import served_session
from stretto.planning.session import Session
from stretto.sim.ports import simulator_ports
from stretto.sim.simulator import simulate
from stretto.twin.classes import Labelled
from stretto.twin.spot import SpotJudge

LOADS = (40.0, 80.0, 120.0, 200.0, 300.0)
CHOSEN_ON, TESTED_ON = 201, (71, 72, 73)
QUERIES = 4_000  # of one simulated run
EVIDENCE_NS = 400_000  # from a query's arrival until its class is told, as measured on a 2.5 GHz Xeon
LIVE_RATE, LIVE_SEEDS, LIVE_S = 120.0, (81, 82, 83), 40.0


@dataclass(frozen=True)
class System:
    """A planner as it is served; `data_aware` is the option of that name."""

    name: str
    planner: str
    data_aware: bool = False
    has_evidence: bool = True


DEFAULT = System("default", DEFAULT_PLANNER)
WITHOUT = System("default without evidence", DEFAULT_PLANNER, has_evidence=False)
SNEAKPEEK = System("sneakpeek", "sneakpeek")
SYSTEMS = (
    DEFAULT,
    WITHOUT,
    SNEAKPEEK,
    System("grouped", "grouped"),
    System("priced", "priced"),
    System("priced, data-aware", "priced", data_aware=True),
    System("ramsis", "ramsis"),  # with evidence it would need a worker for each kind of query
)
OBLIVIOUS = tuple(
    each.name for each in SYSTEMS if each.name in ("default without evidence", "grouped", "priced", "ramsis")
)
LIVE = tuple(each for each in SYSTEMS if each.planner != "ramsis")


@dataclass(frozen=True)
class Job:
    """One row: a system under one load."""

    system: System
    rate: float
    queries: int
    seeds: tuple[int, ...]


def sessions(job: Job) -> Callable[[], Session]:
    """A fresh session each time; the default's judge knows what a stretch on another seed told."""
    system = job.system
    if system.planner != DEFAULT_PLANNER:
        return lambda: served_session(system.planner, ports=simulator_ports(), data_aware=system.data_aware)
    served = specialists.deployment(system.has_evidence)
    before = specialists.traffic(job.rate, job.queries, CHOSEN_ON, system.has_evidence)
    known = {specialists.NAME: Labelled.of(specialists.pool().known_to_judge())} if system.has_evidence else {}
    setting = measured_setting(
        served,
        before,
        None,
        seconds=before.seconds,
        seed=CHOSEN_ON,
        theta=before.theta if system.has_evidence else None,
        evidence=known,
    )
    judge = SpotJudge(lambda _: setting)
    return lambda: Session(Judged(judge=judge), rhythm=served_session(DEFAULT_PLANNER).rhythm)


def simulated(job: Job) -> dict[str, Any]:
    served, start = specialists.deployment(job.system.has_evidence), sessions(job)
    correct, on_time = [], []
    plan = ""
    for seed in job.seeds:
        asked = specialists.traffic(job.rate, job.queries, seed, job.system.has_evidence)
        session = start()
        run = simulate(
            served,
            session,
            asked,
            seconds=asked.seconds,
            record=True,
            delays=Delays(evidence_ns=EVIDENCE_NS),
            replan_s=session.rhythm.period_for(served) or None,
            evidence=asked.theta if job.system.has_evidence else None,
            expected_rates=(0.0,),
        )
        assert run.queries is not None
        correct.append(specialists.right_on_time(run.queries, asked))
        on_time.append(run.summary.on_time_rate)
        if isinstance(session.planner, Judged):
            verdict = session.planner.in_force()
            plan = "" if verdict is None else str(verdict.candidate)
    return {
        "run": "simulated",
        "system": job.system.name,
        "rate": job.rate,
        "correct": fmean(correct),
        "on_time": fmean(on_time),
        "plan": plan,
    }


def live(job: Job) -> dict[str, Any]:
    sample = specialists.files().sample()
    found: list[Mapping[str, Any]] = []
    for seed in job.seeds:
        with tempfile.TemporaryDirectory() as folder:
            repository = specialists.write_slowed(Path(folder), job.system.has_evidence)
            options = ["--workers", "1", "--planner", job.system.planner, "--fresh", "--log-level", "error"]
            if job.system.data_aware:
                options.append("--data-aware")
            with started_server([str(repository), *options]) as server:
                spec = LoadSpec(
                    specialists.NAME,
                    np.ascontiguousarray(sample.inputs, np.float32),
                    sample.labels.astype(np.int64),
                    url=server.url,
                    rate=job.rate,
                    seconds=job.queries / job.rate,
                    seed=seed,
                )
                found.append(run_load(spec).summary())
    return {
        "run": "live",
        "system": job.system.name,
        "rate": job.rate,
        "correct": fmean(float(each["correct_on_time_share"] or 0.0) for each in found),
        "on_time": fmean(float(each["on_time_share"]) for each in found),
        "variants": " ".join(f"{name} {share:.2f}" for name, share in sorted(found[-1]["variants"].items())),
    }


def rows_of(
    bench: Benchmark, jobs: list[Job], row: Callable[[Job], dict[str, Any]], processes: int
) -> dict[Any, float]:
    """`correct` by system and load."""
    correct: dict[Any, float] = {}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for values in bench.steps(pool.map(row, jobs), len(jobs), "runs"):
            print(json.dumps(values), file=sys.stderr, flush=True)
            bench.row(**values)
            correct[values["system"], values["rate"]] = 100 * values["correct"]
    return correct


def claim_simulated(bench: Benchmark, loads: list[float], correct: Mapping[Any, float]) -> None:
    others = [each.name for each in SYSTEMS if each != DEFAULT]
    behind = {load: correct[DEFAULT.name, load] - max(correct[name, load] for name in others) for load in loads}
    least = min(behind, key=lambda load: behind[load])
    bench.claim(
        f"simulated, {len(loads)} loads: points of the default above the best of {len(others)} others, least "
        f"({least:g}/s)",
        paper="",
        target="≥ -0.5",
        ours=behind[least],
        met=behind[least] >= -0.5,
    )
    earns = {load: correct[DEFAULT.name, load] - correct[WITHOUT.name, load] for load in loads}
    for load, (low, high) in EARNS.items():
        if load in earns:
            bench.claim(
                f"simulated, {load:g}/s: points that evidence earns the default",
                paper="",
                target=f"{low:g} to {high:g}",
                ours=earns[load],
                met=low <= earns[load] <= high,
            )
    grouped = {load: correct[SNEAKPEEK.name, load] - correct["grouped", load] for load in loads if load >= LIVE_RATE}
    if grouped:
        bench.claim(
            f"simulated, {LIVE_RATE:g}/s and above: points of SneakPeek above Grouped, least",
            paper="above (figures 5 and 8)",
            target="≥ 3",
            ours=min(grouped.values()),
            met=min(grouped.values()) >= 3,
        )


# Points by load. What the best variant carries alone leaves evidence nothing to earn; where it carries a third of the
# queries or fewer, evidence is worth most of what it is above the others.
EARNS = {40.0: (-0.5, 1.0), 120.0: (3.0, 9.0), 200.0: (4.0, 12.0), 300.0: (5.0, 13.0)}


def claim_live(bench: Benchmark, correct: Mapping[Any, float]) -> None:
    def of(name: str) -> float:
        return correct[name, LIVE_RATE]

    what = f"specialists, live at {LIVE_RATE:g}/s, {len(LIVE_SEEDS)} fresh starts: points of the default"
    ahead = of(DEFAULT.name) - of(SNEAKPEEK.name)
    bench.claim(f"{what} above SneakPeek", paper="", target="≥ -0.5", ours=ahead, met=ahead >= -0.5)
    best = max((each.name for each in LIVE if each.name in OBLIVIOUS), key=of)
    ahead = of(DEFAULT.name) - of(best)
    bench.claim(f"{what} above the best without evidence ({best})", paper="", target="≥ 2", ours=ahead, met=ahead >= 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="simulations at once; all cores")
    parser.add_argument("--live-jobs", type=int, default=max(1, cores // 4), help="servers at once")
    parser.add_argument("--loads", type=float, nargs="*", default=list(LOADS), help="simulated; none: only live")
    parser.add_argument("--queries", type=int, default=QUERIES)
    parser.add_argument("--live-seconds", type=float, default=LIVE_S, help="0: only simulated")
    parser.add_argument("--systems", nargs="*", default=[each.name for each in SYSTEMS], help="others make no claims")
    options = parser.parse_args()
    bench = Benchmark("sneakpeek_specialists", seed=TESTED_ON[0])
    chosen = [each for each in SYSTEMS if each.name in options.systems]
    jobs = [Job(system, load, options.queries, TESTED_ON) for load in options.loads for system in chosen]
    correct = rows_of(bench, jobs, simulated, options.jobs) if jobs else {}
    queries = round(LIVE_RATE * options.live_seconds)
    jobs = [Job(system, LIVE_RATE, queries, LIVE_SEEDS) for system in chosen if system in LIVE and queries]
    lived = rows_of(bench, jobs, live, options.live_jobs) if jobs else {}
    is_whole = len(chosen) == len(SYSTEMS)
    if is_whole and correct:
        claim_simulated(bench, options.loads, correct)
    if is_whole and lived:
        claim_live(bench, lived)
    if is_whole and correct and lived and options.queries == QUERIES:
        bench.finish()
    else:
        bench.show()


if __name__ == "__main__":
    main()
