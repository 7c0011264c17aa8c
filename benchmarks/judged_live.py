"""The default as served from a fresh start, on three bursty loads, beside each variant alone and beside `priced`.

The loads are stated in shares of what the fastest and the most accurate variant carry through the server, so that they
mean the same on every machine. Each run has a server of its own that has learned nothing; the first query counts. Last
comes a steady load, under which the judge's process is watched: what it takes once there is nothing new to judge.
"""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import mean

from benchmarks.harness import Benchmark
from benchmarks.quiet import Pace, when_quiet
from benchmarks.serving import cpu_s, family
from stretto.cli.demo import APPLICATION
from stretto.cli.demo_load import HIGH, LOW, PERIOD_S, ROWS, SHARE, BurstyLoad, carried
from stretto.cli.queries import sample_of
from stretto.cli.started import Started, started_server
from stretto.client.load import LoadSpec, run_load
from stretto.planners.registry import DEFAULT_PLANNER
from stretto.repository.read import read_repository

SERVE = (f"zoo:{APPLICATION}", "--workers", "1", "--log-level", "error", "--fresh")
LOADS = {"demo": (PERIOD_S, SHARE), "rare": (5.0, 0.06), "long": (10.0, 0.05)}  # period, and share of it in bursts
SEEDS = (11, 12, 13)
PRICED = "priced"
STEADY, SETTLE_S, WATCHED_S = 0.5, 40.0, 60.0  # of what the most accurate variant carries
LOOK_S = 0.1
TRIES, QUIET = 3, 0.03  # of a core, stolen by the host
MEASURED = 3  # times what is carried: a slow moment of the host made all loads half of what was meant


@dataclass(frozen=True)
class Run:
    """One server under one load. With a version every request is pinned to that variant."""

    load: str
    bursts: BurstyLoad
    planner: str
    version: str
    seed: int
    seconds: float
    piece_s: float  # of work, by the pace of the machine when the loads were sized

    @property
    def served_by(self) -> str:
        return self.version or self.planner


def measured(run: Run) -> dict[str, float]:
    """While the host takes little of the machine away and lets it be as fast as when the loads were sized, if that can
    be had (see quiet.py).
    """
    figures, stolen, tries = when_quiet(
        lambda: measured_once(run), TRIES, QUIET, slowed=lambda figures: 1.0 - figures["pace"]
    )
    return {**figures, "stolen": stolen, "tries": tries}


def measured_once(run: Run) -> dict[str, float]:
    with Pace() as pace:
        figures = served(run)
    return {**figures, "pace": run.piece_s / pace.piece_s}


def served(run: Run) -> dict[str, float]:
    inputs, labels = sample_of(APPLICATION)
    with started_server([*SERVE, "--planner", run.planner]) as server:
        result = run_load(
            LoadSpec(
                APPLICATION,
                inputs,
                labels,
                url=server.url,
                seconds=run.seconds,
                kind=run.bursts.kind,
                rows=ROWS,
                version=run.version,
                seed=run.seed,
            )
        )
        cpu_s = server.cpu_s()
    summary = result.summary()
    return {
        "correct_on_time": float(summary["correct_on_time_share"] or 0.0),
        "on_time": float(summary["on_time_share"]),
        "accuracy": float(summary["accuracy"] or 0.0),
        "p99_ms": float(summary["latency_ms"]["p99"]),
        "lag_p99_ms": float(summary["lag_ms"]["p99"]),
        "server_cpu_s": cpu_s,
    }


@dataclass(frozen=True)
class Carried:
    """Images a second by the fastest and by the most accurate variant, and what a piece of work took meanwhile."""

    by_fastest: float
    by_best: float
    piece_s: float


def what_is_carried(variants: list[str]) -> Carried:
    """Images a second by the fastest and by the most accurate variant, in turns; the most of each."""
    inputs, _ = sample_of(APPLICATION)
    with started_server(SERVE) as server, Pace() as pace:
        turns = [
            [carried(server.url, APPLICATION, inputs, variant) for variant in (variants[0], variants[-1])]
            for _ in range(MEASURED)
        ]
    return Carried(max(fastest for fastest, _ in turns), max(best for _, best in turns), pace.piece_s)


def runs(loads: list[str], variants: list[str], planners: list[str], seconds: float, carried: Carried) -> Iterator[Run]:
    for name in loads:
        period_s, share = LOADS[name]
        bursts = BurstyLoad(LOW * carried.by_best, HIGH * carried.by_fastest, period_s, share)
        for seed in SEEDS:
            yield from (Run(name, bursts, planner, "", seed, seconds, carried.piece_s) for planner in planners)
        yield from (Run(name, bursts, PRICED, variant, SEEDS[0], seconds, carried.piece_s) for variant in variants)


class JudgeClock(threading.Thread):
    """Processor time of a server's judge, whose process comes and goes: the one that all others go before."""

    def __init__(self, server: Started):
        super().__init__(daemon=True)
        self._server, self._used_s, self._ended = server, dict[int, float](), threading.Event()

    def run(self) -> None:
        while not self._ended.wait(LOOK_S):
            for pid in family(self._server.process.pid):
                try:
                    if os.sched_getscheduler(pid) == os.SCHED_IDLE:
                        self._used_s[pid] = max(cpu_s(pid), self._used_s.get(pid, 0.0))
                except ProcessLookupError:
                    continue

    def used_s(self) -> float:
        return sum(self._used_s.values())

    def end(self) -> None:
        self._ended.set()
        self.join()


def steady_judging(by_best: float) -> dict[str, float]:
    figures, stolen, tries = when_quiet(lambda: steady_judging_once(by_best), TRIES, QUIET)
    return {**figures, "stolen": stolen, "tries": tries}


def steady_judging_once(by_best: float) -> dict[str, float]:
    """Of the judge's processor time: until it has settled, and for each second after it."""
    inputs, labels = sample_of(APPLICATION)
    with started_server([*SERVE, "--planner", DEFAULT_PLANNER]) as server:
        clock, used_s = JudgeClock(server), []
        clock.start()
        settled = threading.Timer(SETTLE_S, lambda: used_s.append(clock.used_s()))
        settled.start()
        spec = LoadSpec(
            APPLICATION,
            inputs,
            labels,
            url=server.url,
            rate=STEADY * by_best / ROWS,
            seconds=SETTLE_S + WATCHED_S,
            rows=ROWS,
            seed=SEEDS[0],
        )
        summary = run_load(spec).summary()
        clock.end()
    return {
        "on_time": float(summary["on_time_share"]),
        "judge_cpu_s_until_settled": used_s[0],
        "judge_cpu_share": (clock.used_s() - used_s[0]) / WATCHED_S,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; each needs three cores of its own")
    parser.add_argument("--planners", nargs="+", default=[DEFAULT_PLANNER, PRICED])
    parser.add_argument("--loads", nargs="+", choices=tuple(LOADS), default=list(LOADS))
    arguments = parser.parse_args()
    bench = Benchmark("judged_live", seed=SEEDS[0])
    variants = [variant.name for variant in read_repository(f"zoo:{APPLICATION}").application(APPLICATION).variants]
    correct: dict[tuple[str, str], list[float]] = {}
    most = what_is_carried(variants)
    todo = list(runs(arguments.loads, variants, arguments.planners, arguments.seconds, most))
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
        for run, figures in zip(todo, bench.steps(pool.map(measured, todo), len(todo), "serving"), strict=True):
            rates = {"low": run.bursts.low, "high": run.bursts.high}
            bench.row(load=run.load, served_by=run.served_by, seed=run.seed, **figures, **rates)
            correct.setdefault((run.load, run.served_by), []).append(figures["correct_on_time"])
    points = {key: 100 * mean(shares) for key, shares in correct.items()}
    for load in arguments.loads:
        ours = points[load, arguments.planners[0]]
        best = max(variants, key=lambda variant: points[load, variant])
        ahead = ours - points[load, best]
        bench.claim(
            f"{load}: points of correct and on time above every single variant (the best is {best})",
            paper="-",
            target="≥ 3",
            ours=ahead,
            met=ahead >= 3,
        )
        ahead = ours - points[load, PRICED]
        bench.claim(f"{load}: points above {PRICED}", paper="-", target="≥ 0.5", ours=ahead, met=ahead >= 0.5)
    watched = steady_judging(most.by_best)
    bench.row(load="steady", served_by=DEFAULT_PLANNER, seed=SEEDS[0], **watched)
    bench.claim(
        f"steady, {STEADY:.0%} of what {variants[-1]} carries: the judge's share of a core after {SETTLE_S:.0f} s",
        paper="-",
        target="≤ 0.01",
        ours=watched["judge_cpu_share"],
        met=watched["judge_cpu_share"] <= 0.01 and watched["judge_cpu_s_until_settled"] > 0,
    )
    bench.finish()


if __name__ == "__main__":
    main()
