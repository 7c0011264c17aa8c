"""Arrays to and from the wire: casts that keep what is said, and answers that lie."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from stretto.client.answer import Response, answer_of
from stretto.client.errors import BadAnswer, BadRequest
from stretto.client.metadata import ApplicationMetadata, TensorMetadata, application_metadata, prepared
from stretto.client.tensors import NUMPY_OF, array_of_raw, cast, raw_of


@pytest.mark.parametrize("datatype", [name for name in NUMPY_OF if name != "BYTES"])
def test_numbers_come_back_as_they_went(datatype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(NUMPY_OF[datatype])
    raw = raw_of(cast(array, datatype, "x"), datatype)
    assert len(raw) == array.nbytes
    back = array_of_raw(datatype, (2, 3), memoryview(bytes(raw)), "x")
    assert back.dtype == array.dtype and (back == array).all() and back.flags.writeable


def test_strings_come_back_as_bytes() -> None:
    array = np.array([["a", "grün"], ["", "x" * 300]])
    raw = raw_of(cast(array, "BYTES", "x"), "BYTES")
    back = array_of_raw("BYTES", (2, 2), memoryview(bytes(raw)), "x")
    assert [text.decode() for text in back.ravel()] == array.ravel().tolist()


@pytest.mark.parametrize(
    ("values", "datatype"),
    [
        ([1.5], "INT32"),
        ([300], "UINT8"),
        ([-1], "UINT64"),
        ([1e300], "FP32"),
        ([2**40], "FP16"),
        ([1], "BOOL"),
        (["a"], "FP32"),
        ([1], "BYTES"),
    ],
)
def test_casts_that_would_lose_something_are_refused(values: list[Any], datatype: str) -> None:
    with pytest.raises(BadRequest):
        cast(np.array(values), datatype, "x")


@pytest.mark.parametrize(
    ("values", "datatype"),
    [
        ([255], "UINT8"),
        ([1.1, np.inf, np.nan], "FP32"),
        ([True], "INT8"),
        ([2**10], "FP16"),
        ([7], "FP64"),
        ([], "INT8"),
    ],
)
def test_casts_that_keep_the_values(values: list[Any], datatype: str) -> None:
    assert cast(np.array(values, dtype=None if values else np.int64), datatype, "x").dtype == NUMPY_OF[datatype]


def test_strided_arrays_are_sent_in_order() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert bytes(raw_of(cast(array, "FP32", "x"), "FP32")) == np.ascontiguousarray(array).tobytes()


TWO = ApplicationMetadata("two", (), (TensorMetadata("a", "FP32", (-1, 2)), TensorMetadata("b", "INT64", (-1,))), ())


def test_inputs_are_named_batched_and_cast() -> None:
    (a, first), (b, second) = prepared(TWO, {"b": 3, "a": [[1, 2], [3, 4]]})
    assert (a.name, first.shape, b.name, second.shape, second.dtype) == ("b", (1,), "a", (2, 2), np.float32)
    for wrong in ([1, 2], {"c": [1]}, {"a": [[[1, 2]]]}, {"a": [[1], [2, 3]]}):
        with pytest.raises(BadRequest):
            prepared(TWO, wrong)


@pytest.mark.parametrize("content", [None, [], {}, {"name": "a"}, {"name": "a", "inputs": [{}], "outputs": []}])
def test_metadata_that_is_none(content: Any) -> None:
    with pytest.raises(BadAnswer):
        application_metadata(content)


def response(outputs: Any, raw: bytes = b"", **rest: Any) -> Response:
    text = json.dumps({"outputs": outputs, **rest}).encode()
    return Response(200, text + raw, len(text))


def output(size: Any = 8, shape: Any = (2,), datatype: str = "FP32") -> dict[str, Any]:
    return {"name": "y", "datatype": datatype, "shape": list(shape), "parameters": {"binary_data_size": size}}


def test_an_answer_without_parameters() -> None:
    answer = answer_of(response([output()], np.array([1, 2], "<f4").tobytes(), model_version="v"))
    assert answer.output.tolist() == [1, 2] and answer.variant == "v"
    assert np.isnan(answer.queue_ms) and answer.batch_size == 0 and answer.outcome == ""


@pytest.mark.parametrize(
    "wrong",
    [
        Response(200, b"no json"),
        Response(200, b"[]"),
        Response(200, b"{}", 99),
        response([output(size=4)], bytes(8)),
        response([output(size=-1)], bytes(8)),
        response([output(size=True)], bytes(8)),
        response([output(size=2**60)], bytes(8)),
        response([output()], bytes(9)),
        response([output(shape=(-2,))], bytes(8)),
        response([output(shape=(2**39, 2**39))], bytes(8)),
        response([output(shape=(1,) * 40)], bytes(8)),
        response([output(datatype="PICKLE")], bytes(8)),
        response([output(datatype="BYTES", shape=(1,))], b"\xff\xff\xff\x7fabcd"),
        response([output(datatype="BYTES", shape=(2**39,))], bytes(8)),
        response([{"name": "y", "datatype": "FP32", "shape": [2], "data": [1]}]),
        response([{"name": "y", "datatype": "FP32", "shape": [1], "data": ["x"]}]),
        response([{"name": "y", "datatype": "UINT8", "shape": [1], "data": [-1e9]}]),
        response([{"name": "y", "datatype": "BYTES", "shape": [1], "data": [1]}]),
        response([{"name": "y", "datatype": "FP32", "shape": [1], "data": {}}]),
    ],
)
def test_answers_that_lie(wrong: Response) -> None:
    with pytest.raises(BadAnswer):
        answer_of(wrong)


def test_only_one_output_is_the_output() -> None:
    answer = answer_of(response([output(), output() | {"name": "z"}], bytes(16)))
    assert set(answer.outputs) == {"y", "z"}
    with pytest.raises(BadAnswer, match="2 outputs"):
        _ = answer.output
