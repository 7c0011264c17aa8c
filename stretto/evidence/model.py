"""Evidence: what is known of a query's class before any variant has run (SneakPeek, section 4.2).

k observations of the class, from the labels of the nearest training queries or from the decision of a cheap variant;
with the prior they give θ. May be used from several threads at once.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.backends.model import Array, Model
from stretto.core.errors import StrettoError
from stretto.core.evidence import posterior_mean
from stretto.evidence.features import Features
from stretto.evidence.index import Index
from stretto.repository.tensors import InputTensor, shape_text

NO_VOTE = -1

Integers = NDArray[np.int64]


class Witness(Protocol):
    """What observes classes."""

    def votes(self, inputs: Array, k: int) -> Integers:
        """[queries, k] classes, the best founded first, so that fewer are had from the first of them."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The labels of the nearest training queries."""

    features: Features
    index: Index
    labels: Integers

    def votes(self, inputs: Array, k: int) -> Integers:
        row_numbers = self.index.nearest(self.features(inputs), min(k, self.index.count))
        return np.where(row_numbers < 0, NO_VOTE, self.labels[row_numbers])


@dataclass(frozen=True, eq=False)
class Decision:
    """What a variant decides, counted as k observations. A model runs one batch at a time, hence the lock."""

    model: Model
    output: str
    lock: threading.Lock = field(default_factory=threading.Lock)

    def votes(self, inputs: Array, k: int) -> Integers:
        spec = self.model.inputs[0]
        size = self.model.fixed_batch or max(1, min(len(inputs), 64))
        answers: list[Integers] = []
        for first in range(0, len(inputs), size):
            rows = inputs[first : first + size]
            count = len(rows)
            if self.model.fixed_batch is not None and count < size:
                rows = np.concatenate([rows, np.repeat(rows[-1:], size - count, axis=0)])
            with self.lock:
                scores = self.model.run({spec.name: np.ascontiguousarray(rows)})[self.output]
                answers.append(scores[:count].reshape(count, -1).argmax(axis=1))
        return np.repeat(np.concatenate(answers).astype(np.int64)[:, None], k, axis=1)


@dataclass(frozen=True, eq=False)
class Evidence:
    """`accuracy` and `recall` are of the evidence's own answers, profiled on data that it was not built from; None and
    empty where that was with another prior.
    """

    application: str
    takes: InputTensor
    classes: int
    witness: Witness
    k: int
    alpha: NDArray[np.float64]
    accuracy: float | None
    recall: tuple[float, ...] = ()

    def counts(self, inputs: Array) -> Integers:
        """[queries, classes]: how many observations each class has."""
        return tallied(self.witness.votes(self._checked(inputs), self.k), self.classes)

    def posterior(self, inputs: Array) -> NDArray[np.float64]:
        """θ [queries, classes] of queries [n, …] as clients send them."""
        return posterior_mean(self.counts(inputs), self.alpha)

    def answer(self, inputs: Array) -> Integers:
        """The likeliest class of each query (5.3.1)."""
        return np.asarray(self.posterior(inputs).argmax(axis=1), np.int64)

    def _checked(self, inputs: Array) -> Array:
        given = np.asarray(inputs)
        if given.ndim < 1 or given.shape[1:] != self.takes.shape or not len(given) or given.dtype.kind not in "biuf":
            raise StrettoError(
                f"evidence for {self.application} takes queries of {shape_text(self.takes.shape)}, one at least, "
                f"not {shape_text(given.shape)} {given.dtype}"
            )
        return given.astype(np.dtype(self.takes.dtype), copy=False)


def tallied(votes: Integers, classes: int) -> Integers:
    """[queries, k] classes → [queries, classes] counts; what is no vote is not counted."""
    queries = len(votes)
    cells = np.where(votes == NO_VOTE, classes, votes) + np.arange(queries)[:, None] * (classes + 1)
    counts = np.bincount(cells.ravel(), minlength=queries * (classes + 1)).reshape(queries, classes + 1)
    return np.ascontiguousarray(counts[:, :classes], dtype=np.int64)
