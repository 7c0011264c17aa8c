"""metrics.json: how good a variant is, measured on data that it has never seen.

Keys that Stretto does not know are kept out of the way, not refused: training scripts write what they like beside it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.config.fields import Fields, shown
from stretto.repository.files import Place
from stretto.repository.problems import Problems
from stretto.repository.profiles import SHA256
from stretto.repository.tensors import Size, read_shape

MAX_CONFUSION_CLASSES = 2000
MAX_COUNT = 10**15
MAX_TOLERANCE = 1e300
SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")
# How far two figures for the same thing may lie apart before one of them is doubted: they are rounded for people.
ROUNDING = 2e-3


@dataclass(frozen=True)
class Metrics:
    """`confusion[truth][answer]` counts answers on the test set; `quadratic` is the mean quadratic score by true class.

    What was not measured is empty or None. `model_sha256` is of the model that was measured; None where nobody wrote it
    down.
    """

    accuracy: float
    recall: tuple[float, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    validation_accuracy: float | None = None
    test_samples: int | None = None
    parameters: int | None = None
    input_shape: tuple[int, ...] | None = None
    quadratic: tuple[float, ...] = ()
    accuracy_by_size: Mapping[Size, float] = field(default_factory=dict)  # of images sent at other sizes, too
    model_sha256: str | None = None
    tolerance: float | None = None  # within which values counted as right

    def of_another_model(self) -> Metrics:
        """What is left of it when the model has changed: its accuracy, by which plans order variants, and its shape."""
        return Metrics(self.accuracy, input_shape=self.input_shape, model_sha256=self.model_sha256)


def read_metrics(place: Place, classes: int, problems: Problems) -> Metrics:
    """`classes` is how many the application has; 0 where that is not known."""
    top = place.json()
    metrics = Metrics(
        top.number("accuracy", 0, 1),
        top.numbers("recall", 0, 1) if top.has("recall") else (),
        _confusion(top) if top.has("confusion") else (),
        top.optional_number("validation_accuracy", 0, 1),
        top.optional_integer("test_samples", 0, MAX_COUNT),
        top.optional_integer("parameters", 0, MAX_COUNT),
        read_shape(top, "input_shape") if top.has("input_shape") else None,
        top.numbers("quadratic", -1, 1) if top.has("quadratic") else (),
        _accuracy_by_size(top),
        _model_sha256(top),
        top.optional_number("tolerance", 0, MAX_TOLERANCE),
    )
    if metrics.test_samples == 0:
        top.fail("test_samples is 0: an accuracy needs samples to be measured on", "test_samples")
    counts = {"recall": metrics.recall, "confusion": metrics.confusion, "quadratic": metrics.quadratic}
    for key, count in ((key, len(values)) for key, values in counts.items()):
        if count and classes and count != classes:
            top.fail(f"{key} has {count} classes, but the application has {classes}; measure again", key)
    if metrics.recall and metrics.confusion and len(metrics.recall) != len(metrics.confusion):
        top.fail(f"recall has {len(metrics.recall)} classes, but confusion has {len(metrics.confusion)}", "recall")
    _doubt(top, metrics, problems)
    return metrics


def _model_sha256(top: Fields) -> str | None:
    if not top.has("model_sha256"):
        return None
    digest = top.text("model_sha256")
    if not SHA256.fullmatch(digest):
        top.fail("model_sha256 must be 64 hexadecimal digits in lower case", "model_sha256")
    return digest


def _accuracy_by_size(top: Fields) -> dict[Size, float]:
    """{"8x8": 0.9, …}: by the size sent, height x width."""
    part = top.part("accuracy_by_size")
    accuracies: dict[Size, float] = {}
    for key in () if part is None else part.table:
        assert part is not None
        match = SIZE.fullmatch(key)
        if match is None:
            part.fail(f"accuracy_by_size has {shown(key)}, which is no size; write HEIGHTxWIDTH, as 24x32", key)
        accuracies[int(match[1]), int(match[2])] = part.number(key, 0, 1)
    return accuracies


def _confusion(top: Fields) -> tuple[tuple[int, ...], ...]:
    rows = top.matrix("confusion", 0, MAX_COUNT)
    if len(rows) > MAX_CONFUSION_CLASSES:
        top.fail(f"confusion has more than {MAX_CONFUSION_CLASSES} rows; leave it out", "confusion")
    for position, row in enumerate(rows):
        if len(row) != len(rows):
            top.fail(f"confusion has {len(rows)} rows of {len(row)}; it must be square", "confusion")
        if not all(value.is_integer() for value in row):
            top.fail("confusion counts answers; give whole numbers", "confusion", position)
    return tuple(tuple(int(value) for value in row) for row in rows)


def _doubt(top: Fields, metrics: Metrics, problems: Problems) -> None:
    """Figures that contradict one another are a mistake somewhere; which of them is wrong cannot be known here."""
    total = sum(map(sum, metrics.confusion))
    label = top.document.label
    if not total:
        return
    right = sum(row[position] for position, row in enumerate(metrics.confusion)) / total
    if abs(right - metrics.accuracy) > ROUNDING:
        problems.warn(label, f"accuracy is {metrics.accuracy:g}, but confusion gives {right:.4g}; measure again")
    if metrics.test_samples is not None and metrics.test_samples != total:
        problems.warn(label, f"test_samples is {metrics.test_samples}, but confusion counts {total}; measure again")
    for position, (row, recall) in enumerate(zip(metrics.confusion, metrics.recall, strict=False)):
        if sum(row) and abs(row[position] / sum(row) - recall) > ROUNDING:
            problems.warn(label, f"recall of class {position} is {recall:g}, but not by confusion; measure again")
            return
