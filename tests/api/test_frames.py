"""Clients of frames against the real server, over HTTP and over a gRPC stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
import pytest

from stretto.client import AsyncFrameClient, BadRequest, ConnectionFailed, FrameClient, FrameOutcome, NotFound
from stretto.client import frames as client_frames
from stretto.client.errors import BadAnswer, Overloaded
from stretto.client.frame_grpc import GrpcFrames
from stretto.client.frame_input import FrameInput, FrameTensor, frame_tensor
from stretto.client.network import Link, Proxy
from stretto.client.pacing import Size
from stretto.core import preparation
from stretto.core.bandwidth import constant
from stretto.core.client import Place, Told
from stretto.core.errors import StrettoError
from stretto.core.pacing import REFUSALS
from tests.api.serving import Running, repository_of

SLO_MS = 5_000.0  # long enough for a machine that is busy with other things
PATIENCE_S = 30.0
TOKENS = "x" * 200, "y" * 800


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    repository: Path = repository_of(tmp_path_factory.mktemp("frames"), "fashion_resolution", "mnist")
    with Running(repository, only=("px08", "px16", "px24", "linear"), grpc=True) as server:
        yield server


@pytest.fixture(params=["http", "grpc"])
def url(running: Running, request: pytest.FixtureRequest) -> str:
    host, port = running.address(request.param)
    return f"{request.param}://{host}:{port}"


def image(seed: int = 3, edge: int = 56) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (edge, edge), dtype=np.uint8)


def frames(url: str, **options: Any) -> FrameClient:
    return FrameClient(url, "fashion_resolution", **{"slo_ms": SLO_MS, **options})


def client_of(running: Running, identity: str) -> Any:
    def find() -> Any:
        return next((each for each in running.service.clients.all() if each.identity == identity), None)

    return running.call(find)


def test_frames_are_made_smaller_sent_and_answered(running: Running, url: str) -> None:
    with frames(url, client_id="camera") as client:
        results = [client.send(image(seed)) for seed in range(12)]
        stats = client.stats
    assert {result.outcome for result in results} == {FrameOutcome.ON_TIME}
    assert results[0].size in ((8, 8), (12, 12))  # nothing was known of the network
    assert stats.made == stats.sent == stats.on_time == 12 and stats.misses == 0 and stats.in_flight == 0
    assert stats.bandwidth is not None and stats.bandwidth > 1_000  # of loopback, on a busy machine
    assert stats.sent_bytes == sum(result.sent_bytes for result in results) and stats.rtt_ms is not None
    for result in results:
        assert result.answer is not None and result.answer.output.shape == (1, 10) and result.latency_ms > 0
        assert result.has_arrived
    known = client_of(running, "camera")
    assert known.application == "fashion_resolution" and known.slo_ns == SLO_MS * 1e6
    assert known.network.bytes_per_s == pytest.approx(stats.bandwidth, rel=0.8) and known.network.delay_ns > 0


def test_what_the_server_tells_is_sent(running: Running, url: str) -> None:
    identity = f"told over {url}"
    with frames(url, client_id=identity) as client:
        client.send(image())
        running.wait_until(
            lambda: any(each.told.variant for each in running.service.clients.all() if each.identity == identity),
            "the client is told",
        )
        client.send(image())
        result = client.send(image())
        assert result.size == (24, 24)  # the most accurate of this ladder
        slot = client_of(running, identity).slot
        running.call(lambda: running.service.clients.told(slot, Told("px16", (1, 16, 16))))
        client.send(image())
        assert client.send(image()).size in ((16, 16), (24, 24))  # the next look tells anew


def test_one_camera_that_asks_two_applications_hears_the_size_of_each(running: Running, url: str) -> None:
    """Once it heard that of the application that it had asked last, whichever it asked."""
    identity = f"two over {url}"

    def told() -> dict[str, str]:
        of_it = [each for each in running.service.clients.all() if each.identity == identity]
        return {each.application: each.told.variant for each in of_it if each.told.variant}

    picture = image().astype(np.float32) / 255
    other = FrameClient(url, "mnist", slo_ms=SLO_MS, client_id=identity)
    with frames(url, client_id=identity) as client, other:
        client.send(picture)
        other.send(picture)
        running.wait_until(lambda: len(told()) == 2, "both are told")
        answers = [each.send(picture).answer for each in (client, other, client)]
    assert told()["mnist"] == "linear" and told()["fashion_resolution"] == "px24"
    mapped = [answer.parameters["mapped"] for answer in answers if answer is not None]
    assert mapped == ["px24", "linear", "px24"]


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
def test_encoded_frames(running: Running, url: str, encoding: str) -> None:
    pytest.importorskip("PIL")
    with frames(url, encoding=encoding) as client:
        results = [client.send(image(seed)) for seed in range(3)]
    assert {result.outcome for result in results} == {FrameOutcome.ON_TIME}


def test_numbers_and_bytes_of_one_image_have_one_answer(running: Running, url: str) -> None:
    with frames(url, size=(28, 28)) as client:
        of_bytes = client.send(image(edge=28))
        of_numbers = client.send(image(edge=28).astype(np.float32) / 255)
    assert of_bytes.answer is not None and of_numbers.answer is not None
    assert of_bytes.sent_bytes < of_numbers.sent_bytes
    if of_bytes.answer.variant == of_numbers.answer.variant:
        np.testing.assert_allclose(of_bytes.answer.output, of_numbers.answer.output, atol=1e-5)


def test_many_frames_at_once_are_bounded_and_each_has_its_end(running: Running, url: str) -> None:
    async def scenario() -> AsyncFrameClient:
        async with AsyncFrameClient(url, "fashion_resolution", slo_ms=SLO_MS, in_flight=3) as client:
            results = await asyncio.gather(*(client.send(image(seed)) for seed in range(10)))
            outcomes = [result.outcome for result in results]
            assert outcomes.count(FrameOutcome.TOO_MANY) == 7 and outcomes.count(FrameOutcome.ON_TIME) == 3
        return client

    stats = asyncio.run(scenario()).stats
    assert stats.outcomes.total() == stats.made == 10 and stats.in_flight == 0 and stats.miss_rate == 0.7


def test_a_frame_that_is_old_already_is_not_sent(running: Running, url: str) -> None:
    with frames(url) as client:
        result = client.send(image(), made_ns=time.monotonic_ns() - round(2 * SLO_MS * 1e6))
        assert result.outcome is FrameOutcome.TOO_LATE_TO_SEND and client.stats.sent == 0


def test_a_camera_that_is_too_slow_for_a_large_size_finds_a_smaller_one_and_comes_back(
    running: Running, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: every frame at the size that was told, late for ever."""
    pixel_s = 0.0008  # 0.46 s for 24 × 24 pixels, 0.2 s for 16 × 16

    def slowly(takes: FrameInput, image: Any, size: Size, *rest: Any) -> FrameTensor:
        time.sleep(pixel_s * size[0] * size[1])
        return frame_tensor(takes, image, size, *rest)

    monkeypatch.setattr(client_frames, "frame_tensor", slowly)
    monkeypatch.setattr(preparation, "KEPT_TIMES", 6)  # 3 s, as it is so slow
    large = image(edge=400)
    with frames(url, slo_ms=400.0) as client:
        results = []
        for _ in range(16):
            results.append(client.send(large))
            time.sleep(max(0.0, results[-1].made_s + 0.25 - time.monotonic()))  # four frames a second
        assert client.stats.preparing_ms > 40
        too_late = [result for result in results if result.outcome is FrameOutcome.TOO_LATE_TO_SEND]
        on_time = [result.size for result in results if result.outcome is FrameOutcome.ON_TIME]
        assert 1 <= len(too_late) <= 4 and len(on_time) >= 10
        assert set(on_time) & {(12, 12), (16, 16)} and max(on_time) < (24, 24)
        pixel_s = 0.0
        until = time.monotonic() + PATIENCE_S
        while client.send(large).size != (24, 24):
            assert time.monotonic() < until, "it never came back"


def test_an_answer_that_never_comes_is_given_up(running: Running, url: str) -> None:
    with frames(url, slo_ms=150.0, grace_ms=100.0, in_flight=2) as client:
        with running.gate:
            begun = time.monotonic()
            result = client.send(image())
            assert time.monotonic() - begun < 5
            assert result.outcome in (FrameOutcome.FAILED, FrameOutcome.REFUSED) and result.has_arrived
        running.wait_until(lambda: running.plane.open_requests == 0, "the server forgot it")
        assert client.stats.misses == 1 and client.stats.in_flight == 0


def test_who_is_mapped_nowhere_holds_its_frames_back(
    running: Running, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running.service.replanner, "_tell", lambda: None)  # this plan maps nobody
    identity = f"nowhere over {url}"
    with frames(url, client_id=identity) as client:
        client.send(image())
        slot = client_of(running, identity).slot
        nowhere = Place(Told("", (1, 8, 8)), 0, True)
        clients = running.service.clients
        running.call(lambda: clients.placed(clients.all(), {slot: nowhere}))
        results = [client.send(image()) for _ in range(20)]
    held = sum(result.outcome is FrameOutcome.HELD_BACK for result in results)
    assert held >= 10  # one told it, and the others waited
    running.call(lambda: clients.told(slot, Told()))


def test_an_overloaded_server_is_left_alone_for_a_while(running: Running, url: str) -> None:
    limits = running.plane.limits
    try:
        with frames(url) as client:
            client.send(image())
            running.plane.limits = type(limits)(waiting_requests=0)
            for _ in range(REFUSALS):
                refused = client.send(image())
                assert refused.outcome is FrameOutcome.REFUSED and isinstance(refused.error, Overloaded)
            assert client.send(image()).outcome is FrameOutcome.HELD_BACK
            running.plane.limits = limits
            end = time.monotonic() + PATIENCE_S
            while client.send(image()).outcome is not FrameOutcome.ON_TIME:
                assert time.monotonic() < end
                time.sleep(0.05)
            assert client.stats.refusals["overloaded"] == REFUSALS
    finally:
        running.plane.limits = limits


def test_clients_that_vanish_in_the_middle_leave_nothing(running: Running, url: str) -> None:
    async def vanish() -> None:
        client = AsyncFrameClient(url, "fashion_resolution", slo_ms=SLO_MS)
        await client.start()
        sending = [asyncio.create_task(client.send(image(seed))) for seed in range(3)]
        await asyncio.sleep(0.02)
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await client.close()
        assert client.stats.outcomes.total() == client.stats.made == 3

    with running.gate:
        asyncio.run(vanish())
    running.wait_for_queries(0)
    running.wait_until(lambda: running.plane.open_requests == 0, "every request has its end")
    assert running.missing() == 0


@pytest.mark.parametrize(
    ("options", "problem", "kind"),
    [
        ({"encoding": "gif"}, "there is no encoding 'gif'", BadRequest),
        ({"size": (9, 9)}, "takes frames of 8x8", BadRequest),
        ({"slo_ms": 0}, "slo_ms is 0", BadRequest),
        ({"in_flight": 0}, "in_flight is 0", BadRequest),
        ({"grace_ms": -1}, "grace_ms is -1", BadRequest),
    ],
)
def test_options_that_cannot_be(url: str, options: dict[str, Any], problem: str, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=problem):
        frames(url, **options)


def test_what_is_no_frame_is_refused_here(url: str) -> None:
    with frames(url) as client:
        for bad in (np.zeros((3, 28, 28)), np.zeros(28), np.zeros((1, 1, 28, 28))):
            with pytest.raises(BadRequest, match="a frame is an array of"):
                client.send(bad)
        assert client.send(image()).outcome is FrameOutcome.ON_TIME  # nothing is held by what failed
        assert client.stats.outcomes[FrameOutcome.FAILED] == 3


def test_an_application_that_is_not_there(url: str) -> None:
    with pytest.raises(NotFound):
        FrameClient(url, "nothing", slo_ms=SLO_MS)


def test_an_application_of_one_size_is_sent_that(url: str) -> None:
    with FrameClient(url, "mnist", slo_ms=SLO_MS) as client:
        result = client.send(image().astype(np.float32) / 255)
        assert result.outcome is FrameOutcome.ON_TIME and result.size == (28, 28)


@pytest.mark.parametrize("gone", ["http://127.0.0.1:9", "grpc://127.0.0.1:9"])
def test_a_server_that_is_not_there(gone: str) -> None:
    with pytest.raises(ConnectionFailed):
        FrameClient(gone, "fashion_resolution", slo_ms=SLO_MS)


@pytest.mark.parametrize("bad", ["grpc://", "grpc://user@host:1", "grpc://host:1/path", "ftp://host"])
def test_a_url_that_is_none(bad: str) -> None:
    with pytest.raises(StrettoError, match="is no URL"):
        FrameClient(bad, "fashion_resolution", slo_ms=SLO_MS)


def test_a_closed_client_says_so(url: str) -> None:
    client = frames(url)
    client.close()
    client.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        client.send(image())


def test_messages_of_the_stream_are_those_of_protobuf() -> None:
    from stretto.api.grpc import open_inference_pb2 as protocol
    from stretto.client import frame_grpc, grpc_wire

    parameters = {"ack": True, "count": -3, "slo_ms": 12.5, "client_id": "höch"}
    data = grpc_wire.infer_request("app", "7", parameters, ("input", "FP32", (1, 2), {"encoding": "png"}), b"12345678")
    message = protocol.ModelInferRequest.FromString(data)
    assert (message.model_name, message.id, message.raw_input_contents[0]) == ("app", "7", b"12345678")
    assert list(message.inputs[0].shape) == [1, 2] and message.inputs[0].parameters["encoding"].string_param == "png"
    assert message.parameters["slo_ms"].double_param == 12.5 and message.parameters["count"].int64_param == -3
    assert message.parameters["ack"].bool_param and message.parameters["client_id"].string_param == "höch"

    response = protocol.ModelInferResponse(id="7", raw_output_contents=[np.float32([1, 2]).tobytes()])
    response.outputs.add(name="out", datatype="FP32", shape=[1, 2])
    for key, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        setattr(response.parameters[key], kind, value)
    request_id, said, outputs = frame_grpc._response(response.SerializeToString())
    assert request_id == "7" and said == parameters and outputs["out"].tolist() == [[1, 2]]
    for bad in (b"\x0a\xff", b"\xff" * 20, b"\x0b", b"\x32\x04abcd"):
        with pytest.raises(BadAnswer):
            frame_grpc._response(bad)


def test_acknowledgements_over_grpc_come_before_the_answer_and_only_if_asked_for(running: Running) -> None:

    from stretto.api.grpc import open_inference_pb2 as protocol

    def message(number: str, acknowledge: bool) -> bytes:
        request = protocol.ModelInferRequest(model_name="mnist", id=number)
        request.inputs.add(name="input", datatype="FP32", shape=[1, 1, 28, 28])
        request.raw_input_contents.append(np.zeros((1, 1, 28, 28), np.float32).tobytes())
        request.parameters["deadline_ms"].double_param = SLO_MS
        request.parameters["client_id"].string_param = "over grpc"
        if acknowledge:
            request.parameters["ack"].bool_param = True
        return request.SerializeToString()

    async def scenario() -> None:
        host, port = running.address("grpc")
        async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
            stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
            with running.gate:
                await stream.write(message("2", False))
                await stream.write(message("3", True))
                first = protocol.ModelStreamInferResponse.FromString(await asyncio.wait_for(stream.read(), PATIENCE_S))
                assert first.infer_response.id == "3" and first.infer_response.parameters["ack"].bool_param
            await stream.done_writing()
            answers = []
            while (data := await asyncio.wait_for(stream.read(), PATIENCE_S)) is not grpc.aio.EOF:
                answers.append(protocol.ModelStreamInferResponse.FromString(data))
        assert sorted(answer.infer_response.id for answer in answers) == ["2", "3"]
        assert all(answer.infer_response.outputs and not answer.error_message for answer in answers)

    asyncio.run(scenario())
    host, port = running.address("grpc")
    with grpc.insecure_channel(f"{host}:{port}") as channel, running.gate:
        # As if it were a stream of answers: Python's unary calls read the metadata together with the answer.
        call = channel.unary_stream("/inference.GRPCInferenceService/ModelInfer")(message("1", True))
        begun = time.monotonic()
        call.initial_metadata()  # waits until they come
        assert time.monotonic() - begun < PATIENCE_S / 2
        running.gate.is_open.set()
        assert [protocol.ModelInferResponse.FromString(data).id for data in call] == ["1"]


def test_a_thousand_clients_come_and_go(running: Running) -> None:
    """Plans stay in time, slots stay few, and nobody is remembered who left."""
    service = running.service
    before = len(service.clients)  # of other tests, who may still be remembered
    times: list[float] = []
    replanner = service.replanner
    replan = replanner._replan

    async def timed(leaving: Collection[int]) -> None:
        begun = time.perf_counter()
        await replan(leaving)
        times.append(time.perf_counter() - begun)

    replanner._replan = timed  # type: ignore[method-assign]
    period_s = replanner.period_s
    begun = time.monotonic()
    try:
        from tests.api.serving import binary_body

        with running.wire() as wire:
            for number in range(1_000):
                body, length = binary_body(
                    np.zeros((1, 1, 28, 28), np.float32), client_id=f"brief {number}", bandwidth=1e6, rtt_ms=5
                )
                path = "/v2/models/mnist/infer"
                assert wire.ask("POST", path, body, Inference_Header_Content_Length=length).status == 200
    finally:
        replanner._replan = replan  # type: ignore[method-assign]
    running.wait_until(lambda: len(service.clients) <= 1, "they are forgotten")
    assert max((client.slot for client in service.clients.all()), default=0) < 1_000 + before
    if period_s and time.monotonic() - begun > 2 * period_s:
        assert times and max(times) < 5.0


@pytest.mark.parametrize("rate", [5_000.0, 10_000.0])
def test_the_estimate_is_the_link_s_rate(url: str, rate: float) -> None:
    assert 0.9 < estimate(url, Link(constant(rate)), size=(28, 28)) / rate < 1.1


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    repository: Path = repository_of(tmp_path_factory.mktemp("guarded"), "fashion_resolution")
    with Running(repository, only=("px08", "px16"), grpc=True, tokens=TOKENS) as server:
        yield server


@pytest.mark.parametrize("token", TOKENS, ids=len)
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_the_estimate_is_right_for_small_frames_over_a_delay_with_a_token(
    guarded: Running, scheme: str, token: str
) -> None:
    """A probe had the token too, and so as many bytes as an 8 px frame: estimates were 1.5 and 2.5 times the rate."""
    host, port = guarded.address(scheme)
    link = Link(constant(4_000.0), None, 4_000_000, 4_000_000)
    assert 0.9 < estimate(f"{scheme}://{host}:{port}", link, size=(8, 8), token=token) / 4_000 < 1.1


def test_a_frame_that_is_given_up_on_its_way_has_not_arrived(url: str) -> None:
    scheme, _, address = url.partition("://")
    host, _, port = address.rpartition(":")

    async def scenario() -> None:
        async with Proxy(host, int(port), Link(constant(4_000.0))) as proxy:
            there = f"{scheme}://127.0.0.1:{proxy.port}"
            options = {"slo_ms": 150.0, "grace_ms": 1.0, "size": (28, 28)}
            async with AsyncFrameClient(there, "fashion_resolution", **options) as client:
                picture = image().astype(np.float32) / 255  # 3 kB, which take 0.8 s
                result = await client.send(picture)
        assert result.outcome is FrameOutcome.FAILED and result.sent_bytes and not result.has_arrived

    asyncio.run(scenario())


def test_a_round_trip_is_one_though_a_gateway_asks_for_a_token_there() -> None:
    async def refuse(request: bytes, context: Any) -> bytes:
        assert all(key != "authorization" for key, _ in context.invocation_metadata())
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
        return b""

    async def scenario() -> None:
        server = grpc.aio.server()
        live = {"ServerLive": grpc.unary_unary_rpc_method_handler(refuse)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", live),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        transport = GrpcFrames(f"grpc://127.0.0.1:{port}", "token", None)
        assert 0 < await transport.round_trip_ns() < PATIENCE_S * 1e9
        await server.stop(None)
        with pytest.raises(ConnectionFailed):
            await transport.round_trip_ns()
        await transport.close()

    asyncio.run(scenario())


def estimate(url: str, link: Link, **options: Any) -> float:
    """The upper quartile of estimates, one for each frame. Who takes the processor away for some milliseconds makes a
    frame slower and never quicker; and links are so slow that a frame takes about a hundred.
    """
    scheme, _, address = url.partition("://")
    host, _, port = address.rpartition(":")

    async def measured() -> list[float]:
        async with Proxy(host, int(port), link) as proxy:
            there = f"{scheme}://127.0.0.1:{proxy.port}"
            async with AsyncFrameClient(there, "fashion_resolution", slo_ms=SLO_MS, **options) as client:
                estimates = []
                for _ in range(5):  # looks at the round trip, of which the quickest counts
                    client._pacer.went(await client._transport.round_trip_ns())
                for seed in range(12):
                    assert (await client.send(image(seed))).outcome is FrameOutcome.ON_TIME
                    estimates.append(client._pacer._pacing._last_bytes_per_s or 0.0)
                return estimates

    return float(np.quantile(asyncio.run(measured()), 0.75))
