"""Inputs out of a client's own memory and outputs into it; and everything that a client must not do with it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from stretto.api.datatypes import join_bytes
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.rates import RateLimits
from stretto.api.server import Listen
from stretto.api.shared_memory import FOLDER
from stretto.core.errors import StrettoError
from tests.api.serving import (
    DEADLINE_MS,
    PINNED,
    Reply,
    Running,
    grpc_call,
    images,
    json_body,
    repository_of,
    values_of,
)

IMAGE_BYTES = 28 * 28 * 4
ROW_BYTES = 10 * 4
OUT = 8192  # where answers go in the segment


@pytest.fixture(scope="module")
def running(repository: Path) -> Iterator[Running]:
    with Running(repository, shared_memory=True, grpc=True) as running:
        yield running


@pytest.fixture
def server(running: Running) -> Iterator[Running]:
    """Nothing may be left of a test: no region, no query, no byte of the budget."""
    yield running
    running.gate.is_open.set()
    running.wait_for_queries(0)
    running.wait_until(lambda: running.plane.open_requests == 0, "every request has its end")
    running.call(lambda: running.plane.regions.unregister())
    running.wait_until(lambda: running.plane.regions.open == 0, "every descriptor is closed")
    assert running.plane.regions.open_bytes == 0
    running.wait_until(lambda: running.plane.budget.used == 0, "the budget is free")


def post(server: Running, path: str, content: Any = None) -> Reply:
    return server.ask("POST", path, b"" if content is None else json.dumps(content).encode())


def register(server: Running, name: str, key: Any, byte_size: Any, offset: Any = 0) -> Reply:
    content = {"key": key, "offset": offset, "byte_size": byte_size}
    return post(server, f"/v2/systemsharedmemory/region/{name}/register", content)


def shared(region: Any, byte_size: Any, offset: Any = None) -> dict[str, Any]:
    place = {"shared_memory_region": region, "shared_memory_byte_size": byte_size}
    return place if offset is None else place | {"shared_memory_offset": offset}


def ask(server: Running, rows: int, place: dict[str, Any], outputs: Any = None, **tensor: Any) -> Reply:
    """An inference over HTTP whose input is in shared memory."""
    described = {"name": "input", "datatype": "FP32", "shape": [rows, 1, 28, 28], "parameters": place} | tensor
    content: dict[str, Any] = {"inputs": [described], "parameters": {"deadline_ms": DEADLINE_MS}}
    if outputs is not None:
        content["outputs"] = outputs
    return post(server, PINNED, content)


def into(place: dict[str, Any], **parameters: Any) -> list[dict[str, Any]]:
    return [{"name": "probabilities", "parameters": place | parameters}]


def expected(server: Running, array: np.ndarray) -> np.ndarray:
    return values_of(server.ask("POST", PINNED, json_body(array)))


def filled(segment: SharedMemory, array: np.ndarray, place: int = 0) -> np.ndarray:
    segment.buf[place : place + array.nbytes] = array.tobytes()
    return array


# -- over HTTP -------------------------------------------------------------------------------------------------------


def test_register_status_and_unregister(server: Running, segment: SharedMemory) -> None:
    assert "system_shared_memory" in server.ask("GET", "/v2").content["extensions"]
    assert server.ask("GET", "/v2/systemsharedmemory/status").content == []
    assert register(server, "first", f"/{segment.name}", 4096).status == 200
    assert register(server, "second", segment.name, 4096, offset=8192).status == 200
    first = {"name": "first", "key": f"/{segment.name}", "offset": 0, "byte_size": 4096}
    second = {"name": "second", "key": segment.name, "offset": 8192, "byte_size": 4096}
    assert server.ask("GET", "/v2/systemsharedmemory/status").content == [first, second]
    assert server.ask("GET", "/v2/systemsharedmemory/region/second/status").content == [second]
    assert server.ask("GET", "/v2/systemsharedmemory/region/third/status").status == 404
    assert register(server, "first", segment.name, 10).reason == "bad_request"
    assert post(server, "/v2/systemsharedmemory/region/first/unregister").status == 200
    assert post(server, "/v2/systemsharedmemory/region/first/unregister").status == 200, "as in Triton"
    assert server.ask("GET", "/v2/systemsharedmemory/status").content == [second]
    assert post(server, "/v2/systemsharedmemory/unregister").status == 200
    assert server.ask("GET", "/v2/systemsharedmemory/status").content == []


def test_input_and_output(server: Running, segment: SharedMemory) -> None:
    array = filled(segment, images(2))
    register(server, "both", segment.name, segment.size)
    right = expected(server, array)
    np.testing.assert_allclose(values_of(ask(server, 2, shared("both", array.nbytes))), right, rtol=1e-4, atol=1e-6)
    reply = ask(server, 2, shared("both", array.nbytes, 0), into(shared("both", 4096, OUT)))
    output = reply.content["outputs"][0]
    place = {"shared_memory_region": "both", "shared_memory_byte_size": 2 * ROW_BYTES, "shared_memory_offset": OUT}
    assert output == {"name": "probabilities", "datatype": "FP32", "shape": [2, 10], "parameters": place}
    found = np.frombuffer(segment.buf, np.float32, 20, OUT).reshape(2, 10)
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-6)
    del found


def test_an_output_only_and_a_classification(server: Running, segment: SharedMemory) -> None:
    register(server, "out", segment.name, 4096, offset=OUT)
    array = images(1)
    wanted = into(shared("out", 4096))
    assert server.ask("POST", PINNED, json_body(array, outputs=wanted)).status == 200
    found = np.frombuffer(segment.buf, np.float32, 10, OUT).copy()
    np.testing.assert_allclose(found, expected(server, array)[0], rtol=1e-4, atol=1e-6)
    reply = server.ask("POST", PINNED, json_body(array, outputs=into(shared("out", 4096), classification=1)))
    assert reply.content["outputs"][0]["datatype"] == "BYTES"
    size = int.from_bytes(segment.buf[OUT : OUT + 4], "little")
    assert int(bytes(segment.buf[OUT + 4 : OUT + 4 + size]).split(b":")[1]) == found.argmax()
    tiny = into(shared("out", 5), classification=1)
    assert server.ask("POST", PINNED, json_body(array, outputs=tiny)).reason == "bad_request"


def test_values_are_those_of_when_the_request_came(server: Running, segment: SharedMemory) -> None:
    array = filled(segment, images(1))
    register(server, "frames", segment.name, segment.size)
    right = expected(server, array)
    with server.gate, server.wire() as wire:
        place = shared("frames", IMAGE_BYTES)
        tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1, 28, 28], "parameters": place}
        body = json.dumps({"inputs": [tensor], "parameters": {"deadline_ms": DEADLINE_MS}}).encode()
        wire.send(f"POST {PINNED} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        server.wait_for_queries(1)
        assert server.call(lambda: server.plane.budget.used) == IMAGE_BYTES, "its bytes are in the budget"
        segment.buf[:IMAGE_BYTES] = bytes(IMAGE_BYTES)
        server.gate.is_open.set()
        np.testing.assert_allclose(values_of(wire.reply()), right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["unregistered", "cut short", "removed"])
def test_a_region_that_goes_away_while_a_request_waits(server: Running, segment: SharedMemory, name: str) -> None:
    filled(segment, images(1))
    register(server, "frames", segment.name, segment.size)
    other = SharedMemory(create=True, size=4096)
    register(server, "out", other.name, 4096)
    with server.gate, server.wire() as wire:
        tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1, 28, 28]}
        content = {
            "inputs": [tensor | {"parameters": shared("frames", IMAGE_BYTES)}],
            "outputs": into(shared("out", 40)),
        }
        body = json.dumps(content | {"parameters": {"deadline_ms": DEADLINE_MS}}).encode()
        wire.send(f"POST {PINNED} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        server.wait_for_queries(1)
        if name == "unregistered":
            assert post(server, "/v2/systemsharedmemory/unregister").status == 200
            assert server.plane.regions.open == 1, "the request has its region for the output"
        elif name == "cut short":
            os.truncate(f"{FOLDER}/{other.name}", 7)
        else:
            other.unlink()
        server.gate.is_open.set()
        reply = wire.reply()
        if name == "cut short":
            assert reply.reason == "bad_request" and "shorter" in reply.content["error"]
            assert os.stat(f"{FOLDER}/{other.name}").st_size == 7, "nothing makes a segment longer"
        else:
            assert reply.status == 200
            assert np.frombuffer(other.buf, np.float32, 10).sum() == pytest.approx(1, abs=1e-3)
    other.close()
    if name != "removed":
        other.unlink()
    assert server.missing() == 0


def test_a_segment_that_was_cut_short_is_refused_and_the_server_lives(server: Running, segment: SharedMemory) -> None:
    register(server, "frames", segment.name, segment.size)
    os.truncate(f"{FOLDER}/{segment.name}", 100)
    reply = ask(server, 1, shared("frames", IMAGE_BYTES))
    assert reply.reason == "bad_request" and "shorter" in reply.content["error"]
    os.truncate(f"{FOLDER}/{segment.name}", segment.size)
    assert ask(server, 1, shared("frames", IMAGE_BYTES)).status == 200


@pytest.mark.parametrize(
    ("place", "tensor"),
    [
        (shared("nobody", IMAGE_BYTES), {}),
        (shared("frames", IMAGE_BYTES - 1), {}),
        (shared("frames", IMAGE_BYTES, -4), {}),
        (shared("frames", -IMAGE_BYTES), {}),
        (shared("frames", IMAGE_BYTES, 16_384), {}),
        (shared("frames", IMAGE_BYTES, 16_384 - IMAGE_BYTES + 1), {}),
        (shared("frames", IMAGE_BYTES, 2**63 - 1), {}),
        (shared("frames", IMAGE_BYTES, 2**64 - 4), {}),
        (shared("frames", IMAGE_BYTES, 0.5), {}),
        (shared("frames", True), {}),
        (shared("frames", None), {}),
        (shared("frames", "3136"), {}),
        (shared(7, IMAGE_BYTES), {}),
        (shared("", IMAGE_BYTES), {}),
        (shared("frames", IMAGE_BYTES) | {"binary_data_size": 0}, {}),
        (shared("frames", IMAGE_BYTES), {"data": [0.0]}),
        (shared("frames", IMAGE_BYTES), {"datatype": "FP64"}),
        (shared("frames", IMAGE_BYTES), {"datatype": "INT32"}),
        (shared("frames", IMAGE_BYTES), {"datatype": "BYTES", "shape": [784]}),
        (shared("frames", IMAGE_BYTES), {"shape": [1, 784]}),
        (shared("frames", 0), {"shape": [0, 1, 28, 28]}),
        (shared("frames", 2**40), {"shape": [2**38 // 784, 1, 28, 28]}),
    ],
)
def test_wrong_places_of_inputs(server: Running, segment: SharedMemory, place: Any, tensor: dict[str, Any]) -> None:
    register(server, "frames", segment.name, segment.size)
    assert ask(server, 1, place, **tensor).reason == "bad_request"


def test_values_are_checked_as_all_others(server: Running, segment: SharedMemory) -> None:
    register(server, "frames", segment.name, segment.size)
    for wrong in (np.nan, np.inf, -0.5, 7.0):
        filled(segment, np.full((1, 1, 28, 28), wrong, np.float32))
        assert "must" in ask(server, 1, shared("frames", IMAGE_BYTES)).content["error"]


@pytest.mark.parametrize(
    "place",
    [
        shared("nobody", 40),
        shared("out", 39),
        shared("out", 4097),
        shared("out", 40, 4057),
        shared("out", 40, -1),
        shared("out", 40, 2**64),
        shared("out", None),
        shared(None, 40) | {"shared_memory_region": ["out"]},
    ],
)
def test_wrong_places_of_outputs(server: Running, segment: SharedMemory, place: Any) -> None:
    register(server, "out", segment.name, 4096)
    before = server.counts()[0]
    assert server.ask("POST", PINNED, json_body(images(), outputs=into(place))).reason == "bad_request"
    assert server.counts()[0] == before, "it is refused before it runs"


@pytest.mark.parametrize(
    ("key", "byte_size", "offset"),
    [
        ("no-such-segment", 10, 0),
        ("../passwd", 10, 0),
        ("/../../etc/passwd", 10, 0),
        ("//etc/passwd", 10, 0),
        ("/dev/shm/x", 10, 0),
        ("..", 10, 0),
        (".", 10, 0),
        ("/", 10, 0),
        ("", 10, 0),
        (None, 10, 0),
        (["x"], 10, 0),
        ("x" * 256, 10, 0),
        ("a\0b", 10, 0),
        ("a\nb", 10, 0),
        ("\ud800", 10, 0),
        ("sem.x", 10, 0),
        ("SEGMENT", 16_385, 0),
        ("SEGMENT", 10, 16_375),
        ("SEGMENT", 0, 0),
        ("SEGMENT", -1, 0),
        ("SEGMENT", 10, -1),
        ("SEGMENT", 2**64, 0),
        ("SEGMENT", 10, 2**64 - 5),
        ("SEGMENT", 10, 2**63),
        ("SEGMENT", True, 0),
        ("SEGMENT", 1.5, 0),
        ("SEGMENT", None, 0),
        ("SEGMENT", "10", 0),
    ],
)
def test_wrong_registrations(server: Running, segment: SharedMemory, key: Any, byte_size: Any, offset: Any) -> None:
    key = segment.name if key == "SEGMENT" else key
    reply = register(server, "r", key, byte_size, offset)
    assert reply.reason == "bad_request"
    assert "/dev" not in reply.content["error"] and "passwd" not in reply.content["error"]
    assert server.plane.regions.open == 0


@pytest.mark.parametrize("kind", ["link", "link to a segment", "pipe", "folder"])
def test_what_is_no_segment(server: Running, segment: SharedMemory, tmp_path: Path, kind: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(100))
    place = Path(FOLDER) / f"stretto-test-{os.getpid()}"
    if kind == "link":
        place.symlink_to(tmp_path / "secret")
    elif kind == "link to a segment":
        place.symlink_to(segment.name)
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    try:
        assert register(server, "r", place.name, 10).reason == "bad_request"
    finally:
        place.rmdir() if kind == "folder" else place.unlink()


def test_addresses_and_methods(server: Running) -> None:
    for path in ("/v2/systemsharedmemory", "/v2/systemsharedmemory/region/x", "/v2/systemsharedmemory/register"):
        assert server.ask("GET", path).status == 404
    assert post(server, "/v2/systemsharedmemory/region//register", {}).status == 404
    assert post(server, "/v2/systemsharedmemory/status").status == 405
    assert server.ask("GET", "/v2/systemsharedmemory/unregister").status == 405
    assert server.ask("DELETE", "/v2/systemsharedmemory/status").status == 405
    assert post(server, f"/v2/systemsharedmemory/region/{'x' * 257}/register", {"key": "k"}).status == 400
    assert server.ask("POST", "/v2/systemsharedmemory/region/x/register", b"[1]").status == 400


def test_encoded_images(tmp_path: Path, segment: SharedMemory) -> None:
    """Strings, which are read before the request is entered where that takes long."""
    pillow = pytest.importorskip("PIL.Image", reason="encoded images are an extra")
    pixels = np.random.default_rng(3).integers(0, 256, (28, 28), np.uint8)
    file = io.BytesIO()
    pillow.fromarray(pixels).save(file, "png")
    content = join_bytes([file.getvalue()])
    segment.buf[: len(content)] = content
    with Running(repository_of(tmp_path, "fashion_resolution"), shared_memory=True, only=()) as running:
        path = "/v2/models/fashion_resolution/infer"
        register(running, "frames", segment.name, segment.size)
        parameters = shared("frames", len(content)) | {"encoding": "png"}
        tensor = {"name": "input", "datatype": "BYTES", "shape": [1], "parameters": parameters}
        deadline = {"parameters": {"deadline_ms": DEADLINE_MS, "min_accuracy": 0.0}}
        found = values_of(post(running, path, {"inputs": [tensor]} | deadline))
        assert found.shape == (1, 10) and found.sum() == pytest.approx(1, abs=1e-3)
        tensor["parameters"] = parameters | {"shared_memory_byte_size": len(content) - 1}
        assert post(running, path, {"inputs": [tensor]} | deadline).reason == "bad_request"


def test_encoded_images_of_a_client_that_asks_too_much_are_not_read(tmp_path: Path, segment: SharedMemory) -> None:
    """They were copied first: what a client may not ask cost as much as what it may."""
    rates, repository = RateLimits(requests_per_s=0.001), repository_of(tmp_path, "fashion_resolution")
    with Running(repository, shared_memory=True, only=(), rates=rates) as running:
        path = "/v2/models/fashion_resolution/infer"
        register(running, "frames", segment.name, segment.size)
        parameters = shared("frames", 1000) | {"encoding": "png"}
        tensor = {"name": "input", "datatype": "BYTES", "shape": [1], "parameters": parameters}
        content = {"inputs": [tensor], "parameters": {"client_id": "greedy"}}
        raw = {"name": "input", "datatype": "FP32", "shape": [1, 1, 28, 28], "data": [0.5] * 784}
        assert post(running, path, content | {"inputs": [raw]}).status == 200
        os.truncate(f"{FOLDER}/{segment.name}", 100)  # whoever reads it notices
        assert post(running, path, content).status == 429
        modest = {"parameters": {"client_id": "modest"}}
        assert post(running, path, content | modest).reason == "bad_request"
        os.truncate(f"{FOLDER}/{segment.name}", segment.size)


def test_metrics(server: Running, shared_server: Running, segment: SharedMemory) -> None:
    register(server, "frames", segment.name, 100)
    text = server.ask("GET", "/metrics", name="management").body
    assert b"stretto_shared_memory_regions 1.0" in text and b"stretto_shared_memory_bytes 100.0" in text
    assert b"shared_memory" not in shared_server.ask("GET", "/metrics", name="management").body


def test_memory_of_a_gpu_is_refused_in_words(server: Running) -> None:
    assert server.ask("GET", "/v2/cudasharedmemory/status").content == []
    assert server.ask("GET", "/v2/cudasharedmemory/region/x/status").status == 404
    content = {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 4}
    assert "GPU" in post(server, "/v2/cudasharedmemory/region/x/register", content).content["error"]
    assert post(server, "/v2/cudasharedmemory/unregister").status == 200
    assert post(server, "/v2/cudasharedmemory/region/x/unregister").status == 200


def test_a_page_of_another_site_may_not_use_it(server: Running, segment: SharedMemory) -> None:
    body = json.dumps({"key": segment.name, "byte_size": 10}).encode()
    path = "/v2/systemsharedmemory/region/x/register"
    assert server.ask("POST", path, body, Origin="http://elsewhere.example").reason == "forbidden"
    assert server.ask("POST", PINNED, json_body(images()), Origin="http://elsewhere.example").reason == "forbidden"
    assert server.ask("POST", PINNED, json_body(images())).status == 200


def test_it_is_off_unless_allowed(shared_server: Running, segment: SharedMemory) -> None:
    server = shared_server
    assert "system_shared_memory" not in server.ask("GET", "/v2").content["extensions"]
    assert server.ask("GET", "/v2/systemsharedmemory/status").content == []
    reply = register(server, "r", segment.name, 10)
    assert reply.reason == "forbidden" and "--shared-memory" in reply.content["error"]
    assert ask(server, 1, shared("r", IMAGE_BYTES)).reason == "forbidden"
    assert server.ask("POST", PINNED, json_body(images(), outputs=into(shared("r", 40)))).reason == "forbidden"
    assert server.plane.regions.open == 0


def test_it_is_not_for_other_machines_without_a_token() -> None:
    with pytest.raises(StrettoError, match="token"):
        Listen(host="0.0.0.0", shared_memory=True)
    Listen(host="0.0.0.0", shared_memory=True, tokens=("a-token-of-sixteen",))


# -- over gRPC -------------------------------------------------------------------------------------------------------


def call(server: Running, name: str, request: Any) -> Any:
    return grpc_call(server, name, request, "grpc")


def shared_parameters(tensor: Any, region: str, byte_size: int, offset: int = 0) -> None:
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = byte_size
    tensor.parameters["shared_memory_offset"].int64_param = offset


def test_grpc(server: Running, segment: SharedMemory) -> None:
    array = filled(segment, images(2))
    registration = protocol.SystemSharedMemoryRegisterRequest(name="both", key=segment.name, offset=0, byte_size=16_384)
    call(server, "SystemSharedMemoryRegister", registration)
    status = call(server, "SystemSharedMemoryStatus", protocol.SystemSharedMemoryStatusRequest())
    assert status.regions["both"].key == segment.name and status.regions["both"].byte_size == 16_384
    request = protocol.ModelInferRequest(model_name="fashion", model_version="linear")
    request.parameters["deadline_ms"].double_param = DEADLINE_MS
    tensor = request.inputs.add(name="input", datatype="FP32", shape=[2, 1, 28, 28])
    shared_parameters(tensor, "both", array.nbytes)
    right = expected(server, array)
    sent = call(server, "ModelInfer", request)
    np.testing.assert_allclose(
        np.frombuffer(sent.raw_output_contents[0], np.float32).reshape(2, 10), right, rtol=1e-4, atol=1e-6
    )
    shared_parameters(request.outputs.add(name="probabilities"), "both", 4096, OUT)
    answer = call(server, "ModelInfer", request)
    assert list(answer.raw_output_contents) == [b""]
    told = answer.outputs[0].parameters
    assert told["shared_memory_region"].string_param == "both"
    assert (told["shared_memory_byte_size"].int64_param, told["shared_memory_offset"].int64_param) == (80, OUT)
    found = np.frombuffer(segment.buf, np.float32, 20, OUT).reshape(2, 10).copy()
    np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-6)
    call(server, "SystemSharedMemoryUnregister", protocol.SystemSharedMemoryUnregisterRequest(name="both"))
    with pytest.raises(grpc.RpcError) as refused:
        call(server, "ModelInfer", request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError) as refused:
        call(server, "SystemSharedMemoryStatus", protocol.SystemSharedMemoryStatusRequest(name="both"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("byte_size", "offset"), [(-1, 0), (IMAGE_BYTES, -1), (IMAGE_BYTES, 2**62), (0, 0), (2**62, 2**62), (2**40, 0)]
)
def test_grpc_wrong_places(server: Running, segment: SharedMemory, byte_size: int, offset: int) -> None:
    register(server, "frames", segment.name, segment.size)
    request = protocol.ModelInferRequest(model_name="fashion")
    tensor = request.inputs.add(name="input", datatype="FP32", shape=[1, 1, 28, 28])
    shared_parameters(tensor, "frames", byte_size, offset)
    with pytest.raises(grpc.RpcError) as refused:
        call(server, "ModelInfer", request)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    shared_parameters(tensor, "frames", IMAGE_BYTES)
    for wrong in ({"raw_input_contents": [bytes(IMAGE_BYTES)]}, {}):
        both = protocol.ModelInferRequest(**wrong)
        both.MergeFrom(request)
        if not wrong:
            both.inputs[0].contents.fp32_contents.append(1.0)
        with pytest.raises(grpc.RpcError) as refused:
            call(server, "ModelInfer", both)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_grpc_unknown_calls_are_counted(server: Running) -> None:
    host, port = server.address("grpc")
    before = server.plane.refused.get("not_found", 0)
    with grpc.insecure_channel(f"{host}:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=20)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert server.plane.refused["not_found"] == before + 1
