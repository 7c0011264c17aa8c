"""docs/serving.md over HTTP, line by line, against the real server."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from stretto.client import Client, Infeasible, NotFound
from stretto.core.outcome import Outcome
from tests.api.serving import (
    DEADLINE_MS,
    INFER,
    PINNED,
    Reply,
    Running,
    Wire,
    binary_body,
    images,
    json_body,
    message,
    values_of,
)

LENGTH = "Inference_Header_Content_Length"
VARIANTS = ["cnn_s", "linear", "mlp"]


def infer(server: Running, array: np.ndarray | None = None, path: str = PINNED, **options: Any) -> Reply:
    return server.ask("POST", path, json_body(images() if array is None else array, **options))


def parameters_of(reply: Reply) -> dict[str, Any]:
    assert reply.status == 200, reply.body
    parameters: dict[str, Any] = reply.content["parameters"]
    return parameters


# -- about the server ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["http", "management"])
def test_health_and_metadata(server: Running, listener: str) -> None:
    def get(path: str) -> Reply:
        return server.ask("GET", path, name=listener)

    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/fashion/ready"):
        assert (get(path).status, get(path).body) == (200, b"")
    assert get("/v2/models/fashion/versions/mlp/ready").status == 200
    about = get("/v2").content
    assert about["name"] == "stretto" and about["version"] and "binary_tensor_data" in about["extensions"]
    model = get("/v2/models/fashion").content
    assert model["name"] == "fashion" and model["versions"] == ["linear", "mlp", "cnn_s"], "from fast to accurate"
    assert model["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 1, 28, 28]}]
    assert model["outputs"] == [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 10]}]
    assert get("/v2/models/fashion/versions/mlp").content["versions"] == ["mlp"]
    config = get("/v2/models/fashion/config").content
    assert config["name"] == "fashion" and config["max_batch_size"] == 32
    assert config["input"] == [{"name": "input", "data_type": "TYPE_FP32", "dims": [1, 28, 28]}]
    assert config["parameters"]["slo_ms"] == {"string_value": "100"}
    assert config["parameters"]["variants"] == {"string_value": "linear,mlp,cnn_s"}, "those that are served"
    assert config["parameters"]["ladder"] == {"string_value": "linear,mlp,cnn_s,cnn_m,resnet_s,resnet_m,resnet_l"}
    assert get("/v2/models/mnist/ready").status == 200


def test_a_target_without_a_path_is_the_root(server: Running) -> None:
    """Regression: a request for http://name alone was a failure of the server's."""
    assert server.ask("GET", "http://localhost").body == server.ask("GET", "/").body
    assert server.ask("POST", "http://localhost", b"{}").status == 405


def test_statistics(server: Running) -> None:
    def stats(path: str) -> dict[tuple[str, str], Any]:
        rows = server.ask("GET", path).content["model_stats"]
        return {(row["name"], row["version"]): row for row in rows}

    before = stats("/v2/models/fashion/stats")[("fashion", "linear")]
    infer(server, images(3))
    after = stats("/v2/models/fashion/versions/linear/stats")
    assert list(after) == [("fashion", "linear")]
    row = after[("fashion", "linear")]
    assert row["inference_count"] - before["inference_count"] == 3
    assert row["execution_count"] > before["execution_count"]
    assert row["inference_stats"]["compute_infer"]["ns"] > before["inference_stats"]["compute_infer"]["ns"]
    assert {("fashion", "linear"), ("mnist", "linear")} <= set(stats("/v2/models/stats"))
    assert server.ask("GET", "/v2/models/none/stats").status == 404


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("POST", "/", 405, "bad_request"),
        ("GET", "/v1", 404, "not_found"),
        ("GET", "/v2/health", 404, "not_found"),
        ("GET", "/v2/health/well", 404, "not_found"),
        ("GET", "/v2/models", 404, "not_found"),
        ("GET", "/v2/models/none", 404, "not_found"),
        ("GET", "/v2/models/none/ready", 404, "not_found"),
        ("GET", "/v2/models/none/config", 404, "not_found"),
        ("GET", "/v2/models/fashion/other", 404, "not_found"),
        ("GET", "/v2/models/fashion/versions", 404, "not_found"),
        ("GET", "/v2/models/fashion/versions/none", 404, "not_found"),
        ("GET", "/v2/models/fashion/versions/none/ready", 404, "not_found"),
        ("POST", "/v2/models/none/infer", 404, "not_found"),
        ("POST", "/v2/models/fashion/versions/none/infer", 404, "not_found"),
        ("POST", "/v2", 405, "bad_request"),
        ("POST", "/v2/health/live", 405, "bad_request"),
        ("DELETE", "/v2/models/fashion", 405, "bad_request"),
        ("GET", INFER, 405, "bad_request"),
        ("PUT", PINNED, 405, "bad_request"),
        ("GET", "/metrics", 403, "forbidden"),
        ("POST", "/v2/repository/index", 403, "forbidden"),
        ("POST", "/v2/repository/models/fashion/load", 403, "forbidden"),
        ("POST", "/v2/repository/models/fashion/unload", 403, "forbidden"),
    ],
)
def test_refused_addresses(server: Running, method: str, path: str, status: int, reason: str) -> None:
    reply = server.ask(method, path, json_body(images()) if method == "POST" else b"")
    assert (reply.status, reply.reason) == (status, reason)


# -- inference -----------------------------------------------------------------------------------------------------


def test_every_way_to_send_and_to_receive(server: Running) -> None:
    array = images(3)
    whole, length = binary_body(array)
    expected = values_of(infer(server, array))
    np.testing.assert_allclose(expected.sum(axis=1), 1, atol=1e-3)
    asked = [{"name": "probabilities", "parameters": {"binary_data": True}}]
    unasked = [{"name": "probabilities", "parameters": {"binary_data": False}}]
    raw_wanted, raw_length = binary_body(array, binary_data_output=True)
    one_wanted, one_length = binary_body(array, outputs=asked)
    not_wanted, not_length = binary_body(array, outputs=unasked, binary_data_output=True)
    nested = json.loads(json_body(array))
    nested["inputs"][0]["data"] = array.tolist()
    ways: list[tuple[bytes, dict[str, str], bool]] = [
        (whole, {LENGTH: length}, False),
        (raw_wanted, {LENGTH: raw_length}, True),
        (one_wanted, {LENGTH: one_length}, True),
        (not_wanted, {LENGTH: not_length}, False),
        (json_body(array, binary_data_output=True), {}, True),
        (json_body(array, outputs=asked), {}, True),
        (json_body(array, outputs=unasked), {}, False),
        (json_body(array), {LENGTH: str(len(json_body(array)))}, False),
        (json.dumps(nested).encode(), {}, False),
    ]
    with server.wire() as wire:
        for _ in range(2):  # the second time without a task, and with what the decoder remembers
            for body, headers, is_raw in ways:
                reply = wire.ask("POST", PINNED, body, **headers)
                np.testing.assert_allclose(values_of(reply), expected, rtol=1e-3, atol=1e-5)
                assert ("inference-header-content-length" in reply.headers) == is_raw
                kind = "application/octet-stream" if is_raw else "application/json"
                assert reply.headers["content-type"] == kind


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP", "identity"])
@pytest.mark.parametrize("accepted", ["", "gzip", "deflate", "identity", "br, gzip;q=0.5", "gzip;q=0"])
def test_compressed_both_ways(server: Running, encoding: str, accepted: str) -> None:
    array = images(32)
    body, length = binary_body(array, binary_data_output=True)
    pack = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[encoding.lower()]
    headers = {LENGTH: length, "Content_Encoding": encoding, **({"Accept_Encoding": accepted} if accepted else {})}
    reply = server.ask("POST", PINNED, pack(body), **headers)
    assert reply.status == 200
    unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress, None: bytes}[reply.headers.get("content-encoding")]
    is_packed = accepted not in ("", "identity", "gzip;q=0")
    assert ("content-encoding" in reply.headers) == is_packed
    plain = Reply(reply.status, reply.headers, unpack(reply.body))
    np.testing.assert_allclose(values_of(plain), values_of(infer(server, array)), rtol=1e-3, atol=1e-5)


def test_small_answers_are_not_compressed(server: Running) -> None:
    """It cost more than the rest of the answer, and saved no packet."""
    reply = server.ask("POST", PINNED, json_body(images()), Accept_Encoding="gzip")
    assert values_of(reply).shape == (1, 10) and "content-encoding" not in reply.headers


@pytest.mark.parametrize("is_raw", [False, True])
def test_classification(server: Running, is_raw: bool) -> None:
    array = images(2)
    wanted = [{"name": "probabilities", "parameters": {"classification": 3, "binary_data": is_raw}}]
    reply = infer(server, array, outputs=wanted)
    head = int(reply.headers.get("inference-header-content-length", len(reply.body)))
    output = json.loads(reply.body[:head])["outputs"][0]
    assert output["datatype"] == "BYTES" and output["shape"] == [2, 3]
    texts = output.get("data")
    if is_raw:
        texts, rest = [], reply.body[head:]
        while rest:
            size = int.from_bytes(rest[:4], "little")
            texts.append(rest[4 : 4 + size].decode())
            rest = rest[4 + size :]
    values = values_of(infer(server, array))
    for row in range(2):
        best = np.argsort(-values[row])[:3]
        for text, number in zip(texts[3 * row : 3 * row + 3], best, strict=True):
            score, index, label = text.split(":")
            assert int(index) == number and label
            assert float(score) == pytest.approx(values[row, number], abs=1e-4)
    assert infer(server, array, outputs=[{"name": "probabilities", "parameters": {"classification": 99}}]).status == 200


def test_the_answer_tells_how_it_came_about(server: Running) -> None:
    reply = infer(server, images(3), id="seven", path=INFER)
    content = reply.content
    parameters = parameters_of(reply)
    assert content["id"] == "seven" and content["model_name"] == "fashion"
    assert content["model_version"] == parameters["variant"]
    assert set(parameters["variant"].split(",")) <= set(VARIANTS)
    assert 0 < parameters["expected_accuracy"] <= 1
    assert parameters["batch_size"] >= 1
    assert parameters["queue_ms"] >= 0 and parameters["run_ms"] > 0
    assert parameters["outcome"] == "on_time" and 0 < parameters["slack_ms"] <= DEADLINE_MS
    assert content["outputs"][0]["shape"] == [3, 10]
    assert "id" not in infer(server).content


def test_a_pinned_variant_answers_alone(server: Running) -> None:
    for variant in VARIANTS:
        reply = infer(server, images(4), path=f"/v2/models/fashion/versions/{variant}/infer")
        assert reply.content["model_version"] == parameters_of(reply)["variant"] == variant


def test_min_accuracy(server: Running) -> None:
    accuracy = {
        variant: parameters_of(infer(server, path=f"/v2/models/fashion/versions/{variant}/infer"))["expected_accuracy"]
        for variant in VARIANTS
    }
    for least in sorted(accuracy.values()):
        assert parameters_of(infer(server, path=INFER, min_accuracy=least - 1e-6))["expected_accuracy"] >= least - 1e-5
    reply = infer(server, path=INFER, min_accuracy=1.0)
    assert (reply.status, reply.reason) == (404, "not_found")


def test_deadlines(server: Running) -> None:
    slack = parameters_of(infer(server, deadline_ms=5_000))["slack_ms"]
    assert 0 < slack <= 5_000
    body = json.loads(json_body(images()))
    body["parameters"] = {"timeout": 7_000_000}
    slack = parameters_of(server.ask("POST", PINNED, json.dumps(body).encode()))["slack_ms"]
    assert 0 < slack <= 7_000
    body["parameters"] = {"timeout": 7_000_000, "deadline_ms": 5_000.5}  # our own word goes before
    assert parameters_of(server.ask("POST", PINNED, json.dumps(body).encode()))["slack_ms"] <= 5_000.5


@pytest.mark.parametrize(
    "parameters",
    [
        {"priority": 0},
        {"priority": 2**31 - 1},
        {"client_id": 12},
        {"client_id": "camera 7"},
        {"client_id": "x" * 128},
        {"min_accuracy": 0},
        {"deadline_ms": 3_600_000},
        {"timeout": 0},
        {"something_else": "ignored", "sequence_id": 7, "x": None, "y": [1, {"z": 2}]},
    ],
)
def test_parameters(server: Running, parameters: dict[str, Any]) -> None:
    assert infer(server, **parameters).status == 200


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("deadline_ms", [0, -1, 3_600_001, 1e300, "50", True, None, [], {}]),
        ("timeout", [-1, 1.5, "1", True, 2**63]),
        ("priority", [-1, 2**31, 1.0, "high", False, None]),
        ("min_accuracy", [-0.1, 1.1, "0.5", True, None]),
        ("client_id", ["", "x" * 129, 1.5, True, None, []]),
    ],
)
def test_parameters_that_make_no_sense(server: Running, name: str, values: list[Any]) -> None:
    body = json.loads(json_body(images()))
    with server.wire() as wire:
        for value in values:
            body["parameters"] = {name: value}
            reply = wire.ask("POST", PINNED, json.dumps(body).encode())
            assert (reply.status, reply.reason) == (400, "bad_request"), value
            assert name in reply.content["error"]


def test_wrong_tensors(server: Running) -> None:
    good = json.loads(json_body(images()))["inputs"][0]
    wrong: list[tuple[Any, int]] = [
        ([], 400),
        (None, 400),
        ([good, good], 400),
        ([{**good, "name": "other"}], 400),
        ([{**good, "datatype": "FP64"}], 400),
        ([{**good, "datatype": "INT64", "data": [1] * 784}], 400),
        ([{**good, "shape": [1, 784]}], 400),
        ([{**good, "shape": [784]}], 400),
        ([{**good, "shape": [0, 1, 28, 28], "data": []}], 413),
        ([{**good, "data": good["data"][1:]}], 400),
        ([{**good, "data": [*good["data"][1:], 1.5]}], 400),
        ([{**good, "data": [*good["data"][1:], 1e39]}], 400),
        ([{**good, "data": [*good["data"][1:], "0.5"]}], 400),
        ([{**good, "data": [*good["data"][1:], None]}], 400),
    ]
    with server.wire() as wire:
        for inputs, status in wrong:
            reply = wire.ask("POST", PINNED, json.dumps({"inputs": inputs}).encode())
            assert (reply.status, reply.reason) == (status, "bad_request"), reply.body
        reply = wire.ask("POST", PINNED, json_body(images(33)))
        assert (reply.status, reply.reason) == (413, "bad_request")
        for wanted in ([{"name": "other"}], [{"name": "probabilities"}] * 2, [{}], "probabilities"):
            reply = wire.ask("POST", PINNED, json_body(images(), outputs=wanted))  # type: ignore[arg-type]
            assert (reply.status, reply.reason) == (400, "bad_request")
        assert wire.ask("POST", PINNED, json_body(images(32))).status == 200


# -- when there is no answer ---------------------------------------------------------------------------------------


@contextmanager
def busy(server: Running) -> Iterator[list[Wire]]:
    """The worker is held back with all that it may be given at a time, and one more query waits."""
    with ExitStack() as stack:
        stack.enter_context(server.gate)
        wires: list[Wire] = []
        while not server.call(lambda: len(server.service.engine.generation.dispatcher.waiting())):
            assert len(wires) < 8
            wires.append(stack.enter_context(server.wire()))
            wires[-1].send(message("POST", PINNED, json_body(images())))
            server.wait_for_queries(len(wires))
        yield wires


def test_infeasible(server: Running) -> None:
    with busy(server) as others:
        # It is told a fraction of a millisecond before the deadline; where the loop is held up then, it is expired.
        tries = (infer(server, deadline_ms=30.0) for _ in range(20))
        seen = [(reply.status, reply.reason) for reply in tries]
        assert (412, "infeasible") in seen and set(seen) <= {(412, "infeasible"), (504, "expired")}
        server.gate.is_open.set()
        assert [wire.reply().status for wire in others] == [200] * len(others)


def test_expired(server: Running) -> None:
    """What waits when its deadline passes, because nothing could look at it before, expired."""
    with busy(server) as others, server.wire() as wire:
        wire.send(message("POST", PINNED, json_body(images(), deadline_ms=500.0)))
        server.wait_for_queries(len(others) + 1)
        server.call(lambda: time.sleep(0.6))  # the loop itself is held up
        reply = wire.reply()
        assert (reply.status, reply.reason) == (504, "expired")


def test_late(server: Running) -> None:
    """What runs when its deadline passes is answered all the same, and says so."""
    with server.gate, server.wire() as wire:
        wire.send(message("POST", PINNED, json_body(images(), deadline_ms=200.0)))
        server.wait_for_queries(1)
        began = time.monotonic()
        server.wait_until(lambda: time.monotonic() - began > 0.25, "its deadline has passed")
        server.gate.is_open.set()
        parameters = parameters_of(wire.reply())
        assert parameters["outcome"] == "late" and parameters["slack_ms"] < 0


def test_overloaded(server: Running) -> None:
    """A lane takes what its workers could answer within the SLO, and no more."""
    data = message("POST", "/v2/models/fashion/versions/cnn_s/infer", json_body(images(32)))
    with ExitStack() as stack:
        stack.enter_context(server.gate)
        for number in range(1, 500):
            wire = stack.enter_context(server.wire())
            wire.send(data)
            server.wait_until(
                lambda number=number: server.plane.open_requests == number or refusals(server) > 0, "it is taken"
            )
            if server.call(lambda: refusals(server)):
                break
        reply = wire.reply()
        assert (reply.status, reply.reason) == (429, "overloaded")
        assert int(reply.headers["retry-after"]) >= 1


def refusals(server: Running) -> int:
    engine = server.service.engine
    return int(engine.books.totals(engine.generations())["fashion"][1][Outcome.DROPPED_OVERLOAD])


def test_failed(server: Running) -> None:
    server.gate.is_failing = True
    try:
        reply = infer(server)
        assert (reply.status, reply.reason) == (500, "failed")
        assert "none" not in reply.content["error"]
        assert infer(server, images(5)).status == 500
    finally:
        server.gate.is_failing = False
    assert infer(server).status == 200


def test_our_own_client(server: Running) -> None:
    with Client(server.url()) as client:
        assert client.live() and client.ready() and client.ready("fashion")
        answer = client.infer("fashion", images(2), deadline_ms=DEADLINE_MS, version="mlp", id="x", client_id="me")
        assert answer.variant == "mlp"
        with pytest.raises(NotFound):
            client.infer("none", images())
        with busy(server), pytest.raises(Infeasible):
            client.infer("fashion", images(), deadline_ms=30.0)


@pytest.mark.parametrize("name", ["http", "management"])
def test_the_root_says_where_to_go(server: Running, name: str) -> None:
    reply = server.ask("GET", "/", name=name)
    assert reply.status == 200 and reply.content["name"] == "stretto"
    for call in ("server", "ready"):
        method, path = reply.content["calls"][call].split(" ")
        assert server.ask(method, path, name=name).status == 200
    assert ("metrics" in reply.content["calls"]) is (name == "management")


def test_every_refusal_is_counted_once(server: Running) -> None:
    """Also what is refused before there is a query, and by whom it does not matter."""
    asked = [
        ("GET", "/nowhere", b"", "not_found"),
        ("POST", "/v2", b"", "bad_request"),
        ("GET", "/v2/fleet", b"", "forbidden"),
        ("POST", "/v2/partition", b"{}", "forbidden"),
        ("GET", "/v2/models/none", b"", "not_found"),
        ("POST", "/v2/models/none/infer", b"{}", "not_found"),
        ("POST", PINNED, b"{}", "bad_request"),
        ("POST", PINNED + "/", b"{}", "bad_request"),
        ("POST", PINNED, bytes(3_000_000), "bad_request"),
        ("POST", PINNED + "/", bytes(3_000_000), "bad_request"),
        ("GET", "/v2/models/fashion/versions/none/ready", b"", "not_found"),
    ]
    assert server.ask("POST", PINNED, json_body(images())).status == 200
    for method, path, body, reason in asked:
        before = server.call(lambda: dict(server.plane.refused))
        assert server.ask(method, path, body).reason == reason
        after = server.call(lambda: dict(server.plane.refused))
        assert after == before | {reason: before.get(reason, 0) + 1}, path
