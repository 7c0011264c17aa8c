"""Listeners: management apart from inference, tokens, TLS, changes while serving, draining and the end."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import pytest

from stretto.api.limits import Limits
from stretto.api.plane import Plane
from stretto.api.server import Listen, Listeners, listening_socket
from stretto.client import Client, Unauthenticated
from stretto.core.errors import StrettoError
from tests.api.serving import (
    INFER,
    PATIENCE_S,
    PINNED,
    GoodQueries,
    Reply,
    Running,
    images,
    json_body,
    message,
    repository_of,
    values_of,
)

ONE = json_body(images())


def manage(server: Running, path: str, body: bytes = b"") -> Reply:
    return server.ask("POST", f"/v2/repository/{path}", body, name="management")


# -- management ----------------------------------------------------------------------------------------------------


def test_management_serves_inference_too(server: Running) -> None:
    assert values_of(server.ask("POST", INFER, ONE, name="management")).shape == (1, 10)


def test_index(server: Running) -> None:
    rows = manage(server, "index").content
    states = {(row["name"], row["version"]): row["state"] for row in rows}
    assert states[("fashion", "linear")] == states[("mnist", "mlp")] == "READY"
    assert states[("fashion", "resnet_l")] == "UNAVAILABLE"  # not chosen
    ready = manage(server, "index", b'{"ready": true}').content
    assert {row["state"] for row in ready} == {"READY"}
    for body, status in ((b"[]", 400), (b"{", 400), (b"\xff", 400), (b" " * 1_000_001, 413), (b'{"ready": 1}', 200)):
        assert manage(server, "index", body).status == status
    assert manage(server, "other").status == 404
    assert manage(server, "models/fashion").status == 404
    assert server.ask("GET", "/v2/repository/index", name="management").status == 405


def test_load_and_unload_of_what_is_not_there(server: Running) -> None:
    for path in ("models/none/load", "models/none/unload", "models/..%2f..%2fetc/load"):
        reply = manage(server, path)
        assert (reply.status, reply.reason) == (404, "not_found")
        assert reply.content["error"].startswith("there is no application ")


def test_unload_and_load(repository: Path) -> None:
    """What was taken in is answered; nothing new is; then all is as before. The other application goes on."""
    with Running(repository) as server, GoodQueries(server) as good:
        mnist = "/v2/models/mnist/infer"
        with server.wire() as wire:
            for _ in range(2):
                assert wire.ask("POST", mnist, ONE).status == 200
                assert manage(server, "models/mnist/unload").status == 200
                reply = wire.ask("POST", mnist, ONE)
                assert (reply.status, reply.reason) == (503, "unavailable")
                assert wire.ask("POST", f"{mnist}/", ONE).status == 503
                assert wire.ask("GET", "/v2/models/mnist/ready").status == 503
                assert wire.ask("GET", "/v2/models/mnist").status == 200
                assert wire.ask("GET", "/v2/health/ready").status == 200
                states = {row["state"] for row in manage(server, "index").content if row["name"] == "mnist"}
                assert states == {"UNAVAILABLE"}
                assert manage(server, "models/mnist/unload").status == 200  # again is no mistake
                assert manage(server, "models/mnist/load").status == 200
                assert wire.ask("GET", "/v2/models/mnist/ready").status == 200
                assert wire.ask("POST", mnist, ONE).status == 200
        assert manage(server, "models/mnist/unload").status == 200
        assert manage(server, "models/fashion/unload").status == 400  # the last one
        answered = good.answered
        server.wait_until(lambda: good.answered > answered, "good queries go on")


def test_load_of_what_cannot_be_served(tmp_path: Path) -> None:
    """All stays as it was, and the sentence names no file of the inside."""
    folder = repository_of(tmp_path / "repository", "fashion", "mnist")
    with Running(folder) as server:
        shutil.copytree(folder / "mnist", folder / "numbers")
        assert manage(server, "models/numbers/load").status == 200
        assert server.ask("POST", "/v2/models/numbers/infer", ONE).status == 200
        (folder / "broken").mkdir()
        (folder / "broken" / "app.toml").write_text("name = 3\n")
        reply = manage(server, "models/broken/load")
        assert (reply.status, reply.reason) == (400, "bad_request")
        assert str(tmp_path) not in reply.content["error"] and reply.content["error"].startswith("app.toml:1: name ")
        assert manage(server, "models/fashion/load").status == 200  # what is broken is its own affair
        assert server.ask("POST", INFER, ONE).status == 200
        shutil.rmtree(folder / "broken")
        variant = folder / "numbers" / "variants" / "mlp"
        (variant / "model.onnx").unlink()
        (variant / "variant.toml").write_text(f'backend = "callable"\ncode = "{"m" * 300}:Model"\n')
        reply = manage(server, "models/numbers/load")  # no file can have such a name, which the system says in its way
        assert (reply.status, reply.reason) == (400, "bad_request")
        shutil.rmtree(folder / "numbers")
        assert manage(server, "models/fashion/load").status == 200
        assert server.ask("POST", INFER, ONE).status == 200


# -- tokens --------------------------------------------------------------------------------------------------------


def test_tokens(repository: Path) -> None:
    with Running(repository, token="s3cret", management_token="other") as server:
        calls = [("GET", "/v2"), ("GET", "/v2/models/fashion"), ("GET", "/v2/models/stats"), ("POST", PINNED)]
        with server.wire() as wire:
            for _ in range(2):  # the second time the address is known
                for method, path in calls:
                    body = ONE if method == "POST" else b""
                    for wrong in ("Bearer other", "Bearer ", "s3cret", "Basic s3cret", "Bearer s3cret2", "é"):
                        reply = wire.ask(method, path, body, Authorization=wrong)
                        assert (reply.status, reply.reason) == (401, "unauthenticated")
                        assert "s3cret" not in reply.body.decode()
                    assert wire.ask(method, path, body).status == 401
                    assert wire.ask(method, path, body, Authorization="Bearer s3cret").status == 200
            for path in ("/v2/health/live", "/v2/health/ready"):
                assert wire.ask("GET", path).status == 200
        for method, path in (("GET", "/metrics"), ("POST", "/v2/repository/index"), ("GET", "/v2")):
            assert server.ask(method, path, name="management").status == 401
            assert server.ask(method, path, name="management", Authorization="Bearer s3cret").status == 401
            assert server.ask(method, path, name="management", Authorization="Bearer other").status == 200
        with Client(server.url(), token="s3cret") as client:
            assert client.infer("fashion", images(), deadline_ms=20_000).variant
        with Client(server.url()) as client, pytest.raises(Unauthenticated):
            client.infer("fashion", images())
        assert server.plane.refused["unauthenticated"] > 0


# -- TLS -----------------------------------------------------------------------------------------------------------


def test_tls(repository: Path, certificate: tuple[Path, Path], complaints: list[str]) -> None:
    with Running(repository, certificate=certificate[0], key=certificate[1]) as server:
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        for listener in ("http", "management"):
            with server.wire(listener, trusting) as wire:
                for _ in range(2):
                    assert values_of(wire.ask("POST", PINNED, ONE)).shape == (1, 10)
                wire.send(message("POST", PINNED, ONE) + message("GET", "/v2") + message("POST", PINNED, ONE))
                assert [wire.reply().status for _ in range(3)] == [200] * 3
                assert wire.ask("POST", PINNED, bytes(3_000_000)).status == 413
        with pytest.raises(ssl.SSLCertVerificationError):
            server.wire(tls=ssl.create_default_context())
        with server.wire() as plain:  # not TLS
            plain.send(message("GET", "/v2"))
            assert plain.is_closed() or b"HTTP" not in plain._read
        with server.gate:  # a lost client is noticed here too
            with server.wire(tls=trusting) as wire:
                wire.send(message("POST", PINNED, ONE))
                server.wait_for_queries(1)
            server.wait_until(lambda: server.plane.open_requests == 0, "the request is gone")
        server.wait_for_queries(0)
        with Client(server.url().replace("http:", "https:"), ca_file=certificate[0]) as client:
            assert client.ready("fashion")


def test_certificates_that_cannot_be_used(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(StrettoError, match="both"):
        Listen(tls_certificate="only.pem")
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for certificate in (bad, tmp_path / "none.pem"):
        running = Running(repository, certificate=certificate, key=bad)
        with pytest.raises(StrettoError, match="certificate or key") as caught, running:
            pass
        assert str(tmp_path) not in str(caught.value)


# -- the end -------------------------------------------------------------------------------------------------------


def test_draining(repository: Path) -> None:
    """Ready turns false, new work is refused, queued work is finished."""
    with Running(repository) as server, server.wire() as running, server.wire() as waiting, server.wire() as new:
        assert new.ask("POST", PINNED, ONE).status == 200
        with server.gate:
            running.send(message("POST", PINNED, json_body(images(3))))
            server.wait_for_queries(3)
            waiting.send(message("POST", PINNED + "/", json_body(images(2))))
            server.wait_for_queries(5)
            drained = asyncio.run_coroutine_threadsafe(server.service.drain(PATIENCE_S), server.loop)
            server.wait_until(lambda: not server.service.is_ready(), "it drains")
            reply = new.ask("GET", "/v2/health/ready")
            assert (reply.status, reply.reason) == (503, "unavailable")
            assert reply.headers["connection"] == "close" and new.is_closed()
            assert server.ask("GET", "/v2/health/live").status == 200
            assert server.ask("GET", "/v2/models/fashion/ready").status == 503
            for path in (PINNED, INFER):
                reply = server.ask("POST", path, ONE)
                assert (reply.status, reply.reason) == (503, "unavailable")
                assert int(reply.headers["retry-after"]) >= 1
                assert reply.headers["connection"] == "close"
            assert not drained.done()
        for wire, rows in ((running, 3), (waiting, 2)):
            reply = wire.reply()
            assert reply.content["outputs"][0]["shape"] == [rows, 10]
            assert reply.headers["connection"] == "close"
        assert drained.result(PATIENCE_S)
        assert server.waiting == 0
        server.run(server.listeners.stop())
        for wire in (running, waiting, new):
            assert wire.is_closed()


def test_the_end_waits_for_answers_on_their_way(repository: Path) -> None:
    with Running(repository) as server, server.wire() as direct, server.wire() as task, server.wire() as half:
        assert direct.ask("POST", PINNED, ONE).status == 200
        half.send(message("POST", PINNED, ONE)[:-5])
        with server.gate:
            direct.send(message("POST", PINNED, ONE))
            task.send(message("POST", PINNED + "/", ONE))
            server.wait_for_queries(2)
            stopping = asyncio.run_coroutine_threadsafe(server.listeners.stop(), server.loop)
            server.wait_until(lambda: server.listeners._sweeps[0].cancelled(), "it stops")
            server.gate.is_open.set()
            for wire in (direct, task):
                reply = wire.reply()
                assert reply.status == 200 and reply.headers["connection"] == "close"
                assert wire.is_closed()
        stopping.result(PATIENCE_S)
        assert half.is_closed()
        server.wait_for_queries(0)


def test_addresses_that_cannot_be_had(server: Running, complaints: list[str]) -> None:
    host, port = server.address()
    with pytest.raises(StrettoError, match="choose another port"):
        listening_socket(host, port)
    with pytest.raises(StrettoError, match="no address"):
        listening_socket("no.such.host.invalid", 0)

    async def start() -> None:
        listen = Listen(http_port=0, grpc_port=None, management_port=port, management_grpc_port=None, limits=Limits())
        other = Listeners(Plane(server.service, listen.limits), listen)
        with pytest.raises(StrettoError):
            await other.start()
        taken = other.addresses["http"]
        with pytest.raises(OSError):  # the listener that had begun is gone again
            await asyncio.open_connection(*taken)

    server.run(start())


def test_grpc_needs_room_for_a_message() -> None:
    with pytest.raises(StrettoError, match="--in-flight-mb"):
        Listen(limits=Limits(memory_bytes=9_000_000, message_bytes=5_000_000))
