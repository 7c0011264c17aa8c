"""The ladder for a GPU: Fashion-MNIST enlarged to 112 pixels, through networks whose steps cost what a GPU feels.

Images come as they are, 28 by 28 bytes: enlarging them is the first thing that a network does, on the GPU, so that a
request is small and the GPU's work is not. The residual networks work at full resolution from their first layer on and
halve it four times. They learn first on images of half the size, which cost a quarter; the zoo's best network, which
sees the same changed images, softens the labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from training import networks
from training.loop import Recipe, train
from training.networks import Scaled
from training.tasks import Change, Images, change_images

APPLICATION = "fashion_gpu"
SIZE = 112  # four times that of the images
TEACHER = "resnet_l"  # of the zoo's fashion
TAUGHT = 0.5  # what the teacher's answer weighs beside the label


@dataclass(frozen=True)
class Stage:
    """A part of the training, on images of so many pixels."""

    size: int
    recipe: Recipe


@dataclass(frozen=True)
class GpuRung:
    """One network. Each precision becomes a variant of its own; the first keeps the network's name."""

    name: str
    network: Callable[[], nn.Sequential]
    stages: tuple[Stage, ...]
    change: Change
    precisions: tuple[str, ...] = ("bfloat16",)
    is_taught: bool = True

    def variants(self) -> dict[str, str]:
        """Names, and what they compute in."""
        first, *rest = self.precisions
        return {self.name: first} | {f"{self.name}_{precision}": precision for precision in rest}


def full_resolution(width: int, blocks: int, widest: int = 512) -> nn.Sequential:
    """A residual network of five stages without a step in front of them; channels double as the resolution halves."""
    widths = [min(widest, width << stage) for stage in range(5)]
    return networks.residual(1, widths, blocks, 10, dropout=0.1)


def glance() -> nn.Sequential:
    """A small perceptron on means of 8 by 8 pixels."""
    return nn.Sequential(nn.AvgPool2d(8), *networks.perceptron(196, [32], 10))


# Averages are short: an average may not reach back to weights that were made for another size.
RUNGS = (
    GpuRung(
        "mlp",
        glance,
        (Stage(112, Recipe(12, rate=0.05, decay=1e-4, average=0.99)),),
        Change(),
        ("float32",),
        is_taught=False,
    ),
    GpuRung(
        "resnet_s",
        lambda: full_resolution(48, 1),
        (
            Stage(56, Recipe(6, rate=0.1, average=0.98, warm_up=0.3)),
            Stage(112, Recipe(4, rate=0.05, average=0.98, warm_up=0.2)),
        ),
        Change(shift=1, flip=True),
        ("bfloat16", "float32"),
    ),
    GpuRung(
        "resnet_m",
        lambda: full_resolution(48, 2),
        (
            Stage(56, Recipe(10, rate=0.1, average=0.98, warm_up=0.3)),
            Stage(112, Recipe(5, rate=0.05, average=0.98, warm_up=0.2)),
        ),
        Change(shift=1, flip=True),
    ),
)


def enlarged(images: Tensor, size: int) -> Tensor:
    """Between pixels linearly."""
    return functional.interpolate(images, (size, size), mode="bilinear", align_corners=False)


class Enlarging(nn.Module):
    """A network behind the enlargement of its images: what is exported, and what a client's bytes go through."""

    def __init__(self, network: nn.Module, size: int):
        super().__init__()
        self.network = network
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        return self.network(enlarged(images, self.size))


class Enlarged(Images):
    """Fashion-MNIST, changed at 28 pixels and then enlarged. Validation and test stay bytes, as a client sends them."""

    def __init__(self, path: Path, change: Change, device: str, size: int, teacher: nn.Module | None = None):
        super().__init__(path, change, device)
        self.size = size
        self.teacher = teacher
        self.targets = torch.eye(self.classes, device=device)[self.labels]

    def draw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        images = change_images(self.images[rows].float() / 255, self.change)
        targets = self.targets[rows]
        if self.teacher is not None:
            kind, is_gpu = images.device.type, images.is_cuda
            with torch.no_grad(), torch.autocast(kind, torch.bfloat16, enabled=is_gpu, cache_enabled=False):
                answer = self.teacher(images)
            targets = targets.lerp(answer.float(), TAUGHT)
        return enlarged(images, self.size), targets

    def _whole(self, images: Tensor) -> Tensor:
        return images


def trained(rung: GpuRung, data: Path, teacher: nn.Module | None, device: str, seed: int) -> tuple[Scaled, float]:
    """The network behind its scale, and the seconds it took."""
    torch.manual_seed(seed)
    network: nn.Module | None = None
    seconds = 0.0
    for stage in rung.stages:
        task = Enlarged(data, rung.change, device, stage.size, teacher if rung.is_taught else None)
        network = Scaled(rung.network(), task.scale) if network is None else network
        network, took = train(task, network, stage.recipe, device)
        seconds += took
        if device == "cuda":
            torch.cuda.empty_cache()
    assert isinstance(network, Scaled)
    return network, seconds
