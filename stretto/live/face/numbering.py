"""The numbers by which a scheduler and its front ends speak of applications, variants and the shapes of rows.

An application or a variant keeps its number for good. Shapes of earlier descriptions stay too, for queries that came
with them may still run; the current ones come last.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stretto.live.face.batch import NO_SUCH_SIZE
from stretto.live.face.memory import aligned
from stretto.live.face.remote import Sized

if TYPE_CHECKING:
    from stretto.live.generation import Generation
    from stretto.live.shelf import ModelSpec
    from stretto.repository.application import ApplicationFiles


class Numbering:
    """Of one scheduler, on the loop's thread. `version` counts how often an application came or its tensors changed."""

    def __init__(self) -> None:
        self.version = 0
        self.applications: list[str] = []  # by number
        self.variants: dict[tuple[str, str], int] = {}  # by application and name
        self.changed: dict[str, int] = {}  # by application: the version since which its tensors are as they are
        self.changed_last = 0
        self.sized: list[list[Sized]] = []  # the shapes that a row may have, by application
        self.first_sizes: NDArray[np.int64] = np.zeros(0, np.int64)  # of the current ones, by application
        self.behind: list[NDArray[np.int64]] = []  # how far behind a row its answer goes, by application and size
        self.needs: NDArray[np.int64] = np.zeros((0, 1), np.int64)  # of one row and its answer, by application and size
        self._tensors: dict[str, Any] = {}
        self._of_generation: tuple[Callable[[], Any], NDArray[np.int64]] = (lambda: None, np.zeros(0, np.int64))

    def take(self, name: str, files: ApplicationFiles) -> None:
        """It is served with these tensors from now on."""
        tensors = files.input, files.output
        if self._tensors.get(name) == tensors:
            return
        if name not in self._tensors:
            self.applications.append(name)
            self.sized.append([])
            self.behind.append(np.zeros(0, np.int64))
            self.first_sizes = np.append(self.first_sizes, 0)
        self._tensors[name] = tensors
        self.version += 1
        self.changed[name] = self.changed_last = self.version
        takes, width = files.input, np.dtype(files.input.dtype).itemsize
        sizes = [
            Sized(number, shape, takes.dtype, math.prod(shape) * width, files.output.row_bytes)
            for number, shape in enumerate(takes.shapes)
        ]
        place = self.applications.index(name)
        self.first_sizes[place] = len(self.sized[place])
        self.sized[place] += sizes
        self.behind[place] = np.array([aligned(each.row_bytes) for each in self.sized[place]])
        current = [known[first:] for known, first in zip(self.sized, self.first_sizes.tolist(), strict=True)]
        self.needs = np.full((len(current), max(map(len, current))), NO_SUCH_SIZE)
        for number, sizes in enumerate(current):
            self.needs[number, : len(sizes)] = [each.needs(1) for each in sizes]

    def take_variant(self, application: str, variant: str) -> None:
        self.variants.setdefault((application, variant), len(self.variants))

    def in_generation(self, generation: Generation) -> NDArray[np.int64]:
        """The applications' numbers there, by those of the directory; -1: it has none of that name."""
        known, numbers = self._of_generation
        if known() is not generation or len(numbers) != len(self.applications):
            numbers = np.array([generation.numbers.get(name, -1) for name in self.applications], np.int64)
            self._of_generation = weakref.ref(generation), numbers
        return numbers

    def first_size(self, application: int, spec: ModelSpec) -> int:
        """The first of the shapes that a row may have at present; -1 where a model takes others."""
        takes = self._tensors[self.applications[application]][0]
        is_alike = takes.shapes == spec.shapes and takes.dtype == spec.input_dtype
        return int(self.first_sizes[application]) if is_alike else -1
