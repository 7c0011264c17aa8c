"""What evidence about a query's class says of accuracy (SneakPeek, section 4): priors, posterior mean, expected scores.

Plain arithmetic over arrays, many queries at once, so that planners may use it; nothing here looks at an input. θ is
[queries, classes] (or one query's [classes]), a score per class is [variants, classes].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.core.errors import StrettoError

JEFFREYS_ALPHA = 0.5
SURE = 0.5  # as published, a query has a class where that class's share of the posterior is above this (section 5.3.2)
MOST_SAMPLES = 512  # that evidence is asked about when it is loaded
MOST_NUMBERS = 1 << 20  # of what it says of them: of very many classes there are fewer samples
MAX_ALPHA = 1e9

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Said:
    """What evidence says of labelled samples: `theta` [sample, class], their classes; and how often it is right of each
    class, where that was profiled, on more samples than these.
    """

    theta: Floats
    labels: NDArray[np.int64]
    recall: tuple[float, ...] = ()


def jeffreys(classes: int) -> Floats:
    """The prior that says nothing of how frequent classes are (6.3.3)."""
    if classes < 1:
        raise StrettoError(f"a prior needs classes, not {classes}")
    return np.full(classes, JEFFREYS_ALPHA)


def weak(frequencies: Sequence[float]) -> Floats:
    """The expected frequencies themselves: one observation's worth of belief. They need not add up to 1."""
    given = own_prior(frequencies)
    alpha: Floats = given / given.sum()
    return alpha


def strong(frequencies: Sequence[float], window_queries: float) -> Floats:
    """The expected number of queries of each class in a scheduling window."""
    if not 0 < window_queries <= MAX_ALPHA:
        raise StrettoError(f"a window holds {window_queries:g} queries; give a number above 0 and up to {MAX_ALPHA:g}")
    return weak(frequencies) * window_queries


def own_prior(alpha: Sequence[float]) -> Floats:
    """The owner's own weights; each above zero, because a class of weight zero could never be believed in."""
    given = np.asarray(alpha, np.float64)
    if given.ndim != 1 or not given.size:
        raise StrettoError("a prior is one number per class")
    if not np.all((given > 0) & (given <= MAX_ALPHA)):
        raise StrettoError(f"every number of a prior is above 0 and at most {MAX_ALPHA:g}")
    return given


def posterior_mean(counts: ArrayLike, alpha: ArrayLike) -> Floats:
    """θ: the mean of Dirichlet(α + y) for each row y of counts (equations 10 and 11)."""
    prior = np.asarray(alpha, np.float64)
    evidence = np.asarray(counts, np.float64)
    if prior.ndim != 1 or not evidence.ndim or evidence.shape[-1] != prior.shape[0]:
        raise StrettoError(f"counts of shape {evidence.shape} do not go with a prior of shape {prior.shape}")
    weights = evidence + prior
    mean: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return mean


def expected_accuracy(theta: ArrayLike, recall: ArrayLike) -> Any:
    """Equation 9: Σ θ_i · recall_i, [queries, variants]; an axis that one argument lacks, the answer lacks too.

    With `class_f1` in place of recall it is the weighted F1 score, with mean quadratic scores the quadratic score: both
    are means over classes weighted by θ, as accuracy is.
    """
    weights, scores = np.asarray(theta, np.float64), np.asarray(recall, np.float64)
    if not weights.ndim or not scores.ndim or weights.shape[-1] != scores.shape[-1]:
        raise StrettoError(f"θ of shape {weights.shape} does not go with scores of shape {scores.shape}")
    return weights @ scores.T


def likeliest(theta: ArrayLike) -> NDArray[np.int64]:
    """The class that each query is told to be of: the one with the largest share of its posterior."""
    return np.asarray(np.asarray(theta, np.float64).argmax(axis=-1), np.int64)


def accuracy_by_class(theta: ArrayLike, recall: ArrayLike) -> tuple[Floats, Floats]:
    """What equation 9 says on average of queries that are told to be of each class: [variants, classes], and the share
    of the queries that are told so. A class that no query was told to be of has the variants' recall.
    """
    posteriors, scores = np.asarray(theta, np.float64), np.asarray(recall, np.float64)
    expected = expected_accuracy(posteriors, scores)
    told = likeliest(posteriors)
    counts = np.bincount(told, minlength=scores.shape[1]).astype(np.float64)
    sums = np.zeros(scores.T.shape)
    np.add.at(sums, told, expected)
    means = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], scores.T)
    return means.T, counts / max(len(told), 1)


def class_recall(confusion: ArrayLike) -> Floats:
    """Of a confusion matrix [truth, answer]; a class that was never tested gets the overall accuracy."""
    counts = _confusion(confusion)
    tested = counts.sum(axis=1)
    overall = np.trace(counts) / counts.sum()
    recall: Floats = np.where(tested > 0, np.diag(counts) / np.maximum(tested, 1), overall)
    return recall


def class_f1(confusion: ArrayLike) -> Floats:
    """F1 of each class as it was tested: precision keeps the test set's frequencies, only the mean over classes is θ's.

    A class that was neither tested nor answered gets 0, as is usual.
    """
    counts = _confusion(confusion)
    involved = counts.sum(axis=0) + counts.sum(axis=1)
    f1: Floats = 2 * np.diag(counts) / np.maximum(involved, 1)
    return f1


def quadratic_scores(probabilities: ArrayLike, labels: ArrayLike) -> Floats:
    """2·p_truth − Σ p², for each query: from −1 (sure and wrong) to 1 (sure and right)."""
    scores = np.asarray(probabilities, np.float64)
    truth = np.asarray(labels, np.int64)
    quadratic: Floats = 2 * scores[np.arange(len(truth)), truth] - np.square(scores).sum(axis=1)
    return quadratic


def estimation_error(estimates: ArrayLike, labels: ArrayLike, recall: ArrayLike) -> float:
    """How far estimates [queries, variants] (or [variants], the same for all) are from the truth (6.3.1).

    The true accuracy of a variant for a query is its recall of the query's true class; the mean absolute difference
    over queries and variants.
    """
    scores = np.asarray(recall, np.float64)
    truth = scores.T[np.asarray(labels, np.int64)]
    return float(np.abs(np.asarray(estimates, np.float64) - truth).mean())


def _confusion(confusion: ArrayLike) -> Floats:
    counts = np.asarray(confusion, np.float64)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or not counts.sum():
        raise StrettoError("a confusion matrix is square and counts at least one answer")
    return counts
