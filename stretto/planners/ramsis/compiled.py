"""The decorator for the compiled loops of this package. A compiled function calls only functions of its own file.

Numba renews its cache when the file of a function changes, not when the file of a function that it calls does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile on first call, cache on disk, release the GIL."""
    return cast(Function, numba.njit(cache=True, nogil=True, error_model="numpy")(function))
