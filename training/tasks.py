"""What the networks learn: the splits of each data set, kept on the device, and the random changes made in training.

A task draws a training batch from row numbers with device operations only, so that a whole training step can be
captured as one CUDA graph. Validation decides between variants; the test split is only ever reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stretto.core.resize import area_weights

VALIDATION_IMAGES = 5_000  # the last of the training set

WINDOW = 100  # samples: 2 s at 50 Hz, about one repetition of an exercise
HOP = 50  # between the windows of validation and test; training draws every start
DRAWS = 20_000  # windows in what counts as an epoch

# The lengths of their series say that subjects were recorded two at a time, at one pace: no such pair is split.
PAIRS = ((1, 2), (3, 4), (5, 6), (7, 10), (8, 9))
VALIDATION_PAIR, TEST_PAIR = PAIRS[3], PAIRS[4]


@dataclass(frozen=True)
class Change:
    """How training inputs are varied. Pixels and degrees for images; fractions for series."""

    shift: int = 0
    flip: bool = False
    erase: int = 0
    rotate: float = 0.0
    zoom: float = 0.0
    noise: float = 0.0


class Task(Protocol):
    """What the training loop needs."""

    scale: Tensor
    shape: tuple[int, ...]
    classes: int
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def order(self) -> Tensor:
        """The rows of one epoch, in random order."""
        ...

    def draw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Changed training inputs and their labels."""
        ...


class Images:
    """A 28×28 image set, downsampled to `size` pixels where that is smaller."""

    classes = 10

    def __init__(self, path: Path, change: Change, device: str, size: int = 28):
        data = np.load(path)
        images = torch.from_numpy(data["train_images"]).unsqueeze(1).to(device)
        labels = torch.from_numpy(data["train_labels"]).to(device)
        self.images, self.labels = images[:-VALIDATION_IMAGES], labels[:-VALIDATION_IMAGES]
        self.change = change
        self.shape: tuple[int, ...] = (1, size, size)
        self.area = torch.from_numpy(area_weights(28, size)).to(device) if size < 28 else None
        self.scale = 255 / self.images.float().std().view(1, 1, 1, 1)
        test_images = torch.from_numpy(data["test_images"]).unsqueeze(1).to(device)
        self.validation = self._whole(images[-VALIDATION_IMAGES:]), labels[-VALIDATION_IMAGES:]
        self.test = self._whole(test_images), torch.from_numpy(data["test_labels"]).to(device)

    def order(self) -> Tensor:
        return torch.randperm(len(self.images), device=self.images.device)

    def draw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        images = change_images(self.images[rows].float() / 255, self.change)
        return self._resized(images), self.labels[rows]

    def _whole(self, images: Tensor) -> Tensor:
        """Unchanged images, rounded to bytes where they were downsampled: what a client would send."""
        images = images.float() / 255
        return images if self.area is None else (self._resized(images) * 255).round() / 255

    def _resized(self, images: Tensor) -> Tensor:
        return images if self.area is None else self.area @ images @ self.area.T


def change_images(images: Tensor, change: Change) -> Tensor:
    """Shift, flip, turn and zoom in one resampling (exact for whole pixels), then erase a square."""
    count, device, size = len(images), images.device, images.shape[-1]
    if change.shift or change.flip or change.rotate or change.zoom:
        angle = _uniform(count, change.rotate * math.pi / 180, device)
        zoom = 1 + _uniform(count, change.zoom, device)
        mirror = 1 - 2 * (torch.rand(count, device=device) < 0.5 * change.flip).float()
        move_x, move_y = (_uniform(2 * count, change.shift + 0.5, device).round() * 2 / size).view(2, count)
        cosine, sine = angle.cos() * zoom, angle.sin() * zoom
        rows = (mirror * cosine, -sine, move_x, mirror * sine, cosine, move_y)
        grid = functional.affine_grid(torch.stack(rows, 1).view(count, 2, 3), list(images.shape), align_corners=False)
        images = functional.grid_sample(images, grid, align_corners=False)
    if change.erase:
        place = torch.arange(size, device=device)
        corner = torch.rand(count, 2, 1, device=device) * size - change.erase / 2
        inside = (place >= corner) & (place < corner + change.erase)
        images = images.masked_fill((inside[:, 0, :, None] & inside[:, 1, None, :]).unsqueeze(1), 0.0)
    return images


class Activity:
    """Windows of wrist movement, [6, 100]; the subjects of training, validation and test are different people.

    A specialist is trained with windows of the classes in `only`, and is validated and tested with those of all.
    """

    classes = 7
    shape: tuple[int, ...] = (6, WINDOW)

    def __init__(
        self,
        path: Path,
        change: Change,
        device: str,
        test: Sequence[int],
        validation: Sequence[int],
        only: Sequence[int] = (),
    ):
        data = np.load(path)
        self.change = change
        self.values = torch.from_numpy(np.ascontiguousarray(data["values"].T)).to(device)  # [6, samples]
        self.offsets = torch.arange(WINDOW, device=device)
        begins = np.cumsum(data["lengths"]) - data["lengths"]
        held = {*test, *validation}

        def starts(subjects: Sequence[int], hop: int) -> tuple[Tensor, Tensor]:
            places, labels = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
            for begin, length, label, subject in zip(
                begins, data["lengths"], data["labels"], data["subjects"], strict=True
            ):
                if subject in subjects:
                    places.append(np.arange(begin, begin + length - WINDOW + 1, hop))
                    labels.append(np.full(len(places[-1]), label))
            both = (torch.from_numpy(np.concatenate(part)).to(device) for part in (places, labels))
            return next(both), next(both)

        self.starts, self.labels = starts([s for s in range(1, 11) if s not in held], 1)
        if only:
            known = torch.isin(self.labels, torch.tensor(only, device=device))
            self.starts, self.labels = self.starts[known], self.labels[known]
        spread = self._windows(self.starts[::HOP]).std((0, 2))
        self.scale = (1 / spread).view(1, 6, 1)
        (validation_starts, validation_labels), (test_starts, test_labels) = starts(validation, HOP), starts(test, HOP)
        self.validation = self._windows(validation_starts), validation_labels
        self.test = self._windows(test_starts), test_labels

    def order(self) -> Tensor:
        return torch.randperm(len(self.starts), device=self.starts.device)[:DRAWS]

    def draw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return change_series(self._windows(self.starts[rows]), self.change), self.labels[rows]

    def _windows(self, starts: Tensor) -> Tensor:
        return self.values[:, starts[:, None] + self.offsets].transpose(0, 1)


def change_series(series: Tensor, change: Change) -> Tensor:
    """Turn the watch on the wrist by a small angle about a random axis, scale the strength, add noise."""
    count, device = len(series), series.device
    if change.rotate:
        axis = functional.normalize(torch.randn(count, 3, device=device), dim=1)
        angle = _uniform(count, change.rotate * math.pi / 180, device).view(-1, 1, 1)
        zero = torch.zeros(count, device=device)
        x, y, z = axis.unbind(1)
        cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).view(count, 3, 3)
        turn = torch.eye(3, device=device) + angle.sin() * cross + (1 - angle.cos()) * (cross @ cross)
        series = torch.cat([turn @ series[:, :3], turn @ series[:, 3:]], 1)
    series = series * (1 + _uniform(count * 2, change.zoom, device)).view(count, 2, 1).repeat_interleave(3, 1)
    return series + change.noise * torch.randn_like(series)


def _uniform(count: int, bound: float, device: torch.device) -> Tensor:
    return (torch.rand(count, device=device) * 2 - 1) * bound
