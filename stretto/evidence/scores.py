"""What a variant is worth by class: recall, F1 or the quadratic score, from what was measured of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.core.evidence import class_f1, class_recall
from stretto.repository.application import ApplicationFiles
from stretto.repository.variant import VariantFiles

SCORES = ("accuracy", "f1", "quadratic")
NEEDS = {"accuracy": "recall or confusion", "f1": "confusion", "quadratic": "quadratic"}


def class_scores(variant: VariantFiles, score: str = "accuracy") -> NDArray[np.float64] | None:
    """[classes]; None where metrics.json does not have what it takes: see NEEDS."""
    metrics = variant.metrics
    if metrics is None:
        return None
    if score == "quadratic":
        return np.asarray(metrics.quadratic) if metrics.quadratic else None
    if score == "f1":
        return class_f1(metrics.confusion) if metrics.confusion else None
    if metrics.recall:
        return np.asarray(metrics.recall)
    return class_recall(metrics.confusion) if metrics.confusion else None


def score_matrix(
    application: ApplicationFiles, score: str = "accuracy"
) -> tuple[tuple[str, ...], NDArray[np.float64], NDArray[np.float64]]:
    """Names, scores [variants, classes] and profiled overall scores [variants] of the variants that have them.

    The overall score is the mean over the classes as they were tested, which for recall is the accuracy itself.
    """
    if score not in SCORES:
        raise StrettoError(f"there is no score {score[:40]!r}; there are {', '.join(SCORES)}")
    names: list[str] = []
    rows: list[NDArray[np.float64]] = []
    overall: list[float] = []
    for variant in application.variants:
        scores = class_scores(variant, score) if variant.enabled else None
        if scores is None or variant.metrics is None:
            continue
        names.append(variant.name)
        rows.append(scores)
        tested = (
            np.asarray(variant.metrics.confusion).sum(axis=1) if variant.metrics.confusion else np.ones(len(scores))
        )
        overall.append(variant.accuracy if score == "accuracy" else float(np.average(scores, weights=tested)))
    matrix = np.array(rows) if rows else np.zeros((0, application.classes))
    return tuple(names), matrix, np.array(overall)
