"""Compressed bodies: sound, damaged, and larger than they look."""

from __future__ import annotations

import gzip
import zlib

import pytest

from stretto.api.errors import ApiError
from stretto.api.http.compression import deflate, inflate, wanted

TEXT = b"as it was before " * 100


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_there_and_back(encoding: bytes) -> None:
    packed = deflate(TEXT, encoding)
    assert len(packed) < len(TEXT)
    assert inflate(packed, encoding, len(TEXT)) == TEXT
    assert inflate(packed, b" " + encoding.upper() + b" ", len(TEXT)) == TEXT
    assert inflate(deflate(b"", encoding), encoding, 0) == b""


def test_as_others_pack_it() -> None:
    assert inflate(gzip.compress(TEXT), b"gzip", 10_000) == TEXT
    assert inflate(zlib.compress(TEXT), b"deflate", 10_000) == TEXT
    assert inflate(TEXT, b"identity", 1) == TEXT  # as sent: its size was checked before


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_damage(encoding: bytes) -> None:
    packed = deflate(TEXT, encoding)
    for place in range(len(packed)):
        with pytest.raises(ApiError) as caught:
            inflate(packed[:place], encoding, 10_000)
        assert caught.value.reason.http_status == 400
    for damaged in (packed + b"x", packed + packed, b"\x00" + packed, packed[:-1] + b"\xff", b"no such thing"):
        with pytest.raises(ApiError) as caught:
            inflate(damaged, encoding, 10_000)
        assert caught.value.reason.http_status == 400
    with pytest.raises(ApiError, match="not known"):
        inflate(packed, b"br\r\nX: y", 10_000)


@pytest.mark.parametrize("encoding", [b"gzip", b"deflate"])
def test_a_bomb(encoding: bytes) -> None:
    packed = deflate(bytes(50_000_000), encoding)
    assert len(packed) < 300_000
    with pytest.raises(ApiError) as caught:
        inflate(packed, encoding, 1_000_000)
    assert caught.value.reason.http_status == 413
    assert len(inflate(deflate(bytes(1000), encoding), encoding, 1000)) == 1000
    with pytest.raises(ApiError):
        inflate(deflate(bytes(1001), encoding), encoding, 1000)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        (b"", b""),
        (b"gzip", b"gzip"),
        (b"deflate, gzip", b"deflate"),
        (b"GZip ; q=0.5", b"gzip"),
        (b"gzip;q=0", b""),
        (b"gzip; q=0.000, deflate", b"deflate"),
        (b"br, zstd", b""),
        (b"identity", b""),
        (b",,;;q=,", b""),
    ],
)
def test_what_is_asked_for(accepted: bytes, chosen: bytes) -> None:
    assert wanted(accepted) == chosen
