"""The zoo's ladders: every variant's network, the changes it is trained under, and its recipe.

Small networks underfit, so they see mild changes and little decay; large ones overfit and see strong ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from training import networks
from training.data import ACTIVITY_LABELS, FASHION_LABELS, MNIST_LABELS
from training.loop import Recipe
from training.tasks import TEST_PAIR, VALIDATION_PAIR, Activity, Change, Images, Task


@dataclass(frozen=True)
class Rung:
    """One variant of a ladder. A specialist knows the classes in `only`."""

    name: str
    network: Callable[[], nn.Sequential]
    recipe: Recipe
    change: Change
    size: int = 28
    only: tuple[int, ...] = ()


@dataclass(frozen=True)
class Ladder:
    """One application of the zoo. `sample` is how many of each class the labelled sample holds."""

    data: str
    labels: tuple[str, ...]
    rungs: tuple[Rung, ...]
    sample: int


def task_of(
    ladder: Ladder,
    rung: Rung,
    cache: Path,
    device: str,
    *,
    test: tuple[int, int] = TEST_PAIR,
    validation: tuple[int, ...] = VALIDATION_PAIR,
) -> Task:
    """What the rung learns; the pairs of subjects held out matter to activity alone."""
    path = cache / f"{ladder.data}.npz"
    if ladder.data == "activity":
        return Activity(path, rung.change, device, test, validation, rung.only)
    return Images(path, rung.change, device, rung.size)


FASHION = (
    Rung("linear", lambda: networks.linear(784, 10), Recipe(60, rate=0.02, decay=1e-4), Change()),
    Rung(
        "mlp",
        lambda: networks.perceptron(784, [96], 10, dropout=0.1),
        Recipe(150, rate=0.05, decay=5e-4),
        Change(shift=1, flip=True),
    ),
    Rung(
        "cnn_s",
        lambda: networks.plain(1, (16, 32), (2, 2), 10, flat=49, dropout=0.1),
        Recipe(150, rate=0.05, decay=2e-4),
        Change(shift=1, flip=True),
    ),
    Rung(
        "cnn_m",
        lambda: networks.plain(1, (16, 32, 64), (2, 1, 2), 10, flat=49, dropout=0.2),
        Recipe(120, decay=2e-4),
        Change(shift=1, flip=True),
    ),
    Rung(
        "resnet_s",
        lambda: networks.residual(1, (16, 32, 64), 1, 10),
        Recipe(180, decay=3e-4),
        Change(shift=2, flip=True, erase=6),
    ),
    Rung(
        "resnet_m",
        lambda: networks.residual(1, (32, 64, 128), 1, 10, dropout=0.1),
        Recipe(130, smoothing=0.05),
        Change(shift=2, flip=True, erase=8),
    ),
    Rung(
        "resnet_l",
        lambda: networks.residual(1, (56, 96, 144), 3, 10, dropout=0.2),
        Recipe(110, smoothing=0.1),
        Change(shift=3, flip=True, erase=12),
    ),
)

RESOLUTION = tuple(
    Rung(
        f"px{size:02d}",
        lambda: networks.residual(1, (24, 48, 96), 1, 10, dropout=0.1),
        Recipe(150, decay=4e-4),
        Change(shift=2, flip=True, erase=6),
        size,
    )
    for size in (8, 12, 16, 20, 24)
)

MNIST = (
    Rung("linear", lambda: networks.linear(784, 10), Recipe(60, rate=0.02, decay=1e-5), Change()),
    Rung(
        "mlp",
        lambda: networks.perceptron(784, [128], 10),
        Recipe(120, rate=0.05, decay=1e-4),
        Change(shift=1, rotate=8),
    ),
    Rung(
        "cnn",
        lambda: networks.plain(1, (16, 32), (2, 2), 10, flat=49, dropout=0.1),
        Recipe(120, rate=0.05, decay=1e-4),
        Change(shift=1, rotate=10, zoom=0.1),
    ),
    Rung(
        "resnet",
        lambda: networks.residual(1, (24, 48, 96), 1, 10, dropout=0.2),
        Recipe(120, smoothing=0.05),
        Change(shift=2, rotate=12, zoom=0.12),
    ),
)

WORN = Change(rotate=15, zoom=0.15, noise=0.03)
ACTIVITY = (
    Rung("linear", lambda: networks.on_statistics(6, [], 7), Recipe(60, rate=0.05, decay=1e-3), Change(rotate=5)),
    Rung(
        "cnn",
        lambda: networks.plain(6, (16, 32, 32), (2, 2, 2), 7, size=5, dropout=0.2, dimensions=1),
        Recipe(80, rate=0.05, decay=1e-3, smoothing=0.1),
        WORN,
    ),
    Rung(
        "resnet",
        lambda: networks.residual(6, (32, 64, 128), 1, 7, size=5, dropout=0.3, dimensions=1),
        Recipe(80, rate=0.05, decay=1e-3, smoothing=0.1),
        WORN,
    ),
)

# The watch's two sensors, each alone and both, and a specialist for each kind of exercise. Evidence tells the kinds
# apart without a mistake, but not the exercises of one kind.
ACCELERATION, ROTATION = (0, 3), (3, 6)
RAISING, TURNING, PULLING = (1, 2), (3, 4), (0, 5, 6)
WORN_RECIPE = Recipe(80, rate=0.05, decay=1e-3, smoothing=0.1)


def _small(channels: int) -> nn.Sequential:
    return networks.plain(channels, (8, 16), (2, 2), 7, size=5, dimensions=1)


def _medium() -> nn.Sequential:
    return networks.plain(6, (16, 32, 32), (2, 2, 2), 7, size=5, dropout=0.2, dimensions=1)


SPECIALISTS = (
    Rung("acceleration", lambda: networks.of_sensor(*ACCELERATION, _small(3)), WORN_RECIPE, WORN),
    Rung("rotation", lambda: networks.of_sensor(*ROTATION, _small(3)), WORN_RECIPE, WORN),
    Rung(
        "both",
        lambda: networks.residual(6, (24, 48, 96), 1, 7, size=5, dropout=0.3, dimensions=1),
        WORN_RECIPE,
        WORN,
    ),
    Rung("raising", _medium, WORN_RECIPE, WORN, only=RAISING),
    Rung("turning", _medium, WORN_RECIPE, WORN, only=TURNING),
    Rung("pulling", lambda: _small(6), WORN_RECIPE, WORN, only=PULLING),
)

LADDERS = {
    "fashion": Ladder("fashion", FASHION_LABELS, FASHION, sample=30),
    "fashion_resolution": Ladder("fashion", FASHION_LABELS, RESOLUTION, sample=25),
    "mnist": Ladder("mnist", MNIST_LABELS, MNIST, sample=30),
    "activity": Ladder("activity", ACTIVITY_LABELS, ACTIVITY, sample=30),
    "activity_specialists": Ladder("activity", ACTIVITY_LABELS, SPECIALISTS, sample=30),
}
