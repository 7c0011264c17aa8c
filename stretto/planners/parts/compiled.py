"""The decorator for the compiled loops of planners.

Numba renews its cache when the file of a function changes, not when the file of a function that it calls does. So the
cache of a folder's loops is named after the source of all of them: none can run from an old cache.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile on first call, cache on disk, release the GIL. It may call compiled functions of its own folder."""
    others = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _cache_folder(Path(function.__code__.co_filename).resolve().parent)
    try:  # the setting is read while the function is decorated
        return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
    finally:
        numba.config.CACHE_DIR = others


@cache
def _cache_folder(folder: Path) -> str:
    """Where Numba was told to keep it, else beside the user's other caches; STRETTO_CACHE_DIR moves it."""
    root = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("STRETTO_CACHE_DIR")
    if not root:
        caches = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        root = os.path.join(caches, "stretto")
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        source = path.read_bytes()
        if b"@compiled" in source:
            digest.update(source)
    return os.path.join(root, f"{folder.name}-{digest.hexdigest()[:16]}")
