"""RAMSIS on the production trace, image task, 150 ms: figure 5 and table 3 with 60, 70 and 80 workers.

Five minutes (300 s) of shared/data/twitter_rates.csv: rates 10 s apart, linear in between, from the start again after
270 s; Poisson arrivals at those rates. The load is measured (moving average over 500 ms), planners are asked as often
as they want to be: each 500 ms, the shared queue each 100. Accuracy is per on-time query, differences are points. As in
the figures, a gain counts where both systems have less than 5% late; the average over all three numbers of workers
stands beside it.

Two ways of running: `p95`, every batch takes the profiled p95, which is how the published simulation and its printed
gains (5.70 and at most 8.07 over Jellyfish+, 3.48 and at most 4.63 over ModelSwitching) were made; and `drawn`, batches
take times drawn between the measured quantiles, which is nearer to the prototype of table 3.

With p95 times, 60 workers are too few for RAMSIS at the peak. The trace stays above 3467 queries/s for 85 s and reaches
3905; 3467 is what the fastest variant answers in batches of 4, the largest that fit into the SLO twice, once waited for
and once run. The last rows show the same lateness at constant, known loads around that, with the fastest variant
alone: it does not come from measuring the load or from exchanging plans. Nor is it the limit: batches of 9 answer 3812
in time, which 0.12% of the trace's queries exceed. The paper counts 554,395 queries; the rates given make 752,420 in
270 s, so its run was lighter. ModelSwitching's p99 responses are measured here, in the same way of running, at 400 to
4000 queries/s in steps of 100. Needs shared/data/ramsis_image.csv and twitter_rates.csv.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from harness import Benchmark
from ramsis_ground import IMAGE, trace_of

from stretto.core.deployment import Deployment
from stretto.planners.parts.task import task_of
from stretto.planners.ports import Ports
from stretto.planners.registry import NAMES, planner_entry
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.responses import already_measured, measured_responses
from stretto.sim.service import Deterministic, Empirical, Service
from stretto.sim.simulator import simulate
from stretto.sim.traces import RateTrace
from stretto.sim.trial import simulated_trial

WORKERS = (60, 70, 80)
SLO_MS = 150.0
SECONDS = 300.0
SERVICES: dict[str, Service] = {"p95": Deterministic(), "drawn": Empirical()}
RESPONSE_LOADS = tuple(range(400, 4001, 100))
RESPONSE_SECONDS = 10.0
SATISFIED = 0.05
PRUNED = "ramsis, pruned at every batch"  # runs as the published simulation only
SYSTEMS = {
    "ramsis": ("ramsis", {}),
    PRUNED: ("ramsis", {"every_batch": True}),
    "model_switching": ("model_switching", {}),
    "jellyfish_plus": ("jellyfish_plus", {}),
    # Simulated service times are those of the profile, so less is kept for what a profile does not know.
    **({"shared_queue": ("shared_queue", {"margin": 0.1, "prior": 10})} if "shared_queue" in NAMES else {}),
}
CONSTANT = (3300.0, 3600.0, 3800.0)  # around the load at which the trace's lateness begins
CONSTANT_SECONDS = 60.0
# Table 3: late queries of the prototype at 150 ms.
PAPER_LATE = {
    "ramsis": {60: 0.001277, 70: 0.002231, 80: 0.004329},
    "jellyfish_plus": {60: 0.004141, 70: 0.007234, 80: 0.008292},
    "model_switching": {60: 0.004136, 70: 0.002368, 80: 0.006080},
}
PAPER_GAINS = {"jellyfish_plus": "5.70, 8.07", "model_switching": "3.48, 4.63"}
AIMS = {"jellyfish_plus": 5.0, "model_switching": 3.0}


@dataclass(frozen=True)
class Seen:
    """One run; `late` is the share of queries without an answer on time."""

    accuracy: float
    late: float
    correct: float


Runs = dict[tuple[str, str, int], Seen]  # by way of running, system and workers


def main() -> None:
    """Every system with every number of workers, in both ways of running."""
    bench = Benchmark("ramsis_trace")
    trace = trace_of()
    deployments = {count: IMAGE.deployment(count, SLO_MS) for count in WORKERS}
    jobs = [(system, count) for count in WORKERS for system in SYSTEMS]
    seen: Runs = {}
    for system, count in bench.steps(jobs, len(jobs), "systems and workers"):
        for way, found in observe(system, deployments[count], trace, bench.seed).items():
            seen[way, system, count] = found
            paper_late = PAPER_LATE.get(system, {}).get(count, "")
            bench.row(
                service=way,
                system=system,
                workers=count,
                accuracy=found.accuracy,
                late=found.late,
                correct=found.correct,
                paper_late=paper_late if way == "drawn" else "",
            )
    _gains(bench, seen)
    _late(bench, seen, trace, deployments)
    _at_constant_load(bench, deployments[WORKERS[0]])
    if "shared_queue" in SYSTEMS:
        _shared_queue(bench, seen)
    bench.finish()


def observe(system: str, deployment: Deployment, trace: RateTrace, seed: int) -> dict[str, Seen]:
    """One system in every way of running; its policies are made once."""
    name, options = SYSTEMS[system]
    entry = planner_entry(name)
    planner = entry.make(options, ports=Ports(trial=simulated_trial))
    found = {}
    for way, service in SERVICES.items():
        if system == PRUNED and way != "p95":
            continue
        if "responses" in entry.ports:
            responses = measured_responses(deployment, RESPONSE_LOADS, service=service, seconds=RESPONSE_SECONDS)
            planner = entry.make(options, ports=Ports(responses=already_measured(responses)))
        run = simulate(
            deployment, planner, Load(trace), seconds=SECONDS, seed=seed, service=service, replan_s=entry.replan_s
        ).summary
        found[way] = Seen(run.accuracy, run.bad_rate, run.correct_on_time)
    return found


def _gains(bench: Benchmark, seen: Runs) -> None:
    """Figure 5: points over the baselines."""
    for way in SERVICES:
        for rival, aim in AIMS.items():
            pairs = {count: (seen[way, "ramsis", count], seen[way, rival, count]) for count in WORKERS}
            gains = {
                count: 100 * (ours.accuracy - theirs.accuracy)
                for count, (ours, theirs) in pairs.items()
                if max(ours.late, theirs.late) < SATISFIED
            }
            every = fmean(100 * (ours.accuracy - theirs.accuracy) for ours, theirs in pairs.values())
            told = ", ".join(f"{gain:.2f} with {count}" for count, gain in gains.items())
            mean = fmean(gains.values()) if gains else 0.0
            bench.claim(
                f"{way}: points of ramsis over {rival}, average over 60, 70 and 80 workers",
                paper="",
                target=f"≥ {aim:g} on average",
                ours=every,
                met=every >= aim,
            )
            bench.claim(
                f"{way}: the same by the paper's rule, both less than 5% late: average and highest",
                paper=PAPER_GAINS[rival] if way == "p95" else "up to 15 (prototype)",
                target=f"≥ {aim:g} on average",
                ours=f"{mean:.2f}, {max(gains.values(), default=0.0):.2f} ({told})",
                met=mean >= aim,
            )


def _late(bench: Benchmark, seen: Runs, trace: RateTrace, deployments: dict[int, Deployment]) -> None:
    """Table 3, beside what the workers can answer in time at most."""
    peak = float(trace.rates.max())
    for way in SERVICES:
        for count in WORKERS:
            late = seen[way, "ramsis", count].late
            most = task_of(deployments[count], 0).capacity()
            bench.claim(
                f"{way}: late with {count} workers (peak {peak:.0f} q/s, at p95 they answer {most:.0f} q/s at most)",
                paper=f"{PAPER_LATE['ramsis'][count]} (prototype)",
                target="≤ 0.01",
                ours=late,
                met=late <= 0.01,
            )


def _at_constant_load(bench: Benchmark, deployment: Deployment) -> None:
    """How late the smallest number of workers is around the load that two batches within the SLO allow."""
    count = len(deployment.workers)
    for load in CONSTANT:
        planner = planner_entry("ramsis").make({})
        run = simulate(deployment, planner, Load(Poisson(), load), seconds=CONSTANT_SECONDS, seed=bench.seed).summary
        bench.row(
            service="p95",
            system=f"ramsis, constant {load:.0f} q/s",
            workers=count,
            accuracy=run.accuracy,
            late=run.bad_rate,
            correct=run.correct_on_time,
        )


def _shared_queue(bench: Benchmark, seen: Runs) -> None:
    """Beyond the paper: as correct per query everywhere, where RAMSIS answers in time also as accurate."""
    for way in SERVICES:
        pairs = [(seen[way, "shared_queue", count], seen[way, "ramsis", count]) for count in WORKERS]
        held = [
            ours.correct > theirs.correct and (theirs.late >= SATISFIED or ours.accuracy > theirs.accuracy)
            for ours, theirs in pairs
        ]
        bench.claim(
            f"{way}: the shared queue above ramsis, numbers of workers",
            paper="not in the paper",
            target="everywhere",
            ours=f"{sum(held)} of {len(held)}: "
            + ", ".join(f"{100 * (ours.correct - theirs.correct):+.2f}" for ours, theirs in pairs)
            + " points correct per query",
            met=all(held),
        )


if __name__ == "__main__":
    main()
