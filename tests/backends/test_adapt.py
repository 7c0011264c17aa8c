"""Images are made larger or smaller by area, as the zoo's own were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.backends.adapt import Adapter, area_weights
from stretto.backends.model import BackendError
from stretto.repository.read import read_repository


@pytest.mark.parametrize("size", [8, 12, 16, 20, 24])
def test_the_zoo_s_own_smaller_images(size: int) -> None:
    """They are kept as bytes, so they differ by rounding only."""
    with np.load(read_repository("zoo:fashion_resolution").applications[0].folder / "sample.npz") as stored:
        images = stored["inputs"].astype(np.float32) / np.float32(255)
        kept = stored[f"inputs_px{size:02}"].astype(np.float32) / np.float32(255)
    made = Adapter((1, 28, 28), (1, size, size))(images)
    assert made.shape == kept.shape and made.dtype == np.float32
    assert np.abs(made - kept).max() <= 1 / 255


@given(source=st.integers(1, 40), target=st.integers(1, 40))
def test_weights_are_shares_of_the_area(source: int, target: int) -> None:
    weights = area_weights(source, target)
    assert weights.shape == (target, source) and (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=0), target / source, atol=1e-4)


def test_whole_multiples_are_plain_means_and_repeats() -> None:
    image = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    np.testing.assert_allclose(Adapter((1, 4, 4), (1, 2, 2))(image)[0, 0], [[2.5, 4.5], [10.5, 12.5]])
    small = np.array([[[[1.0, 2.0]]]], np.float32)
    np.testing.assert_allclose(Adapter((1, 1, 2), (1, 2, 4))(small)[0, 0], [[1, 1, 2, 2]] * 2)
    np.testing.assert_array_equal(Adapter((1, 4, 4), (1, 4, 4))(image), image)


def test_whole_numbers_stay_whole() -> None:
    image = np.array([[[[0, 255], [255, 255]]]], np.uint8)
    made = Adapter((1, 2, 2), (1, 1, 1))(image)
    assert made.dtype == np.uint8 and made.tolist() == [[[[191]]]]


@pytest.mark.parametrize(("source", "target"), [((4,), (2,)), ((1, 4, 4), (3, 2, 2)), ((4, 4), (1, 4, 4)), ((), ())])
def test_only_images_are_fitted(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    with pytest.raises(BackendError, match="only images are made larger or smaller"):
        Adapter(source, target)
