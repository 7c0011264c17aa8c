"""A serialized ModelInferRequest, walked before protobuf parses it.

Two reasons. A message of a few megabytes can ask protobuf for gigabytes (millions of empty tensors), so everything that
is counted is counted here first. And raw tensors need not pass through protobuf, which would copy each of them twice:
they are found here and read where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stretto.api.errors import ApiError, bad_request, too_large
from stretto.api.limits import Limits

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
FIXED_SIZE = {FIXED64: 8, FIXED32: 4}
VARINT_BYTES = 10  # the longest that a number can be
# Field numbers of open_inference.proto.
ID, PARAMETERS, INPUTS, OUTPUTS, RAW_INPUTS = 3, 4, 5, 6, 7
REPEATED = {PARAMETERS: "parameters", INPUTS: "inputs", OUTPUTS: "outputs", RAW_INPUTS: "raw_input_contents"}
INPUT_SHAPE, INPUT_PARAMETERS, INPUT_CONTENTS = 3, 4, 5
OUTPUT_PARAMETERS = 2
SINGLE_FIELDS = 32  # of one message, names and the like, each time it occurs: more than a sound client ever sends
# Typed contents are for small tensors: protobuf and Python handle their values one by one, about 30 ns each for a
# number, ten times that for a string, and nothing else is served meanwhile.
TYPED_BYTES = 8_000_000
STRINGS = 100_000  # of one request, typed or raw

Span = tuple[int, int]


@dataclass(slots=True)
class Split:
    """A request in two: the message without its raw tensors, and where these lie in the body."""

    message: bytes
    raw: list[Span] = field(default_factory=list)


@dataclass(slots=True)
class TypedContents:
    """What all typed contents of a request have come to, so far."""

    size: int = 0
    values: int = 0  # strings, and numbers that are not packed


def split(body: bytes, limits: Limits) -> Split:
    """The parts of a request, once its counts are known to be within the limits."""
    counts = dict.fromkeys(REPEATED, 0)
    single, kept_from = 0, 0
    message_parts: list[bytes] = []
    raw: list[Span] = []
    typed = TypedContents()
    for number, kind, tag, start, end in fields(body, 0, len(body)):
        if kind != LENGTH_DELIMITED or number not in counts:
            single += 1
            if single > SINGLE_FIELDS:
                raise bad_request(
                    "the request repeats fields that can only be given once, or has too many unknown ones"
                )
            continue
        counts[number] += 1
        at_most = limits.parameters if number == PARAMETERS else limits.tensors
        if counts[number] > at_most:
            raise bad_request(f"the request has more than {at_most} {REPEATED[number]}")
        if number == INPUTS:
            check_input(body, start, end, limits, typed)
        elif number == OUTPUTS:
            check_output(body, start, end, limits)
        elif number == RAW_INPUTS:
            message_parts.append(body[kept_from:tag])
            kept_from = end
            raw.append((start, end))
    if not raw:
        return Split(body)
    message_parts.append(body[kept_from:])
    return Split(b"".join(message_parts), raw)


def check_input(body: bytes, start: int, end: int, limits: Limits, typed: TypedContents) -> None:
    single, parameters, extents = 0, 0, 0
    for number, kind, _, inner, stop in fields(body, start, end):
        if number == INPUT_SHAPE:
            extents += 1 if kind == VARINT else -((inner - stop) // VARINT_BYTES)
            if extents > limits.dimensions:
                raise bad_request(f"an input has more than {limits.dimensions} dimensions")
        elif number == INPUT_PARAMETERS:
            parameters += 1
            if parameters > limits.parameters:
                raise bad_request(f"an input has more than {limits.parameters} parameters")
        else:
            single += 1
            if single > SINGLE_FIELDS:
                raise bad_request("an input repeats fields that can only be given once, or has too many unknown ones")
            if number == INPUT_CONTENTS and kind == LENGTH_DELIMITED:
                check_contents(body, inner, stop, typed)


def check_contents(body: bytes, start: int, end: int, typed: TypedContents) -> None:
    typed.size += end - start
    if typed.size > TYPED_BYTES:
        raise too_large(f"typed contents take more than {TYPED_BYTES} bytes: use raw_input_contents for large tensors")
    for _ in fields(body, start, end):
        typed.values += 1
        if typed.values > STRINGS:
            raise too_large(f"typed contents hold more than {STRINGS} strings: use several requests")


def check_output(body: bytes, start: int, end: int, limits: Limits) -> None:
    single, parameters = 0, 0
    for number, *_ in fields(body, start, end):
        if number == OUTPUT_PARAMETERS:
            parameters += 1
        else:
            single += 1
        if parameters > limits.parameters or single > SINGLE_FIELDS:
            raise bad_request(f"a wanted output has more than {limits.parameters} parameters, or repeats its fields")


def request_id(body: bytes, limits: Limits) -> str:
    """The id of a request that could not be understood as a whole, as far as it can be found; else nothing."""
    identifier = ""
    try:
        for place, (number, kind, _, start, end) in enumerate(fields(body, 0, len(body))):
            if place > 4 * limits.tensors:
                break
            if number == ID and kind == LENGTH_DELIMITED and end - start <= limits.id_length:
                identifier = body[start:end].decode()
    except (ApiError, UnicodeDecodeError):
        pass
    return identifier


def fields(body: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Of every field: its number, wire type, where its tag starts, where its value starts, and where that ends."""
    place = start
    while place < end:
        tag_start = place
        tag = body[place]
        if tag < 0x80:  # nearly always; a call of varint would take longer than all the rest
            place += 1
        else:
            tag, place = varint(body, place, end)
        number, kind = tag >> 3, tag & 7
        value = place
        if kind == LENGTH_DELIMITED:
            if place < end and body[place] < 0x80:
                value += 1
                place = value + body[place]
            else:
                length, value = varint(body, place, end)
                place = value + length
        elif kind == VARINT:
            _, place = varint(body, place, end)
        elif kind in FIXED_SIZE:
            place += FIXED_SIZE[kind]
        else:
            raise malformed()  # groups, which proto3 does not have, and types that do not exist
        if place > end or not number:
            raise malformed()
        yield number, kind, tag_start, value, place


def varint(body: bytes, place: int, end: int) -> tuple[int, int]:
    """The number at a place, seven bits a byte, low ones first; and the place after it."""
    value, shift = 0, 0
    while place < end:
        byte = body[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift >= 7 * VARINT_BYTES:
            break
    raise malformed()


def malformed() -> ApiError:
    return bad_request("the message cannot be parsed: it is cut off or is not of this call's type")
