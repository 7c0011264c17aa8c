"""The judged default on the ground that Proteus was published on, beside Proteus: one variant resident, or all.

The judge sees what a server would: arrivals and run times of the first 60 s of a file, resampled. Two loads are judged
so, at the mean rates of the file and at those of its busiest ten seconds; `judged` serves with the nearer of the two
verdicts, asked again each 100 ms. What is counted is the rest of the file, for both systems. `resident: one` holds a
single variant on each worker, none at the start, and takes 0.5 s to change it. Correct is the share of all queries that
are answered right and on time; accuracy is that of the answers on time alone, as Proteus reports it. Who gives up a
tenth of all queries is accurate on the rest, and over the whole files Proteus is at 0.992 and 0.988 where no schedule
that answers all can be above 0.997 and 0.992 (the bound): so a point above Proteus is asked for in correct answers.

With Poisson arrivals in place of the measured stretch the judge chose tables without margin, and with every variant
resident the whole files had 0.9821 and 0.9785 correct with 0.49% and 0.37% violations. Needs shared/data/proteus_*.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from harness import Benchmark
from measured import measured_setting
from proteus import BOUND_WINDOWS_S, LOAD_S, Timed
from proteus_ground import ARRIVALS, Recorded, ground, require

from stretto.core.deployment import Deployment
from stretto.core.verdict import Candidate, Verdict
from stretto.core.view import Planner
from stretto.planners.judged.planner import Judged
from stretto.planners.registry import planner_entry
from stretto.sim.bounds import fluid_over_time
from stretto.sim.results import Summary
from stretto.sim.simulator import simulate
from stretto.twin.live import judge_setting

ASKED_S = 0.1
BUSY_S = 10.0
MEASURED_S, CHOSEN_ON = 60.0, 101
POINTS, SHARE = 0.01, 0.25  # above Proteus, and of its violations
ALL_CORRECT = {"zipf_exponential": 0.987, "medium_normal_load": 0.978}
ALL_VIOLATIONS = 0.002
PLAN_AIM_S = 0.2


class JudgedBefore:
    """A JudgePort that has its verdicts, and makes no more."""

    def __init__(self, verdicts: Sequence[Verdict]) -> None:
        self.broken_promises = 0
        self._verdicts = verdicts

    def known(self, deployment: Deployment) -> Sequence[Verdict]:
        return self._verdicts

    def ask(self, deployment: Deployment, rates: tuple[float, ...]) -> None:
        pass

    def collect(self, deployment: Deployment) -> Sequence[Verdict]:
        return ()

    def follows(self, rates: tuple[float, ...]) -> None:
        pass

    def broken(self, verdict: Verdict, late: float) -> None:
        self.broken_promises += 1


def verdicts_for(name: str, deployment: Deployment) -> list[Verdict]:
    """At the mean rates of a file, and at those of its busiest window; arrivals have the shape of its beginning."""
    source = Recorded.read(name)
    start = Candidate("placed" if deployment.variants[0].load_ns else "joint")
    setting = measured_setting(deployment, source, None, seconds=MEASURED_S, seed=CHOSEN_ON, start=start)
    counts = source.counts(deployment, BUSY_S)
    mean, busiest = source.expected_rates(deployment, source.seconds), counts[counts.sum(axis=1).argmax()] / BUSY_S
    cases = [mean, tuple(np.maximum(busiest, 1.0).tolist())]
    return [judge_setting(deployment, setting, rates) for rates in cases]


def served(
    bench: Benchmark, name: str, deployment: Deployment, planner: Planner, period_s: float | None, **about: object
) -> tuple[Summary, float]:
    """What became of the file after what was measured, and the 95th percentile of the CPU seconds of a plan."""
    source, timed = Recorded.read(name), Timed(planner)
    run = simulate(
        deployment,
        timed,
        source,
        seconds=source.seconds,
        warmup_s=MEASURED_S,
        replan_s=period_s,
        seed=bench.seed,
    ).summary
    usual = float(np.quantile(timed.seconds[1:], 0.95))
    bench.row(
        arrivals=name,
        **about,
        accuracy=run.accuracy,
        violations=run.bad_rate,
        correct=run.correct_on_time,
        plans=len(timed.seconds),
        cpu_s_first=timed.seconds[0],
        cpu_s_p95=usual,
        cpu_s_at_most=max(timed.seconds[1:]),
        workers_changed=timed.changes,
    )
    return run, usual


def main() -> None:
    """Both files, with one variant resident and with all."""
    require()
    bench = Benchmark("judged_proteus")
    slowest = 0.0
    jobs = [(name, resident) for name in ARRIVALS for resident in ("one", "all")]
    for name, resident in bench.steps(jobs, len(jobs), "grounds"):
        entry = planner_entry("proteus")
        deployment = ground() if resident == "all" else ground(LOAD_S)
        theirs, _ = served(bench, name, deployment, entry.make(), entry.replan_s, system="proteus", resident=resident)
        verdicts = verdicts_for(name, deployment)
        ours, plan_s = served(
            bench,
            name,
            deployment,
            Judged(judge=JudgedBefore(verdicts)),
            ASKED_S,
            system="judged",
            resident=resident,
            at_mean=str(verdicts[0].candidate),
            at_peak=str(verdicts[1].candidate),
            judge_cpu_s=sum(verdict.cpu_s for verdict in verdicts),
        )
        slowest = max(slowest, plan_s)
        if resident == "one":
            above = ours.correct_on_time - theirs.correct_on_time
            bench.claim(
                f"{name}, one resident: correct above Proteus, points",
                paper="",
                target=f"≥ {100 * POINTS:g}",
                ours=100 * above,
                met=above >= POINTS,
            )
            bench.claim(
                f"{name}, one resident: violations over those of Proteus",
                paper="",
                target=f"≤ {SHARE:g}",
                ours=ours.bad_rate / theirs.bad_rate,
                met=ours.bad_rate <= SHARE * theirs.bad_rate,
            )
            continue
        free, source = ground(), Recorded.read(name)
        averages = [
            fluid_over_time(free, source.counts(free, window)[round(MEASURED_S / window) :], window)
            for window in BOUND_WINDOWS_S
        ]
        bound = min(average.correct_share for average in averages)
        bench.row(arrivals=name, system="bound", resident="all", correct=bound)
        bench.claim(
            f"{name}, all resident: correct and on time",
            paper="",
            target=f"≥ {ALL_CORRECT[name]:g} (bound {bound:.4f})",
            ours=ours.correct_on_time,
            met=ours.correct_on_time >= ALL_CORRECT[name],
        )
        bench.claim(
            f"{name}, all resident: violations",
            paper="",
            target=f"≤ {ALL_VIOLATIONS:g}",
            ours=ours.bad_rate,
            met=ours.bad_rate <= ALL_VIOLATIONS,
        )
    bench.claim(
        "CPU s of a re-plan, nine applications on forty workers, 95th percentile of the slowest run",
        paper="",
        target=f"≤ {PLAN_AIM_S:g}",
        ours=slowest,
        met=slowest <= PLAN_AIM_S,
    )
    bench.finish()


if __name__ == "__main__":
    main()
