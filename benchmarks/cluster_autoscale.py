"""Autoscaling in simulation: Symphony figure 14 with its advice taken, and a load that steps.

Figure 14: 24 models with different profiles and SLOs on at most 512 workers, under a load that changes. The paper's
rates come from 150 hours of video, which are not published; ours are made from a seed: a daily wave of its own phase
per model, short waves, and a surge near the end that exceeds the cluster. The paper shows the advice; here it is taken,
with a start-up delay.

Steps: a load of 1×, then 3×, then 0.5×. Each step comes at a moment of a period that the seed draws. The fewest workers
that hold the SLO at each load are searched for with the same simulator: the smallest number from which on at most 1% of
queries are bad, in the mean of several seeds. Options of the autoscaler were chosen on seeds 101 and up; claims are
on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from statistics import fmean

import numpy as np
from harness import Benchmark, zoo

from stretto.core.deployment import Deployment
from stretto.core.profile import NS_PER_S
from stretto.core.published import PublishedModel, published_table
from stretto.planners.symphony import Symphony
from stretto.planning.autoscale import Autoscaler
from stretto.planning.autoscale_options import AutoscaleOptions, Bounds
from stretto.planning.fleet_reading import reading_between, speeds_of
from stretto.sim.arrivals import Client, Clients, Load, Source, Weights
from stretto.sim.autoscale import Autoscaling, FleetTrace
from stretto.sim.bounds import fluid_goodput
from stretto.sim.processes import Poisson
from stretto.sim.results import Result
from stretto.sim.simulator import Simulation, simulate
from stretto.sim.traces import RateTrace

MODELS = 24
PLANNER = Symphony(batch_aware=True)
ALLOWED = 0.01  # bad queries

# Figure 14
MOST, SECONDS, SURGE, DAY_S = 512, 240, (190, 206), 160  # seconds
FIGURE = AutoscaleOptions({"default": Bounds(16, MOST)}, period_s=1.0, start_s=0.75)  # a day is 160 periods
FIGURE_SEEDS = (1, 2)

# Steps
LOADS = (1.0, 3.0, 0.5)
HOLD_PERIODS = 10  # at each load
PERIOD_S, START_S = 4.0, 2.0
STEP_SEEDS = (1, 2, 3, 4, 5)
SEARCH_SEEDS = (11, 12, 13)
SEARCH_S = 12.0
SETTLE = 3  # periods


@dataclass(frozen=True)
class Case:
    """What steps: these models, with this mean rate at 1×."""

    name: str
    models: tuple[PublishedModel, ...]
    rate: float

    def deployment(self, workers: int) -> Deployment:
        return zoo(self.models, workers)

    def source(self, load: float) -> Source:
        return Load(Poisson(), load * self.rate, Weights((1.0,) * len(self.models)))


def cases() -> tuple[Case, ...]:
    """Many models on some fifty workers at 1×, and one on some twenty."""
    table = published_table("symphony_1080ti")
    many, one = tuple(table[:MODELS]), tuple(model for model in table if model.name == "ResNet50")
    return tuple(
        Case(name, models, 0.8 * workers * fluid_goodput(zoo(models, 1), [1.0] * len(models)))
        for name, models, workers in (("24 models", many, 48), ("ResNet50", one, 24))
    )


def stepping(case: Case, turns: Sequence[float], seconds: float) -> Source:
    """1×, 3×, 0.5×, from one turn to the next."""
    share = case.rate / len(case.models)
    levels = tuple(load * share for load in LOADS)
    trace = RateTrace((0.0, *turns, seconds), (*levels, levels[-1]), "hold")
    return Clients(tuple(Client(model.name, trace) for model in case.models))


def fewest(case: Case, load: float) -> int:
    """The smallest number from which on the SLO is held."""

    def holds(workers: int) -> bool:
        runs = [
            simulate(case.deployment(workers), PLANNER, case.source(load), seconds=SEARCH_S, warmup_s=1.0, seed=seed)
            for seed in SEARCH_SEEDS
        ]
        return fmean(run.summary.bad_rate for run in runs) <= ALLOWED

    needed = load * case.rate / fluid_goodput(case.deployment(1), [1.0] * len(case.models))
    below, enough = max(0, int(needed) - 1), max(1, int(1.3 * needed))
    while not holds(enough):
        below, enough = enough, int(1.3 * enough) + 1
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if holds(middle) else (middle, enough)
    return enough


def turns_of(period_s: float, seed: int) -> tuple[tuple[float, float], float]:
    """When the load steps, and how long all of it takes."""
    first, second = np.random.default_rng(seed).uniform(0, 1, 2).tolist()
    seconds = (3 * HOLD_PERIODS + 1) * period_s
    return ((HOLD_PERIODS + first) * period_s, (2 * HOLD_PERIODS + second) * period_s), seconds


def steps(case: Case, options: AutoscaleOptions, begin: int, seed: int) -> tuple[Result, tuple[float, float]]:
    """One run, and when the load stepped."""
    turns, seconds = turns_of(options.period_s, seed)
    most = options.kinds["default"].most
    result = simulate(
        case.deployment(most),
        PLANNER,
        stepping(case, turns, seconds),
        seconds=seconds,
        seed=seed,
        autoscaling=Autoscaling(options, {"default": begin}),
    )
    return result, turns


@dataclass(frozen=True)
class Settled:
    """At one load: when the last change of the wanted number came, in periods after the step, and what it was."""

    periods: float
    workers: int
    turnings: int  # changes in the other direction than the one before
    bad_rate: float  # of the periods after it settled, in the mean


def settled(trace: FleetTrace, start_s: float, end_s: float, period_s: float, allowed: int = SETTLE) -> Settled:
    """Of the periods that ended between two steps."""
    inside = [advice for advice in trace.advice if start_s < advice.now_ns / NS_PER_S <= end_s]
    before = [advice for advice in trace.advice if advice.now_ns / NS_PER_S <= start_s]
    counts = [advice.wanted["default"] for advice in (*before[-1:], *inside)]
    moves = np.diff(counts)
    changed = [place for place in range(len(moves)) if moves[place]]
    last = changed[-1] if changed else -1
    times = [advice.now_ns / NS_PER_S for advice in inside]
    at = (times[last] - start_s) / period_s if last >= 0 and len(times) else 0.0
    signs = [int(np.sign(move)) for move in moves if move]
    turnings = sum(a != b for a, b in pairwise(signs))
    calm = [
        advice.bad_rate for advice, time in zip(inside, times, strict=True) if time > start_s + (allowed + 1) * period_s
    ]
    return Settled(at, counts[-1], turnings, fmean(calm) if calm else 0.0)


def show_steps(bench: Benchmark, seeds: Sequence[int], options: AutoscaleOptions | None = None) -> None:
    """A row for each case, seed and load; the claims are about the worst of them."""
    slowest, most_turnings, worst_ratio, worst_bad = 0.0, 0, 0.0, 0.0
    for case in cases():
        need = {load: fewest(case, load) for load in LOADS}
        used = options or AutoscaleOptions(period_s=PERIOD_S, start_s=START_S)
        used = replace(used, kinds={"default": Bounds(1, 4 * max(need.values()))})
        for seed in seeds:
            result, turns = steps(case, used, need[1.0], seed)
            assert result.fleet is not None
            edges = (0.0, *turns, float(result.summary.seconds))
            for number, load in enumerate(LOADS):
                found = settled(result.fleet, edges[number], edges[number + 1], used.period_s)
                ratio = found.workers / need[load]
                bench.row(
                    case=case.name,
                    seed=seed,
                    load=f"{load:g}×",
                    fewest=need[load],
                    workers=found.workers,
                    ratio=ratio,
                    settled_after_periods=found.periods,
                    turnings=found.turnings,
                    bad_rate_then=found.bad_rate,
                )
                worst_ratio, worst_bad = max(worst_ratio, ratio), max(worst_bad, found.bad_rate)
                if number:  # before the first step the autoscaler only finds out where it is
                    slowest, most_turnings = max(slowest, found.periods), max(most_turnings, found.turnings)
    what = f"load 1× → 3× → 0.5×, {len(cases())} cases, {len(seeds)} seeds: "
    at_most(bench, what + "control periods from a step to the last change of workers", slowest, SETTLE)
    at_most(bench, what + "changes in the other direction after a step (oscillation)", float(most_turnings), 0)
    at_most(bench, what + "workers over the fewest that hold the SLO, at worst", worst_ratio, 1.1)
    at_most(bench, what + "bad rate once settled, at worst", worst_bad, ALLOWED)


def show_estimates(bench: Benchmark, seed: int) -> None:
    """What an overload says of the workers that a load would keep busy: as printed, and by application."""
    bare = AutoscaleOptions({"default": Bounds(1, 10_000)}, room=0.0, slack=0.0, growth=1000.0)
    for case, load, share in product(cases(), LOADS, (1 / 3, 0.5, 0.8)):
        plenty = simulate(case.deployment(300), PLANNER, case.source(load), seconds=SEARCH_S, seed=seed).summary
        busy = 300 * plenty.worker_use
        run = Simulation(case.deployment(round(share * busy)), PLANNER, case.source(load), seconds=SEARCH_S, seed=seed)
        readings = []
        for second in (2, int(SEARCH_S)):
            run.run_to(second * NS_PER_S)
            readings.append(run.dispatcher.telemetry(run.now_ns))
        reading = reading_between(run.deployment, *readings, run.dispatcher.plan)
        assert reading is not None
        wanted = Autoscaler(bare, speeds_of(run.deployment))(reading).wanted["default"]
        bench.row(
            case=f"{case.name}, workers over those that the load keeps busy: {share:.2f}",
            load=f"{load:g}×",
            seed=seed,
            bad_rate=reading.bad_rate,
            asked_for_as_printed=len(run.deployment.workers) / (1 - reading.bad_rate) / busy,
            asked_for=wanted / busy,
        )


def at_most(bench: Benchmark, what: str, ours: float, limit: float, paper: str = "") -> None:
    bench.claim(what, paper=paper, target=f"≤ {limit:g}", ours=ours, met=ours <= limit)


def at_least(bench: Benchmark, what: str, ours: float, limit: float, paper: str = "") -> None:
    bench.claim(what, paper=paper, target=f"≥ {limit:g}", ours=ours, met=ours >= limit)


# -- figure 14 -------------------------------------------------------------------------------------------------------


def rates(peak: float, seed: int) -> np.ndarray:
    """[second, model] queries/s; the sum swings between a fifth and nine tenths of `peak`, and surges above it."""
    random = np.random.default_rng(seed)
    second = np.arange(SECONDS)[:, None]
    phase = random.uniform(0, 2 * np.pi, (2, MODELS))
    wave = 1 + 0.8 * np.sin(2 * np.pi * second / 180 + phase[0]) + 0.3 * np.sin(2 * np.pi * second / 22 + phase[1])
    share = np.maximum(wave, 0.05)
    daily = 0.55 - 0.35 * np.cos(2 * np.pi * second / DAY_S)
    daily = np.where((second >= SURGE[0]) & (second < SURGE[1]), 1.3, daily)
    return peak * daily * share / share.sum(axis=1, keepdims=True)


def figure_run(seed: int, autoscaling: Autoscaling | None) -> tuple[Result, np.ndarray]:
    """The load on all workers, or on those that the autoscaler wants; and its rates."""
    deployment = zoo(published_table("symphony_1080ti")[:MODELS], MOST)
    load = rates(0.9 * fluid_goodput(deployment, [1.0] * MODELS), seed)
    names = [application.name for application in deployment.applications]
    seconds = tuple(float(second) for second in range(SECONDS))
    source = Clients(
        tuple(Client(name, RateTrace(seconds, tuple(load[:, number]), "hold")) for number, name in enumerate(names))
    )
    given = {"seconds": SECONDS, "seed": seed, "sample_s": 1.0, "autoscaling": autoscaling}
    return simulate(deployment, PLANNER, source, **given), load  # type: ignore[arg-type]


@dataclass(frozen=True)
class Figure:
    """Outside the surge: bad rate in all and of the worst second, and how workers (busy, or there) follow the load."""

    bad_rate: float
    worst_second: float
    correlation: float
    worker_share: float  # of the hours of all workers


def show_figure(bench: Benchmark, seed: int, is_scaled: bool) -> Figure:
    """A row each ten seconds."""
    result, load = figure_run(seed, Autoscaling(FIGURE, {"default": MOST // 4}) if is_scaled else None)
    trace = result.fleet
    wanted = {int(each.now_ns // NS_PER_S): each.wanted["default"] for each in (trace.advice if trace else ())}
    quiet, pairs, advised = [], [], MOST
    for before, after in pairwise(snapshot.telemetry for snapshot in result.samples):
        second = int(before.now_ns // NS_PER_S)
        bad, idle = after.bad_rate_since(before), after.idle_share_since(before)
        there = int(after.worker_alive.sum())
        advised = wanted.get(second, advised)
        offered = float(load[second].sum())
        if second >= 10 and not SURGE[0] - 1 <= second < SURGE[1] + 6:
            quiet.append((bad, offered))
            pairs.append((offered, there if is_scaled else 1 - idle))
        if second % 10 == 0:
            bench.row(
                case="figure 14, scaled" if is_scaled else "figure 14, all workers",
                seed=seed,
                second=second,
                offered=offered,
                goodput=offered * (1 - bad),
                workers=there,
                wanted=advised,
                idle_share=idle,
                bad_rate=bad,
            )
    bad_rate = float(np.average([bad for bad, _ in quiet], weights=[offered for _, offered in quiet]))
    correlation = float(np.corrcoef(np.array(pairs).T)[0, 1])
    spent = sum(trace.worker_seconds.values()) / (MOST * SECONDS) if trace else 1.0
    return Figure(bad_rate, max(bad for bad, _ in quiet), correlation, spent)


def main() -> None:
    bench = Benchmark("cluster_autoscale")
    show_steps(bench, STEP_SEEDS)
    show_estimates(bench, STEP_SEEDS[0])
    whole = [show_figure(bench, seed, False) for seed in FIGURE_SEEDS]
    scaled = [show_figure(bench, seed, True) for seed in FIGURE_SEEDS]
    alone, acted = "figure 14, all 512 workers: ", "figure 14, scaled: "
    worst = max(each.worst_second for each in whole)
    at_most(bench, alone + "bad rate of the worst second outside the surge", worst, ALLOWED, "low")
    followed = min(each.correlation for each in whole)
    at_least(bench, alone + "busy share follows the load (correlation)", followed, 0.95, "consolidates")
    only = "advice only"
    at_most(bench, acted + "bad rate outside the surge", max(each.bad_rate for each in scaled), ALLOWED, only)
    followed = min(each.correlation for each in scaled)
    at_least(bench, acted + "workers follow the load (correlation)", followed, 0.95, only)
    spent = max(each.worker_share for each in scaled)
    at_most(bench, acted + "worker hours over those of all 512", spent, 0.75, only)
    bench.row(case=f"{acted}worst second outside the surge", bad_rate=max(each.worst_second for each in scaled))
    bench.finish()


if __name__ == "__main__":
    main()
