"""Compressed messages, inflated here: gRPC would take memory for all of a message before it looks at a limit.

With gRPC's own decompression off, a compressed message arrives as it was sent and unmarked. Its first byte tells: no
request of open_inference.proto can begin as a gzip or zlib stream does (wire type 7, or an odd field that is a varint)
unless it has no name, and then it is refused in any case.
"""

from __future__ import annotations

import asyncio
import zlib

from stretto.api.budget import Budget
from stretto.api.errors import bad_request, no_room, too_large

GZIP_MAGIC = b"\x1f\x8b"
ZLIB_METHOD = 8  # low half of the first byte: deflate, the only method there is
MOST_RATIO = 1032  # of deflate
AUTOMATIC = 32 + zlib.MAX_WBITS  # gzip or zlib, by the header


def is_compressed(body: bytes) -> bool:
    if body.startswith(GZIP_MAGIC):
        return True
    return len(body) >= 2 and body[0] & 0x0F == ZLIB_METHOD and int.from_bytes(body[:2], "big") % 31 == 0


async def plain(body: bytes, at_most: int, budget: Budget) -> bytes:
    """The message itself; an ApiError where it would be longer than `at_most`, or there is no room for it."""
    if not is_compressed(body):
        return body
    room = min(at_most, MOST_RATIO * len(body))
    if not budget.take(room):
        raise no_room()
    try:
        # In a thread: a small message may hold a great many bytes, and zlib lets others run meanwhile.
        return await asyncio.to_thread(inflate, body, at_most)
    finally:
        budget.used -= room


def inflate(body: bytes, at_most: int) -> bytes:
    stream = zlib.decompressobj(AUTOMATIC)
    try:
        message = stream.decompress(body, at_most + 1)
    except zlib.error:
        raise bad_request("the message is marked as compressed but cannot be inflated") from None
    if len(message) > at_most:
        raise too_large(f"the message has more than {at_most} bytes when it is inflated")
    if not stream.eof or stream.unused_data:
        raise bad_request("the compressed message is cut off, or goes on after its end")
    return message
