"""Makes a model repository for a GPU: exported programs of the zoo's ladders, and a ladder trained for a GPU.

    python -m training.gpu --data CACHE --out REPO [--only fashion_gpu mnist/cnn …]

The zoo's weights come back from its ONNX files; fashion_gpu is trained here, in minutes on one H200, and its accuracy
is measured on the whole test split through each written program, as a server runs it: from bytes, in its precision.
Needs torch, and of CACHE only fashion.npz.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stretto.backends.program import module_on, read_program
from stretto.backends.torch import fitted
from stretto.repository.variant import VariantFiles
from training.data import FASHION_LABELS
from training.gpu_ladder import APPLICATION, RUNGS, SIZE, TEACHER, Enlarged, Enlarging, GpuRung, trained
from training.ladders import LADDERS, Rung
from training.metrics import metrics_of
from training.networks import Classifier, fold
from training.program import write_program
from training.tasks import Change
from training.weights import trained_network

ZOO = Path(__file__).resolve().parent.parent / "stretto" / "zoo"
MAX_BATCH = 64
SAMPLE_OF_EACH = 100  # of each class in sample.npz
TESTED_TOGETHER = 250  # images
DIVIDE_BY = 255
TIMED = 64  # images of the batch whose time is told
APP_TOML = """slo_ms = 50
description = "Which of ten kinds of clothing a grey image shows (Fashion-MNIST, enlarged on the GPU)."

[input]
shape = [1, 28, 28]
dtype = "uint8"
divide_by = {divide_by}
values = "grey, from 0 to 255"

[output]
name = "probabilities"

[limits]
max_batch = {batch}
"""


def main() -> None:
    """All of it, or what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder that data.py filled")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[*LADDERS, APPLICATION], help="applications or APP/VARIANT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hurry", type=float, default=1.0, help="multiplies every number of epochs")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    began = time.perf_counter()
    for application, ladder in LADDERS.items():
        rungs = [rung for rung in ladder.rungs if _is_chosen(application, rung.name, options.only)]
        if rungs:
            zoo_programs(application, rungs, options.out)
            print(f"{application}: {len(rungs)} programs, {time.perf_counter() - began:.0f} s", flush=True)
    chosen = [rung for rung in RUNGS if _is_chosen(APPLICATION, rung.name, options.only)]
    if chosen:
        build_ladder(
            [hurried(rung, options.hurry) for rung in chosen],
            options.data / "fashion.npz",
            options.out / APPLICATION,
            options.device,
            options.seed,
        )
    print(f"{options.out}: {time.perf_counter() - began:.0f} s in all", flush=True)


def _is_chosen(application: str, variant: str, only: Sequence[str]) -> bool:
    return application in only or f"{application}/{variant}" in only


def hurried(rung: GpuRung, factor: float) -> GpuRung:
    """The same with its epochs multiplied, at least one a stage."""
    stages = (
        replace(stage, recipe=replace(stage.recipe, epochs=max(1, round(stage.recipe.epochs * factor))))
        for stage in rung.stages
    )
    return replace(rung, stages=tuple(stages))


def zoo_programs(application: str, rungs: Sequence[Rung], out: Path) -> None:
    """The application's files, with the same weights as exported programs."""
    source, folder = ZOO / application, out / application
    folder.mkdir(parents=True, exist_ok=True)
    text = (source / "app.toml").read_text(encoding="utf-8")
    (folder / "app.toml").write_text(text.replace("max_batch = 32", f"max_batch = {MAX_BATCH}"), encoding="utf-8")
    for name in ("labels.txt", "sample.npz"):
        shutil.copyfile(source / name, folder / name)
    for rung in rungs:
        network, shape = trained_network(rung, source / "variants" / rung.name)
        variant = folder / "variants" / rung.name
        write_program(network, torch.rand(8, *shape), variant / "model.pt2")
        write_variant(variant, "float32")
        metrics = json.loads((source / "variants" / rung.name / "metrics.json").read_text(encoding="utf-8"))
        write_metrics(variant, metrics, "float32")  # the same weights


def write_variant(folder: Path, precision: str) -> None:
    """Its variant.toml."""
    lines = ['backend = "torch"', 'file = "model.pt2"']
    if precision != "float32":
        lines += [f'precision = "{precision}"', "channels_last = true"]
    (folder / "variant.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_metrics(folder: Path, metrics: dict[str, Any], precision: str) -> None:
    """Its metrics.json, with the digest of the model that is there."""
    channels_last = None if precision == "float32" else True
    named = folder.name, folder, folder.name
    how = {"precision": precision, "channels_last": channels_last}
    variant = VariantFiles(*named, accuracy=0.0, input_shape=(), file=folder / "model.pt2", **how)
    content = metrics | {"model_sha256": variant.model_sha256()}
    (folder / "metrics.json").write_text(json.dumps(content) + "\n", encoding="utf-8")


def build_ladder(
    rungs: Sequence[GpuRung], data: Path, folder: Path, device: str, seed: int = 1, size: int = SIZE
) -> None:
    """Trains the rungs one after the other and writes the application; other variants in the folder stay."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "app.toml").write_text(APP_TOML.format(divide_by=DIVIDE_BY, batch=MAX_BATCH), encoding="utf-8")
    (folder / "labels.txt").write_text("\n".join(FASHION_LABELS) + "\n", encoding="utf-8")
    task = Enlarged(data, Change(), device, size)
    np.savez_compressed(folder / "sample.npz", **sample_of(task, SAMPLE_OF_EACH))
    teacher = _teacher(device) if any(rung.is_taught for rung in rungs) else None
    for rung in rungs:
        network, seconds = trained(rung, data, teacher, device, seed)
        whole = Enlarging(Classifier(fold(network)), size).eval()
        epochs = sum(stage.recipe.epochs for stage in rung.stages)
        how = {"epochs": epochs, "seed": seed, "seconds": round(seconds, 1)}
        file = folder / "variants" / rung.name / "model.pt2"
        write_program(whole, task.test[0][:8].float() / DIVIDE_BY, file)
        for name, precision in rung.variants().items():
            _write_variant(file, folder / "variants" / name, precision, task, how, device)


def _teacher(device: str) -> nn.Module:
    rung = next(rung for rung in LADDERS["fashion"].rungs if rung.name == TEACHER)
    return trained_network(rung, ZOO / "fashion" / "variants" / TEACHER)[0].to(device)


def _write_variant(file: Path, folder: Path, precision: str, task: Enlarged, how: dict[str, Any], device: str) -> None:
    folder.mkdir(exist_ok=True)
    if folder != file.parent:
        shutil.copyfile(file, folder / file.name)
    network = as_served(file, precision, device)
    metrics = metrics_of(network, task, TESTED_TOGETHER) | {"precision": precision, "trained": how}
    speed = images_per_s(network, task.test[0][:TIMED])
    write_variant(folder, precision)
    write_metrics(folder, metrics, precision)
    print(
        f"{folder.parent.parent.name}/{folder.name}: test {metrics['accuracy']:.4f}, "
        f"validation {metrics['validation_accuracy']:.4f}, {metrics['parameters']} parameters, "
        f"{speed:.0f} images/s in batches of {TIMED}, trained in {how['seconds']} s",
        flush=True,
    )


def as_served(file: Path, precision: str, device: str) -> nn.Module:
    """A written program as a server runs it, with its own file read: bytes go in."""
    module = module_on(read_program(file), device)
    network: nn.Module = fitted(module, precision, precision != "float32", DIVIDE_BY)
    return network.to(device)


@torch.no_grad()
def images_per_s(network: nn.Module, images: Tensor, runs: int = 5) -> float:
    """About: kernels launched one by one."""
    network(images)
    if images.is_cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(runs):
        network(images)
    if images.is_cuda:
        torch.cuda.synchronize()
    return runs * len(images) / (time.perf_counter() - began)


def sample_of(task: Enlarged, of_each: int) -> dict[str, np.ndarray]:
    """The arrays of sample.npz: bytes as a client sends them, as many of each class, in random order."""
    labels = task.test[1].cpu().numpy()
    random = np.random.default_rng(0)
    rows = [random.permutation(np.flatnonzero(labels == label))[:of_each] for label in np.unique(labels)]
    chosen = random.permutation(np.concatenate(rows))
    return {"inputs": task.test[0].cpu().numpy()[chosen], "labels": labels[chosen]}


if __name__ == "__main__":
    main()
