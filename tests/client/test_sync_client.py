"""Client against a real server: answers, refusals, connections kept, lost and given up."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from stretto.client import (
    BadAnswer,
    BadRequest,
    Client,
    ConnectionFailed,
    Expired,
    NotFound,
    Overloaded,
    StrettoClientError,
    Unauthenticated,
)
from stretto.client.errors import BY_REASON
from stretto.core.errors import StrettoError
from tests.client.server import Server

BEE = [0.25, 0.5, 0.125, 0.0]


def test_a_query_and_its_answer(server: Server) -> None:
    with Client(server.url) as client:
        answer = client.infer("rows", BEE, deadline_ms=50, min_accuracy=0.5, priority=2, client_id="me", id="q7")
        assert answer.outputs["probabilities"] is answer.output
        assert answer.output.dtype == np.float32 and answer.output.tolist() == [[0.25, 0.5, 0.125]]
        assert (answer.variant, answer.outcome, answer.id, answer.batch_size) == ("good", "on_time", "q7", 1)
        assert (answer.expected_accuracy, answer.queue_ms, answer.run_ms, answer.slack_ms) == (0.9, 1.5, 2.5, 40.0)
        assert answer.parameters["variant"] == "good"
        wished = {"deadline_ms": 50.0, "min_accuracy": 0.5, "priority": 2, "client_id": "me"}
        assert server.rules.last["parameters"] == wished | {"binary_data_output": True}
        assert client.infer("rows", {"x": np.eye(4, dtype=np.uint8)}, version="fast").variant == "fast"
        assert server.rules.last["inputs"][0]["shape"] == [4, 4]
    assert server.rules.paths.count("/v2/models/rows") == 1 and server.rules.connections == 1


@pytest.mark.parametrize("is_binary", [True, False])
def test_classes_are_asked_for_by_number(server: Server, is_binary: bool) -> None:
    server.rules.is_binary = is_binary
    with Client(server.url) as client:
        assert client.infer("rows", BEE, classification=2).output.tolist() == [[b"0.5:1:bee", b"0.25:0:ant"]]
        assert client.infer("rows", BEE, outputs=["probabilities"]).output.shape == (1, 3)


@pytest.mark.parametrize("reason", BY_REASON)
def test_each_reason_has_its_exception(server: Server, reason: str) -> None:
    with Client(server.url) as client:
        server.rules.refuse = reason
        with pytest.raises(BY_REASON[reason], match=f"it is {reason}") as caught:
            client.infer("rows", BEE)
        assert isinstance(caught.value, StrettoClientError) and isinstance(caught.value, StrettoError)
        assert caught.value.reason == reason and caught.value.status is not None
        if isinstance(caught.value, Overloaded):
            assert caught.value.retry_after_s == 2
        server.rules.refuse = ""
        client.infer("rows", BEE)
    assert server.rules.connections == 1, "a refusal keeps the connection"


def test_health_metadata_and_statistics(server: Server) -> None:
    with Client(server.url) as client:
        assert client.live() and client.ready() and client.ready("rows")
        assert client.metadata()["name"] == "stretto" and client.metadata("rows")["versions"] == ["fast", "good"]
        assert client.statistics("rows") == {"model_stats": []}
        assert "slo_ms" in client.configuration("rows")["parameters"]
        server.rules.refuse = "unavailable"
        assert client.live() and not client.ready() and not client.ready("rows")
        for call in (client.metadata, client.ready):
            with pytest.raises(NotFound):
                call("other")


def test_the_token_is_sent(server: Server) -> None:
    server.rules.token = "secret"
    with Client(server.url, token="secret") as client:
        client.infer("rows", BEE)
    with Client(server.url, token="wrong") as client, pytest.raises(Unauthenticated):
        client.infer("rows", BEE)


def test_a_kept_connection_that_was_closed_is_tried_once_anew(server: Server) -> None:
    with Client(server.url) as client:
        client.infer("rows", BEE)
        server.rules.closes = 1
        assert client.infer("rows", BEE).variant == "good"
        assert server.rules.connections == 2
        server.rules.closes = 2  # the new connection breaks too: that is no stale one
        with pytest.raises(ConnectionFailed, match="broke"):
            client.infer("rows", BEE)
        assert server.rules.closes == 0


def test_a_new_connection_that_breaks_is_not_tried_anew(server: Server) -> None:
    server.rules.closes = 1
    with Client(server.url) as client, pytest.raises(ConnectionFailed, match="broke"):
        client.metadata()
    assert len(server.rules.paths) == 1


def test_what_never_reached_a_server() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with Client(f"http://127.0.0.1:{unused.getsockname()[1]}") as client:
            assert not client.live() and not client.ready()
            with pytest.raises(ConnectionFailed, match="cannot be reached"):
                client.infer("rows", BEE)
    with Client(f"http://{'a' * 70}.example") as client, pytest.raises(ConnectionFailed):
        client.metadata()
    client.close()
    with pytest.raises(ConnectionFailed, match="closed"):
        client.metadata()


def test_an_answer_that_does_not_come_is_given_up_after_the_grace(server: Server) -> None:
    server.rules.holds = True
    with Client(server.url, grace_ms=30) as client:
        with pytest.raises(Expired, match="stopped waiting"):
            client.infer("rows", BEE, deadline_ms=20)
        assert server.rules.left.acquire(timeout=5), "the connection is closed, so that the server may cancel"
        server.rules.holds = False
        client.infer("rows", BEE, deadline_ms=5_000)


def test_answers_that_are_refused_here(server: Server) -> None:
    with Client(server.url, max_answer_bytes=2_000) as client:
        server.rules.body = bytes(3_000)
        with pytest.raises(BadAnswer, match="larger than"):
            client.infer("rows", BEE)
        server.rules.body = b'{"outputs": 3}'
        with pytest.raises(BadAnswer, match="no outputs"):
            client.infer("rows", BEE)


def test_what_is_not_even_sent(server: Server) -> None:
    with Client(server.url) as client:
        for wrong in ({"deadline_ms": 0}, {"deadline_ms": float("nan")}, {"min_accuracy": float("inf")}):
            with pytest.raises(BadRequest):
                client.infer("rows", BEE, **wrong)
        with pytest.raises(BadRequest, match="N×4"):
            client.infer("rows", 1.0)
    assert not any(path.endswith("infer") for path in server.rules.paths)


def test_an_application_loaded_anew_is_described_anew(server: Server) -> None:
    with Client(server.url) as client:
        client.infer("rows", BEE)
        server.rules.shape = (2, 2)
        with pytest.raises(BadRequest):
            client.infer("rows", BEE)
        assert client.infer("rows", np.reshape(BEE, (2, 2))).output.shape == (1, 3)


def test_threads_share_a_client(server: Server) -> None:
    begin = threading.Barrier(4)

    def ask(number: int) -> bool:
        begin.wait(10)
        queries = np.random.default_rng(number).random((20, 4)).astype(np.float32)
        return all((client.infer("rows", query).output == query[:3]).all() for query in queries)

    with Client(server.url) as client, ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(4)))
    assert server.rules.connections <= 4


def test_large_inputs(server: Server) -> None:
    queries = np.zeros((100_000, 4), np.float32)
    queries[:, 2] = 1
    with Client(server.url) as client:
        assert client.infer("rows", queries).output.shape == (100_000, 3)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 127.0.0.1, signed by itself; certificate and key in one file."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    kind = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=here", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(file), "-out", f"{file}.crt"]
    subprocess.run([program, *kind, *names, *files], check=True, capture_output=True, timeout=30)
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


def test_tls_with_a_ca_file(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with Server(tls=context) as server:
        with Client(server.url, ca_file=f"{certificate}.crt") as client:
            assert [client.infer("rows", BEE).variant for _ in range(3)] == ["good"] * 3
            server.rules.closes = 1
            assert client.infer("rows", BEE).variant == "good"
        with Client(server.url) as client, pytest.raises(ConnectionFailed, match=r"no TLS with .*certificate"):
            client.infer("rows", BEE)
