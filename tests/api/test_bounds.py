"""Whether values lie within bounds: the compiled way and numpy's say the same."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.api.bounds import are_finite, are_within, rehearse_bounds
from stretto.api.within import finite, within


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int32, np.uint8, np.bool_])
def test_every_type(dtype: type) -> None:
    array = np.array([[0, 1], [1, 1]], dtype)
    assert are_within(array, 0.0, 1.0)
    assert not are_within(array, 0.5, 1.0)
    assert not are_within(array, 0.0, 0.5)
    assert are_within(array, -np.inf, np.inf)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.001, -0.001])
@pytest.mark.parametrize("place", [0, 17, 783])
def test_one_value_in_the_wrong(dtype: type, value: float, place: int) -> None:
    array = np.full(784, 0.5, dtype)
    array[place] = value
    assert not are_within(array.reshape(1, 1, 28, 28), 0.0, 1.0)
    if np.isnan(value):
        assert not are_within(array, -np.inf, np.inf)


def test_arrays_of_every_layout() -> None:
    data = b"\x00" + np.full(784, 0.5, np.float32).tobytes()
    lent = np.frombuffer(memoryview(data)[1:], np.float32)
    assert not lent.flags.aligned and not lent.flags.writeable
    assert are_within(lent, 0.0, 1.0) and not are_within(lent, 0.6, 1.0)
    turned = np.full((28, 28), 0.5, np.float32)[::2].T
    assert are_within(turned, 0.0, 1.0) and not are_within(turned, 0.6, 1.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("size", [1, 3, 8, 1000, 50_000])
def test_what_is_not_finite_is_found_wherever_it_is(dtype: type, size: int) -> None:
    largest, smallest = np.finfo(dtype).max, np.finfo(dtype).tiny
    sound = np.resize(np.array([0.0, -0.0, 1.5, -largest, largest, smallest], dtype), size)
    assert are_finite(sound) and are_finite(sound.reshape(1, size)) and are_finite(sound[::2])
    for place in {0, size // 2, size - 1}:
        for value in (np.nan, -np.nan, np.inf, -np.inf):
            spoilt = sound.copy()
            spoilt[place] = value
            assert not are_finite(spoilt), (place, value)
            assert not are_within(spoilt, -largest, largest)


def test_a_request_finds_it_compiled() -> None:
    rehearse_bounds()
    known = len(within.signatures) + len(finite.signatures)
    for array in (np.zeros((2, 3), np.float32), np.frombuffer(bytes(24), np.float32).reshape(2, 3)):
        are_within(array, 0.0, 1.0)
        are_within(array, -np.inf, np.inf)
        assert are_finite(array)
    assert len(within.signatures) + len(finite.signatures) == known
