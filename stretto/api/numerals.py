"""Numbers of JSON straight into an array. Compiled: a list of Python's own numbers in between would cost three times as
much. Whatever is not plain digits, a point and a short exponent is left to the whole reader of JSON.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from stretto.api.messages import Array


@cache
def _compiled_read() -> Any:
    from stretto.api.digits import read_numbers

    return read_numbers


def numbers_in(text: bytes, start: int, end: int, count: int) -> Array | None:
    """So many numbers, with commas between them, as float32; None where these bytes are not just that."""
    values = np.empty(count, np.float32)
    return values if _compiled_read()(text, start, end, values) == count else None
