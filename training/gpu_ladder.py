"""The ladder for a GPU: Fashion-MNIST enlarged to 224 pixels, through networks whose steps cost what a GPU feels.

The residual networks work at full resolution from their first layer on and halve it four times. They learn most of what
they know on smaller images, which costs a sixteenth and a quarter, and end on whole ones; the zoo's best network, which
sees the same changed images at 28 pixels, softens the labels.
"""

from __future__ import annotations

import copy
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
SIZE = 224
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
    precisions: tuple[str, ...] = ("float32",)
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
    """A small perceptron on means of 16 by 16 pixels."""
    return nn.Sequential(nn.AvgPool2d(16), *networks.perceptron(196, [32], 10))


# Averages are short: an average may not reach back to weights that were made for another size.
RUNGS = (
    GpuRung(
        "mlp",
        glance,
        (Stage(224, Recipe(12, rate=0.05, decay=1e-4, average=0.99)),),
        Change(),
        is_taught=False,
    ),
    GpuRung(
        "resnet_s",
        lambda: full_resolution(32, 1),
        (
            Stage(56, Recipe(2, rate=0.05, average=0.98, warm_up=0.3)),
            Stage(224, Recipe(1, batch=128, rate=0.02, average=0.98, warm_up=0.2)),
        ),
        Change(flip=True),
        is_taught=False,
    ),
    GpuRung(
        "resnet_m",
        lambda: full_resolution(32, 2),
        (
            Stage(56, Recipe(6, rate=0.1, average=0.98, warm_up=0.3)),
            Stage(112, Recipe(2, rate=0.04, average=0.98, warm_up=0.2)),
            Stage(224, Recipe(1, batch=128, rate=0.01, average=0.98, warm_up=0.2)),
        ),
        Change(shift=1, flip=True),
    ),
    GpuRung(
        "resnet_l",
        lambda: full_resolution(48, 2),
        (
            Stage(56, Recipe(16, rate=0.1, average=0.99, warm_up=0.2)),
            Stage(112, Recipe(3, rate=0.04, average=0.98, warm_up=0.2)),
            Stage(224, Recipe(1, batch=128, rate=0.01, average=0.98, warm_up=0.2)),
        ),
        Change(shift=2, flip=True, erase=8),
        ("float32", "bfloat16"),
    ),
)


def enlarged(images: Tensor, size: int) -> Tensor:
    """Between pixels linearly, and rounded to bytes: what a client would send."""
    larger = functional.interpolate(images, (size, size), mode="bilinear", align_corners=False)
    return (larger * 255).round() / 255


class Enlarged(Images):
    """Fashion-MNIST, changed at 28 pixels and then enlarged. Validation and test stay small; see `Whole`."""

    def __init__(self, path: Path, change: Change, device: str, size: int, teacher: nn.Module | None = None):
        super().__init__(path, change, device)
        self.shape = (1, size, size)
        self.teacher = teacher
        self.targets = torch.eye(self.classes, device=device)[self.labels]

    def draw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        images = change_images(self.images[rows].float() / 255, self.change)
        targets = self.targets[rows]
        if self.teacher is not None:
            with torch.no_grad():
                targets = targets.lerp(self.teacher(images), TAUGHT)
        return enlarged(images, self.shape[-1]), targets


class Whole(nn.Module):
    """A network as it is served: small images are enlarged, then computed in a precision."""

    def __init__(self, network: nn.Module, size: int, precision: str):
        super().__init__()
        self.size = size
        self.kind = getattr(torch, precision)
        layout = torch.contiguous_format if precision == "float32" else torch.channels_last
        self.network = copy.deepcopy(network).to(self.kind, memory_format=layout)

    def forward(self, images: Tensor) -> Tensor:
        return self.network(enlarged(images, self.size).to(self.kind)).float()


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
