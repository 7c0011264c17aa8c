"""Queries of any size that clients may send are made what the variant takes, as the zoo's own images were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.backends.adapt import Adapter
from stretto.backends.model import BackendError
from stretto.core.resize import area_weights
from stretto.repository.read import read_repository


@pytest.mark.parametrize("size", [8, 12, 16, 20, 24])
def test_the_zoo_s_own_smaller_images(size: int) -> None:
    """They are kept as bytes, so they differ by rounding only."""
    with np.load(read_repository("zoo:fashion_resolution").applications[0].folder / "sample.npz") as stored:
        images = stored["inputs"].astype(np.float32) / np.float32(255)
        kept = stored[f"inputs_px{size:02}"].astype(np.float32) / np.float32(255)
    made = Adapter(((1, 28, 28),), (1, size, size))(images)
    assert made.shape == kept.shape and made.dtype == np.float32
    assert np.abs(made - kept).max() <= 1 / 255


@given(source=st.integers(1, 40), target=st.integers(1, 40))
def test_weights_are_shares_of_the_area(source: int, target: int) -> None:
    weights = area_weights(source, target)
    assert weights.shape == (target, source) and (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=0), target / source, atol=1e-4)


def test_one_adapter_takes_every_size() -> None:
    image = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    adapter = Adapter(((1, 4, 4), (1, 2, 2), (1, 1, 1)), (1, 2, 2))
    halved = adapter(image)
    np.testing.assert_allclose(halved[0, 0], [[2.5, 4.5], [10.5, 12.5]])
    assert adapter(halved) is halved
    np.testing.assert_allclose(adapter(image[:, :, :1, 3:]), np.full((1, 1, 2, 2), 3.0), rtol=1e-6)


def test_whole_numbers_stay_whole() -> None:
    image = np.array([[[[0, 255], [255, 255]]]], np.uint8)
    made = Adapter(((1, 2, 2),), (1, 1, 1))(image)
    assert made.dtype == np.uint8 and made.tolist() == [[[[191]]]]


@pytest.mark.parametrize(("source", "target"), [((4,), (2,)), ((1, 4, 4), (3, 2, 2)), ((4, 4), (1, 4, 4)), ((), ())])
def test_only_images_are_fitted(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    with pytest.raises(BackendError, match="only images are made larger or smaller"):
        Adapter((source,), target)
