"""Repositories for gpu_serve: networks with random weights, as exported programs or as ONNX, profiled where they serve.

Latency is what counts of these networks; their accuracies are those that torchvision publishes. A repository that is
there already is used again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stretto.repository.profiles import StoredProfile, read_profile

MAX_BATCH = 64
INPUTS = 16  # different images that clients send
APP_TOML = """slo_ms = {slo_ms:g}

[input]
shape = {shape}
dtype = "{dtype}"
{scale}
[output]
kind = "logits"
shape = [{classes}]

[limits]
max_batch = {max_batch}
"""
SCALE = "divide_by = 255\n"


@dataclass(frozen=True)
class Network:
    """How a network is built, and the accuracy that the literature gives it."""

    name: str
    build: Callable[[], Any]
    accuracy: float


@dataclass(frozen=True)
class Photos:
    """An application whose queries are images, as bytes or as float32, and its variants."""

    name: str
    networks: tuple[Network, ...]
    dtype: str = "uint8"
    shape: tuple[int, ...] = (3, 224, 224)
    classes: int = 1000
    slo_ms: float = 50.0
    max_batch: int = MAX_BATCH
    backend: str = "torch"  # or onnx


def torchvision_networks(names: Sequence[str]) -> tuple[Network, ...]:
    """With random weights; imported only when one is built."""
    accuracies = {"resnet18": 0.698, "resnet50": 0.809, "resnet152": 0.823, "convnext_tiny": 0.825}

    def builder(name: str) -> Callable[[], Any]:
        def build() -> Any:
            from torchvision import models

            return models.get_model(name, weights=None)

        return build

    return tuple(Network(name, builder(name), accuracies[name]) for name in names)


def write_photos(photos: Photos, repository: Path, programs: Path) -> None:
    """The application's folder; networks are exported once into their own folder, whichever applications have them."""
    folder = repository / photos.name
    folder.mkdir(parents=True, exist_ok=True)
    text = APP_TOML.format(
        slo_ms=photos.slo_ms,
        shape=list(photos.shape),
        dtype=photos.dtype,
        scale=SCALE if photos.dtype == "uint8" else "",
        classes=photos.classes,
        max_batch=photos.max_batch,
    )
    (folder / "app.toml").write_text(text, encoding="utf-8")
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (INPUTS, *photos.shape), dtype=np.uint8)
    if photos.dtype != "uint8":
        images = (images / np.float32(255)).astype(photos.dtype)
    np.savez(repository / f"{photos.name}.npz", inputs=images)
    for network in photos.networks:
        suffix, export = (".onnx", export_onnx) if photos.backend == "onnx" else (".pt2", export_program)
        file = programs / f"{network.name}{suffix}"
        if not file.is_file():
            part = file.with_name(f"part{suffix}")
            part.parent.mkdir(parents=True, exist_ok=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                export(network, photos.shape, part)
            part.replace(file)
        variant = folder / "variants" / network.name
        variant.mkdir(parents=True, exist_ok=True)
        model = variant / f"model{suffix}"
        if not model.is_file():
            os.link(file, model)
        (variant / "variant.toml").write_text(
            f'backend = "{photos.backend}"\nfile = "{model.name}"\n'
            f'accuracy = {network.accuracy}\naccuracy_source = "literature"\n',
            encoding="utf-8",
        )


def export_program(network: Network, shape: Sequence[int], file: Path) -> None:
    """With a free batch."""
    import torch

    torch.manual_seed(1)
    batch = torch.export.Dim("batch", min=1, max=MAX_BATCH)
    example = (torch.rand(2, *shape),)
    torch.export.save(torch.export.export(network.build().eval(), example, dynamic_shapes=({0: batch},)), file)


def export_onnx(network: Network, shape: Sequence[int], file: Path) -> None:
    """With a free batch, by the exporter that needs the least beside PyTorch."""
    import torch

    torch.manual_seed(1)
    names = {"input": {0: "batch"}, "output": {0: "batch"}}
    example = (torch.rand(2, *shape),)
    module = network.build().eval()
    torch.onnx.export(
        *(module, example, str(file)),
        input_names=["input"],
        output_names=["output"],
        dynamic_axes=names,
        dynamo=False,
    )


def ensure_profiled(folder: Path, arguments: Sequence[str]) -> float:
    """Runs `stretto profile` on an application's folder where a variant has no profile; the seconds it took."""
    if all(profile_files(variant) for variant in (folder / "variants").iterdir()):
        return 0.0
    began = time.monotonic()
    command = [sys.executable, "-m", "stretto", "profile", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"stretto profile {folder.name} failed: {done.stderr[-2000:]}")
    return time.monotonic() - began


def forget_profiles(folder: Path) -> None:
    """So that they are measured anew."""
    for variant in (folder / "variants").iterdir():
        shutil.rmtree(variant / "profiles", ignore_errors=True)


def profile_files(variant: Path) -> list[Path]:
    return sorted((variant / "profiles").glob("*.json"))


def profiles(folder: Path) -> dict[str, StoredProfile]:
    """By variant; there is one kind of machine in these repositories."""
    return {
        variant.name: read_profile(profile_files(variant)[0])
        for variant in sorted((folder / "variants").iterdir())
        if profile_files(variant)
    }


def best_throughput(stored: StoredProfile) -> tuple[float, int]:
    """Images a second of the model itself, at the batch size where they are the most, and that size."""
    rates = {size: size / point.mean * 1000 for size, point in stored.batches.items()}
    best = max(rates, key=lambda size: rates[size])
    return rates[best], best


def accuracies(folder: Path) -> dict[str, float]:
    """As measured on the test split, by variant."""
    return {
        variant.name: float(json.loads((variant / "metrics.json").read_text(encoding="utf-8"))["accuracy"])
        for variant in sorted((folder / "variants").iterdir())
    }
