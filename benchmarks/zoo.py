"""The bundled zoo: what every variant is worth and what it costs on this machine.

Accuracy is that of the whole test set, from the files of the zoo, beside what this machine answers on the bundled
sample. Latency and memory are measured here, one thread, as `stretto profile` does.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import zipfile
from itertools import pairwise
from pathlib import Path

from harness import Benchmark

from stretto.backends.load import load_model
from stretto.backends.of_variant import model_source
from stretto.profiling.accuracy import checked, evaluate
from stretto.profiling.variant import measure_model
from stretto.repository.read import read_repository

BATCHES = (1, 8)
BUDGET_S = 5.0
MINIMUM = {"fashion": 6, "mnist": 3, "activity": 3, "fashion_resolution": 5}
DEVIATIONS = 4  # of the sample's accuracy from that of the test set, in standard errors


def main() -> None:
    """Every variant of every application."""
    bench = Benchmark("zoo")
    repository = read_repository("zoo")
    chosen = [(application, variant) for application in repository.applications for variant in application.variants]
    ladders: dict[str, list[tuple[str, float, float]]] = {}
    worst = 0.0
    for application, variant in bench.steps(chosen, len(chosen), "profiling"):
        source = model_source(application, variant)
        sample = application.sample(variant)
        model = load_model(source)
        found = evaluate(
            model, checked(sample.inputs, sample.labels), application.classes, output=application.output.name
        )
        model.unload()
        measured = measure_model(source, {application.input.name: sample.inputs}, BATCHES, budget_s=BUDGET_S)
        latency = measured.latency
        spread = math.sqrt(variant.accuracy * (1 - variant.accuracy) / found.samples) or 1.0
        worst = max(worst, abs(found.accuracy - variant.accuracy) / spread)
        bench.row(
            application=application.name,
            variant=variant.name,
            test_accuracy=variant.accuracy,
            sample_accuracy=found.accuracy,
            sample=found.samples,
            **{f"p50_{batch}_ms": latency.batches[batch].p50 for batch in BATCHES},
            **{f"p95_{batch}_ms": latency.batches[batch].p95 for batch in BATCHES},
            memory_mb=(measured.memory.loaded_bytes + measured.memory.dynamic_bytes) / 1e6,
            load_ms=measured.load_ms,
            noisy=latency.is_noisy,
        )
        ladders.setdefault(application.name, []).append((variant.name, variant.accuracy, latency.batches[1].p50))
    claims(bench, ladders)
    bench.claim(
        "accuracy on the bundled samples against the test set (standard errors, largest)",
        paper="—",
        target=f"≤ {DEVIATIONS}",
        ours=worst,
        met=worst <= DEVIATIONS,
    )
    claim_wheel(bench)
    bench.finish()


def claim_wheel(bench: Benchmark) -> None:
    """Build the package, unpack it far from the source tree, and let it read and run the zoo."""
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(root)]
        subprocess.run(build, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        size = wheel.stat().st_size / 1e6
        site = Path(folder) / "site"
        zipfile.ZipFile(wheel).extractall(site)
        command = [sys.executable, "-m", "stretto", "profile", "zoo:activity", "--variant", "linear", "--dry-run"]
        command += ["--budget-s", "0.2", "--json"]
        done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(site)}, capture_output=True)
    bench.claim("a wheel built from the tree (MB)", paper="—", target="≤ 30", ours=size, met=size <= 30)
    works = done.returncode == 0 and b"linear" in done.stdout
    told = "works" if works else f"fails: {done.stderr[-200:].decode(errors='replace')}"
    bench.claim("the wheel runs the zoo without the source tree", paper="—", target="works", ours=told, met=works)


def claims(bench: Benchmark, ladders: dict[str, list[tuple[str, float, float]]]) -> None:
    """A ladder is what is left when every step up costs more time and brings more accuracy."""
    for name, minimum in MINIMUM.items():
        rungs = sorted(ladders.get(name, []), key=lambda rung: rung[2])
        rises = all(slow[1] > fast[1] and slow[2] > fast[2] for fast, slow in pairwise(rungs))
        bench.claim(
            f"{name}: variants, accuracy and latency both rising strictly",
            paper="—",
            target=f"≥ {minimum}, rising",
            ours=f"{len(rungs)}, {'rising' if rises else 'not rising'}",
            met=len(rungs) >= minimum and rises,
        )
    fashion = ladders.get("fashion", [])
    if fashion:
        top = max(accuracy for _, accuracy, _ in fashion)
        span = max(latency for *_, latency in fashion) / min(latency for *_, latency in fashion)
        bench.claim("fashion: accuracy of the top", paper="—", target="≥ 0.945", ours=top, met=top >= 0.945)
        what = "fashion: slowest over fastest, p50 of one query"
        bench.claim(what, paper="—", target="≥ 100", ours=span, met=span >= 100)


if __name__ == "__main__":
    main()
