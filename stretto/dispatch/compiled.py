"""The decorator for compiled functions, and how compiled code reaches the arrays of a state.

Compiled code is cached on disk. Numba notices a change of the function's own file only, not of the functions it calls,
so the cache folder is named after the source of every compiled file: a changed rule can never run from an old cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])

_PACKAGE = Path(__file__).resolve().parent.parent
KEPT_CACHES = 8


def _source_digest() -> str:
    digest = hashlib.sha256()
    enums = [_PACKAGE / "core" / "plan.py", _PACKAGE / "core" / "outcome.py"]  # compiled into the rules as constants
    for path in enums + sorted([*(_PACKAGE / "dispatch").glob("*.py"), *(_PACKAGE / "sim").glob("*.py")]):
        source = path.read_bytes()
        if b"@compiled" in source or path in enums:
            digest.update(source)
    return digest.hexdigest()[:16]


def _cache_folder() -> str:
    """Beside the user's other caches; STRETTO_CACHE_DIR moves it."""
    root = os.environ.get("STRETTO_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache"), "stretto"
    )
    return os.path.join(root, f"numba-{_source_digest()}")


def _forget_old_caches(folder: str) -> None:
    """Keep the caches of the last few versions; a version in use that loses its cache compiles again."""
    try:
        caches = sorted(Path(folder).parent.glob("numba-*"), key=lambda path: path.stat().st_mtime)
    except OSError:
        return  # another process is at it
    for path in caches[:-KEPT_CACHES]:
        shutil.rmtree(path, ignore_errors=True)


if "NUMBA_CACHE_DIR" not in os.environ:
    numba.config.CACHE_DIR = _cache_folder()
    if not os.path.isdir(numba.config.CACHE_DIR):
        _forget_old_caches(numba.config.CACHE_DIR)


def compiled(function: Function) -> Function:
    """Compile on first call, cache on disk, release the GIL, fail on division by zero as C does."""
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))


@intrinsic  # type: ignore[untyped-decorator]
def pointer(typingctx: Any, address: Any) -> Any:
    """An address kept in a record, as something `numba.carray` can read."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.uint64), generate
