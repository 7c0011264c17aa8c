"""Numbers of JSON, as the whole reader of JSON has them; whatever is not plain is left to that."""

from __future__ import annotations

import json
import math

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.api.errors import ApiError
from stretto.api.http.decode import Decoder
from stretto.api.limits import Limits
from stretto.api.numerals import numbers_in

VALUES = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False) | st.integers(-(10**6), 10**6))


def read(text: bytes, count: int) -> list[float] | None:
    values = numbers_in(b"[" + text + b"]", 1, len(text) + 1, count)
    return None if values is None else values.tolist()


@given(VALUES, st.sampled_from([",", ", ", " , "]))
def test_they_are_what_the_whole_reader_reads(values: list[float], comma: str) -> None:
    """Where they are read at all."""
    text = comma.join(json.dumps(value) for value in values).encode()
    found = read(text, len(values))
    if found is not None:
        with np.errstate(over="ignore"):
            assert found == np.array(orjson.loads(b"[" + text + b"]"), np.float32).tolist()


@pytest.mark.parametrize("text", ["-0", "-0.0", "-0e0", "-0E-5", "0", "-0.000", "-1e-22"])
def test_the_sign_of_zero(text: str) -> None:
    """A whole number has none: -0 was another number the second time that its client sent it."""
    (found,) = read(text.encode(), 1) or ()
    assert math.copysign(1, found) == math.copysign(1, float(orjson.loads(text)))


@given(st.lists(st.floats(0.001, 1000.0)))
def test_numbers_as_they_are_usual_are_read(values: list[float]) -> None:
    assert read(json.dumps(values)[1:-1].encode(), len(values)) == np.array(values, np.float32).tolist()


@given(
    st.floats(2.0**-50, 2.0**50, width=32), st.sampled_from([0.0, -1.0, 1.0]), st.sampled_from([".16g", ".17g", ".18g"])
)
def test_halfway_between_two_of_float32(value: float, step: float, digits: str) -> None:
    """Where the last place of a float64 decides."""
    middle = (value + float(np.nextafter(np.float32(value), np.float32(np.inf)))) / 2
    text = format(middle + step * np.spacing(middle), digits)
    found = read(text.encode(), 1)
    assert found is None or found == [float(np.float32(orjson.loads(text)))]


SHORT = (
    "1,",
    ",1",
    "+1",
    "-",
    "01",
    "1.",
    ".5",
    "1e",
    "1e+",
    "1e400",
    "NaN",
    "true",
    "[1]",
    "1,,2",
    "0x1",
    "1 2",
    "1\n",
)
LONG = ("1" * 19, "0." + "1" * 19, "9" * 19, "0.9673224917715464123", "-9223372036854775808")  # beyond 64 bits
ODD = [*SHORT, "1\n", '"1"', *LONG]


@pytest.mark.parametrize("text", ODD)
def test_what_is_not_plain_is_left_alone(text: str) -> None:
    assert read(text.encode(), text.count(",") + 1) is None


def test_more_or_fewer_than_there_should_be() -> None:
    assert read(b"1,2,3", 3) == [1, 2, 3]
    assert read(b"1,2,3", 2) is None and read(b"1,2,3", 4) is None and read(b"", 0) == []


def body(values: str, **more: object) -> bytes:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": "VALUES"}
    return json.dumps({"inputs": [tensor | more]}).replace('"VALUES"', values).encode()


def test_frames_that_are_known_give_the_same_request() -> None:
    decoder, whole = Decoder(Limits()), Decoder(Limits())
    for values in ("[1, 2.5]", "[3, -4e-2]", "[5,6]"):
        for _ in range(2):
            found = decoder.request(body(values), None, "a", "", "y").inputs[0]
            whole._frames.clear()
            expected = whole.request(body(values), None, "a", "", "y").inputs[0]
            assert (found.name, found.datatype) == (expected.name, expected.datatype)
            np.testing.assert_array_equal(found.array, expected.array)
    assert len(decoder._frames) == 1


OTHERS = ["[1]", "[1, 2, 3]", "[]", "[1, true]", '[1, "2"]', "[1, 2", "[[1, 2], [3]]", "[1, 2,]"]


@pytest.mark.parametrize("values", OTHERS)
def test_a_known_frame_with_other_numbers_is_refused_as_ever(values: str) -> None:
    decoder = Decoder(Limits())
    decoder.request(body("[1, 2]"), None, "a", "", "y")
    assert decoder._frames
    for _ in range(2):
        with pytest.raises(ApiError):
            decoder.request(body(values), None, "a", "", "y")
    np.testing.assert_array_equal(decoder.request(body("[[7, 8]]"), None, "a", "", "y").inputs[0].array, [[7, 8]])


def test_only_frames_that_can_be_read_in_one_way_are_remembered() -> None:
    """The list that is left out must be that of the one input, and nothing else of the request its own."""
    escaped = '{"name": "x", "shape": [1, 2], "datatype": "FP32", "d\\u0061ta": [1, 2]}'
    plain = escaped.replace("\\u0061", "a")
    bodies = [
        f'{{"parameters": {{"data": [3, 4]}}, "inputs": [{escaped}]}}',
        f'{{"inputs": [{escaped}]}}',
        f'{{"id": "7", "inputs": [{plain}]}}',
        f'{{"inputs": [{plain.replace("FP32", "INT32")}]}}',
        f'{{"parameters": {{"data": 1}}, "inputs": [{plain}]}}',
    ]
    for text in bodies:
        decoder = Decoder(Limits())
        for _ in range(2):
            request = decoder.request(text.encode(), None, "a", "", "y")
            assert request.inputs[0].array.tolist() == [[1, 2]] and not decoder._frames
