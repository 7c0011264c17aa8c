"""Headers of images, and their pixels: what Pillow writes is read, anything else is refused and never more."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stretto.api.errors import ApiError
from stretto.api.image_headers import PNG_START, BadImage, Header, picture_of, read_header
from stretto.api.images import Frames, read_frames, reading_us
from stretto.api.messages import InputTensor
from stretto.repository.tensors import InputTensor as Takes

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'stretto[images]'")
PngInfo = pytest.importorskip("PIL.PngImagePlugin").PngInfo


def written(image: Any, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def picture(mode: str, height: int = 6, width: int = 9) -> Any:
    shape = (height, width) if mode == "L" else (height, width, 3)
    pixels = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    return Image.fromarray(pixels)


def frames(data: bytes, encoding: str, shape: tuple[int, ...]) -> Frames:
    return Frames([data], encoding, shape, "input")


def takes(*shape: int, dtype: str = "float32", divide_by: float = 255.0) -> Takes:
    return Takes("input", dtype, shape, None, (), ("raw", "jpeg", "png"), divide_by)


@given(st.integers(1, 200), st.integers(1, 200), st.sampled_from(["L", "RGB"]), st.booleans())
def test_sizes_are_those_that_pillow_wrote(height: int, width: int, mode: str, progressive: bool) -> None:
    image = Image.new(mode, (width, height))
    assert read_header(written(image, "PNG"), "png") == Header(height, width)
    assert read_header(written(image, "JPEG", progressive=progressive), "jpeg") == Header(height, width)


@given(st.binary(max_size=300), st.sampled_from(["png", "jpeg"]), st.booleans())
@example(b"", "png", False)
@example(b"\xff" * 40, "jpeg", True)
def test_anything_else_is_refused(data: bytes, encoding: str, has_start: bool) -> None:
    start = PNG_START if encoding == "png" else b"\xff\xd8"
    data = start + data if has_start else data
    try:
        header = read_header(data, encoding)
        assert header.height >= 0 and header.width >= 0
        read_frames(takes(1, 6, 9), frames(data, encoding, (1, 6, 9)))
    except (BadImage, ApiError):
        pass


@given(st.integers(0, 2**32 - 1), st.sampled_from(["PNG", "JPEG"]))
def test_damage_is_refused_or_read(seed: int, kind: str) -> None:
    random = np.random.default_rng(seed)
    data = bytearray(written(picture("RGB"), kind))
    for place in random.integers(0, len(data), 4):
        data[place] = random.integers(0, 256)
    try:
        read_header(bytes(data), kind.lower())
        made = read_frames(takes(3, 6, 9), frames(bytes(data), kind.lower(), (3, 6, 9)))
        assert made.shape == (1, 3, 6, 9) and np.isfinite(made).all()
    except (BadImage, ApiError):
        pass


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA"])
def test_every_kind_of_png_becomes_what_the_application_takes(mode: str) -> None:
    image = picture("RGB").convert(mode)
    for channels, name in ((1, "L"), (3, "RGB")):
        expected = np.asarray(image.convert(name))
        expected = expected[None] if channels == 1 else expected.transpose(2, 0, 1)
        made = read_frames(takes(channels, 6, 9), frames(written(image, "PNG"), "png", (channels, 6, 9)))
        np.testing.assert_allclose(made[0], expected / 255, atol=1e-6)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_every_kind_of_jpeg(mode: str, progressive: bool) -> None:
    data = written(picture("RGB", 16, 24).convert(mode), "JPEG", progressive=progressive, quality=95)
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)
    made = read_frames(takes(3, 16, 24), frames(data, "jpeg", (3, 16, 24)))
    np.testing.assert_allclose(made[0], expected / 255, atol=1e-6)


def test_what_is_no_part_of_the_picture_is_left_out() -> None:
    info = PngInfo()
    info.add_text("comment", "x" * 1000, zip=True)
    plain, told = written(picture("L"), "PNG"), written(picture("L"), "PNG", pnginfo=info, icc_profile=b"p" * 300)
    assert len(told) > len(plain)
    assert picture_of(told) == plain == picture_of(plain)
    assert picture_of(plain + b"something behind its end") == plain


def test_jpeg_with_long_notes() -> None:
    data = written(picture("RGB"), "JPEG", exif=b"Exif\0\0" + b"\0" * 60_000, icc_profile=b"p" * 200_000)
    assert read_header(data, "jpeg") == Header(6, 9)


@pytest.mark.parametrize(
    ("dtype", "divide_by", "expected"),
    [
        ("float32", 255.0, 1.0),
        ("float64", 51.0, 5.0),
        ("float16", 255.0, 1.0),
        ("uint8", 1.0, 255),
        ("int32", 2.0, 128),
    ],
)
def test_bytes_are_scaled_as_the_application_says(dtype: str, divide_by: float, expected: float) -> None:
    data = written(Image.new("L", (9, 6), 255), "PNG")
    made = read_frames(takes(6, 9, dtype=dtype, divide_by=divide_by), frames(data, "png", (6, 9)))
    assert made.dtype == dtype and made.shape == (1, 6, 9)
    assert (made == expected).all()


def test_long_reading_is_known_ahead() -> None:
    def guess(count: int, size: int, edge: int) -> float:
        array = np.empty(count, object)
        array[:] = [b"x" * size] * count
        return reading_us(takes(3, edge, edge), InputTensor("input", "BYTES", array, "jpeg"))

    assert guess(1, 600, 28) < 500 < guess(1, 20_000, 224)
    assert guess(32, 600, 28) > 500
    assert guess(1, 65_000, 28) > 500
