"""Symphony figure 10: what the load looks like from outside. 10 ResNet50, SLO 100 ms, 24 workers, Poisson.

Flat top: offered o above the peak p, goodput stays at p. Idle share: below the peak, (p − o)/p of the worker time is
idle, so it says how many workers could go. Beside Symphony stand its form with condition (a) of section 4.3
(`when_gathered`), with expiry alone, with batch-aware pruning, its work-conserving twin, Clockwork and Nexus.
"""

from __future__ import annotations

from typing import Any

from harness import Benchmark, goodput, like

from stretto.core.published import published_model
from stretto.planners.clockwork import Clockwork
from stretto.planners.nexus import Nexus
from stretto.planners.symphony import Symphony
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate

APPLICATIONS, WORKERS, SLO_MS = 10, 24, 100.0
BELOW = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95)
ABOVE = (1.05, 1.25, 1.5, 2.0, 3.0)
SECONDS = 20.0
SEED = 1
PUBLISHED = "symphony"
PLANNERS = {
    PUBLISHED: Symphony(),
    "symphony, when gathered": Symphony(when_gathered=True),
    "symphony, expiry only": Symphony(expiry_only=True),
    "symphony + batch-aware": Symphony(batch_aware=True),
    "symphony, work-conserving": Symphony(deferred=False),
    "clockwork": Clockwork(),
    "clockwork, filling batches": Clockwork(filling=True),
    "nexus": Nexus(),
    "nexus, filling batches": Nexus(filling=True),
}
FLAT = (1.0, 1.15)  # of the peak, at which 1% may be bad
GAP = 0.05  # of the worker time


def measure(name: str) -> list[dict[str, Any]]:
    """The rows of a planner: loads below and above its own peak."""
    deployment = like(published_model("symphony_1080ti:ResNet50").profile(), SLO_MS, APPLICATIONS, WORKERS)
    planner = PLANNERS[name]
    peak = goodput(
        deployment, planner, lambda rate: Load(Poisson(), rate), guess=9000.0, seeds=(1, 2, 3, 4, 5), seconds=SECONDS
    )
    rows = []
    for share in (*BELOW, *ABOVE):
        result = simulate(deployment, planner, Load(Poisson(), share * peak), seconds=SECONDS, seed=SEED, sample_s=1.0)
        idle = result.samples[-1].telemetry.idle_share_since(result.samples[0].telemetry)
        rows.append(
            {
                "planner": name,
                "peak": peak,
                "offered_of_peak": share,
                "goodput_of_peak": result.summary.goodput / peak,
                "bad_rate": result.summary.bad_rate,
                "idle_share": idle,
                "ideal_idle": max(0.0, 1 - share),
                "batch_mean": result.summary.batch_mean,
            }
        )
    return rows


def main() -> None:
    """Sweep the offered load over each planner's own peak."""
    bench = Benchmark("symphony_fig10", seed=SEED)
    kept: dict[tuple[str, float], float] = {}
    idle: dict[tuple[str, float], float] = {}
    for rows in bench.at_once(measure, list(PLANNERS), "planners"):
        for row in rows:
            bench.row(**row)
            kept[row["planner"], row["offered_of_peak"]] = row["goodput_of_peak"]
            idle[row["planner"], row["offered_of_peak"]] = row["idle_share"]
    for name in (PUBLISHED, "nexus"):
        for share in (2.0, 3.0):
            bench.band(
                f"{name}: goodput of peak at {share:g}× its peak",
                paper="flat top",
                between=FLAT,
                ours=kept[name, share],
            )
    bench.band(
        f"{PUBLISHED}, below its peak: largest gap between idle share and (p − o)/p",
        paper="follows it",
        between=(0.0, GAP),
        ours=max(abs(idle[PUBLISHED, share] - (1 - share)) for share in BELOW),
    )
    for name in ("clockwork", "nexus"):
        bench.band(
            f"{name}: idle share at 0.9× its peak",
            paper="busy before its peak",
            between=(0.0, GAP),
            ours=idle[name, 0.9],
        )
    bench.band(
        "clockwork: goodput of peak at 2× its peak", paper="degrades", between=(0.0, 0.97), ours=kept["clockwork", 2.0]
    )
    bench.finish()


if __name__ == "__main__":
    main()
