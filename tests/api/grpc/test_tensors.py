"""Every datatype, raw and typed, there and back; and what is refused about a tensor."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import grpc
import numpy as np
import pytest

from stretto.api.datatypes import NUMPY_OF, join_bytes, parse_bytes
from stretto.api.errors import ApiError
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.grpc.requests import CONTENTS_OF, infer_request
from stretto.api.grpc.responses import infer_response
from stretto.api.limits import Limits
from stretto.api.messages import InferResponse, OutputTensor
from tests.api.grpc.running import Client, classes_request, failure, raw_request, run, served


def values_of(datatype: str) -> np.ndarray:
    """A 2 × 3 tensor with the smallest and largest values of its type."""
    if datatype == "BYTES":
        return np.array([[b"", b"a\x00b", "Zoë".encode()], [b"\xff\xfe", b"x" * 300, b"end"]], object)
    dtype = NUMPY_OF[datatype]
    if datatype == "BOOL":
        return np.array([[True, False, True], [False, False, True]])
    bounds = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return np.array([[bounds.min, 0, 1], [2, 3, bounds.max]], dtype)


def encoded(array: np.ndarray) -> bytes:
    return join_bytes(array.ravel()) if array.dtype == object else array.tobytes()


def outputs_of(response: protocol.ModelInferResponse) -> list[np.ndarray]:
    assert len(response.outputs) == len(response.raw_output_contents)
    arrays = []
    for output, content in zip(response.outputs, response.raw_output_contents, strict=True):
        assert not output.HasField("contents")
        if output.datatype == "BYTES":
            flat = parse_bytes(content, int(np.prod(output.shape)), output.name)
        else:
            flat = np.frombuffer(content, NUMPY_OF[output.datatype])
        arrays.append(flat.reshape(tuple(output.shape)))
    return arrays


@pytest.mark.parametrize("datatype", NUMPY_OF)
def test_raw_contents(datatype: str) -> None:
    async def scenario() -> None:
        async with served() as client:
            array = values_of(datatype)
            request = protocol.ModelInferRequest(model_name="mirror")
            # A first tensor of one byte, so that the second does not begin where its type would like to.
            request.inputs.add(name="odd", datatype="INT8", shape=[1, 1])
            request.inputs.add(name="t", datatype=datatype, shape=[2, 3])
            request.raw_input_contents.extend([b"\x07", encoded(array)])
            odd, mirrored = outputs_of(await client.infer(request))
            assert odd.tolist() == [[7]]
            np.testing.assert_array_equal(mirrored, array[:, ::-1])

    run(scenario())


@pytest.mark.parametrize("datatype", CONTENTS_OF)
def test_typed_contents(datatype: str) -> None:
    async def scenario() -> None:
        async with served() as client:
            array = values_of(datatype)
            request = protocol.ModelInferRequest(model_name="mirror")
            tensor = request.inputs.add(name="t", datatype=datatype, shape=[2, 3])
            getattr(tensor.contents, CONTENTS_OF[datatype]).extend(array.ravel().tolist())
            [mirrored] = outputs_of(await client.infer(request))
            np.testing.assert_array_equal(mirrored, array[:, ::-1])

    run(scenario())


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (1, 0, 3), (1, 1, 1, 1, 1, 1, 1, 1, 1)])
def test_shapes_at_the_edge(shape: tuple[int, ...]) -> None:
    async def scenario() -> None:
        async with served() as client:
            array = np.full(shape, 2.5, np.float32)
            [mirrored] = outputs_of(await client.infer(raw_request(array)))
            assert mirrored.shape == shape
            typed = protocol.ModelInferRequest(model_name="mirror")
            tensor = typed.inputs.add(name="t", datatype="FP32", shape=shape)
            tensor.contents.fp32_contents.extend(array.ravel().tolist())
            [mirrored] = outputs_of(await client.infer(typed))
            assert mirrored.shape == shape

    run(scenario())


def test_an_aligned_raw_tensor_is_a_view_of_the_message() -> None:
    """No copy on the way in; and none of more than the one tensor where it begins at an odd place."""
    seen = {True: 0, False: 0}
    for padding in range(8):
        array = np.arange(1_000, dtype="<f8").reshape(10, 100)
        request = raw_request(array, datatype="FP64", id="i" * padding)
        body = request.SerializeToString()
        [tensor] = infer_request(body, Limits()).inputs
        np.testing.assert_array_equal(tensor.array, array)
        assert tensor.array.flags.aligned
        seen[np.shares_memory(tensor.array, np.frombuffer(body, np.uint8))] += 1
    assert seen[True] == 1


def test_a_large_tensor_comes_back() -> None:
    async def scenario() -> None:
        async with served(limits=Limits(message_bytes=9_000_000)) as client:
            array = np.arange(2_000_000, dtype="<i4").reshape(2, -1)
            [mirrored] = outputs_of(await client.infer(raw_request(array, datatype="INT32")))
            np.testing.assert_array_equal(mirrored, array[:, ::-1])

    run(scenario())


def test_outputs_of_any_memory_layout() -> None:
    array = np.arange(24, dtype=">f4").reshape(2, 3, 4).transpose(2, 0, 1)
    response = InferResponse("a", "v", "", [OutputTensor("t", "FP32", array)], {})
    [decoded] = outputs_of(protocol.ModelInferResponse.FromString(infer_response(response)))
    np.testing.assert_array_equal(decoded, array)


def request_with(**tensor: Any) -> protocol.ModelInferRequest:
    """One input with its parts as given; `raw` is the raw contents."""
    raw = tensor.pop("raw", None)
    request = protocol.ModelInferRequest(model_name="mirror")
    request.inputs.add(**{"name": "t", "datatype": "FP32", "shape": [1, 2], **tensor})
    request.raw_input_contents.extend([] if raw is None else [raw] if isinstance(raw, bytes) else raw)
    return request


CONTENTS = protocol.InferTensorContents
LIMITS = Limits(
    **{"tensors": 4, "dimensions": 5, "name_length": 24, "id_length": 8, "parameters": 3, "body_bytes": 4_000_000},
    **{"inflated_bytes": 5_000_000, "header_json_bytes": 1_000},
)
REFUSED: dict[str, tuple[Any, str]] = {
    "too few bytes": (request_with(raw=b"1234567"), "holds 7 bytes"),
    "too many bytes": (request_with(raw=b"123456789"), "holds 9 bytes"),
    "negative extent": (request_with(shape=[-1, 2], raw=bytes(8)), "negative"),
    "two negative extents": (request_with(shape=[-1, -2], raw=bytes(8)), "negative"),
    "an overflowing shape": (request_with(shape=[2**62, 4], raw=b""), "more than a message can hold"),
    "a shape that overflows to 0": (request_with(shape=[2**32, 2**32], raw=b""), "more than a message can hold"),
    "a huge shape beside 0": (request_with(shape=[0, 2**62, 2**62], raw=b""), "more than a message can hold"),
    "too many dimensions": (request_with(shape=[1] * 6, raw=bytes(4)), "dimensions"),
    "very many dimensions": (request_with(shape=[1] * 600, raw=bytes(4)), "dimensions"),
    "unknown datatype": (request_with(datatype="BF16", raw=bytes(4)), "datatype 'BF16'"),
    "no datatype": (request_with(datatype="", raw=bytes(8)), "datatype ''"),
    "no name": (request_with(name="", raw=bytes(8)), "no name"),
    "a long name": (request_with(name="n" * 25, raw=bytes(8)), "at most 24"),
    "more raw than inputs": (request_with(raw=[bytes(8), bytes(8)]), "1 inputs but 2 raw"),
    "raw and typed": (request_with(raw=bytes(8), contents=CONTENTS(fp32_contents=[1, 2])), "only one may be given"),
    "typed, FP16": (request_with(datatype="FP16", contents=CONTENTS(fp32_contents=[1, 2])), "no typed contents"),
    "typed, wrong field": (request_with(contents=CONTENTS(fp64_contents=[1, 2])), "belongs in fp32_contents"),
    "typed, two fields": (
        request_with(contents=CONTENTS(fp32_contents=[1, 2], int_contents=[1])),
        "belongs in fp32_contents",
    ),
    "typed, too few": (request_with(contents=CONTENTS(fp32_contents=[1])), "holds 1 values"),
    "typed, none": (request_with(), "holds 0 values"),
    "typed, out of range": (
        request_with(datatype="INT8", contents=CONTENTS(int_contents=[1, 128])),
        "INT8 cannot hold",
    ),
    "typed, very many": (
        request_with(shape=[1, 1_500_000], datatype="BOOL", contents=CONTENTS(bool_contents=[True] * 1_500_000)),
        "use raw_input_contents",
    ),
    "typed, very many strings": (
        request_with(shape=[1, 150_000], datatype="BYTES", contents=CONTENTS(bytes_contents=[b""] * 150_000)),
        "more than 100000 strings",
    ),
    "raw, very many strings": (
        request_with(shape=[1, 150_000], datatype="BYTES", raw=bytes(600_000)),
        "150000 strings; at most",
    ),
    "a BOOL of 2": (request_with(datatype="BOOL", raw=b"\x01\x02"), "other than 0 and 1"),
    "BYTES cut off": (request_with(datatype="BYTES", raw=b"\x01\x00\x00\x00a\x05\x00\x00\x00b"), "string 1"),
    "BYTES with a rest": (request_with(datatype="BYTES", raw=bytes(9)), "1 bytes after"),
    "shared memory": (
        request_with(parameters={"shared_memory_region": protocol.InferParameter(string_param="r")}),
        "shared_memory_byte_size",
    ),
    "no model": (protocol.ModelInferRequest(), "no name"),
    "a long model name": (protocol.ModelInferRequest(model_name="m" * 25), "at most 24"),
    "a long version": (protocol.ModelInferRequest(model_name="m", model_version="v" * 25), "at most 24"),
    "a long id": (protocol.ModelInferRequest(model_name="m", id="123456789"), "at most 8"),
    "many parameters": (
        protocol.ModelInferRequest(model_name="m", parameters={str(n): protocol.InferParameter() for n in range(4)}),
        "more than 3 parameters",
    ),
    "a long parameter": (
        protocol.ModelInferRequest(model_name="m", parameters={"p" * 25: protocol.InferParameter(bool_param=True)}),
        "at most 24",
    ),
    "many parameters of an input": (
        request_with(raw=bytes(8), parameters={str(n): protocol.InferParameter() for n in range(4)}),
        "more than 3 parameters",
    ),
    "many inputs": (raw_request(*[np.zeros((1, 1), np.float32)] * 5), "more than 4 inputs"),
    "many raw contents": (
        protocol.ModelInferRequest(model_name="m", raw_input_contents=[b""] * 5),
        "more than 4 raw_input_contents",
    ),
    "many outputs": (
        protocol.ModelInferRequest(
            model_name="m", outputs=[protocol.ModelInferRequest.InferRequestedOutputTensor(name="o")] * 5
        ),
        "more than 4 outputs",
    ),
    "a nameless output": (
        protocol.ModelInferRequest(model_name="m", outputs=[protocol.ModelInferRequest.InferRequestedOutputTensor()]),
        "no name",
    ),
    "not a message": (b"\xff\xff\xff", "cannot be parsed"),
    "cut off": (classes_request().SerializeToString()[:-3], "cannot be parsed"),
    "a name that is no UTF-8": (b"\x0a\x02\xc3\x28", "cannot be parsed"),
    "a parameter that is no UTF-8": (b"\x0a\x01m\x22\x04\x0a\x02\xc3\x28", "cannot be parsed"),
    "a group": (b"\x0a\x01m\x5b\x5c", "cannot be parsed"),
    "field 0": (b"\x02\x00", "cannot be parsed"),
    "unknown fields without end": (b"\x78\x00" * 100, "too many unknown"),
    "gzip cut off": (gzip.compress(classes_request().SerializeToString())[:-9], "cut off"),
    "gzip of nothing sound": (b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 9, "cannot be inflated"),
    "gzip with a rest": (gzip.compress(classes_request().SerializeToString()) + b"x", "goes on"),
    "gzip of too much": (gzip.compress(bytes(6_000_000), 1), "more than 5000000 bytes when it is inflated"),
    "deflate of too much": (zlib.compress(bytes(6_000_000), 1), "more than 5000000 bytes when it is inflated"),
}


@pytest.fixture(scope="module")
def refusals() -> dict[str, grpc.aio.AioRpcError]:
    """All refused requests, sent to one server, which still answers after them."""

    async def scenario() -> dict[str, grpc.aio.AioRpcError]:
        async with served(limits=LIMITS) as client:
            errors = {}
            for name, (request, _) in REFUSED.items():
                body = request if isinstance(request, bytes) else request.SerializeToString()
                errors[name] = await failure(client.send("ModelInfer", body))
            assert client.plane.seen == []
            assert len(client.plane.refused) == len(REFUSED)
            await still_answers(client)
            return errors

    return run(scenario())


async def still_answers(client: Client) -> None:
    response = await client.infer(raw_request(np.array([[1, 2]], np.float32)))
    assert outputs_of(response)[0].tolist() == [[2, 1]]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, refusals: dict[str, grpc.aio.AioRpcError]) -> None:
    error = refusals[name]
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error.details()
    assert REFUSED[name][1] in error.details()
    assert dict(error.trailing_metadata())["stretto-reason"] == "bad_request"


def test_limits_hold_exactly() -> None:
    """One more of each is refused above."""
    request = raw_request(*[np.zeros((1, 1, 1, 1, 1), np.float32)] * 4, model="m" * 24, id="12345678")
    for n in range(3):
        request.parameters[f"{n:024}"].bool_param = True
        request.inputs[0].parameters[str(n)].bool_param = True
    for n in range(4):
        request.inputs[n].name = f"{n:024}"
        request.outputs.add(name=f"{n:024}")
    assert len(infer_request(request.SerializeToString(), LIMITS).inputs) == 4


def test_a_small_message_cannot_ask_for_much() -> None:
    """Millions of empty parts, which protobuf would turn into gigabytes, are refused before it sees them."""
    many = 1_000_000
    inside = b"\x22\x00" * many, b"\x18\x01" * many, b"\x2a\x00" * many, b"\x2a\x04\x42\x00\x42\x00" * many
    wrapped = [b"\x2a" + varint(len(content)) + content for content in inside]
    for body in (b"\x2a\x00" * many, b"\x32\x00" * many, b"\x3a\x00" * many, b"\x22\x00" * many, *wrapped):
        with pytest.raises(ApiError):
            infer_request(b"\x0a\x01m" + body, Limits())


def varint(value: int) -> bytes:
    encoded_value = b""
    while value > 127:
        encoded_value += bytes([value & 127 | 128])
        value >>= 7
    return encoded_value + bytes([value])


def test_a_message_above_the_limit_is_refused_by_grpc() -> None:
    async def scenario() -> None:
        async with served(limits=LIMITS) as client:
            error = await failure(client.infer(raw_request(np.zeros((2, 1_000_000), np.float32))))
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            error = await failure(client.send("ModelReady", b"\x0a\x06mirror\x7a" + varint(2_000) + bytes(2_000)))
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
            await still_answers(client)

    run(scenario())


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests(compression: grpc.Compression) -> None:
    async def scenario() -> None:
        async with served(limits=LIMITS) as client:
            array = np.zeros((2, 500_000), np.float32)
            array[0, 0] = 5
            [mirrored] = outputs_of(await client.infer(raw_request(array), compression=compression))
            np.testing.assert_array_equal(mirrored, array[:, ::-1])
            ready = await client.call(
                "ModelReady", protocol.ModelReadyRequest(name="mirror", version="fast"), compression=compression
            )
            assert ready.ready
            # Small when it is sent, and beyond the limit when it is inflated.
            large = raw_request(np.zeros((2, 700_000), np.float32))
            error = await failure(client.infer(large, compression=compression))
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "inflated" in error.details()

    run(scenario())


def test_a_region_without_a_name_is_no_way_around_the_bounds() -> None:
    message = protocol.ModelInferRequest(model_name="m")
    tensor = message.inputs.add(name="x", datatype="INT32", shape=[1_000_001])
    tensor.contents.int_contents.extend(bytes(1_000_001))
    tensor.parameters["shared_memory_region"].SetInParent()
    with pytest.raises(ApiError, match="values in typed contents; above 1000000, use raw_input_contents"):
        infer_request(message.SerializeToString(), Limits())
    del tensor.contents.int_contents[2:]
    tensor.shape[0] = 2
    assert infer_request(message.SerializeToString(), Limits()).inputs[0].shared is None
    tensor.ClearField("contents")
    message.raw_input_contents.append(bytes(8))
    assert infer_request(message.SerializeToString(), Limits()).inputs[0].array.tolist() == [0, 0]
