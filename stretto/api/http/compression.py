"""Compressed bodies, with a bound on what they may grow to."""

from __future__ import annotations

import zlib

from stretto.api.errors import bad_request, too_large

# Bits of the window, and the header that zlib expects: 16 more is gzip, 15 alone is deflate as HTTP means it.
WINDOWS = {b"gzip": 31, b"deflate": 15}
WORTH_PACKING = 1_400  # bytes of an answer: what is smaller goes in one packet anyway, and packing costs 35 µs
LEVEL = 1  # answers are small and wait for nobody


def inflate(body: bytes | memoryview, encoding: bytes, limit: int) -> bytes | memoryview:
    """The body as it was before compression; refused where it is larger than `limit`, cut off or damaged."""
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return body
    if name not in WINDOWS:
        raise bad_request(f"content encoding {name[:20].decode('latin-1')!r} is not known; use gzip or deflate")
    unpacker = zlib.decompressobj(WINDOWS[name])
    try:
        inflated = unpacker.decompress(body, limit + 1)
    except zlib.error:
        raise bad_request("the body is not compressed as it says, or is damaged") from None
    if len(inflated) > limit:
        raise too_large(f"the body is larger than {limit} bytes when it is decompressed")
    if not unpacker.eof:
        raise bad_request("the compressed body is cut off")
    if unpacker.unused_data:
        raise bad_request("the body goes on after its compressed part")
    return inflated


def wanted(accepted: bytes) -> bytes:
    """Which of our encodings the client asks for; b"" for none."""
    for part in accepted.split(b","):
        name, _, rest = part.strip().lower().partition(b";")
        if name.strip() in WINDOWS and rest.strip().replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000"):
            return bytes(name.strip())
    return b""


def deflate(body: bytes, encoding: bytes) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, WINDOWS[encoding])
    return packer.compress(body) + packer.flush()
