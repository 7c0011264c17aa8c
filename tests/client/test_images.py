"""A client's images made smaller and encoded."""

from __future__ import annotations

import io

import numpy as np
import pytest

from stretto.client.images import CannotEncode, encoded, resized

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'stretto[images]'")


def test_resized_is_the_mean_of_the_area() -> None:
    rows = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    assert resized(rows, 2).tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]
    assert resized(rows, (1, 4)).tolist() == [[[[6, 7, 8, 9]]]]


@pytest.mark.parametrize("channels", [1, 3])
def test_png_brings_back_what_was_encoded(channels: int) -> None:
    rows = np.random.default_rng(1).integers(0, 256, (2, channels, 5, 7), np.uint8)
    for row, data in zip(rows, encoded(rows, "png"), strict=True):
        image = Image.open(io.BytesIO(data))
        assert (image.format, image.size) == ("PNG", (7, 5))
        back = np.asarray(image)
        assert (back[None] if channels == 1 else back.transpose(2, 0, 1)).tolist() == row.tolist()


def test_fractions_are_scaled_to_bytes() -> None:
    rows = np.array([[[0.0, 0.5], [1.0, 1.5]]], np.float32)
    assert np.asarray(Image.open(io.BytesIO(encoded(rows, "png")[0]))).tolist() == [[0, 128], [255, 255]]
    assert np.asarray(Image.open(io.BytesIO(encoded(rows * 10, "png", white=10)[0]))).tolist() == [[0, 128], [255, 255]]


def test_jpeg_is_smaller_with_less_quality() -> None:
    rows = np.random.default_rng(1).random((1, 3, 64, 64)).astype(np.float32)
    sizes = [len(encoded(rows, "jpeg", quality)[0]) for quality in (95, 50, 10)]
    assert sizes == sorted(sizes, reverse=True)
    assert Image.open(io.BytesIO(encoded(rows, "jpeg")[0])).size == (64, 64)


@pytest.mark.parametrize(
    ("shape", "encoding", "quality", "why"),
    [
        ((1, 2, 4, 4), "png", 90, "not [1, 2, 4, 4]"),
        ((4,), "png", 90, "not [4]"),
        ((1, 4, 4), "gif", 90, "jpeg, png"),
        ((1, 4, 4), "jpeg", 0, "from 1 to 100"),
    ],
)
def test_what_cannot_be_encoded_is_told(shape: tuple[int, ...], encoding: str, quality: int, why: str) -> None:
    with pytest.raises(CannotEncode, match=why.replace("[", r"\[").replace("]", r"\]")):
        encoded(np.zeros(shape, np.uint8), encoding, quality)


def test_a_size_without_pixels_is_refused() -> None:
    with pytest.raises(CannotEncode, match="not 0 × 0"):
        resized(np.zeros((1, 4, 4)), 0)
