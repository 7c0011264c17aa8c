"""What gRPC may hold of messages that are on their way: how many are read at once, and who gives way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import numpy as np
import pytest

from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.grpc import reads as reads_module
from stretto.api.limits import Limits
from tests.api.grpc.running import SERVICE, Client, failure, raw_request, reason_of, run, served

SMALL = raw_request(np.ones((1, 4), np.float32))
FEW = Limits(memory_bytes=11_000_000, message_bytes=1_000_000)  # four messages at once, of which one place is spare


class Own:
    """A connection of its own: those of a process are shared otherwise."""

    def __init__(self, address: str):
        self.channel = grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])

    async def __aenter__(self) -> Own:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.channel.close()

    async def ask(self) -> protocol.ModelInferResponse:
        method = self.channel.unary_unary(
            SERVICE + "ModelInfer",
            request_serializer=protocol.ModelInferRequest.SerializeToString,
            response_deserializer=protocol.ModelInferResponse.FromString,
        )
        return await method(SMALL, timeout=15)

    async def say_nothing(self) -> str:
        """A call whose message never comes; returns how it ended."""

        async def silence() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        call = self.channel.stream_unary(SERVICE + "ModelInfer")(silence(), timeout=15)
        error = await failure(call)
        return f"{error.code().name} {reason_of(error)}"


async def until(condition: object, *, patience_s: float = 15.0) -> None:
    async with asyncio.timeout(patience_s):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


def test_calls_that_say_nothing_keep_nobody_out() -> None:
    """Ten calls that send no message, for three open places: each gives way, and small messages are read."""

    async def scenario() -> None:
        async with served(limits=FEW) as client, AsyncExitStack() as stack:
            assert client.reads.places == 4
            known, new = [await stack.enter_async_context(Own(client.address)) for _ in range(2)]
            await known.ask()
            silent = [await stack.enter_async_context(Own(client.address)) for _ in range(10)]
            calls = [asyncio.create_task(each.say_nothing()) for each in silent]
            await until(lambda: client.reads.reading == 3)
            for _ in range(5):
                assert (await known.ask()).model_name == "mirror"  # in the spare place: it waits for nobody
            assert (await new.ask()).model_name == "mirror"
            await until(lambda: sum(call.done() for call in calls) >= 7)
            assert {call.result() for call in calls if call.done()} == {"RESOURCE_EXHAUSTED overloaded"}
            assert len(client.plane.refused) >= 7 and client.reads.refused >= 7

    run(scenario())


def test_a_message_that_never_comes_ends_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads_module, "LOOK_S", 0.05)

    async def scenario() -> None:
        async with served(limits=Limits(header_timeout_s=0.3)) as client, Own(client.address) as silent:
            assert await asyncio.wait_for(silent.say_nothing(), 15) == "DEADLINE_EXCEEDED expired"
            assert (await silent.ask()).model_name == "mirror"
            assert client.reads.reading == 0

    run(scenario())


def test_streams_that_wait_for_their_client_are_left_alone() -> None:
    """No one waits for their place, so they may take their time."""

    async def scenario() -> None:
        async with served(limits=FEW) as client:
            streams = [client.stream() for _ in range(3)]
            for stream in streams:
                await stream.write(SMALL)
                assert (await stream.read()).infer_response.model_name == "mirror"
            await until(lambda: client.reads.reading == 3)
            await asyncio.sleep(2 * reads_module.TURN_S)
            for stream in streams:
                await stream.write(SMALL)
                assert (await stream.read()).infer_response.model_name == "mirror"
                await stream.done_writing()
            assert [await stream.code() for stream in streams] == [grpc.StatusCode.OK] * 3
            assert client.reads.refused == 0

    run(scenario())


def test_a_stream_gives_way_after_its_answers() -> None:
    async def scenario() -> None:
        async with served(limits=FEW) as client, Own(client.address) as own:
            streams = []
            for number in range(4):  # of one connection
                streams.append(client.stream())
                await streams[-1].write(SMALL)
                assert (await streams[-1].read()).infer_response.model_name == "mirror"
                await until(lambda number=number: client.reads.reading == number + 1)
            assert (await own.ask()).model_name == "mirror"
            assert client.reads.refused == 2  # one place stays free for connections that are known
            for stream in streams[:2]:  # their reads were the oldest
                assert (await failure(stream.read())).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            for stream in streams[2:]:
                await stream.write(SMALL)
                assert (await stream.read()).infer_response.model_name == "mirror"

    run(scenario())


def test_a_message_that_is_too_long_is_refused_and_counted() -> None:
    async def scenario() -> None:
        async with served(limits=FEW) as client:
            error = await failure(client.send("ModelInfer", bytes(1_000_001)))
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            await until(lambda: len(client.plane.refused) == 1)
            assert (await client.infer(SMALL)).model_name == "mirror"

    run(scenario())


def test_a_connection_has_a_share() -> None:
    """What its calls hold together until they are answered."""

    async def scenario() -> None:
        async with served(limits=FEW) as client, Own(client.address) as own:
            body = raw_request(np.ones((1, 240_000), np.float32))
            body.parameters["hold"].string_param = "gate"
            calls = [asyncio.create_task(held(client, body)) for _ in range(6)]
            await until(lambda: len(client.plane.running) == 1 and len(client.plane.refused) == 5)
            assert (await own.ask()).model_name == "mirror"
            client.plane.gates["gate"].set()
            answers = await asyncio.gather(*calls)
            assert answers.count("overloaded") == 5 and answers.count("answered") == 1

    run(scenario())


async def held(client: Client, body: protocol.ModelInferRequest) -> str:
    try:
        await client.infer(body)
        return "answered"
    except grpc.aio.AioRpcError as error:
        return str(reason_of(error))
