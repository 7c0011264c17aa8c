"""Every call but inference itself, and what accompanies an inference: parameters, deadline, trace, cancellation."""

from __future__ import annotations

import asyncio
import logging

import grpc
import numpy as np
import pytest
import uvloop

from stretto.api.errors import ApiError, Reason
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.grpc.servicer import take_deadline
from stretto.api.messages import InferRequest
from tests.api.grpc.mirror_plane import WEIGHTS
from tests.api.grpc.running import classes_request, failure, raw_request, reason_of, run, served, text

ONE = np.ones((1, 2), np.float32)


def test_health() -> None:
    async def scenario() -> None:
        async with served() as client:
            assert (await client.call("ServerLive", protocol.ServerLiveRequest())).live
            assert (await client.call("ServerReady", protocol.ServerReadyRequest())).ready
            client.plane.is_ready = False
            assert not (await client.call("ServerReady", protocol.ServerReadyRequest())).ready
            assert (await client.call("ModelReady", protocol.ModelReadyRequest(name="mirror"))).ready
            assert not (await client.call("ModelReady", protocol.ModelReadyRequest(name="nobody"))).ready
            assert not (await client.call("ModelReady", protocol.ModelReadyRequest(name="mirror", version="v9"))).ready
            assert not client.plane.refused

    run(scenario())


def test_metadata_config_and_statistics() -> None:
    async def scenario() -> None:
        async with served() as client:
            server = await client.call("ServerMetadata", protocol.ServerMetadataRequest())
            assert (server.name, server.version) == ("mirror-server", "1.2.3")
            assert list(server.extensions) == ["classification", "statistics"]
            model = await client.call("ModelMetadata", protocol.ModelMetadataRequest(name="classes"))
            assert (model.name, model.platform, list(model.versions)) == ("classes", "numpy", ["fast", "exact"])
            assert (model.inputs[0].name, model.inputs[0].datatype) == ("x", "FP32")
            assert list(model.inputs[0].shape) == [-1, 4]
            assert list(model.outputs[0].shape) == [-1, 3]
            config = (await client.call("ModelConfig", protocol.ModelConfigRequest(name="classes"))).config
            assert (config.name, config.backend, config.max_batch_size) == ("classes", "stretto", 8)
            assert config.input[0].data_type == protocol.TYPE_FP32
            assert config.output[0].label_filename == "labels.txt"
            assert config.dynamic_batching.max_queue_delay_microseconds == 1_000
            assert config.WhichOneof("scheduling_choice") == "dynamic_batching"
            assert config.version_policy.WhichOneof("policy_choice") == "all"
            assert config.parameters["slo_ms"].string_value == "50"
            every = await client.call("ModelStatistics", protocol.ModelStatisticsRequest())
            assert len(every.model_stats) == 4
            one = await client.call("ModelStatistics", protocol.ModelStatisticsRequest(name="mirror", version="fast"))
            [stats] = one.model_stats
            assert (stats.name, stats.version, stats.inference_count) == ("mirror", "fast", 2**40)
            assert (stats.inference_stats.cache_miss.count, stats.inference_stats.queue.ns) == (2, 3_000_000)
            assert stats.batch_stats[0].compute_infer.ns == 3_000_000
            for name in ("ModelMetadata", "ModelConfig", "ModelStatistics"):
                unknown = await failure(client.call(name, getattr(protocol, f"{name}Request")(name="nobody")))
                assert unknown.code() == grpc.StatusCode.NOT_FOUND

    run(scenario())


def test_repository_on_the_management_server() -> None:
    async def scenario() -> None:
        async with served(is_management=True) as client:
            await client.call("RepositoryModelUnload", protocol.RepositoryModelUnloadRequest(model_name="mirror"))
            index = await client.call("RepositoryIndex", protocol.RepositoryIndexRequest())
            states = {model.name: (model.state, model.reason) for model in index.models}
            assert states == {"classes": ("READY", ""), "mirror": ("UNAVAILABLE", "unloaded")}
            ready = await client.call("RepositoryIndex", protocol.RepositoryIndexRequest(ready=True))
            assert [model.name for model in ready.models] == ["classes"]
            await client.call("RepositoryModelLoad", protocol.RepositoryModelLoadRequest(model_name="mirror"))
            assert (await client.call("ModelReady", protocol.ModelReadyRequest(name="mirror"))).ready

    run(scenario())


def test_repository_elsewhere_is_forbidden() -> None:
    async def scenario() -> None:
        async with served(is_management=False) as client:
            for name in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
                error = await failure(client.call(name, getattr(protocol, f"{name}Request")()))
                assert error.code() == grpc.StatusCode.PERMISSION_DENIED
                assert reason_of(error) == "forbidden"
                assert "management" in error.details()
            assert client.plane.loaded == {"mirror", "classes"}

    run(scenario())


def test_an_unknown_call_is_unimplemented() -> None:
    async def scenario() -> None:
        async with served() as client:
            assert (await failure(client.send("NoSuchCall", b""))).code() == grpc.StatusCode.UNIMPLEMENTED
            assert [error.reason.word for error in client.plane.refused] == ["not_found"]

    run(scenario())


def test_parameters_both_ways() -> None:
    async def scenario() -> None:
        async with served() as client:
            request = raw_request(ONE, model_version="fast", id="q-1")
            request.parameters["deadline_ms"].double_param = 12.5
            request.parameters["priority"].uint64_param = 2**63
            request.parameters["timeout"].int64_param = -3
            request.parameters["client_id"].string_param = "Zoë"
            request.parameters["flag"].bool_param = True
            request.parameters["empty"].SetInParent()
            response = await client.infer(request, metadata=(("traceparent", "00-ab-cd-01"),))
            [seen] = client.plane.seen
            assert seen.parameters == {
                **{"deadline_ms": 12.5, "priority": 2**63, "timeout": -3},
                **{"client_id": "Zoë", "flag": True},
            }
            assert seen.parameters["flag"] is True
            assert (seen.application, seen.version, seen.id) == ("mirror", "fast", "q-1")
            assert seen.traceparent == "00-ab-cd-01"
            assert (response.model_name, response.model_version, response.id) == ("mirror", "fast", "q-1")
            assert response.parameters["variant"].string_param == "fast"
            assert response.parameters["batch_size"].int64_param == 1
            assert response.parameters["expected_accuracy"].double_param == 0.5

    run(scenario())


def test_wanted_outputs_and_classification() -> None:
    async def scenario() -> None:
        async with served() as client:
            request = raw_request(ONE, 2 * ONE)
            request.outputs.add(name="t1")
            response = await client.infer(request)
            assert [output.name for output in response.outputs] == ["t1"]
            request = classes_request(rows=2)
            request.outputs.add(name="scores").parameters["classification"].int64_param = 2
            response = await client.infer(request)
            [output] = response.outputs
            assert (output.datatype, list(output.shape)) == ("BYTES", [2, 2])
            best = f"{WEIGHTS.sum(0)[2]:f}:2:bird".encode()
            assert response.raw_output_contents[0].startswith(len(best).to_bytes(4, "little") + best)
            for bad in (
                {"int64_param": -1},
                {"string_param": "3"},
                {"bool_param": True},
                {"double_param": 1.0},
            ):
                request.outputs[0].parameters["classification"].CopyFrom(protocol.InferParameter(**bad))
                assert (await failure(client.infer(request))).code() == grpc.StatusCode.INVALID_ARGUMENT

    run(scenario())


@pytest.mark.parametrize("reason", list(Reason))
def test_an_error_of_the_plane_has_its_status(reason: Reason) -> None:
    async def scenario() -> None:
        async with served() as client:
            error = await failure(client.infer(raw_request(ONE, parameters={"fail": text(reason.name)})))
            assert error.code() == grpc.StatusCode[reason.grpc_status]
            assert error.details() == f"asked to fail: {reason.name}"
            assert reason_of(error) == reason.word
            assert dict(error.trailing_metadata())["retry-after"] == "2"

    run(scenario())


def test_a_failure_inside_shows_nothing_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with served() as client:
            error = await failure(client.infer(raw_request(ONE, parameters={"crash": text("")})))
            assert error.code() == grpc.StatusCode.INTERNAL
            assert reason_of(error) == "failed"
            assert "secret" not in error.details() and "KeyError" not in error.details()

    with caplog.at_level(logging.ERROR, "stretto.api.grpc"):
        run(scenario())
    assert "ModelInfer failed" in caplog.text
    assert "/a/secret/path" in caplog.text


def test_a_cancellation_that_leaks_out_of_the_plane_is_answered() -> None:
    """gRPC sends no status for a handler that ends in CancelledError, and its client would wait for ever."""

    async def scenario() -> None:
        async with served() as client:
            error = await failure(client.infer(raw_request(ONE, parameters={"leak": text("")})))
            assert error.code() == grpc.StatusCode.CANCELLED
            assert reason_of(error) == "cancelled"

    run(scenario())


def test_a_long_message_still_arrives() -> None:
    """Trailing metadata above 8 KiB would be refused by the client, and the status with it."""

    async def scenario() -> None:
        async with served() as client:
            error = await failure(client.infer(raw_request(ONE, datatype="FP32", model="é" * 256)))
            assert error.code() == grpc.StatusCode.NOT_FOUND

            def raises(application: str, version: str = "") -> None:
                raise ApiError(Reason.NOT_FOUND, "é" * 50_000)

            client.plane.check = raises  # type: ignore[method-assign]
            error = await failure(client.infer(raw_request(ONE)))
            assert error.code() == grpc.StatusCode.NOT_FOUND
            assert len(error.details()) == 1_000

    run(scenario())


def test_the_deadline_of_the_call_becomes_the_querys() -> None:
    async def scenario() -> None:
        async with served() as client:
            await client.infer(raw_request(ONE), timeout=5)
            # gRPC sends a deadline with few digits, rounded up.
            assert 0 < client.plane.seen[-1].parameters["deadline_ms"] <= 1.05 * 5_000
            await client.infer(raw_request(ONE), timeout=None)
            assert "deadline_ms" not in client.plane.seen[-1].parameters
            request = raw_request(ONE, parameters={"timeout": protocol.InferParameter(int64_param=7)})
            await client.infer(request, timeout=5)
            assert client.plane.seen[-1].parameters == {"timeout": 7}

    run(scenario())


def deadline_taken(remaining_s: float | None, **parameters: object) -> object:
    request = InferRequest("mirror", [], parameters=dict(parameters))
    take_deadline(request, remaining_s)
    return request.parameters.get("deadline_ms")


def test_when_the_deadline_of_the_call_counts() -> None:
    assert deadline_taken(0.25) == 250.0
    assert deadline_taken(None) is None
    assert deadline_taken(3_600.0) is None
    assert deadline_taken(3_599.0) == 3_599_000.0
    assert deadline_taken(0.25, deadline_ms=9) == 9
    assert deadline_taken(0.25, timeout=9) is None
    assert deadline_taken(0.25, timeout=0) == 250.0, "as Triton clients send it, 0 is none"
    with pytest.raises(ApiError) as caught:
        deadline_taken(0.0)
    assert caught.value.reason is Reason.EXPIRED


def test_cancelling_the_call_withdraws_the_query() -> None:
    async def scenario() -> None:
        async with served() as client:
            call = client.call("ModelInfer", raw_request(ONE, id="gone", parameters={"hold": text("a")}))
            waiting = asyncio.ensure_future(failure(call))
            await client.plane.until_running(1)
            call.cancel()
            await client.plane.until_running(0)
            assert client.plane.withdrawn == ["gone"]
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await client.infer(raw_request(ONE))

    run(scenario())


def test_a_call_whose_deadline_passes_withdraws_its_query() -> None:
    async def scenario() -> None:
        async with served() as client:
            request = raw_request(ONE, id="late", parameters={"hold": text("a")})
            error = await failure(client.infer(request, timeout=0.2))
            assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            await client.plane.until_running(0)
            assert client.plane.withdrawn == ["late"]

    run(scenario())


def test_under_uvloop() -> None:
    async def scenario() -> None:
        async with served() as client:
            responses = await asyncio.gather(*(client.infer(raw_request(n * ONE, id=str(n))) for n in range(20)))
            assert [response.id for response in responses] == [str(n) for n in range(20)]
            assert all(np.frombuffer(r.raw_output_contents[0], "<f4")[0] == float(r.id) for r in responses)
            stream = client.stream()
            await stream.write(raw_request(ONE, id="s"))
            await stream.done_writing()
            assert [answer.infer_response.id async for answer in stream] == ["s"]
            call = client.call("ModelInfer", raw_request(ONE, id="gone", parameters={"hold": text("a")}))
            await client.plane.until_running(1)
            call.cancel()
            await client.plane.until_running(0)
            assert client.plane.withdrawn == ["gone"]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 20))
