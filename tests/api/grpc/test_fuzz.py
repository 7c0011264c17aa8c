"""Whatever bytes a client sends, it gets a status that blames the right side, soon, and the server serves on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.api.datatypes import NUMPY_OF
from stretto.api.errors import ApiError
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.grpc import wire
from stretto.api.grpc.requests import infer_request
from stretto.api.limits import Limits
from tests.api.grpc.running import PATIENCE_S, Client, raw_request, run, served

CLIENTS_FAULT = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND}
CALLS = [call.name for call in protocol.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods]
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

extents = st.one_of(st.integers(0, 4), st.sampled_from([-1, -(2**63), 2**31, 2**32, 2**62, 2**63 - 1]))
names = st.one_of(st.sampled_from(["x", "t", "scores", ""]), st.text(max_size=300))
numbers = st.integers(-(2**31), 2**31 - 1)


@st.composite
def parameters(draw: st.DrawFn) -> protocol.InferParameter:
    choices: list[tuple[str, Any]] = [
        ("bool_param", True),
        ("int64_param", -1),
        ("uint64_param", 2**64 - 1),
        ("string_param", "ü"),
    ]
    choices += [("double_param", float("nan")), ("double_param", float("inf")), ("int64_param", 2)]
    field, value = draw(st.sampled_from(choices))
    return protocol.InferParameter(**{field: value})


@st.composite
def contents(draw: st.DrawFn) -> protocol.InferTensorContents:
    values = draw(st.lists(numbers, max_size=8))
    positive = [abs(value) for value in values]
    choices: list[tuple[str, list[Any]]] = [("int_contents", values), ("int64_contents", values)]
    choices += [("uint_contents", positive), ("uint64_contents", positive)]
    choices += [("fp32_contents", values), ("fp64_contents", values)]
    choices += [("bool_contents", [bool(value % 2) for value in values])]
    choices += [("bytes_contents", [str(value).encode() for value in values])]
    field, given_values = draw(st.sampled_from(choices))
    return protocol.InferTensorContents(**{field: given_values})


@st.composite
def requests(draw: st.DrawFn) -> protocol.ModelInferRequest:
    """Mostly wrong, in one way or several; sometimes right."""
    request = protocol.ModelInferRequest(
        model_name=draw(st.one_of(st.sampled_from(["mirror", "classes"]), names)),
        model_version=draw(st.sampled_from(["", "fast", "v9", "é" * 300])),
        id=draw(st.text(max_size=20)),
        parameters=draw(st.dictionaries(st.text(max_size=4).map("p-".__add__), parameters(), max_size=3)),
    )
    for _ in range(draw(st.integers(0, 4))):
        datatype = draw(st.sampled_from([*NUMPY_OF, "BF16", "", "fp32"]))
        shape = draw(st.lists(extents, max_size=18))
        tensor = request.inputs.add(name=draw(names), datatype=datatype, shape=shape)
        if draw(st.booleans()):
            tensor.contents.CopyFrom(draw(contents()))
        elif draw(st.booleans()) and datatype in NUMPY_OF and 0 <= np.prod(shape, dtype=float) < 10_000:
            # BYTES are four zeros for each empty string.
            size = 4 if datatype == "BYTES" else NUMPY_OF[datatype].itemsize
            request.raw_input_contents.append(bytes(size * int(np.prod(shape, dtype=float))))
        else:
            request.raw_input_contents.append(draw(st.binary(max_size=40)))
    for _ in range(draw(st.integers(0, 2))):
        output = request.outputs.add(name=draw(names))
        if draw(st.booleans()):
            output.parameters["classification"].CopyFrom(draw(parameters()))
    return request


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A serialized request, cut off or with bytes changed."""
    body = bytearray(draw(requests()).SerializeToString())
    for _ in range(draw(st.integers(0, 4))):
        if body:
            body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body[: draw(st.integers(0, len(body)))])


bodies = st.one_of(requests().map(protocol.ModelInferRequest.SerializeToString), broken(), st.binary(max_size=60))
Running = tuple[Client, Callable[[Coroutine[Any, Any, Any]], Any]]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """One server under fire, and what runs a coroutine beside it."""
    with asyncio.Runner() as runner:
        context = served(limits=Limits())
        client = runner.run(context.__aenter__())
        yield client, lambda scenario: runner.run(asyncio.wait_for(scenario, PATIENCE_S))
        runner.run(asyncio.wait_for(still_answers(client), PATIENCE_S))
        runner.run(context.__aexit__(None, None, None))


async def still_answers(client: Client) -> None:
    response = await client.infer(raw_request(np.array([[1, 2]], np.float32)))
    assert np.frombuffer(response.raw_output_contents[0], "<f4").tolist() == [2, 1]


async def code_of(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


@FUZZ
@given(body=bodies)
def test_infer(running: Running, body: bytes) -> None:
    client, execute = running
    assert execute(code_of(client.send("ModelInfer", body))) in CLIENTS_FAULT


@FUZZ
@given(name=st.sampled_from(CALLS), body=bodies)
def test_every_call(running: Running, name: str, body: bytes) -> None:
    """Among them ModelStreamInfer, called as if it had one message each way."""
    client, execute = running
    assert execute(code_of(client.send(name, body))) in CLIENTS_FAULT


@settings(FUZZ, max_examples=40)
@given(messages=st.lists(bodies, max_size=8))
def test_stream(running: Running, messages: list[bytes]) -> None:
    """Every message of a stream gets one answer."""
    client, execute = running

    async def scenario() -> int:
        stream = client.stream()
        for message in messages:
            await stream.write(message)
        await stream.done_writing()
        count = len([answer async for answer in stream])
        assert await stream.code() == grpc.StatusCode.OK
        return count

    assert execute(scenario()) == len(messages)


@FUZZ
@given(request=requests())
def test_the_walk_agrees_with_protobuf(request: protocol.ModelInferRequest) -> None:
    """What is walked over and put together again is what protobuf would have read."""
    body = request.SerializeToString()
    try:
        split = wire.split(body, Limits(dimensions=100))
    except ApiError as error:
        raise AssertionError(error.message) from error
    rest = protocol.ModelInferRequest.FromString(split.message)
    rest.raw_input_contents.extend(body[start:end] for start, end in split.raw)
    assert rest.SerializeToString(deterministic=True) == request.SerializeToString(deterministic=True)
    assert wire.request_id(body, Limits()) == request.id


@FUZZ
@given(body=bodies)
def test_a_request_that_is_taken_fits_its_shapes(body: bytes) -> None:
    try:
        request = infer_request(body, Limits())
    except ApiError as error:
        assert error.message
        return
    for tensor in request.inputs:
        assert tensor.array.dtype == NUMPY_OF[tensor.datatype]
        assert tensor.array.nbytes <= 8 * max(len(body), 1)


def test_many_broken_calls_at_once() -> None:
    async def scenario() -> None:
        # Fewer calls than gRPC's bound for one connection, where it refuses some by itself.
        async with served(limits=Limits(streams_per_connection=1_000)) as client:
            good = raw_request(np.ones((1, 2), np.float32)).SerializeToString()
            calls = [client.send("ModelInfer", good[:cut]) for cut in range(len(good)) for _ in range(4)]
            codes = await asyncio.gather(*(code_of(call) for call in calls))
            assert set(codes) <= CLIENTS_FAULT
            await still_answers(client)

    run(scenario())
