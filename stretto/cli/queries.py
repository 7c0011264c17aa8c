"""Queries to send: from a file, or from the sample of an application of the zoo."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.repository.read import read_repository

MAX_FILE_BYTES = 2**30

Array = NDArray[Any]


def zoo_sample(application: str) -> tuple[Array, NDArray[np.int64]]:
    """The sample of the zoo's application of that name."""
    sample = read_repository(f"zoo:{application}").applications[0].sample()
    return sample.inputs, sample.labels


def labelled_file(path: Path) -> tuple[Array, NDArray[np.int64] | None]:
    """`inputs` and perhaps `labels` of an .npz file; an .npy file is inputs alone. Pickles are not read."""
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
