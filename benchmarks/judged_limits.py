"""How far above `priced` any schedule can be on the three loads of `judged_live`: simulated, beside a bound.

The loads are those of the demo, in shares of what the fastest and the most accurate variant carry, with requests of
eight images. Batches take what they were profiled to take, so nothing is late by surprise. Both `priced` and the bound,
which knows every arrival ahead (clairvoyant.py), have the same arrivals.
"""

from __future__ import annotations

from statistics import mean, stdev

import numpy as np
from clairvoyant import most_correct_on_time, throughput
from harness import Benchmark
from judged import Lumps
from judged_live import LOADS, PRICED

from stretto.cli.demo import APPLICATION
from stretto.cli.demo_load import HIGH, LOW, ROWS
from stretto.core.deployment import Deployment
from stretto.core.profile import Quantile
from stretto.core.verdict import Candidate
from stretto.planners.candidates import make
from stretto.repository.read import read_repository
from stretto.sim.arrivals import Load
from stretto.sim.simulator import simulate
from stretto.sim.traces import RateTrace

AIM = 0.5  # points above `priced` that judged plans were to have
SEEDS = tuple(range(3001, 3009))
SECONDS = 60.0
REPLAN_S = 0.1


def bursts(deployment: Deployment, period_s: float, share: float) -> Lumps:
    """As `stretto demo` sizes them, in requests of eight."""
    slo_s = deployment.applications[0].slo_ns / 1e9
    carried = [throughput(deployment, variant, slo_s) for variant in range(len(deployment.variants))]
    low, high = LOW * carried[-1] / ROWS, HIGH * carried[0] / ROWS
    starts_s = np.arange(round(SECONDS / period_s)) * period_s
    times_s = np.append(np.column_stack((starts_s, starts_s + period_s * (1.0 - share))).ravel(), SECONDS)
    rates = np.append(np.tile([low, high], len(starts_s)), low)
    return Lumps(Load(RateTrace(times_s, rates, "hold"), low * (1.0 - share) + high * share), ROWS)


def main() -> None:
    bench = Benchmark("judged_limits", seed=SEEDS[0])
    deployment, _ = read_repository(f"zoo:{APPLICATION}").deployment(1, Quantile.MEAN)
    jobs = [(name, seed) for name in LOADS for seed in SEEDS]
    above: dict[str, list[float]] = {name: [] for name in LOADS}
    for name, seed in bench.steps(jobs, len(jobs), "runs"):
        load = bursts(deployment, *LOADS[name])
        arrivals_s = np.concatenate([chunk["time_ns"] for chunk in load.chunks(deployment, SECONDS, seed)]) / 1e9
        bound = most_correct_on_time(deployment, arrivals_s)
        planner = make(Candidate(PRICED))
        summary = simulate(deployment, planner, load, seconds=SECONDS, seed=seed, replan_s=REPLAN_S).summary
        above[name].append(100 * (bound - summary.correct_on_time))
        bench.row(
            load=name,
            seed=seed,
            queries=len(arrivals_s),
            bound=bound,
            priced=summary.correct_on_time,
            priced_on_time=summary.on_time_rate,
        )
    for name, points in above.items():
        error = stdev(points) / np.sqrt(len(points))
        bench.claim(
            f"{name}: points above {PRICED} of a schedule that knows all arrivals, at most (± {error:.3f})",
            paper="-",
            target=f"< {AIM}: the aim of judged_live is out of reach",
            ours=mean(points),
            met=mean(points) < AIM,
        )
    bench.finish()


if __name__ == "__main__":
    main()
