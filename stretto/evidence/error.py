"""How far estimated accuracy is from the truth (figure 7), for profiled accuracy and for evidence with each k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.evidence import estimation_error, expected_accuracy, posterior_mean
from stretto.evidence.model import Witness, tallied
from stretto.repository.sample import Sample

HARDLY_ABOVE = 1.05

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class AtK:
    """`error` of the estimates, and the accuracy of the evidence's own answers."""

    error: float
    accuracy: float


@dataclass(frozen=True)
class Errors:
    """On the same queries; `profiled` is None where nothing was profiled."""

    queries: int
    profiled: float | None
    by_k: dict[int, AtK]

    @property
    def best_k(self) -> int:
        """The smallest k whose error is hardly above the least: more neighbours cost time and blur the answers."""
        least = min(at_k.error for at_k in self.by_k.values())
        return min(k for k, at_k in self.by_k.items() if at_k.error <= HARDLY_ABOVE * least)


def measure_errors(
    witness: Witness,
    sample: Sample,
    ks: Sequence[int],
    alpha: Floats,
    scores: Floats,
    profiled: Floats | None = None,
) -> Errors:
    """`scores` [variants, classes] are the truth by class, `profiled` [variants] what is believed without evidence."""
    votes = witness.votes(sample.inputs, max(ks))
    by_k: dict[int, AtK] = {}
    for k in ks:
        theta = posterior_mean(tallied(votes[:, :k], scores.shape[1]), alpha)
        error = estimation_error(expected_accuracy(theta, scores), sample.labels, scores)
        by_k[k] = AtK(error, float((theta.argmax(axis=1) == sample.labels).mean()))
    without = None if profiled is None else estimation_error(profiled, sample.labels, scores)
    return Errors(len(sample), without, by_k)


def halves(sample: Sample, seed: int = 0) -> tuple[Sample, Sample]:
    """One half to choose k by, and one to report on."""
    order = np.random.default_rng(seed).permutation(len(sample))
    middle = (len(sample) + 1) // 2
    first, second = np.sort(order[:middle]), np.sort(order[middle:])
    return Sample(sample.inputs[first], sample.labels[first]), Sample(sample.inputs[second], sample.labels[second])
