"""The corpus: sound and nearly sound requests, by the kind of parser that they are meant for.

Generated here, so that it stays readable; files in tests/api/corpus (KIND-anything.bin) are added to it. What a fuzz
found goes there.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.small_models import CLASSES, SHAPE
from stretto.api.grpc import open_inference_pb2 as protocol

KINDS = ("http", "json", "tensor", "protobuf")
FOUND = Path(__file__).parent.parent.parent / "tests" / "api" / "corpus"
ROWS, IMAGES = "rows", "fashion_resolution"  # the applications that are asked
DEADLINE_MS = 20_000
LENGTH = "Inference-Header-Content-Length"
Parameters = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """`data` is all of the bytes for http, the body else; `headers` and `path` are then put in front of it unharmed."""

    kind: str
    data: bytes
    path: str = f"/v2/models/{ROWS}/infer"
    headers: tuple[str, ...] = ()


def http_message(path: str, body: bytes, headers: tuple[str, ...] = (), method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def corpus() -> tuple[Entry, ...]:
    """All of it, in a fixed order."""
    made = (*_json(), *_tensors(), *_protobuf())
    return (*made, *_http(tuple(entry for entry in made if entry.kind != "protobuf")), *_found())


def good_row() -> Entry:
    """A request that is always answered with 200."""
    return Entry("json", _content({"name": "input", "datatype": "FP32", "shape": [1, *SHAPE], "data": [1, 2, 3, 4]}))


def good_message() -> bytes:
    """The same as a ModelInferRequest."""
    return next(_protobuf()).data


def _content(*inputs: Any, parameters: Parameters | None = None, **more: Any) -> bytes:
    content = {"inputs": inputs, "parameters": {"deadline_ms": DEADLINE_MS, **(parameters or {})}, **more}
    return json.dumps(content).encode()


def _json() -> Iterator[Entry]:
    row = {"name": "input", "datatype": "FP32", "shape": [1, *SHAPE], "data": [0.5, -1.0, 1e3, 0]}
    wanted = [{"name": "scores", "parameters": {"classification": 2}}]
    parameters: Parameters = {"priority": 3, "min_accuracy": 0.5, "client_id": "someone", "timeout": 5_000_000}
    network: Parameters = {"slo_ms": 500.0, "waited_ms": 3.5, "rtt_ms": 20.0, "bandwidth": 1e6, "rate": 30.0}
    yield good_row()
    yield Entry("json", _content(row | {"shape": [3, *SHAPE], "data": [[1, 2, 3, 4]] * 3}, id="three"))
    yield Entry("json", _content(row, outputs=wanted))
    yield Entry("json", _content(row, parameters=parameters, outputs=[{"name": "scores"}]))
    yield Entry("json", _content(row, parameters=network | {"client_id": 7}))
    yield Entry("json", _content(row, parameters={"binary_data_output": True}))
    yield Entry("json", _content(row | {"datatype": "FP64"}))
    yield Entry("json", _content(row, row))
    shared: Parameters = {"shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 16}
    lying = {"name": "input", "datatype": "FP32", "shape": [1, *SHAPE], "parameters": shared}
    yield Entry("json", _content(lying, outputs=[{"name": "scores", "parameters": shared}]))
    key = json.dumps({"key": "/segment", "offset": 0, "byte_size": 64}).encode()
    yield Entry("json", key, "/v2/systemsharedmemory/region/r/register")
    yield Entry("json", b'{"log_verbose_level": 1, "log_info": true}', "/v2/logging")
    yield Entry("json", b'{"trace_level": ["OFF"], "trace_rate": "3"}', f"/v2/models/{ROWS}/trace/setting")
    yield Entry(
        "json", b'{"inputs":[{"name":"input","shape":[1,4],"datatype":"FP32","data":[1e308,-0.0,1E+2,5e-324]}]}'
    )
    plain = _content(row)
    for coding, packed in (("gzip", gzip.compress(plain, mtime=0)), ("deflate", zlib.compress(plain))):
        yield Entry("json", packed, headers=(f"Content-Encoding: {coding}", f"Accept-Encoding: {coding}"))


def _tensors() -> Iterator[Entry]:
    rows = np.arange(2 * SHAPE[0], dtype="<f4").reshape(2, *SHAPE)
    yield _binary(rows, "FP32")
    yield _binary(rows, "FP32", parameters={"binary_data_output": True}, outputs=[{"name": "scores"}])
    yield _binary(rows.astype("<f8"), "FP64")
    yield _binary(rows.astype("<i8"), "INT64")
    yield _binary(rows > 2, "BOOL")
    images = np.linspace(0, 1, 64, dtype="<f4").reshape(1, 1, 8, 8)
    path = f"/v2/models/{IMAGES}/infer"
    yield _binary(images, "FP32", path)
    yield _binary((255 * images).astype(np.uint8), "UINT8", path)
    for form in ("png", "jpeg"):
        file = _image_file(form)
        raw = len(file).to_bytes(4, "little") + file
        tensor = {"name": "input", "datatype": "BYTES", "shape": [1]}
        yield _with_raw(tensor, raw, path, {"encoding": form})


def _binary(array: Any, datatype: str, path: str = f"/v2/models/{ROWS}/infer", **more: Any) -> Entry:
    return _with_raw(
        {"name": "input", "datatype": datatype, "shape": list(array.shape)}, array.tobytes(), path, {}, **more
    )


def _with_raw(tensor: dict[str, Any], raw: bytes, path: str, told: Parameters, **more: Any) -> Entry:
    head = _content(tensor | {"parameters": {"binary_data_size": len(raw), **told}}, **more)
    return Entry("tensor", head + raw, path, (f"{LENGTH}: {len(head)}",))


def _image_file(form: str) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(file, form)
    return file.getvalue()


def _protobuf() -> Iterator[Entry]:
    """The first is a good one."""
    for rows in (1, 3):
        request = _message(rows)
        request.raw_input_contents.append(np.ones((rows, *SHAPE), "<f4").tobytes())
        yield Entry("protobuf", request.SerializeToString())
    typed = _message(2)
    typed.inputs[0].contents.fp32_contents.extend(range(2 * SHAPE[0]))
    typed.outputs.add(name="scores").parameters["classification"].int64_param = CLASSES
    yield Entry("protobuf", typed.SerializeToString())
    told = _message(1)
    told.id, told.model_version = "an id", "only"
    for name, value in (("priority", 3), ("timeout", 5_000_000)):
        told.parameters[name].int64_param = value
    told.parameters["client_id"].string_param = "someone"
    told.parameters["min_accuracy"].double_param = 0.25
    told.raw_input_contents.append(bytes(4 * SHAPE[0]))
    yield Entry("protobuf", told.SerializeToString())
    yield Entry("protobuf", gzip.compress(told.SerializeToString(), mtime=0))
    lying = _message(1)
    for place in (lying.inputs[0], lying.outputs.add(name="scores")):
        place.parameters["shared_memory_region"].string_param = "r"
        place.parameters["shared_memory_byte_size"].int64_param = 4 * SHAPE[0]
    yield Entry("protobuf", lying.SerializeToString())
    image = protocol.ModelInferRequest(model_name=IMAGES)
    tensor = image.inputs.add(name="input", datatype="BYTES", shape=[1])
    tensor.parameters["encoding"].string_param = "png"
    tensor.contents.bytes_contents.append(_image_file("png"))
    image.parameters["deadline_ms"].int64_param = DEADLINE_MS
    yield Entry("protobuf", image.SerializeToString())


def _message(rows: int) -> protocol.ModelInferRequest:
    request = protocol.ModelInferRequest(model_name=ROWS)
    request.inputs.add(name="input", datatype="FP32", shape=[rows, *SHAPE])
    request.parameters["deadline_ms"].int64_param = DEADLINE_MS
    return request


def _http(bodies: tuple[Entry, ...]) -> Iterator[Entry]:
    for entry in bodies:
        yield Entry("http", http_message(entry.path, entry.data, entry.headers))
    infer, body = f"/v2/models/{ROWS}/infer", good_row().data
    for path in (
        *("/", "/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/metrics", "/v2/clients"),
        *(f"/v2/models/{ROWS}", f"/v2/models/{ROWS}/config", f"/v2/models/{ROWS}/versions/only/ready", "/v2/fleet"),
        *("/v2/systemsharedmemory/status", "/v2/systemsharedmemory/region/r/status", "/v2/cudasharedmemory/status"),
        *("/v2/logging", "/v2/trace/setting", f"/v2/models/{ROWS}/trace/setting"),
        *("/v2/models/%72ows/infer", "/v2/repository/index", "//v2", "/v2/../v2", "*", "http://localhost/v2"),
    ):
        yield Entry("http", http_message(path, b"", method="GET"))
    half = len(body) // 2
    chunks = b"%x;name=value\r\n%s\r\n%x\r\n%s\r\n0\r\nTrailer: x\r\n\r\n" % (
        half, body[:half], len(body) - half, body[half:],
    )  # fmt: skip
    head = f"POST {infer} HTTP/1.1\r\nHost: x\r\n"
    for more in ("Transfer-Encoding: chunked", "transfer-encoding: CHUNKED\r\nConnection: close"):
        yield Entry("http", f"{head}{more}\r\n\r\n".encode() + chunks)
    for more in (
        *("Expect: 100-continue", "Connection: close", "Connection: keep-alive, Upgrade\r\nUpgrade: h2c"),
        *("Upgrade: websocket\r\nConnection: Upgrade", "traceparent: 00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"),
        *("Authorization: Bearer something", "Content-Type: application/json; charset=utf-8", "TE: trailers"),
    ):
        yield Entry("http", http_message(infer, body, (more,)))
    yield Entry("http", http_message(infer, body) * 3)  # pipelined
    yield Entry("http", http_message(infer, body).replace(b"HTTP/1.1", b"HTTP/1.0"))


def _found() -> Iterator[Entry]:
    for file in sorted(FOUND.glob("*.bin")):
        kind = file.name.partition("-")[0]
        if kind in KINDS:
            yield Entry(kind, file.read_bytes())
