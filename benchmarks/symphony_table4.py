"""Symphony table 4 with figures 8 and 9: one model on 8 workers, Poisson, 1% bad rate.

Goodput, as the highest rate that holds and as what is answered in time at that rate, which is the paper's throughput;
the two analytic bounds, the distribution of batch sizes (share of queries by the size of
the batch they ran in) and the queueing delay, each at that planner's own goodput. `judged` is judged at each rate that
is tried, as a server's load is once it has been steady for some seconds.

Symphony is run with the delays that its authors' published scheduler reckons with by default: 100 µs to tell a worker,
50 µs to fetch the input of a query, and 2 ms for the answer to come back, which is taken off the SLO. All the others
are run without delays, like Symphony once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from harness import Benchmark, goodput, like

from stretto.core.deployment import Deployment
from stretto.core.plan import Delays, Plan
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import Planner, View
from stretto.planners.clockwork import Clockwork
from stretto.planners.judged.planner import Judged
from stretto.planners.nexus import Nexus
from stretto.planners.symphony import Symphony
from stretto.sim.arrivals import Load
from stretto.sim.bounds import staggered, uncoordinated
from stretto.sim.processes import Poisson
from stretto.sim.service import Deterministic
from stretto.sim.simulator import simulate
from stretto.twin.measure import setting_from_scenario
from stretto.twin.setting import Setting
from stretto.twin.spot import SpotJudge

WORKERS = 8
SECONDS = 30.0
SEEDS = tuple(range(1, 16))  # with expiry alone, Symphony collapses in one run and not in another
NO_DELAYS = Delays()
AUTHORS_DELAYS, AUTHORS_ANSWER_MS = Delays(control_ns=100_000, data_ns=50_000), 2.0
DELAYED = "symphony, its authors' delays"
BATCH_AWARE = "symphony + batch-aware"


@dataclass(frozen=True)
class Model:
    """A row of the table: the profile, the paper's measurements, and what our own planners are to reach."""

    name: str
    alpha_ms: float
    beta_ms: float
    slo_ms: float
    symphony: float
    clockwork: float
    nexus: float
    batch_aware: float
    judged: float


MODELS = (
    Model("ResNet50", 1.053, 5.072, 25.0, 5169.0, 2036.0, 3965.0, 5450.0, 5550.0),
    Model("InceptionResNetV2", 5.090, 18.368, 70.0, 907.0, 482.0, 590.0, 965.0, 985.0),
)
WITHIN = {DELAYED: 0.03, "clockwork": 0.15, "nexus": 0.15, "nexus, filling batches": 0.15}
JUDGED_S, JUDGED_SEED = 20.0, 101  # of arrivals that the judge knows


def judged(rate: float) -> Judged:
    """The judge knows a stretch of arrivals, of another seed than any that is tested."""

    def setting(deployment: Deployment) -> Setting:
        source = Load(Poisson(), rate)
        return setting_from_scenario(deployment, source, Deterministic(), Delays(), seconds=JUDGED_S, seed=JUDGED_SEED)

    return Judged(judge=SpotJudge(setting))


def judged_at_each_rate() -> Planner:
    """A run is planned for once, at the rate that it is announced with."""
    planners: dict[float, Judged] = {}

    def plan(view: View) -> Plan:
        (rate,) = view.expected_rates
        return planners.setdefault(rate, judged(rate))(view)

    return plan


def planners() -> dict[str, Planner]:
    """By the name of their row."""
    return {
        DELAYED: Symphony(),
        "symphony": Symphony(),
        "symphony, when gathered": Symphony(when_gathered=True),  # both conditions of section 4.3
        "symphony, expiry only": Symphony(expiry_only=True),
        BATCH_AWARE: Symphony(batch_aware=True),
        "symphony, work-conserving": Symphony(deferred=False),
        "clockwork": Clockwork(),
        "clockwork, filling batches": Clockwork(filling=True),
        "nexus": Nexus(),
        "nexus, filling batches": Nexus(filling=True),
        "nexus, 8 front ends": Nexus(front_ends=8),
        "judged": judged_at_each_rate(),
    }


def paper(model: Model, name: str) -> float | None:
    system = "symphony" if name == DELAYED else name.split(",")[0]
    return getattr(model, system) if name in WITHIN else None


def measure(job: tuple[Model, str]) -> dict[str, Any]:
    """The row of a planner on a model."""
    model, name = job
    delays, slo_ms = (
        (AUTHORS_DELAYS, model.slo_ms - AUTHORS_ANSWER_MS) if name == DELAYED else (NO_DELAYS, model.slo_ms)
    )
    profile = LatencyProfile.linear(model.alpha_ms, model.beta_ms)
    deployment = like(profile, slo_ms, 1, WORKERS)
    bound = staggered(profile, int(model.slo_ms * NS_PER_MS), WORKERS)
    loose = uncoordinated(profile, int(model.slo_ms * NS_PER_MS), WORKERS)
    planner = planners()[name]
    rate = goodput(
        deployment,
        planner,
        lambda r: Load(Poisson(), r),
        guess=loose.throughput,
        seeds=SEEDS,
        seconds=SECONDS,
        delays=delays,
    )
    runs = [
        simulate(deployment, planner, Load(Poisson(), rate), seconds=SECONDS, seed=seed, delays=delays).summary
        for seed in SEEDS
    ]
    summary = runs[0]
    sizes = np.array(summary.batch_histogram) * np.arange(len(summary.batch_histogram))
    shares = np.cumsum(sizes) / max(1, sizes.sum())
    return {
        "model": model.name,
        "planner": name,
        "paper": paper(model, name) or "",
        "goodput": rate,
        "answered": fmean(run.goodput for run in runs),
        "of_staggered": rate / bound.throughput,
        "batch_p10": int(np.searchsorted(shares, 0.10)),
        "batch_p50": int(np.searchsorted(shares, 0.50)),
        "batch_p90": int(np.searchsorted(shares, 0.90)),
        "ideal_batch": f"{loose.batch} … {bound.batch}",
        "queue_p50_ms": summary.queueing_ms["p50"],
        "queue_p99_ms": summary.queueing_ms["p99"],
        "ideal_queue_ms": profile.latency_ns(bound.batch) / WORKERS / NS_PER_MS,
    }


def main() -> None:
    """Measure every planner on both models."""
    bench = Benchmark("symphony_table4")
    jobs = [(model, name) for model in MODELS for name in planners()]
    measured: dict[tuple[str, str], dict[str, Any]] = {}
    for (model, name), row in zip(jobs, bench.at_once(measure, jobs, "goodput"), strict=True):
        bench.row(**row)
        measured[model.name, name] = row
    for model in MODELS:
        for name, within in WITHIN.items():
            published = paper(model, name) or 0.0
            bench.band(
                f"{model.name}, {name} (r/s)",
                paper=published,
                between=(published * (1 - within), published * (1 + within)),
                ours=measured[model.name, name]["answered"],
            )
        bound = staggered(
            LatencyProfile.linear(model.alpha_ms, model.beta_ms), int(model.slo_ms * NS_PER_MS), WORKERS
        ).throughput
        for name, least in ((BATCH_AWARE, model.batch_aware), ("judged", model.judged)):
            ours = measured[model.name, name]["goodput"]
            bench.claim(
                f"{model.name}, {name}: beyond the paper (r/s); staggered bound {bound:.0f}",
                paper="",
                target=f"≥ {least:g}",
                ours=ours,
                met=ours >= least,
            )
    bench.finish()


if __name__ == "__main__":
    main()
