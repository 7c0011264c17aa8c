"""Unequal workers under `joint`: fleets of which some workers are slower, and light beside heavy instances (edge RL).

The image task is that of ramsis_ground at 150 ms, with workers twice as slow beside fast ones; the judge chooses among
the planners that may serve it, and the winner is tested on a seed that no trial used. At the edge each kind runs its
own variant, one query at a time, and the load switches between 10/s and 180/s without notice (edge RL, section 5.1.2,
with phases of their mean length); the planner measures the load itself. Bounds are fluid ones. Needs
shared/data/ramsis_image.csv.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from harness import Benchmark
from ramsis_ground import IMAGE

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Delays
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.verdict import Candidate
from stretto.core.worker import workers
from stretto.planners.candidates import make
from stretto.planners.joint.planner import Joint
from stretto.sim.arrivals import Load, Source
from stretto.sim.bounds import fluid_accuracy, fluid_goodput
from stretto.sim.processes import Poisson
from stretto.sim.service import Deterministic, Service
from stretto.sim.simulator import simulate
from stretto.sim.traces import RateTrace
from stretto.twin.judge import judge

SLO_MS = 150.0
SLOWER = 2.0
FLEETS = ((30, 30), (1, 7))  # fast and slow workers
USES = (0.3, 0.6, 0.85)  # of what all can answer
POINTS = 0.02  # of accuracy that may lie between a schedule and the fluid bound
TEST_SEED = 1001
TEST_QUERIES = 60_000
LULL, BURST = (10.0, 500.0), (180.0, 500.0 / 18)  # queries/s and seconds: as many queries in either
EDGE_CYCLES = 6
EDGE_SEEDS = (2001, 2002, 2003)
EDGE_AIM, EDGE_LATE = 0.81, 0.0001
PAPER = {"RL, phases observed": 0.8014, "RL, phases not observed": 0.7924}


def image(fast: int, slow: int) -> Deployment:
    """The image task on workers as measured and on slower ones."""
    (application,) = IMAGE.deployment(1, SLO_MS).applications
    variants = []
    for variant in application.variants:
        (profile,) = variant.profiles
        slower = LatencyProfile((profile.table_ns * SLOWER).astype(np.int64), "slow")
        variants.append(replace(variant, profiles=(replace(profile, kind="fast"), slower)))
    served = replace(application, variants=tuple(variants))
    return Deployment((served,), workers(fast, "fast") + workers(slow, "slow"))


def edge() -> Deployment:
    """Two instances of EfficientNet and two of PNASNet."""
    variants = []
    for name, kind, ms, accuracy in (("efficientnet", "light", 9.9, 0.7769), ("pnasnet", "heavy", 33.3, 0.8278)):
        row = np.array([0, int(ms * 1e6)])
        variants.append(Variant(name, accuracy, (LatencyProfile(np.tile(row, (len(Quantile), 1)), kind),)))
    application = Application("edge", 300_000_000, tuple(variants))
    return Deployment((application,), workers(2, "light") + workers(2, "heavy"), Quantile.MEAN)


@dataclass(frozen=True)
class Steady:
    """Poisson arrivals at a load, exact workers: what the judge tries candidates under."""

    load: float
    delays: Delays = field(default_factory=Delays)

    def source(self, factor: float) -> Source:
        return Load(Poisson(), self.load * factor)

    def service(self) -> Service:
        return Deterministic()


def candidates() -> list[Candidate]:
    """For exact workers: little or no noise, and no margin."""
    found = []
    for noise, caution in product((0.0, 0.05), (0.93, 1.0, 1.06, 1.15, 1.3)):
        exact = (("noise", noise), ("margin", 0.0), ("caution", caution))
        found += [Candidate("joint", exact), Candidate("shared_queue", exact)]
    return [*found, *(Candidate("priced", (("caution", c), ("margin", 0.2))) for c in (1.05, 1.2))]


def image_rows(bench: Benchmark) -> None:
    jobs = [(fleet, use) for fleet in FLEETS for use in USES]
    for fleet, use in bench.steps(jobs, len(jobs), "loads"):
        deployment = image(*fleet)
        load = use * fluid_goodput(deployment, [1.0])
        verdict = judge(deployment, Steady(load), (load,), candidates=candidates())
        planner = make(verdict.candidate)
        summary = simulate(
            deployment,
            planner,
            Load(Poisson(), load),
            seconds=max(TEST_QUERIES / load, 20.0),
            seed=TEST_SEED,
        ).summary
        bound = fluid_accuracy(deployment, [load]).correct_share
        name = f"{fleet[0]} fast and {fleet[1]} slow workers at {use:.0%}"
        bench.row(
            what=name,
            load=load,
            chosen=str(verdict.candidate),
            correct_on_time=summary.correct_on_time,
            not_on_time=1.0 - summary.on_time_rate,
            bound=bound,
            judge_cpu_s=verdict.cpu_s,
        )
        bench.claim(
            f"{name}: correct and on time",
            paper=None,
            target=f"≥ {bound - POINTS:.4f}",
            ours=summary.correct_on_time,
            met=summary.correct_on_time >= bound - POINTS,
        )


def edge_rows(bench: Benchmark) -> None:
    deployment = edge()
    bound = sum(fluid_accuracy(deployment, [rate]).correct_share for rate, _ in (LULL, BURST)) / 2
    phases = round(LULL[1] / BURST[1])  # a lull is so many times as long as a burst
    rates = np.append(np.full(phases, LULL[0]), BURST[0])
    trace = RateTrace(np.linspace(0.0, LULL[1], phases + 1), rates, "hold")
    seconds = EDGE_CYCLES * (LULL[1] + BURST[1])
    correct, late, queries = 0.0, 0.0, 0
    for seed in bench.steps(EDGE_SEEDS, len(EDGE_SEEDS), "runs"):
        summary = simulate(
            deployment, Joint(), Load(trace, trace.mean_rate()), seconds=seconds, seed=seed, replan_s=0.1
        ).summary
        correct += summary.correct_on_time * summary.submitted
        late += (1.0 - summary.on_time_rate) * summary.submitted
        queries += summary.submitted
    bench.row(what="edge", correct_on_time=correct / queries, not_on_time=late / queries, bound=bound, **PAPER)
    bench.claim(
        "edge, switching load: correct and on time",
        paper=PAPER["RL, phases observed"],
        target=f"≥ {EDGE_AIM}",
        ours=correct / queries,
        met=correct / queries >= EDGE_AIM,
    )
    bench.claim(
        "edge, switching load: not on time",
        paper=0.00366,
        target=f"≤ {EDGE_LATE}",
        ours=late / queries,
        met=late / queries <= EDGE_LATE,
    )


def main() -> None:
    """Both grounds."""
    bench = Benchmark("unequal")
    edge_rows(bench)
    image_rows(bench)
    bench.finish()


if __name__ == "__main__":
    main()
