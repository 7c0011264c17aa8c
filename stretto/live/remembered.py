"""Models that passed their probation, remembered from one start to the next in the user's cache.

What is remembered is a digest of the model's content, of how it is to be run, and of the libraries that run it: another
file, thread count or library is tried anew. Models with code of their own are never remembered, because no digest of a
file says what their code does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from functools import cache
from importlib import metadata
from pathlib import Path

from stretto.core.compile_cache import user_folder
from stretto.core.errors import StrettoError
from stretto.live.frames import spec_as_text
from stretto.live.shelf import ModelSpec
from stretto.repository.model_digest import model_file_sha256

MOST = 4096  # the oldest give way
LIBRARIES = ("stretto", "numpy", "onnxruntime", "onnxruntime-gpu", "torch")


class Remembered:
    """A folder with an empty file for each digest. One that cannot be read or written is as good as none."""

    def __init__(self, folder: Path | None = None):
        self._folder = folder or user_folder().parent / "probation"

    def has(self, spec: ModelSpec) -> bool:
        digest = digest_of(spec)
        with contextlib.suppress(OSError):
            return digest is not None and (self._folder / digest).is_file()
        return False

    def add(self, spec: ModelSpec) -> None:
        digest = digest_of(spec)
        if digest is None:
            return
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / digest).touch()
            self._forget_oldest()

    def discard(self, spec: ModelSpec) -> None:
        """It did wrong all the same: the next start tries it anew."""
        digest = digest_of(spec)
        if digest is not None:
            with contextlib.suppress(OSError):
                (self._folder / digest).unlink()

    def _forget_oldest(self) -> None:
        files = list(os.scandir(self._folder))
        if len(files) > MOST:
            for entry in sorted(files, key=lambda entry: entry.stat().st_mtime)[: len(files) - MOST]:
                os.unlink(entry.path)


def digest_of(spec: ModelSpec) -> str | None:
    """None where no digest can say what the model is: it has code of its own, or its file is gone."""
    source = spec.source
    if source.file is None or source.code is not None:
        return None
    try:
        model = model_file_sha256(source.file)
    except StrettoError:  # it is gone; whoever loads it says so
        return None
    content = json.loads(spec_as_text(spec))
    where = source.device.partition(":")[0]  # whichever GPU it is
    content["source"] |= {"file": model, "folder": None, "device": where}  # wherever they lie
    text = json.dumps([content, _libraries()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def _libraries() -> list[str]:
    versions = [platform.python_version(), platform.machine(), platform.system()]
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return versions
