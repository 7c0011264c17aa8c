"""The accuracy of a variant on images sent at each size that clients may choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from stretto.backends.adapt import Adapter
from stretto.backends.model import Array, Model
from stretto.core.resize import resized
from stretto.profiling.accuracy import BATCH, DataError, Labelled, Progress, measured
from stretto.repository.application import ApplicationFiles
from stretto.repository.images import size_text
from stretto.repository.tensors import InputTensor, Size, shape_text
from stretto.repository.variant import VariantFiles


def accuracy_at_sizes(
    model: Model,
    application: ApplicationFiles,
    variant: VariantFiles,
    data: Labelled,
    *,
    batch: int = BATCH,
    progress: Progress | None = None,
) -> dict[Size, float]:
    """`data` are queries of the application's own shape; each is made smaller as a client does it, and then made what
    the variant takes as a worker does it.
    """
    takes = application.input
    if data.inputs.shape[1:] != takes.shape:
        raise DataError(
            f"the inputs in {data.label} are {shape_text(data.inputs.shape[1:])}; to measure the accuracy at other "
            f"sizes they must be {shape_text(takes.shape)}, as clients send them"
        )
    adapter = Adapter(takes.shapes, variant.input_shape)
    accuracies: dict[Size, float] = {}
    for number, size in enumerate(takes.sizes):
        if progress is not None:
            progress(number / len(takes.sizes))
        rows = adapter(as_sent(data.inputs, takes, size))
        sent = replace(data, inputs=rows)
        accuracies[size] = measured(model, sent, application.output, batch=batch).accuracy
    return accuracies


def as_sent(inputs: Array, takes: InputTensor, size: Size) -> Array:
    """At this size, and rounded to bytes where images may come as bytes."""
    rows = resized(inputs, *size)
    if takes.divide_by is None or rows.dtype.kind != "f":
        return rows
    return (np.rint(rows * takes.divide_by) / takes.divide_by).astype(rows.dtype)


def as_json(accuracies: Mapping[Size, float]) -> dict[str, float]:
    return {size_text(size): round(accuracy, 6) for size, accuracy in accuracies.items()}
