"""From a query to a vector: the raw input or a named layer of a variant, perhaps projected onto fewer dimensions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.backends.model import Array
from stretto.backends.onnx_layer import OnnxLayer
from stretto.core.errors import StrettoError
from stretto.repository.application import ApplicationFiles

FITTED_ROWS = 20_000  # as many as a projection needs
WIDE = 4096  # from here on the rows are few beside the columns
WIDE_ROWS = 2000
AT_ONCE = 2048  # queries

Floats = NDArray[np.float32]
Source = Callable[[Array], Floats]


@dataclass(frozen=True, eq=False)
class Projection:
    """(x − mean) · componentsᵀ"""

    mean: Floats
    components: Floats

    def __call__(self, rows: Floats) -> Floats:
        return np.asarray((rows - self.mean) @ self.components.T, np.float32)


@dataclass(frozen=True, eq=False)
class Features:
    """What an index is searched with. May be called from several threads at once."""

    source: Source
    projection: Projection | None = None

    def __call__(self, inputs: Array) -> Floats:
        parts = [self._some(inputs[first : first + AT_ONCE]) for first in range(0, len(inputs), AT_ONCE)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _some(self, inputs: Array) -> Floats:
        rows = self.source(inputs)
        return np.ascontiguousarray(rows if self.projection is None else self.projection(rows), dtype=np.float32)


def flat(inputs: Array) -> Floats:
    """The input as it is, one row a query."""
    return inputs.reshape(len(inputs), -1).astype(np.float32, copy=False)


def source_of(application: ApplicationFiles, variant: str | None, layer: str | None) -> Source:
    """The raw input, or the layer of a variant, which must take inputs as clients send them."""
    if layer is None:
        return flat
    files = application.variant(str(variant))
    if files.backend != "onnx" or files.file is None:
        raise StrettoError(f"variant {files.name} of {application.name} is no ONNX model; only those have named layers")
    if files.input_shape != application.input.shape:
        raise StrettoError(f"variant {files.name} of {application.name} takes another input size than clients send")
    takes = application.input
    return OnnxLayer(files.file, takes.name, layer, divide_by=takes.divide_by if takes.stays_bytes else None)


def fit_projection(rows: Floats, dimensions: int, seed: int = 0) -> Projection:
    """Principal components of the rows, or of as many of them as tell enough."""
    count, width = rows.shape
    dimensions = min(dimensions, width, max(1, count - 1))
    most = FITTED_ROWS if width <= WIDE else WIDE_ROWS
    if count > most:
        rows = rows[np.sort(np.random.default_rng(seed).choice(count, most, replace=False))]
    mean = rows.mean(axis=0, dtype=np.float64)
    centred = rows - mean
    if width <= WIDE:
        _, vectors = np.linalg.eigh(centred.T @ centred)
        components = vectors[:, ::-1][:, :dimensions].T
    else:  # the same components from the small matrix of products between rows
        values, vectors = np.linalg.eigh(centred @ centred.T)
        lengths = np.sqrt(np.maximum(values[::-1][:dimensions], 1e-12))
        components = (vectors[:, ::-1][:, :dimensions].T @ centred) / lengths[:, None]
    # Either direction of a component is as good; one of them, so that the same data give the same file.
    largest = components[np.arange(len(components)), np.abs(components).argmax(axis=1)]
    components = components * np.where(largest < 0, -1.0, 1.0)[:, None]
    # Half precision is what is stored, so it is also what everything here is measured with.
    return Projection(mean.astype(np.float32), components.astype(np.float16).astype(np.float32))
