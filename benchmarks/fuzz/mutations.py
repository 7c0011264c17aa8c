"""What is done to a request of the corpus: a few small harms, drawn from a seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

MOST_HARMS = 4
MOST_BYTES = 100_000  # of a mutated request: duplication must not grow without end
NUMBER = re.compile(rb"-?\d+(\.\d+)?")
VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null')
BOUNDARIES = (
    *(b"0", b"-0", b"-1", b"1", b"2", b"127", b"128", b"255", b"256", b"65535", b"65536", b"2147483647", b"2147483648"),
    *(b"4294967295", b"4294967296", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808"),
    *(b"18446744073709551615", b"18446744073709551616", b"1e308", b"1e400", b"-1e400", b"5e-324", b"0.1", b"1" * 400),
    *(b"NaN", b"Infinity", b"0x10", b"1_000", b"+5", b" 7", b"00", b"0.0000001"),
)
VALUES = (
    *(b"null", b"true", b"false", b"[]", b"{}", b'""', b'"x"', b"[[]]", b'[{"a":1}]', b'"\\u0000"', b'"\\ud800"'),
    *(b"[" * 600, b'{"a":' * 600, b'"' + b"a" * 2000 + b'"', b'"input"', b'"FP32"', b'"BYTES"', b"[1,2,3,4]"),
)
HEADERS = (
    *(b"Content-Length: 0", b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999"),
    *(b"Content-Length: 4, 4", b"Content-Length:", b"Content-Length : 3", b"Transfer-Encoding: chunked"),
    *(b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked, gzip"),
    *(
        b"Transfer-Encoding:\tchunked",
        b"Transfer-Encoding: xchunked",
        b"Content-Encoding: gzip",
        b"Content-Encoding: br",
    ),
    *(b"Content-Encoding: gzip, gzip", b"Inference-Header-Content-Length: 1", b"Inference-Header-Content-Length: -1"),
    *(
        b"Inference-Header-Content-Length: 99999999999999999999",
        b"Expect: 100-continue",
        b"Expect: 200",
        b"Upgrade: h2c",
    ),
    *(
        b"Connection: close",
        b"Connection: upgrade",
        b"Host: a\r\nHost: b",
        b"Host:",
        b" folded: line",
        b"X" * 9000 + b": y",
    ),
    *(b"no colon here", b": no name", b"x: \x00", b"x: \xff\xfe", b"x:\ry", b"Accept-Encoding: gzip;q=0, *;q=nan"),
    *(b"Authorization: Bearer " + b"a" * 5000, b"traceparent: 00-" + b"0" * 300, b"Content-Type: multipart/form-data"),
)
LINES = (
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\n\n",
    b"\r\n",
    b"\x00",
    b"\t",
    b" ",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"-1\r\n",
)

Harm = Callable[[Random, bytearray], None]


def mutated(random: Random, data: bytes, others: Sequence[bytes], kind: str) -> bytes:
    """`data` after one harm, or a few; `others` are what pieces are taken from."""
    harmed = bytearray(data)
    harms = (*COMMON, *OF_KIND[kind])
    for _ in range(random.choice((1, 1, 1, 2, MOST_HARMS))):
        if random.random() < 0.1:
            _splice(random, harmed, others)
        else:
            random.choice(harms)(random, harmed)
    return bytes(harmed[:MOST_BYTES])


def _place(random: Random, data: bytearray) -> int:
    return random.randrange(len(data) + 1)


def _span(random: Random, data: bytearray) -> tuple[int, int]:
    start = _place(random, data)
    return start, min(len(data), start + int(random.expovariate(1 / 16)) + 1)


def _flip(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(random: Random, data: bytearray) -> None:
    if data:
        data[random.randrange(len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def _truncate(random: Random, data: bytearray) -> None:
    del data[_place(random, data) :]


def _remove(random: Random, data: bytearray) -> None:
    start, end = _span(random, data)
    del data[start:end]


def _duplicate(random: Random, data: bytearray) -> None:
    start, end = _span(random, data)
    data[start:start] = data[start:end] * random.choice((1, 1, 2, 50))


def _insert(random: Random, data: bytearray) -> None:
    place = _place(random, data)
    data[place:place] = random.randbytes(random.randint(1, 8))


def _swap(random: Random, data: bytearray) -> None:
    start, end = _span(random, data)
    piece = data[start:end]
    del data[start:end]
    place = _place(random, data)
    data[place:place] = piece


def _splice(random: Random, data: bytearray, others: Sequence[bytes]) -> None:
    """The head of one and the tail of another, or a piece of another in its middle."""
    other = bytearray(random.choice(others))
    if random.random() < 0.5:
        data[_place(random, data) :] = other[_place(random, other) :]
    else:
        start, end = _span(random, other)
        place = _place(random, data)
        data[place:place] = other[start:end]


def _number(random: Random, data: bytearray) -> None:
    _replace(random, data, NUMBER, BOUNDARIES)


def _value(random: Random, data: bytearray) -> None:
    _replace(random, data, VALUE, (*VALUES, *BOUNDARIES))


def _replace(random: Random, data: bytearray, pattern: re.Pattern[bytes], choices: Sequence[bytes]) -> None:
    """The first match from a random place on, so that a long body is not searched whole."""
    found = pattern.search(data, _place(random, data)) or pattern.search(data)
    if found is not None:
        data[found.start() : found.end()] = random.choice(choices)


def _header(random: Random, data: bytearray) -> None:
    """A hostile line among the headers, in place of one of them or beside it."""
    head = data.find(b"\r\n\r\n")
    ends = [found.end() for found in re.finditer(rb"\r\n", data[: max(head, 0) + 2])]
    if not ends:
        return
    place = random.choice(ends)
    line = random.choice(HEADERS) + b"\r\n"
    after = data.find(b"\r\n", place)
    if random.random() < 0.5 or after < 0:
        data[place:place] = line
    else:
        data[place : after + 2] = line


def _line(random: Random, data: bytearray) -> None:
    place = _place(random, data)
    data[place:place] = random.choice(LINES)


def _case(random: Random, data: bytearray) -> None:
    start, end = _span(random, data)
    data[start:end] = data[start:end].swapcase()


def _length_byte(random: Random, data: bytearray) -> None:
    """A varint where there was a byte: lengths and field numbers of protobuf."""
    if data:
        place = random.randrange(len(data))
        data[place : place + 1] = random.choice(
            (b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x01", b"\xff" * 11, b"\x80\x80\x00", b"\x00", b"\x0b", b"\x3a")
        )


COMMON: tuple[Harm, ...] = (_flip, _flip, _set, _truncate, _remove, _duplicate, _insert, _swap)
OF_KIND: dict[str, tuple[Harm, ...]] = {
    "http": (_header, _header, _header, _line, _line, _number, _case, _value),
    "json": (_number, _number, _value, _value, _value, _case),
    "tensor": (_number, _number, _value, _value),
    "protobuf": (_length_byte, _length_byte),
}
