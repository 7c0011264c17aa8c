"""The requests of a load, encoded once, and what their answers are held against."""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.client.address import Endpoint
from stretto.client.asking import Wish, infer_request
from stretto.client.load.spec import LoadSpec
from stretto.client.metadata import ApplicationMetadata
from stretto.client.tensors import Array
from stretto.core.errors import StrettoError

MAX_FILE_BYTES = 2**30
MAX_ENCODED_BYTES = 256_000_000  # of all requests together; beyond that, fewer samples are used


@dataclass(frozen=True, eq=False)
class Requests:
    """`encoded[i]` is head and body of one request; `labels[i]` are the classes of its rows, or None."""

    encoded: list[bytes]
    labels: list[tuple[int, ...]] | None


def labelled_sample(application: str) -> tuple[Array, NDArray[np.int64]]:
    """The sample of the zoo's application of that name."""
    from stretto.repository.read import read_repository

    sample = read_repository(f"zoo:{application}").applications[0].sample()
    return sample.inputs, sample.labels


def labelled_file(path: Path) -> tuple[Array, NDArray[np.int64] | None]:
    """`inputs` and, where there are any, `labels` of an .npz file; an .npy file is inputs alone. Pickles are not read."""
    arrays = read_arrays(path)
    inputs, labels = arrays.get("inputs"), arrays.get("labels")
    if inputs is None:
        raise StrettoError(f"{path}: holds no array inputs; write it with numpy.savez(file, inputs=…, labels=…)")
    if inputs.ndim < 1 or not len(inputs):
        raise StrettoError(f"{path}: inputs holds no query")
    if labels is not None:
        if labels.dtype.kind not in "iu" or labels.shape != inputs.shape[:1]:
            raise StrettoError(f"{path}: labels must be one whole number for each of the {len(inputs)} inputs")
        labels = labels.astype(np.int64)
    return inputs, labels


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name; that of an .npy file as `inputs`."""
    try:
        if not path.is_file():
            raise StrettoError(f"{path}: there is no such file")
        if os.path.getsize(path) > MAX_FILE_BYTES:
            raise StrettoError(f"{path}: is larger than {MAX_FILE_BYTES >> 20} MiB")
        loaded: Any = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"inputs": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except StrettoError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError):
        raise StrettoError(f"{path}: is no .npy or .npz file of numbers") from None


def encoded_requests(
    spec: LoadSpec,
    endpoint: Endpoint,
    metadata: ApplicationMetadata,
    inputs: Array,
    labels: NDArray[np.int64] | None,
) -> Requests:
    """Each request has the next `rows` samples, beginning anew after the last one."""
    if len(metadata.inputs) != 1:
        raise StrettoError(f"application {spec.application} takes {len(metadata.inputs)} inputs; a load sends just one")
    if labels is not None and labels.shape != inputs.shape[:1]:
        raise StrettoError(f"there are {len(labels)} labels for {len(inputs)} inputs")
    wish = Wish(deadline_ms=spec.deadline_ms, version=spec.version, min_accuracy=spec.min_accuracy)
    encoded: list[bytes] = []
    truths: list[tuple[int, ...]] = []
    size = 0
    for first in range(0, len(inputs), spec.rows):
        chosen = np.arange(first, first + spec.rows) % len(inputs)
        encoded.append(infer_request(endpoint, spec.application, metadata, inputs[chosen], wish).joined())
        if labels is not None:
            truths.append(tuple(labels[chosen].tolist()))
        size += len(encoded[-1])
        if size > MAX_ENCODED_BYTES:
            break
    return Requests(encoded, truths if labels is not None else None)
