"""Autoscaling by the judge beside autoscaling by signals, simulated: one model under a load that steps 1× → 3× → 0.5×.

Symphony's signals need workers that idle where there is little to do. Planners that start batches at once keep all of
them busy, and the signals settle on too many workers; the judge tries fewer. It is asked about the rates of the last
two periods, and answers two periods later. Steps and the fewest workers are those of `cluster_autoscale`; each planner
is measured against the fewest workers that hold the SLO under itself. Near those, `shared_queue` collapses now and
then, and stays so, which no trial of seconds shows; then the fleet has failed, and the signals take over. So medians
are claimed, and the worst is in the rows.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, median

from cluster_autoscale import (
    ALLOWED,
    LOADS,
    PERIOD_S,
    SEARCH_S,
    SEARCH_SEEDS,
    START_S,
    Case,
    at_least,
    at_most,
    cases,
    settled,
    stepping,
    turns_of,
)
from harness import Benchmark

from stretto.cli.run import run_scenario
from stretto.cli.scenario.autoscale import ScenarioScaling
from stretto.cli.scenario.read import PlannerChoice, Scenario
from stretto.core.profile import Quantile
from stretto.planning.autoscale_options import AutoscaleOptions, Bounds

PLANNERS = ("shared_queue", "symphony_batch_aware")
JUDGE_S = 2 * PERIOD_S
BEGIN, MOST = 24, 100  # workers, as in examples/autoscaling.toml; 21 carry 1×
SEEDS = (31, 32, 33, 34, 35)  # smaller ones showed that a fleet needs some room above the load that was measured
SETTLE = 7  # periods: the signals first, then the judge, which is asked and answers in two periods each


def scenario(case: Case, planner: str, workers: int) -> Scenario:
    """With decisions by the quantile that scenarios and servers have."""
    deployment = replace(case.deployment(workers), quantile=Quantile.P95)
    return Scenario(case.name, deployment, case.source(1.0), planner=PlannerChoice(planner))


def fewest(case: Case, planner: str, load: float, most: int) -> int:
    """The smallest number from which on the SLO is held, by halving."""

    def holds(workers: int) -> bool:
        asked = replace(scenario(case, planner, workers), source=case.source(load), warmup_seconds=1.0)
        runs = [run_scenario(replace(asked, seconds=SEARCH_S, seed=seed)) for seed in SEARCH_SEEDS]
        return fmean(run.summary.bad_rate for run in runs) <= ALLOWED

    below, enough = 0, most
    while enough - below > 1:
        middle = (below + enough) // 2
        below, enough = (below, middle) if holds(middle) else (middle, enough)
    return enough


def show(bench: Benchmark, case: Case, planner: str) -> None:
    need = {load: fewest(case, planner, load, MOST) for load in LOADS}
    options = AutoscaleOptions({"default": Bounds(1, MOST)}, PERIOD_S, START_S)
    for by, judge_s in (("signals", None), ("judge", JUDGE_S)):
        ratios, bad, turnings, periods = [], [], [], []
        for seed in SEEDS:
            turns, seconds = turns_of(PERIOD_S, seed)
            result = run_scenario(
                replace(
                    scenario(case, planner, BEGIN),
                    source=stepping(case, turns, seconds),
                    seconds=seconds,
                    seed=seed,
                    autoscale=ScenarioScaling(options, None, judge_s),
                )
            )
            assert result.fleet is not None
            edges = (0.0, *turns, seconds)
            for number, load in enumerate(LOADS):
                found = settled(result.fleet, edges[number], edges[number + 1], PERIOD_S, SETTLE)
                ratios.append(found.workers / need[load])
                bad.append(found.bad_rate)
                if number:
                    turnings.append(float(found.turnings))
                    periods.append(found.periods)
                bench.row(
                    planner=planner,
                    by=by,
                    seed=seed,
                    load=f"{load:g}×",
                    fewest=need[load],
                    workers=found.workers,
                    ratio=ratios[-1],
                    settled_after_periods=found.periods,
                    turnings=found.turnings,
                    bad_rate_then=found.bad_rate,
                )
        held = fmean(rate <= ALLOWED for rate in bad)
        bench.row(
            planner=planner,
            by=by,
            load="all",
            ratio_median=median(ratios),
            ratio_worst=max(ratios),
            held=held,
            turnings_median=median(turnings),
            turnings_worst=max(turnings),
            periods_median=median(periods),
            periods_worst=max(periods),
        )
    what = f"{planner}, 1× → 3× → 0.5×, {len(SEEDS)} seeds, the judge followed: "
    at_most(bench, what + "workers over the fewest that hold the SLO, median", median(ratios), 1.1)
    at_least(bench, what + "share of loads and seeds with at most 1% bad queries once settled", held, 0.9)
    at_most(bench, what + "changes in the other direction after a step, median", median(turnings), 1)
    at_most(bench, what + "control periods from a step to the last change of workers, median", median(periods), SETTLE)


def main() -> None:
    bench = Benchmark("cluster_autoscale_judge")
    case = cases()[1]
    for planner in PLANNERS:
        show(bench, case, planner)
    bench.finish()


if __name__ == "__main__":
    main()
