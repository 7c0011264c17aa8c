"""Symphony section 3.3: what it costs that front ends deal queries to workers without knowing of each other.

Table 2: clients' queries come to front ends by chance, and each deals to 100 backends in rounds of its own. Counted is
how many come to a backend in a window: with 25 front ends that varies several times as much as with one. Figure 1:
Nexus by 1, 8 and 25 front ends, on 8 to 64 workers with 1 to 37 models and SLOs of 20 to 100 ms; the paper has 5% to
40% less goodput. Left out of this project are RDMA with figure 12, and rank threads inside one pool (section 4.5).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from harness import Benchmark, goodput, like, zoo

from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Fixed, Lane, Plan, Route, RouteRule
from stretto.core.profile import LatencyProfile
from stretto.core.published import published_model, published_table
from stretto.core.view import View
from stretto.planners.nexus import Nexus
from stretto.sim.arrivals import Load
from stretto.sim.bounds import fluid_goodput
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate

BACKENDS = 100
WINDOWS_S = 300.0
TABLE_2 = {  # window (ms) and rate: the standard deviation by front ends
    (400.0, 10_000.0): {1: 0.753, 25: 2.463},
    (200.0, 2_000.0): {1: 0.396, 25: 1.860},
}
TABLE_2_WITHIN = 0.05
FRONT_ENDS = (1, 8, 25)
# (models, workers, SLO in ms); 0: the zoo of table 5, with the SLOs printed there
FIGURE_1 = ((1, 8, 25.0), (1, 32, 25.0), (4, 16, 25.0), (10, 24, 50.0), (10, 24, 100.0), (20, 64, 30.0), (35, 64, 0.0))
LOST = (0.05, 0.4)
SECONDS, SEEDS, TOLERANCE = 10.0, (1, 2, 3), 0.01


def spread(job: tuple[float, float, int]) -> dict[str, Any]:
    """Table 2: queries that come to a backend in a window."""
    window_ms, rate, front_ends = job
    deployment = like(LatencyProfile.linear(0.001, 0.001, 64), 1000.0, 1, BACKENDS)
    lanes = tuple(Lane(f"backend-{number}", (number,), Fixed(0), release=Eager()) for number in range(BACKENDS))
    route = Route(RouteRule.DEALT, tuple(range(BACKENDS)), (1.0,) * BACKENDS, front_ends=front_ends)

    def dealt(view: View) -> Plan:
        return Plan(lanes, (route,))

    result = simulate(deployment, dealt, Load(Poisson(), rate), seconds=WINDOWS_S, seed=1, record=True)
    assert result.queries is not None
    windows = round(WINDOWS_S / window_ms * 1e3)
    counts = np.zeros((BACKENDS, windows), dtype=np.int64)
    place = np.minimum(result.queries["arrival_ns"] // round(window_ms * 1e6), windows - 1)
    np.add.at(counts, (result.queries["worker"], place), 1)
    return {
        "what": "table 2",
        "window_ms": window_ms,
        "rate": rate,
        "front_ends": front_ends,
        "mean": float(counts.mean()),
        "std": float(counts.std()),
        "paper_std": TABLE_2[window_ms, rate][front_ends],
    }


def deployed(models: int, workers: int, slo_ms: float) -> Deployment:
    if slo_ms == 0:
        return zoo(published_table("symphony_1080ti"), workers)
    return like(published_model("symphony_1080ti:ResNet50V2").profile(), slo_ms, models, workers)


def carried(job: tuple[int, int, float, bool, int]) -> dict[str, Any]:
    """Figure 1: the goodput of a setup."""
    models, workers, slo_ms, filling, front_ends = job
    deployment = deployed(models, workers, slo_ms)
    rate = goodput(
        deployment,
        Nexus(filling=filling, front_ends=front_ends),
        lambda r: Load(Poisson(), r),
        guess=0.4 * fluid_goodput(deployment, [1.0] * models),
        seeds=SEEDS,
        seconds=SECONDS,
        tolerance=TOLERANCE,
    )
    return {
        "what": "figure 1",
        "models": models,
        "workers": workers,
        "slo_ms": slo_ms or "own",
        "filling": filling,
        "front_ends": front_ends,
        "goodput": rate,
    }


def main() -> None:
    bench = Benchmark("symphony_dealing")
    spreads = [(*place, count) for place, by_front_ends in TABLE_2.items() for count in by_front_ends]
    for row in bench.at_once(spread, spreads, "windows"):
        bench.row(**row)
        bench.band(
            f"table 2: std of queries by window of {row['window_ms']:g} ms, {row['front_ends']} front ends",
            paper=row["paper_std"],
            between=(row["paper_std"] * (1 - TABLE_2_WITHIN), row["paper_std"] * (1 + TABLE_2_WITHIN)),
            ours=row["std"],
        )
    jobs = [(*setup, filling, count) for setup in FIGURE_1 for filling in (False, True) for count in FRONT_ENDS]
    rates = dict(zip(jobs, bench.at_once(carried, jobs, "goodput"), strict=True))
    for row in rates.values():
        bench.row(**row)
    for filling in (False, True):
        name = "filling batches" if filling else "as published"
        lost = [
            1 - rates[*setup, filling, FRONT_ENDS[-1]]["goodput"] / rates[*setup, filling, 1]["goodput"]
            for setup in FIGURE_1
        ]
        for what, ours in (("least", min(lost)), ("most", max(lost))):
            bench.band(
                f"figure 1: {what} goodput lost by Nexus with {FRONT_ENDS[-1]} front ends, {name}",
                paper="5% to 40%",
                between=LOST,
                ours=ours,
            )
    bench.finish()


if __name__ == "__main__":
    main()
