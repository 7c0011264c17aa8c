"""The files of an ONNX model are read once, before any runtime sees them.

A runtime would map weights that lie beside a model, and whoever writes to a mapped file ends all processes that run the
model. So those are copied to a folder that only this user can write to, and mapped from there.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stretto.backends.model import BackendError
from stretto.core.errors import StrettoError
from stretto.repository.onnx_header import external_files

FOLDER_OF_WEIGHTS = "session.model_external_initializers_file_folder_path"  # for a model that is given as bytes


def read_model(file: Path) -> bytes:
    """The whole file."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise BackendError(f"{file.name} cannot be read ({error.strerror or 'input error'})") from None


@contextmanager
def weights_for(options: Any, file: Path, content: bytes) -> Iterator[None]:
    """While a session with these options is made of `content`: it finds its weights. BackendError, and no runtime has
    seen anything, where the model names a file outside its folder.
    """
    try:
        names = external_files(io.BytesIO(content))
    except StrettoError as error:
        raise BackendError(f"{file.name} {error}") from None
    if not names:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="stretto-weights-") as folder:
        for name in names:
            _copy(file, name, Path(folder, name))
        options.add_session_config_entry(FOLDER_OF_WEIGHTS, folder)
        yield


def _copy(file: Path, name: str, place: Path) -> None:
    try:
        source = (file.parent / name).open("rb")
    except OSError:
        raise BackendError(
            f"{file.name} keeps weights in {name}, which cannot be read; put that file beside the model"
        ) from None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with source, place.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
    except OSError as error:
        raise BackendError(
            f"{file.name} keeps weights in {name}, which cannot be copied to {tempfile.gettempdir()} "
            f"({error.strerror or 'input error'}); make room there, or name another folder in TMPDIR"
        ) from None
