"""A GPU and two workers on the processor in one fleet, profiled and served for real: `--worker cuda:0 --worker cpu*2`.

Three networks are trained for a few seconds on the zoo's sample of Fashion-MNIST, exported, profiled on both kinds of
worker and served by the default planner. Needs PyTorch with a CUDA device; elsewhere it says so and ends. The first
seconds of load are a row of their own, the ones after them are claimed: by then it may be known that the GPU alone
answers best.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fleets import busy_seconds
from benchmarks.harness import RESULTS, Benchmark
from stretto.cli.queries import sample_of
from stretto.cli.started import started_server
from stretto.client.load import LoadOutcome, LoadResult, LoadSpec, run_load
from stretto.core.profile import Quantile
from stretto.core.worker import workers
from stretto.repository.read import read_repository
from stretto.sim.bounds import fluid_accuracy

APPLICATION = "clothes"
WIDTHS = {"small": 16, "middle": 64, "large": 160}
STEPS = 400
APP_TOML = """slo_ms = 50
[input]
shape = [1, 28, 28]
[output]
name = "probabilities"
[limits]
max_batch = 8
"""
WARM_S, SECONDS, RATE = 20.0, 20.0, 600.0


def network(width: int) -> Any:
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(3)),
        *(nn.Flatten(), nn.Linear(18 * width, 10), nn.Softmax(dim=1)),
    )


def trained(width: int, inputs: np.ndarray, labels: np.ndarray, seed: int) -> Any:
    """On the GPU, shortly; returned on the processor."""
    import torch

    torch.manual_seed(seed)
    module = network(width).cuda()
    pictures, classes = torch.from_numpy(inputs).cuda(), torch.from_numpy(labels.astype(np.int64)).cuda()
    optimiser = torch.optim.Adam(module.parameters(), 1e-3)
    for _ in range(STEPS):
        chosen = torch.randint(len(pictures), (128,), device="cuda")
        loss = torch.nn.functional.nll_loss(module(pictures[chosen]).clamp_min(1e-9).log(), classes[chosen])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return module.eval().cpu()


def make_repository(root: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Trained, exported and profiled on both kinds; what was held back to ask for, with its labels."""
    import torch

    inputs, labels = sample_of("fashion")
    half = len(inputs) // 2
    folder = root / APPLICATION
    folder.mkdir(parents=True)
    (folder / "app.toml").write_text(APP_TOML, encoding="utf-8")
    (folder / "labels.txt").write_text("\n".join(f"class {number}" for number in range(10)), encoding="utf-8")
    for name, width in WIDTHS.items():
        module = trained(width, inputs[:half], labels[:half], seed)
        example = (torch.zeros(2, 1, 28, 28),)
        batch = torch.export.Dim("batch", min=1, max=64)
        program = torch.export.export(module, example, dynamic_shapes=({0: batch},))
        (folder / "variants" / name).mkdir(parents=True)
        (folder / "variants" / name / "variant.toml").write_text('file = "model.pt2"\nbackend = "torch"\n')
        torch.export.save(program, folder / "variants" / name / "model.pt2")
    test = root.parent / "test.npz"
    np.savez(test, inputs=inputs[half:], labels=labels[half:])
    for device in ("cpu", "cuda"):
        command = [
            sys.executable,
            "-m",
            "stretto",
            "profile",
            str(root),
            "--device",
            device,
            "--batches",
            "1,2,3,4,6,8",
        ]
        done = subprocess.run([*command, "--data", str(test), "--budget-s", "5"], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
    return inputs[half:], labels[half:]


def drive(url: str, inputs: np.ndarray, labels: np.ndarray, seconds: float, seed: int) -> LoadResult:
    return run_load(LoadSpec(APPLICATION, inputs, labels, url=url, rate=RATE, seconds=seconds, seed=seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for a copy of the result")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        raise SystemExit("gpu_fleet needs PyTorch; install it with: pip install 'stretto[torch]'") from None
    if not torch.cuda.is_available():
        raise SystemExit("gpu_fleet needs a CUDA device, and there is none here: nothing was measured")
    bench = Benchmark("gpu_fleet", options.seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "models"
        inputs, labels = make_repository(root, options.seed)
        fleet = ["--worker", "cuda:0", "--worker", "cpu*2", "--executor", "process"]
        with started_server([str(root), *fleet, "--log-level", "warning"]) as server:
            runs = {}
            for name, seconds in (("first seconds", WARM_S), ("after them", SECONDS)):
                before = busy_seconds(server.management_url)
                result = drive(server.url, inputs, labels, seconds, options.seed + len(runs))
                busy = {key: value - before[key] for key, value in busy_seconds(server.management_url).items()}
                on_time = float((result.outcome == LoadOutcome.ON_TIME).mean())
                correct = float(result.correct_on_time.sum()) / len(result)
                runs[name] = (on_time, correct, busy)
                bench.row(run=name, rate=RATE, on_time=on_time, correct_on_time=correct, **busy)
            said = [line for line in server.lines if "WARNING" in line or "ERROR" in line]
        repository = read_repository(root)
        kinds = [repository.kind_for(device, None) for device in ("cuda", "cpu")]
        deployment, _ = repository.deployment(workers(1, kinds[0]) + workers(2, kinds[1]), Quantile.MEAN)
        bound = fluid_accuracy(deployment, [RATE]).accuracy
        for variant in deployment.applications[0].variants:
            times = {profile.kind: float(profile.table_ns[Quantile.P95, 1]) / 1e6 for profile in variant.profiles}
            bench.row(variant=variant.name, accuracy=variant.accuracy, **{f"l(1) {k}": v for k, v in times.items()})
        for line in said[:10]:
            bench.row(said=line)
    on_time, correct, _ = runs["after them"]
    what = f"cuda:0 and cpu*2 in one fleet, {RATE:g} requests/s"
    bench.claim(f"{what}: on time", paper="—", target="≥ 0.99", ours=on_time, met=on_time >= 0.99)
    least = min(sum(busy[worker] for _, _, busy in runs.values()) for worker in runs["first seconds"][2])
    bench.claim(f"{what}: least busy worker in both runs, s", paper="—", target="> 0", ours=least, met=least > 0)
    bench.claim(
        f"{what}: correct and on time (bound {bound:.4f})",
        paper="—",
        target="≥ bound − 0.02",
        ours=correct,
        met=correct >= bound - 0.02,
    )
    bench.row(device=torch.cuda.get_device_name())
    bench.finish()
    if options.out is not None:
        shutil.copy(RESULTS / "gpu_fleet.json", options.out)


if __name__ == "__main__":
    main()
