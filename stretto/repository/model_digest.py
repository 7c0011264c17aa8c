"""What a model is known by: a digest of its file and of every file beside it that holds its weights."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

from stretto.config.fields import ConfigError
from stretto.core.errors import StrettoError
from stretto.repository.onnx_header import external_files
from stretto.repository.profiles import file_sha256


def model_file_sha256(path: Path) -> str:
    """Of the model as it is now. That of the file alone where nothing lies beside it."""
    digest = file_sha256(path)
    beside = [file_sha256(path.parent / name) for name in _beside(path)]
    return hashlib.sha256(" ".join([digest, *beside]).encode()).hexdigest() if beside else digest


def _beside(path: Path) -> tuple[str, ...]:
    if path.suffix.lower() != ".onnx":
        return ()
    try:
        status = path.stat()
        return _external(path, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read ({error.strerror or 'input error'})") from None


@lru_cache(maxsize=4096)
def _external(path: Path, size: int, changed_ns: int) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            return external_files(file)
    except StrettoError:  # it is no model, or none that is loaded: whoever reads it says so
        return ()
