"""ModelStreamInfer: answers as they are ready, errors inside the stream, the bound on what is unanswered, its ends."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import grpc
import numpy as np
import pytest

from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.limits import Limits
from tests.api.grpc.running import Client, failure, raw_request, reason_of, run, served, text


def request(name: str, value: float = 0.0, **parameters: str) -> Any:
    """A request that is held at the gate of its `hold`."""
    array = np.array([[value, -value]], np.float32)
    return raw_request(array, id=name, parameters={key: text(word) for key, word in parameters.items()})


def value_of(answer: protocol.ModelStreamInferResponse) -> float:
    return float(np.frombuffer(answer.infer_response.raw_output_contents[0], "<f4")[1])


def tasks_of_streams() -> list[Any]:
    """Tasks that still run for a stream, on the server."""
    return [
        task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "").startswith("answer_stream")
    ]


def test_answers_come_as_they_are_ready() -> None:
    async def scenario() -> None:
        async with served() as client:
            stream = client.stream(metadata=(("traceparent", "00-ab-cd-01"),))
            for n, name in enumerate("abc"):
                await stream.write(request(name, float(n), hold=name))
            await client.plane.until_running(3)
            order = []
            for name in "cab":
                client.plane.gates[name].set()
                answer = await stream.read()
                assert answer.error_message == ""
                assert value_of(answer) == "abc".index(name)
                order.append(answer.infer_response.id)
            assert order == ["c", "a", "b"]
            assert {seen.traceparent for seen in client.plane.seen} == {"00-ab-cd-01"}
            assert all("deadline_ms" not in seen.parameters for seen in client.plane.seen)
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() == grpc.StatusCode.OK

    run(scenario())


def test_an_error_inside_the_stream_names_its_request() -> None:
    async def scenario() -> None:
        async with served() as client:
            stream = client.stream()
            wrong_size = request("wrong-size")
            wrong_size.raw_input_contents[0] = b"123"
            crowd = raw_request(*[np.zeros((1, 1), np.float32)] * 65, id="crowd")
            sent = {
                "overloaded": request("overloaded", fail="OVERLOADED"),
                "crashed": request("crashed", crash=""),
                "leaked": request("leaked", leak=""),
                "wrong-size": wrong_size,
                "crowd": crowd,
                "": b"\x1a\x02\xc3\x28",
                "cut": b"\x1a\x03cut\x0a\x09m",
                "fine": request("fine", 4.0),
            }
            for message in sent.values():
                await stream.write(message)
            await stream.done_writing()
            answers = {answer.infer_response.id: answer async for answer in stream}
            assert set(answers) == set(sent)
            reasons = {
                name: (answer.infer_response.parameters["reason"].string_param, answer.error_message)
                for name, answer in answers.items()
                if answer.error_message
            }
            assert reasons["overloaded"] == ("overloaded", "asked to fail: OVERLOADED")
            assert answers["overloaded"].infer_response.parameters["retry_after"].int64_param == 2
            assert reasons["crashed"][0] == "failed" and "secret" not in reasons["crashed"][1]
            assert reasons["leaked"][0] == "cancelled"
            assert reasons["wrong-size"][0] == "bad_request" and "3 bytes" in reasons["wrong-size"][1]
            assert reasons["crowd"][0] == "bad_request" and "more than 64 inputs" in reasons["crowd"][1]
            assert reasons[""][0] == reasons["cut"][0] == "bad_request"
            assert value_of(answers["fine"]) == 4.0
            assert await stream.code() == grpc.StatusCode.OK

    run(scenario())


def test_only_so_many_are_unanswered() -> None:
    """Four of ten are taken at first; each answer lets one more in, and no more than four ever run."""

    async def scenario() -> None:
        async with served(limits=Limits(requests_per_stream=4)) as client:
            stream = client.stream()
            for n in range(10):
                await stream.write(request(str(n), float(n), hold=str(n)))
            await stream.done_writing()
            await client.plane.until_running(4)
            # A call on the same connection comes back after the fifth request would have been taken.
            assert (await client.call("ServerLive", protocol.ServerLiveRequest())).live
            assert sorted(client.plane.running) == ["0", "1", "2", "3"]
            for n in range(10):
                client.plane.gates[str(n)].set()
                assert (await stream.read()).infer_response.id == str(n)
            assert await stream.read() is grpc.aio.EOF
            assert client.plane.most_running == 4

    run(scenario())


def test_the_end_of_a_stream_waits_for_the_rest() -> None:
    async def scenario() -> None:
        async with served() as client:
            stream = client.stream()
            for n in range(20):
                await stream.write(request(str(n), hold="all"))
            await stream.done_writing()
            await client.plane.until_running(20)
            client.plane.gates["all"].set()
            assert sorted([answer.infer_response.id async for answer in stream], key=int) == [str(n) for n in range(20)]

    run(scenario())


def test_an_empty_stream_ends_well() -> None:
    async def scenario() -> None:
        async with served() as client:
            stream = client.stream()
            await stream.done_writing()
            assert [answer async for answer in stream] == []
            assert await stream.code() == grpc.StatusCode.OK

    run(scenario())


def test_cancelling_a_stream_withdraws_all_of_it() -> None:
    async def scenario() -> None:
        async with served() as client:
            stream = client.stream()
            for n in range(5):
                await stream.write(request(str(n), hold="never"))
            await client.plane.until_running(5)
            stream.cancel()
            await client.plane.until_running(0)
            assert sorted(client.plane.withdrawn) == ["0", "1", "2", "3", "4"]
            await no_task_is_left(client)

    run(scenario())


def test_a_client_that_goes_away_withdraws_all_of_it() -> None:
    async def scenario() -> None:
        async with served() as client:
            channel = grpc.aio.insecure_channel(client.address)
            stream = Client(client.plane, client.server, client.address, channel).stream()
            for n in range(5):
                await stream.write(request(str(n), hold="never"))
            await client.plane.until_running(5)
            await channel.close(grace=None)
            await client.plane.until_running(0)
            assert sorted(client.plane.withdrawn) == ["0", "1", "2", "3", "4"]
            await no_task_is_left(client)

    run(scenario())


def test_answers_that_nobody_takes_stop_the_reading(caplog: pytest.LogCaptureFixture) -> None:
    """The client sends on and on and reads nothing: what the server holds for it stays bounded; then it leaves."""

    async def scenario() -> None:
        async with served(limits=Limits(requests_per_stream=8)) as client:
            stream = client.stream()
            sent = 0

            async def send() -> None:
                nonlocal sent
                while True:
                    await stream.write(raw_request(np.zeros((1, 100_000), np.float32), id=str(sent)))
                    sent += 1

            sending = asyncio.create_task(send())
            await client.plane.until_seen(8)
            for _ in range(50):  # the server has every chance to take in more than it should
                assert (await client.call("ServerLive", protocol.ServerLiveRequest())).live
            assert len(client.plane.seen) < 60
            sending.cancel()
            stream.cancel()
            await no_task_is_left(client)

    run(scenario())
    assert "failed" not in caplog.text


def test_a_server_that_stops_ends_its_streams() -> None:
    async def scenario() -> None:
        async with served() as client:
            stream = client.stream()
            await stream.write(request("a", hold="never"))
            await client.plane.until_running(1)
            await client.server.stop(grace=0)
            assert (await failure(stream.read())).code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            await client.plane.until_running(0)
            assert client.plane.withdrawn == ["a"]

    run(scenario())


def test_streams_without_the_token_are_turned_away_before_they_send() -> None:
    async def scenario() -> None:
        async with served(token="secret") as client:
            error = await failure(client.stream().read())
            assert error.code() == grpc.StatusCode.UNAUTHENTICATED
            assert reason_of(error) == "unauthenticated"

    run(scenario())


async def no_task_is_left(client: Client) -> None:
    """Cancelled tasks end within a few turns of the loop; each call gives it several."""
    for _ in range(100):
        if not tasks_of_streams():
            break
        await client.call("ServerLive", protocol.ServerLiveRequest())
    gc.collect()  # a task that died with an error nobody read says so now
    assert tasks_of_streams() == []
