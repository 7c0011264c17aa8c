"""RAMSIS figure 7, the prototype's leg: a server with real workers on loopback beside expectation and simulation.

The image task at 150 ms with a tenth of the paper's 40, 60 and 80 workers, and of its loads. Each worker is a thread
of the server whose models wait for as long as a batch took when it was profiled, drawn between the measured quantiles;
that is also how long the `drawn` simulation lets a batch take. Policies are made for the profiled p95, as in the paper,
so the profiles say p95 for every figure. The server measures the load and has its policies made while it runs; a
warm-up is not counted. Clients send one query a request, over HTTP. Needs shared/data/ramsis_image.csv.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
from harness import Benchmark
from quiet import when_quiet
from ramsis_ground import IMAGE

from stretto.cli.started import started_server
from stretto.client.load import LoadSpec, run_load
from stretto.client.load.result import LoadOutcome
from stretto.core.deployment import Deployment
from stretto.core.profile import Quantile
from stretto.core.view import View
from stretto.planners.parts.fronts import pareto_front
from stretto.planners.parts.task import task_of
from stretto.planners.ramsis.planner import Ramsis
from stretto.repository.machine import this_machine
from stretto.repository.model_code import code_sha256
from stretto.repository.profiles import MeasuredBatch, StoredProfile, profile_path, write_profile
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.service import Deterministic, Empirical, Service
from stretto.sim.simulator import simulate

SLO_MS = 150.0
WORKERS = (4, 6, 8)  # a tenth of figure 7's
LOADS = (0.3, 0.5, 0.7, 0.8)  # of what the workers can answer
KIND = "prototype"
OVERHEAD_MS = 1.0  # of a batch: models wait for so much less than they take
WARM_UP_S = 8.0
SIMULATED_S = 120.0
TRIES = 3
# Points of accuracy and percent of queries that the server may have beside the expectation and the simulation.
ACCURACY_BAND, LATE_BAND = 1.5, 1.0

APP = f"""\
slo_ms = {SLO_MS}

[input]
shape = [4]

[output]
name = "probabilities"
shape = [2]
"""
VARIANT = """\
backend = "callable"
code = "model:answer"
accuracy = {accuracy}
accuracy_source = "literature"
max_batch = {most}
"""
MODEL = """\
import random
import time

import numpy as np

MEASURED_MS = {measured_ms}  # by batch size: at quantiles 0.5, 0.95 and 0.99
SHARES = (0.0, 0.5, 0.95, 0.99, 1.0)


def answer(rows):
    p50, p95, p99 = MEASURED_MS[len(rows) - 1]
    drawn_ms = float(np.interp(random.random(), SHARES, (2 * p50 - p95, p50, p95, p99, p99)))
    time.sleep(max(drawn_ms - {overhead_ms}, 0.0) / 1e3)
    return np.full((len(rows), 2), 0.5, np.float32)
"""


@dataclass(frozen=True)
class Seen:
    """Accuracy of the answers on time, and the share of queries without one."""

    accuracy: float
    late: float


def served_task(count: int) -> Deployment:
    """The variants of figure 3's front, on so many workers."""
    whole = IMAGE.deployment(count, SLO_MS)
    task = task_of(whole, 0)
    return IMAGE.deployment(count, SLO_MS, tuple(task.variants[place] for place in pareto_front(task)))


def write_repository(root: Path, deployment: Deployment) -> None:
    """Models that wait, with profiles that say p95 for every figure, since a server decides by means."""
    (application,) = deployment.applications
    folder = root / application.name
    folder.mkdir(parents=True)
    (folder / "app.toml").write_text(APP)
    for each in application.variants:
        variant = folder / "variants" / each.name
        variant.mkdir(parents=True)
        table_ms = each.profiles[0].table_ns[:, 1:] / 1e6
        measured_ms = [
            tuple(round(float(row[size]), 3) for row in table_ms[[Quantile.P50, Quantile.P95, Quantile.P99]])
            for size in range(table_ms.shape[1])
        ]
        (variant / "model.py").write_text(MODEL.format(measured_ms=measured_ms, overhead_ms=OVERHEAD_MS))
        (variant / "variant.toml").write_text(VARIANT.format(accuracy=each.accuracy, most=table_ms.shape[1]))
        p95_ms = table_ms[Quantile.P95].tolist()
        batches = {size: MeasuredBatch(ms, ms, ms, ms, 100, 0.01) for size, ms in enumerate(p95_ms, start=1)}
        slope = (p95_ms[-1] - p95_ms[0]) / (len(p95_ms) - 1)
        sha256 = code_sha256(variant, "model:answer")
        stored = StoredProfile(
            KIND, this_machine(), "callable", 1, sha256, batches, slope, max(p95_ms[0] - slope, 0.0), 1_000_000
        )
        write_profile(profile_path(variant, KIND), stored)


def served(deployment: Deployment, load: float, seconds: float, seed: int) -> Seen:
    """By a server of its own."""
    (application,) = deployment.applications
    accuracy = {variant.name: variant.accuracy for variant in application.variants}
    inputs = np.zeros((1, 4), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_repository(root, deployment)
        config = root / "serve.toml"
        config.write_text('[planner]\nname = "ramsis"\ngamma_shape = 1\n')
        workers = f"cpu*{len(deployment.workers)},kind={KIND}"
        arguments = [str(root), "--worker", workers, "--executor", "thread", "--config", str(config)]
        with started_server([*arguments, "--log-level", "error"]) as server:
            for part_s in (WARM_UP_S, seconds):
                result = run_load(
                    LoadSpec(application.name, inputs, url=server.url, rate=load, seconds=part_s, seed=seed)
                )
    on_time = result.outcome == LoadOutcome.ON_TIME
    answered_by = [accuracy[result.variants[number]] for number in result.variant[on_time].tolist()]
    return Seen(fmean(answered_by or [0.0]), 1.0 - float(on_time.mean()))


def simulated(deployment: Deployment, load: float, service: Service) -> Seen:
    run = simulate(
        deployment, Ramsis(gamma_shape=1), Load(Poisson(), load), seconds=SIMULATED_S, seed=1, service=service
    ).summary
    return Seen(run.accuracy, run.bad_rate)


def expected(deployment: Deployment, load: float) -> Seen:
    """What the policy of that load promises."""
    planner = Ramsis(gamma_shape=1)
    planner(View(deployment, expected_rates=(load,)))
    (policy,) = planner.in_force().values()
    return Seen(policy.expectation.accuracy, policy.expectation.late)


def claims(bench: Benchmark, points: Sequence[tuple[Seen, Seen, Seen, Seen]]) -> None:
    """Figure 7: the prototype follows the expectation, and in general has somewhat more than the simulation."""
    for name, others in (
        ("expectation", [promised for _, promised, _, _ in points]),
        ("simulation, p95 times", [plain for _, _, plain, _ in points]),
        ("simulation, drawn times", [drawn for _, _, _, drawn in points]),
    ):
        more = [100 * (live.accuracy - other.accuracy) for (live, *_), other in zip(points, others, strict=True)]
        later = [100 * (live.late - other.late) for (live, *_), other in zip(points, others, strict=True)]
        bench.claim(
            f"live over {name}: points of accuracy, mean and range of {len(points)} settings",
            paper="closely follows, in general above",
            target=f"mean within ± {ACCURACY_BAND:g}",
            ours=f"{fmean(more):.2f} ({min(more):.2f} to {max(more):.2f})",
            met=abs(fmean(more)) <= ACCURACY_BAND,
        )
        bench.claim(
            f"live over {name}: percent late, mean and highest",
            paper="closely follows, in general below",
            target=f"mean within ± {LATE_BAND:g}",
            ours=f"{fmean(later):.2f}, {max(later):.2f}",
            met=abs(fmean(later)) <= LATE_BAND,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run; fewer: nothing is written")
    parser.add_argument("--workers", default="", help="these numbers alone, with commas; nothing is written")
    given = parser.parse_args()
    counts = tuple(int(count) for count in given.workers.split(",") if count) or WORKERS
    bench = Benchmark("ramsis_live")
    points = []
    settings = [(count, share) for count in counts for share in LOADS]
    for count, share in bench.steps(settings, len(settings), "settings"):
        deployment = served_task(count)
        load = share * task_of(deployment, 0).capacity()
        live, stolen, _ = when_quiet(partial(served, deployment, load, given.seconds, bench.seed), TRIES)
        promised = expected(deployment, load)
        plain, drawn = (simulated(deployment, load, service) for service in (Deterministic(), Empirical()))
        points.append((live, promised, plain, drawn))
        bench.row(
            workers=count,
            load=load,
            expected_accuracy=promised.accuracy,
            simulated_accuracy=plain.accuracy,
            drawn_accuracy=drawn.accuracy,
            live_accuracy=live.accuracy,
            expected_late=promised.late,
            simulated_late=plain.late,
            drawn_late=drawn.late,
            live_late=live.late,
            stolen=stolen,
        )
    claims(bench, points)
    if (given.seconds, counts) == (30.0, WORKERS):
        bench.finish()
    else:
        bench.show()


if __name__ == "__main__":
    main()
