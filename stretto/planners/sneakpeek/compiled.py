"""The decorator for the compiled loops of this package.

Numba renews its cache when the file of a function changes, not when the file of a function that it calls does. So the
cache of these loops is in a folder named after the source of all of them: none can run from an old cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def _source_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).resolve().parent.glob("*.py")):
        source = path.read_bytes()
        if b"@compiled" in source:
            digest.update(source)
    return digest.hexdigest()[:16]


def _cache_folder() -> str:
    """Within the folder that Numba was told to use, else beside the user's other caches; STRETTO_CACHE_DIR moves it."""
    root = numba.config.CACHE_DIR or os.environ.get("STRETTO_CACHE_DIR")
    if not root:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        root = os.path.join(caches, "stretto")
    return os.path.join(root, f"sneakpeek-{_source_digest()}")


_FOLDER = _cache_folder()


def compiled(function: Function) -> Function:
    """Compile on first call, cache on disk, release the GIL."""
    others = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _FOLDER  # read while the function is decorated
    try:
        return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    finally:
        numba.config.CACHE_DIR = others
