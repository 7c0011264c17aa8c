"""One application, several image sizes and encodings, over HTTP and gRPC against the whole server."""

from __future__ import annotations

import base64
import json
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from stretto.api import images
from stretto.api.datatypes import join_bytes
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.client.images import encoded, resized
from stretto.repository.read import zoo_folder
from tests.api.fronting import RunningFronts
from tests.api.serving import DEADLINE_MS, PATIENCE_S, Reply, Running, repository_of, values_of

pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'stretto[images]'")

NAME = "fashion_resolution"
INFER = f"/v2/models/{NAME}/infer"
SIZES = (8, 12, 16, 20, 24, 28)
PINNED = "px24"


@pytest.fixture(scope="module", params=["one process", "front ends"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = repository_of(tmp_path_factory.mktemp("sizes"), NAME, "fashion")
    behind = request.param == "front ends"
    kind = partial(RunningFronts, executor="process") if behind else Running
    with kind(folder, only=(), grpc=True) as running:
        # The server is ready with the first model that is; on a busy machine others are still on probation.
        running.wait_until(lambda: running.service.is_ready(NAME, PINNED), "the variant that is asked is served")
        yield running
        running.wait_for_queries(0)
        assert running.missing() == 0
        assert running.call(lambda: running.plane.open_requests) == 0


def sample(count: int = 2) -> np.ndarray:
    """Bytes, as they were photographed."""
    with np.load(zoo_folder() / NAME / "sample.npz") as stored:
        return np.asarray(stored["inputs"][:count])


def body(data: list[bytes], encoding: str | None, shape: list[int] | None = None) -> tuple[bytes, str]:
    raw = join_bytes(data)
    parameters: dict[str, Any] = {"binary_data_size": len(raw)}
    if encoding is not None:
        parameters["encoding"] = encoding
    tensor = {"name": "input", "datatype": "BYTES", "shape": shape or [len(data)], "parameters": parameters}
    head = json.dumps({"inputs": [tensor], "parameters": {"deadline_ms": DEADLINE_MS}}).encode()
    return head + raw, str(len(head))


@pytest.fixture
def here(server: Running) -> Running:
    """A server that parses in this process, for tests that look inside."""
    if isinstance(server, RunningFronts):
        pytest.skip("front ends parse in processes of their own")
    return server


def ask(server: Running, data: list[bytes], encoding: str | None, shape: list[int] | None = None) -> Reply:
    content, length = body(data, encoding, shape)
    path = f"/v2/models/{NAME}/versions/{PINNED}/infer"
    return server.ask("POST", path, content, Inference_Header_Content_Length=length)


def ask_raw(server: Running, rows: np.ndarray, datatype: str = "FP32", application: str = NAME) -> Reply:
    raw = rows.tobytes()
    tensor = {"name": "input", "datatype": datatype, "shape": list(rows.shape)}
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = json.dumps({"inputs": [tensor], "parameters": {"deadline_ms": DEADLINE_MS}}).encode()
    version = f"/versions/{PINNED}" if application == NAME else ""
    path = f"/v2/models/{application}{version}/infer"
    return server.ask("POST", path, head + raw, Inference_Header_Content_Length=str(len(head)))


def refused(reply: Reply, status: int = 400) -> str:
    assert reply.status == status, reply.body
    assert reply.reason == "bad_request"
    return str(reply.content["error"])


def grpc_ask(server: Running, tensor: Any, raw: bytes) -> Any:
    request = protocol.ModelInferRequest(
        model_name=NAME, model_version=PINNED, inputs=[tensor], raw_input_contents=[raw]
    )
    request.parameters["deadline_ms"].double_param = DEADLINE_MS
    return grpc_call(server, "ModelInfer", request, protocol.ModelInferResponse)


def grpc_call(server: Running, call: str, request: Any, answer: Any) -> Any:
    host, port = server.address("grpc")
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        method = channel.unary_unary(
            f"/inference.GRPCInferenceService/{call}", type(request).SerializeToString, answer.FromString
        )
        return method(request, timeout=PATIENCE_S)


# -- what is said of it ------------------------------------------------------------------------------------------------


def test_metadata_says_sizes_and_encodings(server: Running) -> None:
    [takes] = server.ask("GET", f"/v2/models/{NAME}").content["inputs"]
    assert takes["shape"] == [-1, 1, -1, -1]
    assert takes["parameters"] == {
        "sizes": "8x8,12x12,16x16,20x20,24x24,28x28",
        "encodings": "raw,png,jpeg",
        "divide_by": 255,
    }
    config = server.ask("GET", f"/v2/models/{NAME}/config").content
    assert config["input"][0]["dims"] == [1, -1, -1]
    assert config["parameters"]["sizes"] == {"string_value": "8x8,12x12,16x16,20x20,24x24,28x28"}
    assert config["parameters"]["encodings"] == {"string_value": "raw,png,jpeg"}


def test_an_application_of_one_size_says_what_it_always_said(server: Running) -> None:
    [takes] = server.ask("GET", "/v2/models/fashion").content["inputs"]
    assert takes == {"name": "input", "datatype": "FP32", "shape": [-1, 1, 28, 28]}
    assert "sizes" not in server.ask("GET", "/v2/models/fashion/config").content["parameters"]


def test_grpc_says_it_in_the_configuration(server: Running) -> None:
    """The protocol's metadata message has no place for parameters; that of the configuration has."""
    metadata = grpc_call(
        server, "ModelMetadata", protocol.ModelMetadataRequest(name=NAME), protocol.ModelMetadataResponse
    )
    assert list(metadata.inputs[0].shape) == [-1, 1, -1, -1]
    config = grpc_call(server, "ModelConfig", protocol.ModelConfigRequest(name=NAME), protocol.ModelConfigResponse)
    assert config.config.parameters["sizes"].string_value == "8x8,12x12,16x16,20x20,24x24,28x28"
    assert config.config.parameters["divide_by"].string_value == "255"


# -- what is answered --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_each_size_and_encoding_gives_the_same_answer(server: Running, size: int) -> None:
    rows = resized(sample(), size)
    expected = values_of(ask_raw(server, (rows / np.float32(255)).astype(np.float32)))
    assert expected.shape == (2, 10)
    by_bytes = values_of(ask_raw(server, rows, "UINT8"))
    np.testing.assert_allclose(by_bytes, expected, atol=1e-5)
    by_png = values_of(ask(server, encoded(rows, "png"), "png"))
    np.testing.assert_allclose(by_png, expected, atol=1e-5)
    by_column = values_of(ask(server, encoded(rows, "png"), "png", [2, 1]))
    np.testing.assert_allclose(by_column, expected, atol=1e-5)
    by_jpeg = values_of(ask(server, encoded(rows, "jpeg", 100), "jpeg"))
    np.testing.assert_allclose(by_jpeg, expected, atol=0.2)


def test_what_was_expected_of_a_small_image_is_told(server: Running) -> None:
    """Made larger, it is worth less than at the variant's own size."""
    expected = {}
    for size in (8, 24):
        reply = ask(server, encoded(resized(sample(1), size), "png"), "png")
        assert reply.status == 200, reply.body
        expected[size] = reply.content["parameters"]["expected_accuracy"]
    assert expected[24] == pytest.approx(0.9457, abs=1e-3)
    assert expected[8] < expected[24] - 0.02


def test_colours_become_grey(server: Running) -> None:
    rows = sample(1)
    grey = values_of(ask(server, encoded(rows, "png"), "png"))
    colours = values_of(ask(server, encoded(rows.repeat(3, axis=1), "png"), "png"))
    np.testing.assert_allclose(colours, grey, atol=0.02)


def test_images_within_json_are_base64(server: Running) -> None:
    data = encoded(sample(1), "png")
    tensor = {"name": "input", "datatype": "BYTES", "shape": [1], "parameters": {"encoding": "png"}}
    texts = [base64.b64encode(image).decode() for image in data]
    content = {"inputs": [tensor | {"data": texts}], "parameters": {"deadline_ms": DEADLINE_MS}}
    path = f"/v2/models/{NAME}/versions/{PINNED}/infer"
    listed = values_of(server.ask("POST", path, json.dumps(content).encode()))
    np.testing.assert_allclose(listed, values_of(ask(server, data, "png")), atol=1e-6)
    content["inputs"] = [tensor | {"data": ["not base64!"]}]
    assert "must be base64" in refused(server.ask("POST", path, json.dumps(content).encode()))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("encoding", ["raw", "png", "jpeg"])
def test_over_grpc(server: Running, size: int, encoding: str) -> None:
    rows = resized(sample(), size)
    numbers = (rows / np.float32(255)).astype(np.float32)
    tensor = protocol.ModelInferRequest.InferInputTensor(name="input", datatype="FP32", shape=list(rows.shape))
    content = numbers.tobytes()
    if encoding != "raw":
        tensor = protocol.ModelInferRequest.InferInputTensor(name="input", datatype="BYTES", shape=[len(rows)])
        tensor.parameters["encoding"].string_param = encoding
        content = join_bytes(encoded(rows, encoding, 100))
    answer = grpc_ask(server, tensor, content)
    found = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(2, 10)
    np.testing.assert_allclose(found, values_of(ask_raw(server, numbers)), atol=0.2 if encoding == "jpeg" else 1e-5)
    assert answer.parameters["variant"].string_param == PINNED


def test_many_images_are_read_in_a_thread(here: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose images take long does not pass through the event loop; its answer is the same."""
    rows = resized(sample(20), 28)
    threads: list[str] = []
    really = images.read_frames

    def noted(takes: Any, frames: Any) -> Any:
        import threading

        threads.append(threading.current_thread().name)
        return really(takes, frames)

    monkeypatch.setattr(images, "read_frames", noted)
    expected = values_of(ask_raw(here, (rows / np.float32(255)).astype(np.float32)))
    first = values_of(ask(here, encoded(rows, "png"), "png"))  # by a task
    again = values_of(ask(here, encoded(rows, "png"), "png"))  # by an address that is known
    np.testing.assert_allclose(first, expected, atol=1e-5)
    np.testing.assert_allclose(again, expected, atol=1e-5)
    assert len(threads) == 2 and all(name.startswith("stretto-images") for name in threads)
    damaged = [*encoded(rows[:19], "png"), encoded(rows[19:], "png")[0][:-20]]
    assert "image 19 of input input is cut short" in refused(ask(here, damaged, "png"))


def test_the_deadline_counts_while_images_are_read(here: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    really = images.read_frames

    def slow(takes: Any, frames: Any) -> Any:
        time.sleep(0.05)
        return really(takes, frames)

    monkeypatch.setattr(images, "read_frames", slow)
    data = encoded(resized(sample(20), 28), "png")
    raw = join_bytes(data)
    tensor = {"name": "input", "datatype": "BYTES", "shape": [20]}
    tensor["parameters"] = {"binary_data_size": len(raw), "encoding": "png"}
    head = json.dumps({"inputs": [tensor], "parameters": {"deadline_ms": 20}}).encode()
    reply = here.ask("POST", INFER, head + raw, Inference_Header_Content_Length=str(len(head)))
    if reply.status == 200:  # answered all the same, but known to be late
        assert json.loads(reply.body)["parameters"]["slack_ms"] < 0
    else:
        assert reply.reason in ("expired", "infeasible")


# -- what is refused ---------------------------------------------------------------------------------------------------


def png_part(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_of(width: int, height: int, content: bytes = b"", bits: int = 8, more: bytes = b"") -> bytes:
    header = png_part(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + more + png_part(b"IDAT", content) + png_part(b"IEND", b"")


def jpeg_saying(height: int, width: int, image: bytes) -> bytes:
    """The same file with another size in its header."""
    place = image.index(b"\xff\xc0") + 5
    return image[:place] + struct.pack(">HH", height, width) + image[place + 4 :]


def test_wrong_sizes_are_refused(server: Running) -> None:
    rows = sample(1)
    assert "height, width] of 8x8,12x12" in refused(ask_raw(server, np.zeros((1, 1, 9, 9), np.float32)))
    assert "is 27x27; allowed are 8x8," in refused(ask(server, encoded(resized(rows, 27), "png"), "png"))
    assert "is 8x12; allowed are" in refused(ask(server, encoded(resized(rows, (8, 12)), "jpeg"), "jpeg"))
    mixed = [*encoded(resized(rows, 8), "png"), *encoded(resized(rows, 12), "png")]
    assert "one size, not 8x8 and 12x12" in refused(ask(server, mixed, "png"))


def test_only_what_was_promised_is_read(server: Running) -> None:
    png, jpeg = encoded(sample(1), "png"), encoded(sample(1), "jpeg")
    assert "is no PNG file" in refused(ask(server, jpeg, "png"))
    assert "is no JPEG file" in refused(ask(server, png, "jpeg"))
    assert "cannot be sent as 'gif'; it can be sent as raw, png, jpeg" in refused(ask(server, png, "gif"))
    assert "encoded images need a parameter encoding" in refused(ask(server, png, None))
    assert "must be BYTES, not FP32" in refused(with_encoding(server, np.zeros((1, 1, 28, 28), np.float32)))
    assert "shape [n] or [n, 1]" in refused(ask(server, png * 4, "png", [2, 2]))
    assert "from 1 to 32 queries, not 33" in refused(ask(server, png * 33, "png"), 413)
    assert "may have 67104 bytes" in refused(ask(server, [png[0] + b"\0" * 70_000], "png"), 413)


def with_encoding(server: Running, rows: np.ndarray) -> Reply:
    raw = rows.tobytes()
    parameters = {"binary_data_size": len(raw), "encoding": "png"}
    tensor = {"name": "input", "datatype": "FP32", "shape": list(rows.shape), "parameters": parameters}
    head = json.dumps({"inputs": [tensor]}).encode()
    return server.ask("POST", INFER, head + raw, Inference_Header_Content_Length=str(len(head)))


def test_an_application_of_raw_numbers_takes_no_images(server: Running) -> None:
    content, length = body(encoded(sample(1), "png"), "png")
    reply = server.ask("POST", "/v2/models/fashion/infer", content, Inference_Header_Content_Length=length)
    assert "cannot be sent as 'png'; it can be sent as raw" in refused(reply)
    assert "must be FP32, not UINT8" in refused(ask_raw(server, sample(1), "UINT8", "fashion"))


@pytest.mark.parametrize("encoding", ["png", "jpeg"])
def test_damaged_images_are_refused_with_their_reason(server: Running, encoding: str) -> None:
    [image] = encoded(sample(1), encoding)
    assert "image 0 of input input is cut short" in refused(ask(server, [image[: len(image) // 2]], encoding))
    for cut in range(0, len(image), 37):
        refused(ask(server, [image[:cut]], encoding))
    if encoding == "png":
        place = image.index(b"IDAT") + 10
        assert "is damaged" in refused(ask(server, [image[:place] + b"\xff" + image[place + 1 :]], encoding))
    start = b"\x89PNG\r\n\x1a\n" if encoding == "png" else b"\xff\xd8"
    refused(ask(server, [start + b"\xff" * 200], encoding))


def test_random_damage_never_fails_the_server(server: Running) -> None:
    random = np.random.default_rng(3)
    for encoding in ("png", "jpeg"):
        [image] = encoded(sample(1), encoding)
        for _ in range(60):
            bad = bytearray(image)
            for place in random.integers(0, len(bad), 3):
                bad[place] = random.integers(0, 256)
            assert ask(server, [bytes(bad)], encoding).status in (200, 400)


def hidden_second_header() -> bytes:
    """A JPEG file whose first header says 28 × 28, and whose second says 65000 × 65000."""
    [image] = encoded(np.zeros((1, 28, 28), np.uint8), "jpeg")
    place = image.index(b"\xff\xc0")
    length = struct.unpack(">H", image[place + 2 : place + 4])[0]
    frame = image[place : place + 2 + length]
    large = frame[:5] + struct.pack(">HH", 65000, 65000) + frame[9:]
    return image[: place + 2 + length] + large + image[place + 2 + length :]


def scans() -> bytes:
    [image] = encoded(np.zeros((1, 28, 28), np.uint8), "jpeg")
    return image + b"\xff\xda\x00\x08" * 200


BOMBS: list[tuple[str, Callable[[], bytes], str]] = [
    ("png", lambda: png_of(50_000, 50_000, zlib.compress(b"\0" * 50_000)), "is 50000x50000; allowed are"),
    ("png", lambda: png_of(2**31 - 1, 2**31 - 1), "allowed are"),
    ("jpeg", lambda: jpeg_saying(65_000, 65_000, encoded(sample(1), "jpeg")[0]), "is 65000x65000; allowed are"),
    ("jpeg", hidden_second_header, "is damaged"),
    ("jpeg", scans, "has more than 100 scans"),
    (
        "png",
        lambda: png_of(28, 28, more=png_part(b"IHDR", struct.pack(">IIBBBBB", 60000, 60000, 8, 0, 0, 0, 0))),
        "is damaged",
    ),
    ("png", lambda: png_of(28, 28, bits=16), "16 bits per colour"),
    ("png", lambda: png_of(28, 28, zlib.compress(b"\0" * 60_000_000, 9)), ""),
    (
        "png",
        lambda: png_of(
            28,
            28,
            zlib.compress(b"\0" * 29 * 28),
            more=png_part(b"zTXt", b"a\0\0" + zlib.compress(b" " * 60_000_000, 9)),
        ),
        "",
    ),
]


@pytest.mark.parametrize(("encoding", "bomb", "why"), BOMBS)
def test_a_bomb_takes_no_memory(server: Running, encoding: str, bomb: Callable[[], bytes], why: str) -> None:
    """Refused with its reason, or read as the small picture that it is; never more memory than its own few bytes."""
    image = bomb()
    ask(server, encoded(sample(1), encoding), encoding)  # whatever the first image loads
    before = peak_bytes_from_now()
    tracemalloc.start()
    try:
        reply = ask(server, [image], encoding)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 1_000_000 + 4 * len(image)
    assert peak_bytes() - before < 30_000_000
    if why:
        assert why in refused(reply)
    else:
        assert reply.status in (200, 400)


def peak_bytes_from_now() -> int:
    """The most memory that this process, which is the server's too, has had; counted anew from here on."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pytest.skip("the system does not let a process count its memory")
    return peak_bytes()


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def test_without_pillow_raw_images_are_taken(here: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(images, "can_decode", lambda: False)
    reply = ask(here, encoded(sample(1), "png"), "png")
    assert "this server cannot read png; send raw images, or install there: pip install" in refused(reply)
    assert ask_raw(here, resized(sample(1), 8), "UINT8").status == 200
