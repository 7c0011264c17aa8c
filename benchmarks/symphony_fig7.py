"""Symphony figure 7: what SLO, popularity and bursts do to goodput. 20 ResNet50-like models on 32 workers.

Popularity even or Zipf 0.9, gaps exponential or Gamma 0.05, SLOs from 15 to 100 ms, the 1080Ti profile of table 5.
The paper gives curves and three findings, no numbers; the claims put numbers on the findings. Our systems have none of
the overheads of the ones that the paper measured. Nexus comes to almost nothing under bursts: a burst is larger than
what a model's own workers can take in time, at any rate.
"""

from __future__ import annotations

from collections.abc import Callable

from harness import Benchmark, goodput, like

from stretto.core.published import published_model
from stretto.planners.clockwork import Clockwork
from stretto.planners.nexus import Nexus
from stretto.planners.symphony import Symphony
from stretto.sim.arrivals import Even, Load, Zipf
from stretto.sim.bounds import fluid_goodput
from stretto.sim.processes import Gamma, Poisson

APPLICATIONS, WORKERS = 20, 32
SLOS_MS = (15.0, 20.0, 25.0, 30.0, 50.0, 100.0)
TIGHT, LOOSE = SLOS_MS[:3], SLOS_MS[-1]
SECONDS = 10.0
SEEDS = (1, 2, 3)
TOLERANCE = 0.01
OURS = "symphony + batch-aware"
BASELINES = ("clockwork", "nexus", "nexus_filling")
BENEFIT, BURSTS, BOTH_GOOD = (1.1, 4.0), (0.0, 0.5), (0.9, 1.1)
# With the share of the fluid bound at which the first search begins.
PLANNERS = {
    "symphony": (Symphony(), 0.7),
    "symphony, expiry only": (Symphony(expiry_only=True), 0.7),
    OURS: (Symphony(batch_aware=True), 0.7),
    "clockwork": (Clockwork(), 0.3),
    "clockwork_filling": (Clockwork(filling=True), 0.6),
    "nexus": (Nexus(), 0.2),
    "nexus_filling": (Nexus(filling=True), 0.2),
}
POPULARITIES = {"even": Even(), "Zipf 0.9": Zipf(0.9)}
GAPS = {"exponential": Poisson(), "Gamma 0.05": Gamma(0.05)}
SETUPS = [(popularity, gaps) for popularity in POPULARITIES for gaps in GAPS]


def loads(popularity: str, gaps: str) -> Callable[[float], Load]:
    """The load of a setup by its rate."""
    return lambda rate: Load(GAPS[gaps], rate, POPULARITIES[popularity])


def measure(job: tuple[str, str, str]) -> list[float]:
    """The goodput of a planner in a setup, by SLO: each search begins where the one before ended."""
    popularity, gaps, name = job
    planner, share = PLANNERS[name]
    rates = []
    for slo_ms in SLOS_MS:
        deployment = like(published_model("symphony_1080ti:ResNet50").profile(), slo_ms, APPLICATIONS, WORKERS)
        bound = fluid_goodput(deployment, POPULARITIES[popularity].shares(APPLICATIONS))
        rate = goodput(
            deployment,
            planner,
            loads(popularity, gaps),
            guess=bound * share,
            seeds=SEEDS,
            seconds=SECONDS,
            tolerance=TOLERANCE,
        )
        share = rate / bound if rate > 0 else share
        rates.append(rate)
    return rates


def main() -> None:
    """Measure every planner over the SLOs in the four setups."""
    bench = Benchmark("symphony_fig7")
    jobs = [(*setup, name) for setup in SETUPS for name in PLANNERS]
    measured: dict[tuple[str, str, str, float], float] = {}
    for job, rates in zip(jobs, bench.at_once(measure, jobs, "goodput"), strict=True):
        for slo_ms, rate in zip(SLOS_MS, rates, strict=True):
            measured[*job, slo_ms] = rate

    def over_best(popularity: str, gaps: str, name: str, slo_ms: float) -> float:
        return measured[popularity, gaps, name, slo_ms] / max(
            measured[popularity, gaps, baseline, slo_ms] for baseline in BASELINES
        )

    for popularity, gaps in SETUPS:
        for slo_ms in SLOS_MS:
            bench.row(
                popularity=popularity,
                gaps=gaps,
                slo_ms=slo_ms,
                **{name: measured[popularity, gaps, name, slo_ms] for name in PLANNERS},
                symphony_over_best_baseline=over_best(popularity, gaps, "symphony", slo_ms),
                batch_aware_over_best_baseline=over_best(popularity, gaps, OURS, slo_ms),
            )
    for popularity, gaps in SETUPS:
        for name in ("symphony", OURS):
            bench.band(
                f"1. {popularity}, {gaps}: {name} over the best baseline, least of SLO 15, 20, 25 ms",
                paper="significant benefit",
                between=BENEFIT,
                ours=min(over_best(popularity, gaps, name, slo_ms) for slo_ms in TIGHT),
            )
    for popularity in POPULARITIES:
        kept = {
            name: sum(measured[popularity, "Gamma 0.05", name, slo_ms] for slo_ms in SLOS_MS)
            / sum(measured[popularity, "exponential", name, slo_ms] for slo_ms in SLOS_MS)
            for name in PLANNERS
        }
        for name in ("nexus", "nexus_filling"):
            bench.band(
                f"2. {popularity}: what {name} keeps under bursts, over what symphony keeps ({kept['symphony']:.2f})",
                paper="does not work well",
                between=BURSTS,
                ours=kept[name] / kept["symphony"],
            )
    for popularity, gaps in SETUPS:
        bench.band(
            f"3. {popularity}, {gaps}: symphony over clockwork at SLO 100 ms",
            paper="both good",
            between=BOTH_GOOD,
            ours=measured[popularity, gaps, "symphony", LOOSE] / measured[popularity, gaps, "clockwork", LOOSE],
        )
    bench.finish()


if __name__ == "__main__":
    main()
