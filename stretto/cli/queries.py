"""Queries to send: from a file, or from the sample of an application, the zoo's or one of your own."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.repository.application import ApplicationFiles
from stretto.repository.read import read_repository

MAX_FILE_BYTES = 2**30

Array = NDArray[Any]


def sampled_application(application: str, repository: str | None) -> ApplicationFiles:
    """The application of that name in a repository, which may be its own folder; in the zoo where none is given."""
    if repository is not None:
        return read_repository(repository).application(application)
    try:
        return read_repository(f"zoo:{application}").applications[0]
    except StrettoError as error:
        raise StrettoError(f"{error}; the sample of an application of your own needs --repository FOLDER") from None


def sample_of(application: str, repository: str | None = None) -> tuple[Array, NDArray[np.int64]]:
    """The sample of an application: queries as clients send them, and their classes."""
    sample = sampled_application(application, repository).sample()
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
