"""RAMSIS under constant load, image task: figures 6, 10, 11 and 12, table 4, and how its promises hold (section 5.1).

30 s of Poisson arrivals per load and seed, deterministic p95 latencies, the load known (section 7.2); accuracy is per
on-time query, differences are points. The paper's runs were on real machines; its artifact's simulation, which ours
compares with, prints average and highest gains at 150 ms over the loads with less than 5% late: 3.70 and 15.04 over
Jellyfish+, 1.84 and 6.71 over ModelSwitching. The p99 responses that ModelSwitching goes by are measured here by
simulation, the median of three seeds. A promise holds where the mean over the seeds is on its side of the bound, within
two standard errors. Needs shared/data/ramsis_image.csv.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

from harness import Benchmark
from ramsis_ground import IMAGE

from stretto.core.deployment import Deployment
from stretto.core.view import Planner
from stretto.planners.jellyfish_plus import JellyfishPlus
from stretto.planners.model_switching import ModelSwitching
from stretto.planners.parts.policy import Expectation
from stretto.planners.ramsis.planner import Ramsis
from stretto.sim.arrivals import Load
from stretto.sim.bounds import fluid_accuracy
from stretto.sim.processes import Poisson
from stretto.sim.responses import already_measured, measure_responses
from stretto.sim.simulator import simulate

WORKERS = 60
LOADS = tuple(range(400, 4001, 400))
SLOS_MS = (150.0, 300.0, 500.0)
FIDELITY_WORKERS = (40, 80)  # figure 7, beside the 60 of figure 6
SECONDS = 30.0
SEEDS = (1, 2, 3, 4)
SATISFIED = 0.05  # points with more late queries are left out, as in the figures
THREE = ("shufflenet_v2_x0_5", "efficientnet_b2", "efficientnet_v2_s")  # appendix E
PUBLISHED = {1200: 0.787, 2000: 0.749, 2800: 0.730}  # by the published code
AIMS = {1200: 0.785, 2000: 0.747, 2800: 0.729}
BASELINES = {
    "model_switching": {1200: 0.730, 2000: 0.730, 2800: 0.730},
    "jellyfish+": {1200: 0.730, 2000: 0.730, 2800: 0.580},
}
ABLATIONS: dict[str, Callable[[], Ramsis]] = {
    "fig 10: 2 steps": lambda: Ramsis(slack_steps=2),
    "fig 10: 10 steps": lambda: Ramsis(slack_steps=10),
    "fig 10: by model": lambda: Ramsis(slack_steps=0),
    "fig 11: variable": lambda: Ramsis(variable=True),
    "per decision": lambda: Ramsis(per_decision=True),
    "pruned at every batch": lambda: Ramsis(every_batch=True),
    "drop": lambda: Ramsis(drop=True),
    "shortest": lambda: Ramsis(shortest=True),
}


@dataclass(frozen=True)
class Seen:
    """Means over the seeds, with standard errors, and what the policy promised."""

    accuracy: float
    late: float
    correct: float
    accuracy_error: float
    late_error: float
    promised: Expectation | None = None

    @property
    def holds(self) -> bool:
        """Observed accuracy not below, and lateness not above, what was promised."""
        if self.promised is None:
            return True
        return (
            self.accuracy >= self.promised.accuracy - 2 * self.accuracy_error - 1e-9
            and self.late <= self.promised.late + 2 * self.late_error + 1e-9
        )


def observe(deployment: Deployment, planner: Planner, load: float) -> Seen:
    """Run every seed."""
    runs = [simulate(deployment, planner, Load(Poisson(), load), seconds=SECONDS, seed=seed).summary for seed in SEEDS]
    root = math.sqrt(len(runs))
    promised = None
    if isinstance(planner, Ramsis):
        (policy,) = planner.in_force().values()
        promised = policy.expectation
    return Seen(
        fmean(run.accuracy for run in runs),
        fmean(run.bad_rate for run in runs),
        fmean(run.correct_on_time for run in runs),
        stdev(run.accuracy for run in runs) / root,
        stdev(run.bad_rate for run in runs) / root,
        promised,
    )


def p99_ns(deployment: Deployment, planner: Planner, load: float) -> float:
    """What ModelSwitching's profiling measures."""
    runs = (simulate(deployment, planner, Load(Poisson(), load), seconds=SECONDS, seed=seed) for seed in SEEDS[:3])
    return median(run.summary.latency_ms["p99"] for run in runs) * 1e6


def main() -> None:
    """Sweep the loads for every system, then compare."""
    bench = Benchmark("ramsis_constant")
    seen: dict[tuple[str, float, int, int], Seen] = {}
    jobs: list[tuple[str, float, int, int, Planner, Deployment]] = []
    for slo_ms in SLOS_MS:
        deployment = IMAGE.deployment(WORKERS, slo_ms)
        responses = measure_responses(deployment, LOADS, p99_ns)
        few = IMAGE.deployment(WORKERS, slo_ms, THREE)
        for load in LOADS:
            jobs.append(("ramsis", slo_ms, WORKERS, load, Ramsis(), deployment))
            jobs.append(
                ("model_switching", slo_ms, WORKERS, load, ModelSwitching(already_measured(responses)), deployment)
            )
            jobs.append(("jellyfish+", slo_ms, WORKERS, load, JellyfishPlus(), deployment))
            jobs.append(("fig 12: ramsis, 3 models", slo_ms, WORKERS, load, Ramsis(), few))
            jobs.append(("fig 12: jellyfish+, 3 models", slo_ms, WORKERS, load, JellyfishPlus(), few))
    for name, make in ABLATIONS.items():
        jobs += [(name, 150.0, WORKERS, load, make(), IMAGE.deployment(WORKERS, 150.0)) for load in LOADS]
    for count in FIDELITY_WORKERS:
        jobs += [("ramsis", 150.0, count, load, Ramsis(), IMAGE.deployment(count, 150.0)) for load in LOADS]
    for system, slo_ms, count, load, planner, deployment in bench.steps(jobs, len(jobs), "runs"):
        found = observe(deployment, planner, float(load))
        seen[system, slo_ms, count, load] = found
        extra: dict[str, Any] = {}
        if found.promised is not None:
            extra = {"promised_accuracy": found.promised.accuracy, "promised_late": found.promised.late}
        bench.row(
            system=system,
            slo_ms=slo_ms,
            workers=count,
            load=load,
            accuracy=found.accuracy,
            late=found.late,
            correct=found.correct,
            fluid_bound=fluid_accuracy(deployment, [float(load)]).accuracy,
            **extra,
        )
    _published(bench, seen)
    _gains(bench, seen)
    _ablations(bench, seen)
    _promises(bench, seen)
    bench.finish()


def _published(bench: Benchmark, seen: dict[tuple[str, float, int, int], Seen]) -> None:
    for load, aim in AIMS.items():
        found = seen["ramsis", 150.0, WORKERS, load]
        bench.claim(
            f"ramsis, 150 ms, {load} q/s: accuracy, late ≤ 0.1%",
            paper=PUBLISHED[load],
            target=f"≥ {aim}",
            ours=found.accuracy,
            met=found.accuracy >= aim and found.late <= 0.001,
        )
    for system, figures in BASELINES.items():
        for load, figure in figures.items():
            found = seen[system, 150.0, WORKERS, load]
            bench.claim(
                f"{system}, 150 ms, {load} q/s: accuracy",
                paper=figure,
                target="± 0.003",
                ours=found.accuracy,
                met=abs(found.accuracy - figure) <= 0.003,
            )


def _gains(bench: Benchmark, seen: dict[tuple[str, float, int, int], Seen]) -> None:
    """Figure 6: points over the baselines, where both have less than 5% late."""
    paper = {("jellyfish+", 150.0): "3.70, 15.04", ("model_switching", 150.0): "1.84, 6.71"}
    for slo_ms in SLOS_MS:
        for system in BASELINES:
            gains = []
            for load in LOADS:
                ours, theirs = seen["ramsis", slo_ms, WORKERS, load], seen[system, slo_ms, WORKERS, load]
                if max(ours.late, theirs.late) < SATISFIED:
                    gains.append(100 * (ours.accuracy - theirs.accuracy))
            bench.claim(
                f"{slo_ms:g} ms: points over {system}, average and highest",
                paper=paper.get((system, slo_ms), "never below"),
                target="never below",
                ours=f"{fmean(gains):.2f}, {max(gains):.2f} ({len(gains)} loads, lowest {min(gains):.2f})",
                met=min(gains) >= -0.05,
            )
        late = [seen["ramsis", slo_ms, WORKERS, load].late for load in LOADS if load <= 3200]
        bench.claim(
            f"{slo_ms:g} ms: table 4, ramsis late up to 3200 q/s, highest",
            paper={150.0: 0.00499, 300.0: 0.004402, 500.0: 0.007513}[slo_ms],
            target="≤ 0.01",
            ours=max(late),
            met=max(late) <= 0.01,
        )


def _ablations(bench: Benchmark, seen: dict[tuple[str, float, int, int], Seen]) -> None:
    """Figures 10 and 11 and the choices that are ours, as correct answers per query against the default."""

    def mean(system: str) -> float:
        return fmean(seen[system, 150.0, WORKERS, load].correct for load in LOADS if load <= 3200)

    default = mean("ramsis")
    for system, (paper, target, low, high) in {
        "fig 10: 2 steps": ("far below", "< -0.01", -1.0, -0.01),
        "fig 10: 10 steps": ("below", "< 0", -1.0, 0.0),
        "fig 10: by model": ("same", "± 0.005", -0.005, 0.005),
        "fig 11: variable": ("same", "± 0.005", -0.005, 0.005),
        "per decision": ("the paper's reward", "≤ 0", -1.0, 0.0),
        "pruned at every batch": ("not in the paper", "≥ 0", 0.0, 1.0),
        "drop": ("straightforward", "± 0.005", -0.005, 0.005),
        "shortest": ("straightforward", "any", -1.0, 1.0),
    }.items():
        apart = mean(system) - default
        bench.claim(
            f"{system}: correct per query against the default, mean to 3200 q/s",
            paper=paper,
            target=target,
            ours=apart,
            met=low <= apart <= high,
        )
    wins = [
        seen["fig 12: ramsis, 3 models", slo_ms, WORKERS, load].correct
        >= seen["fig 12: jellyfish+, 3 models", slo_ms, WORKERS, load].correct - 1e-3
        for slo_ms in SLOS_MS
        for load in LOADS
        if seen["fig 12: ramsis, 3 models", slo_ms, WORKERS, load].late < SATISFIED
    ]
    bench.claim(
        "figure 12: 3 models, loads at which ramsis is not below jellyfish+",
        paper="all",
        target="all",
        ours=f"{sum(wins)} of {len(wins)}",
        met=all(wins),
    )


def _promises(bench: Benchmark, seen: dict[tuple[str, float, int, int], Seen]) -> None:
    """Section 5.1 and figure 7, over all settings with the default options."""
    held = [found.holds for (system, *_), found in seen.items() if system in ("ramsis", "fig 12: ramsis, 3 models")]
    bench.claim(
        "promises of accuracy and lateness that hold, of all settings",
        paper="bounds, observed",
        target="≥ 95% of ≥ 40",
        ours=f"{sum(held)} of {len(held)}",
        met=len(held) >= 40 and sum(held) >= 0.95 * len(held),
    )


if __name__ == "__main__":
    main()
