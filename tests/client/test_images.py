"""A client's images made smaller and encoded."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from stretto.client import images
from stretto.client.images import CannotEncode, encoded, resized
from stretto.core import resize

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


@pytest.fixture
def without_pillow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "PIL", None)
    images._pillow.cache_clear()
    yield
    images._pillow.cache_clear()


def frame(height: int, width: int, dtype: type = np.uint8) -> np.ndarray:
    """Of a camera: a pixel is like its neighbours."""
    coarse = np.random.default_rng(5).random((3, height // 40, width // 40)).astype(np.float32)
    return (resize.resized(coarse, height, width) * 255).astype(dtype)


def covered(old: int, new: int) -> list[np.ndarray]:
    """By new pixel, the old ones whose centres it covers."""
    centres = (np.arange(old) + 0.5) * new / old
    return [np.flatnonzero((centres > place) & (centres <= place + 1)) for place in range(new)]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("size", [(416, 416), (360, 640), (240, 426)])
def test_a_large_frame_is_made_smaller_as_by_area(dtype: type, size: tuple[int, int]) -> None:
    rows = frame(1080, 1920, dtype)
    made = resized(rows, size)
    assert made.shape == (3, *size) and made.dtype == dtype
    exact = resize.resized(rows, *size).astype(np.float64)
    off = np.abs(made.astype(np.float64) - exact)
    assert off.max() <= (1 if 1080 % size[0] == 0 and 1920 % size[1] == 0 else 6) and off.mean() < 1
    along_rows, along_columns = covered(1080, size[0]), covered(1920, size[1])
    for row, column in ((0, 0), (57, 101), (size[0] - 1, size[1] - 1)):
        area = rows[1][np.ix_(along_rows[row], along_columns[column])]
        assert made[1, row, column] == pytest.approx(area.mean(), abs=1.01)


def test_a_frame_that_a_camera_turned_is_read_as_it_lies() -> None:
    rows = frame(1080, 1920)
    turned = np.ascontiguousarray(rows.transpose(1, 2, 0)).transpose(2, 0, 1)
    assert not turned.flags.c_contiguous
    np.testing.assert_array_equal(resized(turned, 320), resized(rows, 320))


def test_small_images_are_resized_as_workers_do_it() -> None:
    """The zoo's models were trained with such images, in which half a pixel counts."""
    rows = frame(280, 320)
    np.testing.assert_array_equal(resized(rows, (100, 110)), resize.resized(rows, 100, 110))
    large = frame(1080, 1920)
    np.testing.assert_array_equal(resized(large, (800, 1000)), resize.resized(large, 800, 1000))


@pytest.mark.usefixtures("without_pillow")
def test_without_pillow_numpy_makes_large_frames_smaller() -> None:
    rows = frame(480, 640)
    np.testing.assert_array_equal(resized(rows, 96), resize.resized(rows, 96, 96))


def test_pillow_takes_a_part_of_the_time() -> None:
    """1080p to 416 took 60 ms by products of matrices, more than half of many an SLO."""
    rows = frame(1080, 1920)

    def best_s(work: Callable[[], object]) -> float:
        def once() -> float:
            began = time.thread_time()
            work()
            return time.thread_time() - began

        return min(once() for _ in range(5))

    by_pillow, by_numpy = best_s(lambda: resized(rows, 416)), best_s(lambda: resize.resized(rows, 416, 416))
    assert by_pillow < by_numpy / 2
