"""The planners as they are served, in simulation: by the function that makes a server's session, with its defaults.

Image task, 60 workers, SLO 150 ms (shared/data/ramsis_image.csv). Doors are on, the load is measured and not told, and
planners are asked as often as a server asks them. Where a planner follows verdicts, they are of a judge that knows what
ten seconds of the load, on another seed, would have told a server. Service takes the profiled p95, or varies by a fifth
around the mean. `correct` is the share of all queries answered right and on time. The defaults were chosen on seed 5;
these are others, each with a session of its own that counts from its first query.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import fmean

from harness import Benchmark
from measured import measured_setting
from ramsis_ground import IMAGE

from stretto.core.deployment import Deployment
from stretto.planners.registry import DEFAULT_PLANNER
from stretto.planning.served import served_session
from stretto.sim.arrivals import Load
from stretto.sim.bounds import fluid_accuracy
from stretto.sim.ports import simulator_ports
from stretto.sim.processes import Poisson
from stretto.sim.service import Deterministic, Lognormal
from stretto.sim.simulator import simulate
from stretto.twin.setting import Setting
from stretto.twin.spot import SpotJudge

WORKERS, SLO_MS = 60, 150.0
LOADS = (1200, 2000, 2800)
PLANNERS = (DEFAULT_PLANNER, "ramsis", "priced", "jellyfish_plus")
SEEDS = (11, 12)
SECONDS = 20.0
MEASURED_S, CHOSEN_ON = 10.0, 5
NOISES = {"exact": None, "noise 0.2": Lognormal(0.2)}


def measured(noise: str, load: int, deployment: Deployment) -> Setting:
    service = NOISES[noise] or Deterministic()
    return measured_setting(deployment, Load(Poisson(), float(load)), service, seconds=MEASURED_S, seed=CHOSEN_ON)


def main() -> None:
    bench = Benchmark("served", seed=SEEDS[0])
    deployment = IMAGE.deployment(WORKERS, SLO_MS)
    correct: dict[tuple[str, str, int], float] = {}
    jobs = [(planner, noise, load) for planner in PLANNERS for noise in NOISES for load in LOADS]
    for planner, noise, load in bench.steps(jobs, len(jobs), "runs"):
        conditions = partial(measured, noise, load)
        ports = replace(simulator_ports(), judge=SpotJudge(conditions))
        runs = []
        for seed in SEEDS:
            session = served_session(planner, ports=ports)
            run = simulate(
                deployment,
                session,
                Load(Poisson(), float(load)),
                seconds=SECONDS,
                seed=seed,
                service=NOISES[noise],
                replan_s=session.rhythm.period_for(deployment),
                expected_rates=(0.0,),
            )
            runs.append(run.summary)
        correct[planner, noise, load] = fmean(run.correct_on_time for run in runs)
        bench.row(
            planner=planner,
            service=noise,
            load=load,
            correct=correct[planner, noise, load],
            late=1 - fmean(run.on_time_rate for run in runs),
            bound=fluid_accuracy(deployment, [float(load)]).accuracy,
        )
    for noise in NOISES:
        for load in LOADS:
            ours, theirs = correct[DEFAULT_PLANNER, noise, load], correct["ramsis", noise, load]
            bench.claim(
                f"the default as served, {load} queries/s, {noise}: right and on time, against RAMSIS as served",
                paper="",
                target=f"≥ {theirs:.4f}",
                ours=ours,
                met=ours >= theirs,
            )
    bench.finish()


if __name__ == "__main__":
    main()
