"""Symphony figure 6: the model zoos of tables 5 and 6 on 64 workers, even popularity, Poisson.

All models, those with β/α > 2, those with β/α < 2; the fluid bound is every batch as large as its SLO lets in, no
queue. Our Clockwork does far better than the one that the paper measured: it fills the batch up to the head's
deadline and has no overheads. Nexus is run with the printed SLOs and with uncut ones. The paper promises batches of 4
under 2·l(b) ≤ SLO but prints whole milliseconds: as printed, most sessions are planned for batches of 3, the A100's
DenseNet121 (2·l(1) > SLO) for batches of 1, and Nexus is far below the paper's. With max(SLO, 2·l(4)) it comes
nearer; the claims about Nexus use that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness import Benchmark, goodput, zoo

from stretto.core.published import PublishedModel, published_table
from stretto.planners.clipper import Clipper
from stretto.planners.clockwork import Clockwork
from stretto.planners.fixed_delay import FixedDelay
from stretto.planners.nexus import Nexus
from stretto.planners.symphony import Symphony
from stretto.sim.arrivals import Load
from stretto.sim.bounds import fluid_goodput
from stretto.sim.processes import Poisson

WORKERS = 64
SECONDS = 10.0
SEEDS = (1, 2, 3)
TOLERANCE = 0.01
OURS = "symphony + batch-aware"
GATHERED = "symphony, when gathered"
# With the share of the fluid bound at which the search begins.
PLANNERS = {
    "symphony": (Symphony(when_gathered=False), 0.75),
    GATHERED: (Symphony(when_gathered=True), 0.7),
    OURS: (Symphony(when_gathered=False, batch_aware=True), 0.75),
    "symphony, work-conserving": (Symphony(deferred=False), 0.7),
    "clockwork": (Clockwork(), 0.3),
    "clockwork, filling batches": (Clockwork(filling=True), 0.65),
    "nexus": (Nexus(), 0.15),
    "clipper": (Clipper(), 0.4),
    "fixed delay": (FixedDelay(), 0.5),
}
BASELINES = ("clockwork", "clockwork, filling batches", "nexus", "clipper", "fixed delay")
PRINTED, UNCUT = "printed", "uncut"
SLOS = {PRINTED: tuple(PLANNERS), UNCUT: ("symphony", "nexus")}
CLUSTERS = {"1080Ti": "symphony_1080ti", "A100": "symphony_a100"}
SETTINGS: dict[str, Callable[[PublishedModel], bool]] = {
    "all": lambda model: True,
    "β/α > 2": lambda model: model.beta_ms > 2 * model.alpha_ms,
    "β/α < 2": lambda model: model.beta_ms < 2 * model.alpha_ms,
}
# Symphony over the baselines: what the paper's text says, and the least factor that agrees with it.
PAPER = {
    ("1080Ti", "all"): ("2 to 2.4", 2.0),
    ("A100", "all"): ("2 to 2.4", 2.0),
    ("1080Ti", "β/α > 2"): ("3.5", 3.5),
    ("A100", "β/α > 2"): ("5.7", 5.7),
    ("1080Ti", "β/α < 2"): ("1.23", 1.23),
    ("A100", "β/α < 2"): ("1.10", 1.1),
}


def chosen(cluster: str, setting: str, slos: str) -> list[PublishedModel]:
    """The models of a setting, with their SLOs as printed or large enough for 2·l(4)."""
    models = [model for model in published_table(CLUSTERS[cluster]) if SETTINGS[setting](model)]
    if slos == PRINTED:
        return models
    return [replace(model, slo_ms=max(model.slo_ms, 2 * (4 * model.alpha_ms + model.beta_ms))) for model in models]


def main() -> None:
    """Measure every planner in the six settings."""
    bench = Benchmark("symphony_fig6")
    measured: dict[tuple[str, str, str, str], float] = {}
    jobs = [(*place, slos, name) for place in PAPER for slos, names in SLOS.items() for name in names]
    for cluster, setting, slos, name in bench.steps(jobs, len(jobs), "goodput"):
        models = chosen(cluster, setting, slos)
        deployment = zoo(models, WORKERS)
        bound = fluid_goodput(deployment, [1.0] * len(models))
        planner, begin = PLANNERS[name]
        rate = goodput(
            deployment,
            planner,
            lambda r: Load(Poisson(), r),
            guess=begin * bound,
            seeds=SEEDS,
            seconds=SECONDS,
            tolerance=TOLERANCE,
        )
        measured[cluster, setting, slos, name] = rate
        bench.row(
            cluster=cluster,
            setting=setting,
            models=len(models),
            slos=slos,
            planner=name,
            goodput=rate,
            fluid_bound=bound,
            of_bound=rate / bound,
            paper_symphony_is_times=PAPER[cluster, setting][0] if name in ("clockwork", "nexus") else "",
            symphony_is_times=measured[cluster, setting, slos, "symphony"] / rate,
        )
    for (cluster, setting), (text, least) in PAPER.items():
        for baseline, slos in (("clockwork", PRINTED), ("nexus", UNCUT)):
            place = cluster, setting, slos
            ours = measured[*place, "symphony"] / measured[*place, baseline]
            bench.claim(
                f"{cluster}, {setting}: symphony over {baseline}, SLOs {slos}",
                paper=text,
                target=f"≥ {least:g}",
                ours=ours,
                met=ours >= least,
            )
    for name in ("symphony", GATHERED, OURS):
        ours = min(
            measured[*place, PRINTED, name] / measured[*place, PRINTED, baseline]
            for place in PAPER
            for baseline in BASELINES
        )
        bench.claim(
            f"{name}: over the best baseline, where it is least", paper="1.10", target="> 1", ours=ours, met=ours > 1
        )
    bench.finish()


if __name__ == "__main__":
    main()
