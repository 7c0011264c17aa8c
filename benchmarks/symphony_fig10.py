"""Symphony figure 10: what the load looks like from outside. 10 ResNet50, SLO 100 ms, 24 workers, Poisson.

Flat top: offered o above the peak p, goodput stays at p. Idle share: below the peak, (p − o)/p of the worker time is
idle, so it says how many workers could go. The paper's rule without batch-aware pruning, with condition (a) of section
4.3 (`when_gathered`), its work-conserving twin, Clockwork and Nexus stand beside.
"""

from __future__ import annotations

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
OURS = "symphony + batch-aware"
PLANNERS = {
    OURS: Symphony(batch_aware=True),
    "symphony": Symphony(),
    "symphony, when gathered": Symphony(when_gathered=True),
    "symphony, work-conserving": Symphony(deferred=False),
    "clockwork": Clockwork(),
    "clockwork, filling batches": Clockwork(filling=True),
    "nexus": Nexus(),
}


def main() -> None:
    """Sweep the offered load over each planner's own peak."""
    bench = Benchmark("symphony_fig10")
    deployment = like(published_model("symphony_1080ti:ResNet50").profile(), SLO_MS, APPLICATIONS, WORKERS)
    worst_gap = 0.0
    kept: dict[str, dict[float, float]] = {}
    for name, planner in bench.steps(PLANNERS.items(), len(PLANNERS), "planners"):
        peak = goodput(
            deployment,
            planner,
            lambda rate: Load(Poisson(), rate),
            guess=9000.0,
            seeds=(1, 2, 3, 4, 5),
            seconds=SECONDS,
        )
        kept[name] = {}
        for share in (*BELOW, *ABOVE):
            result = simulate(
                deployment, planner, Load(Poisson(), share * peak), seconds=SECONDS, seed=bench.seed, sample_s=1.0
            )
            idle = result.samples[-1].telemetry.idle_share_since(result.samples[0].telemetry)
            ideal = max(0.0, 1 - share)
            kept[name][share] = result.summary.goodput / peak
            if name == OURS and share < 1:
                worst_gap = max(worst_gap, abs(idle - ideal))
            bench.row(
                planner=name,
                peak=peak,
                offered_of_peak=share,
                goodput_of_peak=kept[name][share],
                bad_rate=result.summary.bad_rate,
                idle_share=idle,
                ideal_idle=ideal,
                batch_mean=result.summary.batch_mean,
            )
    ours = kept[OURS][2.0]
    bench.claim(
        f"{OURS}, overload at 2× peak: goodput of peak", paper="flat top", target="≥ 0.97", ours=ours, met=ours >= 0.97
    )
    worst = min(kept[OURS][share] for share in ABOVE)
    bench.claim(
        "any overload to 3× peak: goodput of peak", paper="flat top", target="≥ 0.97", ours=worst, met=worst >= 0.97
    )
    bench.claim(
        f"{OURS}, below peak: largest gap between idle share and (p − o)/p",
        paper="follows it",
        target="≤ 0.05",
        ours=worst_gap,
        met=worst_gap <= 0.05,
    )
    clockwork = kept["clockwork"][2.0]
    bench.claim("Clockwork at 2× peak", paper="degrades", target="< 0.97", ours=clockwork, met=clockwork < 0.97)
    bench.finish()


if __name__ == "__main__":
    main()
