"""Symphony figure 4: deferred goodput over that of the work-conserving twin, over the grid of table 3, sampled.

(a) the 35 models of table 5 together, (b) DenseNet121, which gains most from batching, (c) BERT, which gains least, each
over all six burstiness values; (d) a seeded sample of the grid of like models, as many of each model. Clusters are kept
to 128 workers. Deferred is figure 16 as printed, the same with condition (a) of section 4.3 (`when_gathered`), and with
batch-aware pruning. The paper does not say how many workers (a) to (c) had; both policies here share one dispatcher.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from harness import Benchmark, goodput, like, zoo

from stretto.core.deployment import Deployment
from stretto.core.published import published_model, published_table
from stretto.planners.symphony import Symphony
from stretto.sim.arrivals import Load
from stretto.sim.bounds import fluid_goodput
from stretto.sim.processes import Gamma

TABLE = "symphony_1080ti"
MODELS = ("DenseNet121", "InceptionV3", "ResNet50V2", "VGG16", "Xception", "BERT")
COUNTS = (8, 16, 24, 32, 48, 64)
RATIOS = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
SLOS_MS = (20.0, 25.0, 30.0, 40.0, 50.0)
SHAPES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
MAX_WORKERS = 128
SAMPLED = 10  # of each model
MIXED_WORKERS = (35, 70)
PANEL_COUNT, PANEL_RATIO = 16, 2.0
SECONDS = 5.0
MIXED_SECONDS = 10.0  # a model of the mix has a tenth of the queries of one in the grid
SEEDS = (1, 2, 3)
TOLERANCE = 0.01
EAGER = Symphony(deferred=False)
DEFERRED = {
    "as printed": Symphony(when_gathered=False),
    "when gathered": Symphony(when_gathered=True),
    "batch-aware": Symphony(when_gathered=False, batch_aware=True),
}
QUANTILES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Setup:
    """One point of the figure. `slo_ms` 0: each model's own."""

    panel: str
    model: str
    models: int
    workers: int
    slo_ms: float
    shape: float

    def deployment(self) -> Deployment:
        if self.model == "mixed":
            return zoo(published_table(TABLE), self.workers)
        profile = published_model(f"{TABLE}:{self.model}").profile()
        return like(profile, self.slo_ms, self.models, self.workers)


def setups(seed: int) -> list[Setup]:
    """Panels (a) to (c) in full, then the sample of the grid."""
    workers = round(PANEL_COUNT * PANEL_RATIO)
    found = [
        *(Setup("a", "mixed", 35, count, 0.0, shape) for count in MIXED_WORKERS for shape in SHAPES),
        *(Setup("b", "DenseNet121", PANEL_COUNT, workers, slo, shape) for slo in (30.0, 50.0) for shape in SHAPES),
        *(Setup("c", "BERT", PANEL_COUNT, workers, 30.0, shape) for shape in SHAPES),
    ]
    random = np.random.default_rng(seed)
    rest = [point for point in itertools.product(COUNTS, RATIOS, SLOS_MS, SHAPES) if point[0] * point[1] <= MAX_WORKERS]
    for model in MODELS:
        for place in random.choice(len(rest), SAMPLED, replace=False):
            count, ratio, slo_ms, shape = rest[place]
            found.append(Setup("d", model, count, round(count * ratio), slo_ms, shape))
    return found


def measure(setup: Setup) -> tuple[float, dict[str, float]]:
    """Goodput of the work-conserving twin, and of each deferred rule relative to it."""
    deployment = setup.deployment()
    source: Callable[[float], Load] = lambda rate: Load(Gamma(setup.shape), rate)  # noqa: E731

    def found(planner: Symphony, guess: float) -> float:
        seconds = MIXED_SECONDS if setup.model == "mixed" else SECONDS
        return goodput(
            deployment, planner, source, guess=guess, seeds=SEEDS, seconds=seconds, tolerance=TOLERANCE
        )

    eager = found(EAGER, 0.6 * fluid_goodput(deployment, [1.0] * setup.models))
    if eager == 0:
        return 0.0, {}
    return eager, {name: found(planner, eager) / eager for name, planner in DEFERRED.items()}


def main() -> None:
    """Measure all setups and compare with what section 4.3 says of them."""
    bench = Benchmark("symphony_fig4")
    ratios: dict[Setup, dict[str, float]] = {}
    points = setups(bench.seed)
    infeasible = 0
    for setup in bench.steps(points, len(points), "goodput"):
        eager, found = measure(setup)
        if not found:
            infeasible += 1
            continue
        ratios[setup] = found
        bench.row(
            panel=setup.panel,
            model=setup.model,
            models=setup.models,
            workers=setup.workers,
            slo_ms=setup.slo_ms or "own",
            gamma_shape=setup.shape,
            work_conserving=eager,
            **{f"{name}, ratio": ratio for name, ratio in found.items()},
        )

    def of(name: str, keep: Callable[[Setup], bool]) -> list[float]:
        return [found[name] for setup, found in ratios.items() if keep(setup)]

    for name in DEFERRED:
        everything = of(name, lambda setup: True)
        quantiles = np.quantile(everything, QUANTILES)
        bench.row(panel="quantiles", model=name, **{f"p{100 * q:g}": float(v) for q, v in zip(QUANTILES, quantiles, strict=True)})
        claim_all(bench, name, everything)
        claim_range(bench, f"(a) {name}: 35 mixed models", of(name, lambda s: s.panel == "a"), 1.34, 1.89)
        claim_range(bench, f"(b) {name}: DenseNet121, SLO 30 ms", of(name, lambda s: s.panel == "b" and s.slo_ms == 30), 1.14, 2.52)
        tight, loose = (np.mean(of(name, lambda s: s.panel == "b" and s.slo_ms == slo)) for slo in (30, 50))
        bert = of(name, lambda s: s.panel == "c")
    bench.finish()


if __name__ == "__main__":
    main()
