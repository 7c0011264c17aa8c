"""The size that a PNG or JPEG file says it has, from its first bytes: no memory is taken for what it claims to hold.

We read headers ourselves, and give the decoder nothing that it could grow on: of a PNG file only the parts that make up
the picture, of a JPEG file no more scans than a sound one has.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

PNG_START = b"\x89PNG\r\n\x1a\n"
PNG_HEADER = struct.Struct(">I4sIIBB")  # length of the part, its kind, width, height, bits, colour type
PNG_PART = struct.Struct(">I4s")
PNG_PICTURE = (b"IHDR", b"PLTE", b"IDAT", b"IEND")  # all others are comments, profiles, further pictures
PART_BYTES = 12  # of a part without content
MAX_PARTS = 10_000
JPEG_START = b"\xff\xd8"
JPEG_SEGMENT = struct.Struct(">H")
JPEG_FRAME = struct.Struct(">BHHB")  # bits, height, width, channels
JPEG_FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive
JPEG_OTHER_FRAMES = (0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
JPEG_SCAN = b"\xff\xda"
JPEG_END = b"\xff\xd9"
MAX_SEGMENTS = 1000
MAX_SCANS = 100  # each costs as much as a picture; encoders make about ten


class BadImage(Exception):
    """Why an image cannot be taken, to stand behind "image 3 of input x "."""


@dataclass(frozen=True, slots=True)
class Header:
    height: int
    width: int


def read_header(data: bytes, encoding: str) -> Header:
    """BadImage where the data is not what `encoding` promises."""
    return _png(data) if encoding == "png" else _jpeg(data)


def _png(data: bytes) -> Header:
    if not data.startswith(PNG_START):
        raise BadImage("is no PNG file")
    if len(data) < len(PNG_START) + PNG_HEADER.size:
        raise BadImage("is cut short")
    length, kind, width, height, bits, _ = PNG_HEADER.unpack_from(data, len(PNG_START))
    if kind != b"IHDR" or length != 13:
        raise BadImage("is damaged")
    if bits > 8:
        raise BadImage(f"has {bits} bits per colour; at most 8 are taken")
    return Header(height, width)


def picture_of(data: bytes) -> bytes:
    """A PNG file without what is no part of its picture: texts there may grow a thousandfold when they are read."""
    picture_parts = [PNG_START]
    place = len(PNG_START)
    for _ in range(MAX_PARTS):
        if place + PART_BYTES > len(data):
            raise BadImage("is cut short")
        length, kind = PNG_PART.unpack_from(data, place)
        end = place + PART_BYTES + length
        if end > len(data):
            raise BadImage("is cut short")
        if kind in PNG_PICTURE:
            if kind == b"IHDR" and len(picture_parts) > 1:
                raise BadImage("is damaged")
            picture_parts.append(data[place:end])
        if kind == b"IEND":
            return b"".join(picture_parts)
        place = end
    raise BadImage(f"has more than {MAX_PARTS} parts")


def _jpeg(data: bytes) -> Header:
    if not data.startswith(JPEG_START):
        raise BadImage("is no JPEG file")
    if data.count(JPEG_SCAN) > MAX_SCANS:
        raise BadImage(f"has more than {MAX_SCANS} scans")
    place = len(JPEG_START)
    for _ in range(MAX_SEGMENTS):
        if place + 4 > len(data):
            raise BadImage("is cut short")
        if data[place] != 0xFF:
            raise BadImage("is damaged")
        marker = data[place + 1]
        if marker == 0xFF:  # filling
            place += 1
            continue
        (length,) = JPEG_SEGMENT.unpack_from(data, place + 2)
        if marker in JPEG_FRAMES:
            if place + 4 + JPEG_FRAME.size > len(data) or data.find(JPEG_END, place) < 0:
                raise BadImage("is cut short")
            bits, height, width, _ = JPEG_FRAME.unpack_from(data, place + 4)
            if bits != 8:
                raise BadImage(f"has {bits} bits per colour; 8 are taken")
            return Header(height, width)
        if marker in JPEG_OTHER_FRAMES:
            raise BadImage("is a kind of JPEG that is not taken; send a baseline or progressive one")
        if length < 2 or marker in (0xD8, 0xD9, 0xDA):
            raise BadImage("is damaged")
        place += 2 + length
    raise BadImage(f"has more than {MAX_SEGMENTS} segments before its picture")
