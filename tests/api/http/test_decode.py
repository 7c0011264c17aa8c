"""Bytes into a request: every datatype, what is remembered, and what is refused."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

from stretto.api.datatypes import NUMPY_OF, join_bytes
from stretto.api.errors import ApiError
from stretto.api.http.decode import MAX_KNOWN, Decoder
from stretto.api.limits import Limits
from stretto.api.messages import InferRequest

LIMITS = Limits(tensors=4, dimensions=5, parameters=3, id_length=8, name_length=8, header_json_bytes=4000)


def decode(
    body: bytes, length: int | None = None, decoder: Decoder | None = None, elements: int = 10**6
) -> InferRequest:
    header = None if length is None else str(length).encode()
    return (decoder or Decoder(LIMITS)).request(body, header, "app", "", "out", elements)


def listed(data: Any, datatype: str = "FP32", shape: Any = None, **more: Any) -> bytes:
    shape = [len(data)] if shape is None else shape
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "data": data}
    return json.dumps({"inputs": [tensor], **more}).encode()


def raw(data: bytes, datatype: str = "FP32", shape: Any = None, **more: Any) -> tuple[bytes, int]:
    shape = [len(data) // 4] if shape is None else shape
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [tensor], **more}).encode()
    return head + data, len(head)


def refusal(body: bytes, length: int | None = None, **options: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decode(body, length, **options)
    assert caught.value.reason.http_status in (400, 413)
    return caught.value


NUMBERS = [name for name in NUMPY_OF if name not in ("BYTES", "BOOL", "FP16")]


@pytest.mark.parametrize("datatype", [*NUMBERS, "BOOL"])
def test_datatypes_both_ways(datatype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]], NUMPY_OF[datatype])
    for data in (array.tolist(), array.ravel().tolist()):
        found = decode(listed(data, datatype, [2, 3])).inputs[0].array
        assert found.dtype == array.dtype and np.array_equal(found, array)
    found = decode(*raw(array.tobytes(), datatype, [2, 3])).inputs[0].array
    assert found.dtype == array.dtype and np.array_equal(found, array)


@pytest.mark.parametrize("datatype", [name for name in NUMBERS if "INT" in name])
def test_whole_numbers_keep_their_bounds(datatype: str) -> None:
    bounds = np.iinfo(NUMPY_OF[datatype])
    ends = [int(bounds.min), int(bounds.max)]
    assert decode(listed(ends, datatype)).inputs[0].array.tolist() == ends
    refusal(listed([0, int(bounds.max) + 1], datatype))
    refusal(listed([int(bounds.min) - 1, 0], datatype))
    for wrong in (1.0, True, "1", None, [], {}):
        refusal(listed([wrong], datatype))
        refusal(listed([wrong, 1] if not isinstance(wrong, bool) else [wrong, wrong], datatype))


def test_bytes_both_ways() -> None:
    strings = [b"", "é".encode(), b"abc"]
    texts = [text.decode() for text in strings]
    assert decode(listed(texts, "BYTES")).inputs[0].array.tolist() == strings
    assert decode(listed([[text] for text in texts], "BYTES", [3, 1])).inputs[0].array.shape == (3, 1)
    body, length = raw(join_bytes(strings), "BYTES", [3])
    assert decode(body, length).inputs[0].array.tolist() == strings
    refusal(*raw(join_bytes(strings), "BYTES", [2]))
    refusal(*raw(join_bytes(strings), "BYTES", [4]))
    refusal(*raw(b"\xff\xff\xff\xff", "BYTES", [1]))
    refusal(listed(["a", None], "BYTES"))
    refusal(listed(["a", None], "BYTES", [1]))  # null once ended the list
    refusal(listed(["a", 1], "BYTES"))


@pytest.mark.parametrize(
    "data",
    [
        [[1.0, 2.0], [3.0]],
        [[1.0], 2.0],
        [1.0, [2.0]],
        [[1.0], "a"],
        [[1.0], {"a": 1}],
        [[1.0], None],
        [1.0, "2.0"],
        [1.0, None],
        [True, False],
        {"0": 1.0, "1": 2.0},
        "12",
        None,
        12,
    ],
)
def test_data_that_is_not_a_list_of_numbers(data: Any) -> None:
    refusal(listed(data, shape=[2]))


def test_long_texts_take_no_memory() -> None:
    """numpy makes every text as long as the longest: 3,000 times 100,000 characters would be over a gigabyte."""
    body = listed(["x" * 100_000, *[""] * 2_999], "FP32")
    tracemalloc.start()
    try:
        refusal(body)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "shape",
    [
        [],
        [-1],
        [1.0],
        [True],
        ["1"],
        "1",
        {},
        [2**63],
        [2**64],
        [10**30],
        [2**40, 2**40],
        [2**40, 2**40, 0],
        [2**62, 0],
        [0, 2**63],
        [1] * 6,
        [1, [1]],
    ],
)
def test_shapes_that_make_no_sense(shape: Any) -> None:
    refusal(listed([1.0], shape=shape))
    refusal(*raw(bytes(4), shape=shape))
    refusal(*raw(b"", shape=shape))


def test_no_elements() -> None:
    assert decode(*raw(b"", shape=[0, 3])).inputs[0].array.shape == (0, 3)
    assert decode(listed([], shape=[0, 3])).inputs[0].array.shape == (0, 3)
    assert decode(*raw(b"", "BYTES", shape=[0])).inputs[0].array.shape == (0,)


def test_what_is_taken_apart_is_bounded() -> None:
    assert refusal(listed([1.0] * 11), elements=10).reason.http_status == 413
    assert refusal(*raw(join_bytes([b""] * 11), "BYTES", [11]), elements=10).reason.http_status == 413
    assert decode(*raw(bytes(44)), elements=10).inputs[0].array.shape == (11,)  # costs nothing; the plane decides


@pytest.mark.parametrize("part", [b"[],", b"{},", b"0,", b'"",', b"[" * 900 + b"]" * 900 + b","])
def test_long_texts_are_not_read_for_nothing(part: bytes) -> None:
    """A body of the right size with a million values in it held up everybody for more than a second."""
    text = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[9],"data":[%s0]}]}' % (part * (500_000 // len(part)))
    for length in (None, len(text)):
        decoder = Decoder(Limits())
        with pytest.raises(ApiError, match="more values") as caught:
            decoder.request(text, None if length is None else b"%d" % length, "app", "", "out", 1000)
        assert caught.value.reason.http_status == 413
    column = np.linspace(0, 1, 40_000).reshape(-1, 1)
    body = listed(column.tolist(), shape=[40_000, 1])
    assert decode(body, elements=40_000).inputs[0].array.shape == (40_000, 1)


def test_deep_nesting() -> None:
    refusal(b'{"inputs":' + b"[" * 5_000 + b"]" * 5_000 + b"}")
    data: Any = 1.0
    for _ in range(5):
        data = [data]
    assert decode(listed(data, shape=[1])).inputs[0].array.tolist() == [1.0]
    refusal(listed([data], shape=[1]))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"{}",
        b'"\xff"',
        b'{"inputs": [NaN]}',
        b'{"inputs": 1}',
        b'{"inputs": [1]}',
        b'{"inputs": []}',
        b'{"inputs": [{}]}',
        json.dumps({"inputs": [{"name": "x" * 9, "datatype": "FP32", "shape": [1], "data": [1]}]}).encode(),
        json.dumps({"inputs": [{"name": "", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode(),
        json.dumps({"inputs": [{"name": "a\nb", "datatype": "FP32", "shape": [1], "data": [1]}]}).encode(),
        listed([1.0], "FP31"),
        listed([1.0], "FP16"),
        listed([1.0], None),  # type: ignore[arg-type]
        listed([1.0], id="123456789"),
        listed([1.0], id=7),
        listed([1.0], parameters=[]),
        listed([1.0], parameters={"a": 1, "b": 2, "c": 3, "d": 4}),
        listed([1.0], outputs={}),
        listed([1.0], outputs=[1]),
        listed([1.0], outputs=[{"name": "x"}] * 5),
        listed([1.0], outputs=[{"name": "x", "parameters": {"classification": -1}}]),
        listed([1.0], outputs=[{"name": "x", "parameters": {"classification": 1.5}}]),
        listed([1.0], outputs=[{"name": "x", "parameters": {"classification": True}}]),
        listed([1.0], outputs=[{"name": "x", "parameters": {"binary_data": 1}}]),
    ],
)
def test_json_that_makes_no_sense(body: bytes) -> None:
    error = refusal(body)
    assert len(error.message) < 500


def test_lengths_that_make_no_sense() -> None:
    body, length = raw(bytes(8))
    for wrong in (0, length - 1, length + 1, len(body) + 1):
        refusal(body, wrong)
    refusal(body + b"x", length)
    refusal(body[:-1], length)
    decoder = Decoder(LIMITS)
    for header in (b"", b"-1", b"+5", b"5.0", b"0x5", b"9" * 40, b"5 5", "٣".encode(), b"\xb2"):
        with pytest.raises(ApiError):
            decoder.request(body, header, "app", "", "out")
    assert refusal(b" " * 5000, 4001).reason.http_status == 413
    for size in (-1, 1.5, True, "8", 2**63, 7, 9, []):
        tensor = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": size}}
        head = json.dumps({"inputs": [tensor]}).encode()
        refusal(head + bytes(8), len(head))
    both = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0], "parameters": {"binary_data_size": 4}}
    head = json.dumps({"inputs": [both]}).encode()
    refusal(head + bytes(4), len(head))
    refusal(*raw(b"\x02", "BOOL", [1]))


def test_mixed_inputs_come_in_order() -> None:
    tensors = [
        {"name": "a", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}},
        {"name": "b", "datatype": "FP32", "shape": [1], "data": [2.0]},
        {"name": "c", "datatype": "UINT8", "shape": [3], "parameters": {"binary_data_size": 3}},
    ]
    head = json.dumps({"inputs": tensors}).encode()
    request = decode(head + np.float32(1).tobytes() + b"\x03\x04\x05", len(head))
    assert [tensor.array.tolist() for tensor in request.inputs] == [[1.0], [2.0], [3, 4, 5]]


# -- what the decoder remembers ------------------------------------------------------------------------------------


def test_nothing_of_one_request_is_in_another() -> None:
    decoder = Decoder(LIMITS)
    quick = raw(np.float32([1, 2]).tobytes(), parameters={"deadline_ms": 5, "binary_data_output": True})
    plain = raw(np.float32([3, 4]).tobytes(), parameters={"priority": 7})
    named = raw(np.float32([5, 6]).tobytes(), id="one")
    wanted = raw(np.float32([7, 8]).tobytes(), outputs=[{"name": "y", "parameters": {"classification": 2}}])
    for _ in range(3):
        first, second, third, fourth = (decode(*body, decoder=decoder) for body in (quick, plain, named, wanted))
        assert first.parameters == {"deadline_ms": 5} and first.outputs[0].binary and first.outputs[0].name == "out"
        assert second.parameters == {"priority": 7} and not second.outputs
        assert third.parameters == {} and third.id == "one" and not third.outputs
        assert fourth.outputs[0].classification == 2 and fourth.outputs[0].name == "y"
        values = [request.inputs[0].array.tolist() for request in (first, second, third, fourth)]
        assert values == [[1, 2], [3, 4], [5, 6], [7, 8]]
    other = raw(np.float32([9, 9]).tobytes(), parameters={"deadline_ms": 5, "binary_data_output": True})
    assert decode(*other, decoder=decoder).inputs[0].array.tolist() == [9, 9]
    # The application, the version and its output are those of the address, not of what was remembered.
    again = decoder.request(quick[0], str(quick[1]).encode(), "other", "v", "its own")
    assert (again.application, again.version, again.outputs[0].name) == ("other", "v", "its own")


def test_what_is_remembered_is_bounded() -> None:
    decoder = Decoder(LIMITS)
    for number in range(MAX_KNOWN + 10):
        decode(*raw(bytes(4), parameters={"client_id": number}), decoder=decoder)
    assert len(decoder._known) <= MAX_KNOWN
    known = len(decoder._known)
    decode(*raw(bytes(4), id="x"), decoder=decoder)  # an identity never comes again
    decode(listed([1.0]), len(listed([1.0])), decoder=decoder)  # nor does data
    decode(*raw(bytes(4), parameters={"x": "y" * 3000}), decoder=decoder)
    assert len(decoder._known) == known
    body, length = raw(bytes(4))
    frames = len(decoder._frames)
    decoder.request(body, str(length).encode(), "app", "v" * 9, "out")  # a version is the client's choice, too
    decoder.request(listed([1.0]), None, "app", "v" * 9, "out")
    assert len(decoder._known) == known and len(decoder._frames) == frames


def test_a_remembered_head_still_has_its_sizes_checked() -> None:
    decoder = Decoder(LIMITS)
    body, length = raw(bytes(8))
    decode(body, length, decoder=decoder)
    refusal(body + b"\x00", length, decoder=decoder)
    refusal(body[:-1], length, decoder=decoder)


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "INT8", "INT64", "UINT8", "UINT64"])
@pytest.mark.parametrize("place", [0, 1, 49, 99])
def test_true_is_no_number(datatype: str, place: int) -> None:
    """Wherever it stands: Python counts it as 1."""
    data: list[Any] = [1] * 100
    data[place] = True
    assert "values" in refusal(listed(data, datatype)).message
    assert "values" in refusal(listed([1 if each is True else bool(each) for each in data], "BOOL")).message
