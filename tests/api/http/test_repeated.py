"""A body that says what was said before gives its tensor; whatever differs is left to the whole reader."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from stretto.api.http.repeated import LONG_TEXT, Repeated
from stretto.api.messages import Terms

TERMS = cast(Terms, None)  # not looked at
BEFORE, AFTER = b'{"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[', b']}],"parameters":{"priority":1}}'


def listed() -> Repeated:
    return Repeated(TERMS, BEFORE, AFTER, np.dtype("<f4"), (2, 2), 4, 0)


def raw(elements: int = 4) -> Repeated:
    return Repeated(TERMS, b'{"raw":1}', b"", np.dtype("<f4"), (1, elements), elements, 4 * elements)


def test_numbers_between_the_same_words() -> None:
    found = listed().tensor(BEFORE + b"1, 2.5,-3,4e1" + AFTER)
    assert found is not None and found.dtype == np.float32 and found.tolist() == [[1.0, 2.5], [-3.0, 40.0]]
    assert np.array_equal(found, cast(Any, listed().tensor(memoryview(BEFORE + b"1,2.5,-3,40" + AFTER))))


@pytest.mark.parametrize(
    "body",
    [
        BEFORE + b"1,2,3" + AFTER,
        BEFORE + b"1,2,3,4,5" + AFTER,
        BEFORE + b"[1,2],[3,4]" + AFTER,
        BEFORE + b'1,2,3,4],"more":[5' + AFTER,
        BEFORE + AFTER,
        BEFORE + b"1,2,3,4" + AFTER.replace(b"1", b"2"),
        BEFORE.replace(b"x", b"y") + b"1,2,3,4" + AFTER,
        BEFORE + b"1,2,3,4" + AFTER + b" ",
        BEFORE + AFTER[1:],
        BEFORE[:-1] + AFTER,
        BEFORE,
        AFTER,
        b"",
        BEFORE + b"1,2,3,4" + b" " * LONG_TEXT + AFTER,
    ],
)
def test_other_words_or_other_numbers_are_read_as_a_whole(body: bytes) -> None:
    assert listed().tensor(body) is None


def test_words_that_overlap_are_not_taken_for_both() -> None:
    said = Repeated(TERMS, b'"data":[]', b"]}", np.dtype("<f4"), (1,), 1, 0)
    assert said.tensor(b'"data":[]}') is None


@pytest.mark.parametrize("elements", [4, LONG_TEXT])
def test_raw_numbers_behind_the_same_words(elements: int) -> None:
    values = np.arange(elements, dtype="<f4")
    body = b'{"raw":1}' + values.tobytes()
    found = raw(elements).tensor(body)
    assert found is not None and found.shape == (1, elements) and np.array_equal(found[0], values)
    for other in (body[:-4], body + b"1234", body[:9], b'{"raw":2}' + values.tobytes(), b""):
        assert raw(elements).tensor(other) is None


def test_lent_memory_is_held_as_long_as_the_tensor() -> None:
    """A body's memory is given to another request when nobody views it any more."""
    memory = bytearray(b'{"raw":1}' + bytes(4 * LONG_TEXT))
    found = raw(LONG_TEXT).tensor(memoryview(memory))
    assert found is not None
    with pytest.raises(BufferError):
        memory.clear()
