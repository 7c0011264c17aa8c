"""Accuracy, recall per class and confusion of a model on labelled data.

Values have no classes: one that answers with them is right where somebody said how near to the truth it must come.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.backends.failure import run_batch
from stretto.backends.model import Array, BackendError, BatchFailure, Model
from stretto.core.errors import StrettoError
from stretto.core.evidence import quadratic_scores
from stretto.repository.sample import as_taken, not_taken
from stretto.repository.tensors import OutputKind, OutputTensor, Size, shape_text

Progress = Callable[[float], None]

MAX_CLASSES = 100_000
MAX_CONFUSION_CLASSES = 2000
BATCH = 32


class DataError(StrettoError):
    """Labelled data that cannot be used: what is wrong, in which file, and what to do."""


@dataclass(frozen=True, eq=False)
class Labelled:
    """Queries and their true classes, or true values; `label` is what people call the data."""

    inputs: Array
    labels: NDArray[Any]
    label: str = "the data"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """`confusion[truth, answer]` counts; recall of a class that the data does not hold is None.

    `quadratic` is the mean quadratic score by true class, empty where answers are no probabilities.
    """

    accuracy: float
    recall: tuple[float | None, ...]
    confusion: NDArray[np.int64]
    samples: int
    quadratic: tuple[float | None, ...] = ()
    by_size: Mapping[Size, float] = field(default_factory=dict)  # accuracy of images sent at other sizes


def read_labelled(
    file: Path,
    preferred: str = "inputs",
    divide_by: float = 1.0,
    dtype: str = "float32",
    values: OutputTensor | None = None,
) -> Labelled:
    """An .npz file with arrays "inputs" and "labels"; an array called `preferred` goes before "inputs".

    Whole numbers are divided by `divide_by`: images are often kept as the bytes that they were. Labels are classes, or
    `values` as this output has them.
    """
    if not file.is_file():
        raise DataError(f"there is no file {file.name}; give an .npz file with arrays inputs and labels")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            inputs_name = preferred if preferred in arrays else "inputs"
            missing = [name for name in (inputs_name, "labels") if name not in arrays]
            if missing:
                raise DataError(f"{file.name} has no array {missing[0]}; it must hold inputs and labels")
            inputs, labels = arrays[inputs_name], arrays["labels"]
    except DataError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError, AttributeError, TypeError):
        raise DataError(
            f"{file.name} is no sound .npz file of numbers; write it again with numpy.savez_compressed"
        ) from None
    if inputs.dtype.kind not in "biuf":
        raise DataError(f"the inputs in {file.name} are {inputs.dtype}; they must be numbers")
    if divide_by != 1 and inputs.dtype.kind in "iu":
        inputs = inputs / np.float64(divide_by)
    made = as_taken(inputs, dtype)
    if made is None:
        raise DataError(f"{file.name}: {not_taken(inputs_name, dtype, divide_by)}")
    return checked(made, labels, file.name) if values is None else _with_values(made, labels, values, file.name)


def checked(inputs: Array, labels: Any, label: str = "the data") -> Labelled:
    """Refuses data whose labels do not go with its inputs."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"the labels of {label} must be one whole number per query, from 0")
    if not inputs.ndim or len(inputs) != len(labels):
        count = len(inputs) if inputs.ndim else 0
        raise DataError(f"{label} has {count} inputs but {len(labels)} labels; give every input its label")
    if not len(labels):
        raise DataError(f"{label} is empty; give at least one labelled query")
    return Labelled(inputs, labels.astype(np.int64), label)


def _with_values(inputs: Array, labels: Any, gives: OutputTensor, label: str) -> Labelled:
    """Refuses labels that are not the values of one answer for each of the inputs."""
    labels, count = np.asarray(labels), len(inputs) if inputs.ndim else 0
    if labels.dtype.kind not in "biuf" or labels.size != count * math.prod(gives.shape):
        raise DataError(
            f"the labels of {label} must be the true values of its {count} queries, {shape_text(gives.shape)} for each"
        )
    if not count:
        raise DataError(f"{label} is empty; give at least one labelled query")
    labels = labels.astype(np.float64).reshape(count, *gives.shape)
    if not np.isfinite(labels).all():
        raise DataError(f"the labels of {label} must be finite numbers")
    return Labelled(inputs, labels, label)


def measured(
    model: Model, data: Labelled, gives: OutputTensor, *, batch: int = BATCH, progress: Progress | None = None
) -> Evaluation:
    """How good a model is whose answers are such."""
    if gives.kind is not OutputKind.VALUES:
        is_probable, asked = gives.kind is OutputKind.PROBABILITIES, gives.name
        return evaluate(
            *(model, data, gives.classes), output=asked, batch=batch, progress=progress, gives_probabilities=is_probable
        )
    right = 0
    for first, values in _answers(model, data, gives.name, batch, progress):
        true_values = data.labels[first : first + len(values)]
        if values.shape != true_values.shape:
            raise BackendError(f"the model gives {values.shape[1:]} per query, not {gives.shape}; export it again")
        right += int(gives.are_right(values, true_values).sum())
    return Evaluation(right / len(data.labels), (), np.zeros((0, 0), np.int64), len(data.labels))


def evaluate(
    model: Model,
    data: Labelled,
    classes: int | None = None,
    *,
    output: str | None = None,
    batch: int = BATCH,
    progress: Progress | None = None,
    gives_probabilities: bool = False,
) -> Evaluation:
    """Runs all of the data through the model. Its answer is the largest number of the tensor `output`; a model that
    gives one tensor alone needs no name.
    """
    answers: list[NDArray[np.int64]] = []
    quadratic: list[NDArray[np.float64]] = []
    given = classes
    for first, scores in _answers(model, data, output, batch, progress):
        if scores.ndim != 2:
            raise BackendError(f"accuracy needs one number per class; the model gives {scores.shape[1:]} per query")
        classes = scores.shape[1]
        answers.append(scores.argmax(axis=1))
        if gives_probabilities and data.labels.min() >= 0 and data.labels.max() < classes:
            quadratic.append(quadratic_scores(scores, data.labels[first : first + len(scores)]))
    assert classes is not None
    if given is not None and classes != given:
        raise BackendError(f"the model gives {classes} numbers per query for {given} classes; export it again")
    evaluation = tallied(data, np.concatenate(answers), classes)
    if not quadratic:
        return evaluation
    by_class = np.bincount(data.labels, np.concatenate(quadratic), minlength=classes)
    seen = np.bincount(data.labels, minlength=classes)
    means = tuple(float(value / count) if count else None for value, count in zip(by_class, seen, strict=True))
    return replace(evaluation, quadratic=means)


def _answers(
    model: Model, data: Labelled, output: str | None, batch: int, progress: Progress | None
) -> Iterator[tuple[int, Array]]:
    """What the model answers, batch by batch, each with the place of its first query."""
    if len(model.inputs) != 1:
        raise BackendError(f"accuracy is measured on models of one input; this one has {len(model.inputs)}")
    spec = model.inputs[0]
    if not spec.fits(data.inputs.shape[1:]):
        shape = "(" + ", ".join(map(str, ("batch", *data.inputs.shape[1:]))) + ")"
        raise DataError(
            f"the inputs in {data.label} have shape {shape}, but the model takes {spec.shape_text()}; "
            f"resize the data or name the array made for this variant"
        )
    size = model.fixed_batch or batch
    total = len(data.labels)
    for first in range(0, total, size):
        rows = data.inputs[first : first + size]
        count = len(rows)
        if model.fixed_batch is not None and count < size:
            rows = np.concatenate([rows, np.repeat(rows[-1:], size - count, axis=0)])
        try:
            outputs = run_batch(model, {spec.name: np.ascontiguousarray(rows)})
        except BatchFailure as failure:
            where = "" if failure.position is None else f" (query {first + failure.position} of {data.label})"
            raise BackendError(f"{failure.reason}{where}") from None
        yield first, _chosen(outputs, output)[:count]
        if progress is not None:
            progress(min(1.0, (first + count) / total))


def _chosen(outputs: Mapping[str, Array], output: str | None) -> Array:
    """A model may give more tensors than the answer, in any order."""
    if output is None and len(outputs) == 1:
        return next(iter(outputs.values()))
    if output is None or output not in outputs:
        wanted = "say which of them is the answer" if output is None else f"there is no {output}"
        raise BackendError(f"the model gives {', '.join(outputs)}; {wanted}")
    return outputs[output]


def tallied(data: Labelled, answers: NDArray[np.int64], classes: int) -> Evaluation:
    """Truth against answers."""
    lowest, highest = int(data.labels.min()), int(data.labels.max())
    if lowest < 0 or highest >= classes:
        raise DataError(f"{data.label} has labels from {lowest} to {highest}, but there are {classes} classes, from 0")
    if classes > MAX_CLASSES:
        raise DataError(f"{classes} classes are too many to count; at most {MAX_CLASSES}")
    is_right = answers == data.labels
    seen = np.bincount(data.labels, minlength=classes)
    hits = np.bincount(data.labels[is_right], minlength=classes)
    recall = tuple(float(hit / count) if count else None for hit, count in zip(hits, seen, strict=True))
    confusion = np.zeros((0, 0), dtype=np.int64)
    if classes <= MAX_CONFUSION_CLASSES:
        cells = np.bincount(data.labels * classes + answers, minlength=classes * classes)
        confusion = cells.reshape(classes, classes).astype(np.int64)
    return Evaluation(float(is_right.mean()), recall, confusion, len(data.labels))
