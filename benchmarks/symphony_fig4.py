"""Symphony figure 4: goodput deferred over goodput of the work-conserving twin, over the grid of table 3, sampled.

(a) the 35 models of table 5 together, (b) DenseNet121, which gains much from batching, (c) BERT, which gains next to
nothing, each over the six burstiness values; (d) a seeded sample of the grid of like models, as many of each model,
on 64 workers at most. Both rules drop heads for the staggered batch, as the authors' scheduler does by default; the
deferred one is also run with condition (a) of section 4.3 (`when_gathered`), with batch-aware pruning, and with expiry
alone, there beside a twin with expiry alone. The paper does not say on how many workers (a) to (c) ran: (b) and (c) are
run with two and with four for each model, the mix with one and with two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

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
MAX_WORKERS = 64
SAMPLED = 10  # of each model
MIXED_WORKERS = (35, 70)
PANEL_COUNT, PANEL_RATIOS = 16, (2.0, 4.0)
SECONDS = 4.0
MIXED_SECONDS = 10.0  # in the mix a model has few queries per second
SEEDS = (1, 2, 3)
TOLERANCE = 0.01
EAGER, EAGER_EXPIRY = Symphony(deferred=False), Symphony(deferred=False, expiry_only=True)
EXPIRY = "expiry only"
DEFERRED = {
    "as published": Symphony(),
    "when gathered": Symphony(when_gathered=True),
    "batch-aware": Symphony(batch_aware=True),
    EXPIRY: Symphony(expiry_only=True),
}
ALIKE = (0.95, 1.05)
MARGIN = 0.1  # of the paper's least and most: they are read by eye where the text gives none
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
    crews = [round(PANEL_COUNT * ratio) for ratio in PANEL_RATIOS]
    found = [
        *(Setup("a", "mixed", 35, count, 0.0, shape) for count in MIXED_WORKERS for shape in SHAPES),
        *(
            Setup("b", "DenseNet121", PANEL_COUNT, crew, slo, shape)
            for crew in crews
            for slo in (30.0, 50.0)
            for shape in SHAPES
        ),
        *(Setup("c", "BERT", PANEL_COUNT, crew, 30.0, shape) for crew in crews for shape in SHAPES),
    ]
    random = np.random.default_rng(seed)
    rest = [point for point in itertools.product(COUNTS, RATIOS, SLOS_MS, SHAPES) if point[0] * point[1] <= MAX_WORKERS]
    for model in MODELS:
        for place in random.choice(len(rest), SAMPLED, replace=False):
            count, ratio, slo_ms, shape = rest[place]
            found.append(Setup("d", model, count, round(count * ratio), slo_ms, shape))
    return found


def measure(setup: Setup) -> tuple[float, dict[str, float]]:
    """Goodput of the work-conserving twin, and of each deferred rule relative to it; 0 and none where it has none."""
    deployment = setup.deployment()
    seconds = MIXED_SECONDS if setup.model == "mixed" else SECONDS

    def source(rate: float) -> Load:
        return Load(Gamma(setup.shape), rate)

    def found(planner: Symphony, guess: float) -> float:
        return goodput(deployment, planner, source, guess=guess, seeds=SEEDS, seconds=seconds, tolerance=TOLERANCE)

    eager = found(EAGER, 0.6 * fluid_goodput(deployment, [1.0] * setup.models))
    if eager == 0:
        return 0.0, {}
    ratios = {name: found(planner, eager) for name, planner in DEFERRED.items()}
    expiry = found(EAGER_EXPIRY, eager)
    return eager, {name: rate / (expiry if name == EXPIRY and expiry > 0 else eager) for name, rate in ratios.items()}


def chosen(measured: dict[Setup, dict[str, float]], name: str, **wanted: object) -> list[float]:
    """The ratios of one rule in the setups with these attributes."""
    return [
        ratios[name]
        for setup, ratios in measured.items()
        if all(getattr(setup, key) == value for key, value in wanted.items())
    ]


def claim_panels(bench: Benchmark, name: str, of: Callable[..., list[float]]) -> None:
    """What section 4.3 says of figures 4(a) to 4(c)."""
    few, many = (round(PANEL_COUNT * ratio) for ratio in PANEL_RATIOS)
    for what, ratios, least, most in (
        ("(a) {}: 35 mixed models", of(panel="a"), 1.34, 1.89),
        (f"(b) {{}}: DenseNet121, SLO 30 ms, {few} workers", of(panel="b", slo_ms=30.0, workers=few), 1.14, 2.52),
        (f"(b) {{}}: DenseNet121, SLO 30 ms, {many} workers", of(panel="b", slo_ms=30.0, workers=many), 1.14, 2.52),
    ):
        bench.claim(
            what.format(name) + ", least to most",
            paper=f"{least:g} to {most:g}",
            target=f"within these, and {MARGIN:.0%} beyond",
            ours=f"{min(ratios):.3f} to {max(ratios):.3f}",
            met=least * (1 - MARGIN) <= min(ratios) and max(ratios) <= most * (1 + MARGIN),
        )
    for workers in (few, many):
        tight, loose = (float(np.mean(of(panel="b", slo_ms=slo_ms, workers=workers))) for slo_ms in (30.0, 50.0))
        bench.claim(
            f"(b) {name}, {workers} workers: mean at SLO 50 ms; at 30 ms it is {tight:.3f}",
            paper="less prominent",
            target="< at 30 ms",
            ours=loose,
            met=loose < tight,
        )
        smooth, bursty = (of(panel="b", slo_ms=30.0, workers=workers, shape=shape)[0] for shape in (1.0, 0.1))
        bench.claim(
            f"(b) {name}, {workers} workers: SLO 30 ms, Γ(1); at Γ(.1) it is {bursty:.3f}",
            paper="more where less bursty",
            target="> at Γ(.1)",
            ours=smooth,
            met=smooth > bursty,
        )
    bert = of(panel="c")
    bench.claim(
        f"(c) {name}: BERT, least to most",
        paper="similar",
        target=f"{ALIKE[0]:g} to {ALIKE[1]:g}",
        ours=f"{min(bert):.3f} to {max(bert):.3f}",
        met=min(bert) >= ALIKE[0] and max(bert) <= ALIKE[1],
    )


def claim_grid(bench: Benchmark, name: str, ratios: list[float]) -> None:
    """What section 4.3 says of figure 4(d)."""
    kept = float(np.mean(np.array(ratios) >= 0.95))
    bench.claim(
        f"(d) {name}: share of cases no worse than 0.95",
        paper="nearly all",
        target="≥ 0.95",
        ours=kept,
        met=kept >= 0.95,
    )
    gained = float(np.mean(np.array(ratios) >= 1.5))
    bench.band(f"(d) {name}: share of cases with 50% more", paper="> 0.1", between=(0.1, 0.25), ours=gained)
    bench.band(f"(d) {name}: most", paper="more than double", between=(2.0, 4.0), ours=max(ratios))


def main() -> None:
    """Measure all setups and compare with what section 4.3 says of them."""
    bench = Benchmark("symphony_fig4")
    measured: dict[Setup, dict[str, float]] = {}
    points = setups(bench.seed)
    for setup, (eager, ratios) in zip(points, bench.at_once(measure, points, "goodput"), strict=True):
        if ratios:
            measured[setup] = ratios
        bench.row(
            panel=f"({setup.panel})",
            model=setup.model,
            models=setup.models,
            workers=setup.workers,
            slo_ms=setup.slo_ms or "own",
            gamma_shape=setup.shape,
            work_conserving=eager,
            **ratios,
        )
    for name in DEFERRED:
        of = partial(chosen, measured, name)
        claim_panels(bench, name, of)
        claim_grid(bench, name, of(panel="d"))
    for share in QUANTILES:
        grid = [ratios for setup, ratios in measured.items() if setup.panel == "d"]
        quantiles = {name: float(np.quantile([ratios[name] for ratios in grid], share)) for name in DEFERRED}
        bench.row(panel=f"(d), p{100 * share:g}", models=len(grid), **quantiles)
    bench.row(panel="infeasible setups", models=len(points) - len(measured))
    bench.finish()


if __name__ == "__main__":
    main()
