"""`stretto serve` on bad disks and pipes, under signals, with nothing to serve: a process, as an operator runs it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.client import Client, Unauthenticated
from tests.cli.test_serve import FREE, LIMIT_S, ROOT, Served, digits, ready, served
from tests.live.bad_models import HELPER_S
from tests.live.bad_repository import add
from tests.repository.build import KIND, build

SMALL = ("zoo:mnist", "--workers", "1", "--planner", "priced", "--variant", "linear")
TOKENS = "0123456789abcdef", "fedcba9876543210"


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def text(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as reply:
        return str(reply.read().decode())


def submitted_and_ended(metrics: str) -> tuple[float, float]:
    values = [line.split()[-1::-1] for line in metrics.splitlines() if line.startswith("stretto_queries_")]
    named = [(name, float(value)) for value, name in values]
    submitted = sum(value for name, value in named if name.startswith("stretto_queries_submitted_total"))
    return submitted, sum(value for name, value in named if name.startswith("stretto_queries_ended_total"))


# -- disks and pipes ---------------------------------------------------------------------------------------------------


@contextmanager
def unheard(stderr: int, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str, str]]:
    """A server whose standard error says nothing to us: the process, its address and that of management."""
    http, management = free_port(), free_port()
    ports = ("--http-port", str(http), "--grpc-port", "-1")
    ports += ("--management-port", str(management), "--management-grpc-port", "-1")
    process = subprocess.Popen(
        [sys.executable, "-m", "stretto.cli.main", "serve", *SMALL, *ports, *options],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=stderr,
    )
    try:
        yield process, f"http://127.0.0.1:{http}", f"http://127.0.0.1:{management}"
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)


def is_up(url: str) -> bool:
    with Client(url) as client:
        try:
            return client.ready()
        except Exception:
            return False


def test_log_and_recording_on_a_full_disk() -> None:
    """The first line on standard error used to end the server; the recording took down whichever query filled its
    buffer.
    """
    with open("/dev/full", "wb") as full:
        options = ("--record", "/dev/full", "--log-level", "debug")
        with unheard(full.fileno(), *options) as (process, url, management):
            until(lambda: process.poll() is not None or is_up(url))
            with Client(url) as client:
                for _ in range(200):
                    assert client.infer("mnist", digits(4), deadline_ms=30_000).variant == "linear"
            until(lambda: "stretto_recording 0.0" in text(f"{management}/metrics"))
            metrics = text(f"{management}/metrics")
            assert submitted_and_ended(metrics) == (800, 800)
            assert "stretto_recorded_bytes_total 0.0" in metrics
            lost = next(line for line in metrics.splitlines() if line.startswith("stretto_log_lines_lost_total"))
            assert float(lost.split()[1]) >= 4  # where it listens, that it serves, that the recording stopped
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def test_whoever_read_the_log_went_away() -> None:
    reading, writing = os.pipe()
    with unheard(writing) as (process, url, _):
        os.close(writing)
        until(lambda: process.poll() is not None or is_up(url))
        os.close(reading)
        with Client(url) as client:
            assert client.infer("mnist", digits(1), deadline_ms=30_000).variant == "linear"
        process.send_signal(signal.SIGTERM)  # and now it has something to say
        assert process.wait(60) == 0


def test_parts_of_a_server_that_was_killed_are_replayed(tmp_path: Path) -> None:
    """Of a quiet server that was killed, nothing used to be left."""
    events = tmp_path / "events.jsonl"
    events.write_text("of an earlier run")
    options = ("--record", str(events), "--record-overwrite", "--record-file-mb", "0.02")
    with served(*SMALL, *FREE, *options) as server:
        http = f"http://{server.addresses()['http']}"
        assert ready(http)
        with Client(http) as client:
            while not (tmp_path / "events.3.jsonl").exists():
                assert client.infer("mnist", digits(8), deadline_ms=30_000).variant == "linear"
        server.process.kill()  # without a chance to write the rest
        server.ended()
    for word in ("replay", "setting"):
        result = CliRunner().invoke(app, [word, str(events)])
        assert result.exit_code == 0, result.output


# -- what it says before it ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["--grpc-port", "--management-grpc-port", "--http-port"])
def test_a_port_in_use_is_one_line(listener: str) -> None:
    """gRPC used to write its own page about it, with file names and line numbers of its inside."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        others = [part for n in range(0, 8, 2) if FREE[n] != listener for part in FREE[n : n + 2]]
        done = subprocess.run(
            [sys.executable, "-m", "stretto.cli.main", "serve", *SMALL, *others, listener, str(port)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: cannot listen on 127.0.0.1:{port} (Address already in use)")
    assert done.returncode == 2


def test_a_server_that_can_serve_nothing_ends(tmp_path: Path) -> None:
    """It used to stay, never ready, and to say why only in its log."""
    onnx = pytest.importorskip("onnx", reason="models for the tests are made with onnx, an extra for development")
    built = build(tmp_path / "repository")
    for path in built.root.glob("*/variants/*/model.onnx"):
        model = onnx.load(str(path))
        model.graph.node[1].op_type = "NoSuchOperator"
        onnx.save(model, str(path))
        built.profile(path.parent.name)
    with served(str(tmp_path / "repository"), *FREE, "--workers", "1", "--kind", KIND) as server:
        assert server.ended() == 2, server.lines
    assert "error: nothing can be served" in server.lines[-1]
    assert any("is left out" in line for line in server.lines[:-1]) and "Traceback" not in "".join(server.lines)


# -- signals -----------------------------------------------------------------------------------------------------------


def test_a_balancer_has_time_to_look_away() -> None:
    """Readiness and refusal used to come in one moment: what a balancer still sent was lost."""
    with served(*SMALL, *FREE, "--drain-grace", "3") as server:
        found = server.addresses()
        http, management = f"http://{found['http']}", f"http://{found['management']}"
        assert ready(http)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: status(f"{http}/v2/health/ready") == 503)
        assert status(f"{http}/v2/health/live") == 200 and status(f"{http}/v2/models/mnist/ready") == 503
        with grpc.insecure_channel(found["grpc"]) as channel:
            ask = channel.unary_unary("/inference.GRPCInferenceService/ServerReady")
            assert ask(b"", timeout=30) == b""  # false
        with Client(http) as client:
            assert client.infer("mnist", digits(1), deadline_ms=30_000).variant == "linear"
        assert "stretto" in text(f"{management}/metrics")
        assert server.ended() == 0, server.lines
        told = [line for line in server.lines if "not ready any more" in line or "going down" in line]
        assert len(told) == 2


def test_a_person_does_not_wait_for_a_balancer() -> None:
    with served(*SMALL, *FREE, "--drain-grace", "3600") as server:
        assert ready(f"http://{server.addresses()['http']}")
        server.process.send_signal(signal.SIGINT)
        assert server.ended() == 0, server.lines


def test_a_server_does_not_wait_for_processes_that_models_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With workers that are threads, Python used to wait at its end for every helper of multiprocessing."""
    helpers = tmp_path / "helpers"
    helpers.touch()
    monkeypatch.setenv("STRETTO_TEST_HELPERS", str(helpers))
    add(tmp_path / "models", "forks", "ForkAtLoad")
    options = ("--executor", "thread", "--workers", "1", "--planner", "priced", "--kind", KIND)
    with served(str(tmp_path / "models"), *options, *FREE) as server:
        until(lambda: status(f"http://{server.addresses()['http']}/v2/health/ready") == 200)
        began_s = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0 and time.monotonic() - began_s < HELPER_S / 2
    for helper in map(int, helpers.read_text().split()):
        until(lambda helper=helper: not Path(f"/proc/{helper}").exists())  # type: ignore[misc]


def test_a_terminal_that_is_closed_takes_its_server_along() -> None:
    """The kernel says so with the signal that otherwise asks to read everything anew."""
    ours, theirs = os.openpty()
    port = free_port()
    command = [sys.executable, "-m", "stretto.cli.main", "serve", *SMALL, *FREE[2:], "--http-port", str(port)]
    process = subprocess.Popen(
        ["setsid", "--ctty", *command],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        until(lambda: process.poll() is not None or is_up(f"http://127.0.0.1:{port}"))
        process.send_signal(signal.SIGHUP)  # while the terminal is there, this is no reason to go
        assert b"reloaded: " in read_until(ours, b"reloaded: ")
        os.close(ours)
        assert process.wait(60) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(30)


def read_until(descriptor: int, words: bytes) -> bytes:
    read = b""
    while words not in read:
        read += os.read(descriptor, 1000)
    return read


def make_certificate(folder: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    subprocess.run([*command, *files], check=True, capture_output=True, timeout=60)


def shown(address: str) -> bytes:
    """The certificate that a new connection gets; without a name, as by address."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 30) as plain, context.wrap_socket(plain) as connection:
        return connection.getpeercert(True) or b""


CONFIG = """
[listen]
token_file = "token"
tls_certificate = "certificate.pem"
tls_key = "key.pem"

[clients]
client_requests = {rate}

[log]
log_level = "{level}"
"""


def reloaded(server: Served, words: str) -> None:
    count = sum(words in line for line in server.lines)
    server.process.send_signal(signal.SIGHUP)
    until(lambda: sum(words in line for line in list(server.lines)) > count)


def test_hangup_reads_tokens_certificates_and_configuration_anew(tmp_path: Path) -> None:
    """The signal used to end the server."""
    make_certificate(tmp_path)
    token, config = tmp_path / "token", tmp_path / "serve.toml"
    token.write_text(TOKENS[0])
    config.write_text(CONFIG.format(rate=0, level="info"))
    with served(*SMALL, *FREE, "--config", str(config)) as server:
        end = time.monotonic() + LIMIT_S
        while len([line for line in server.lines if "127.0.0.1:" in line]) < 4 and time.monotonic() < end:
            time.sleep(0.01)
        found = server.addresses()
        url, first = f"https://{found['http']}", tmp_path / "first.pem"
        shutil.copy(tmp_path / "certificate.pem", first)
        until(lambda: any("serving mnist" in line for line in server.lines))
        kept = Client(url, token=TOKENS[0], ca_file=first)
        assert kept.ready("mnist")
        assert kept.infer("mnist", digits(1), deadline_ms=30_000).variant == "linear"
        certificates = {shown(found[name]) for name in ("http", "management", "grpc")}
        assert len(certificates) == 1

        token.write_text(TOKENS[1])
        make_certificate(tmp_path)
        reloaded(server, "reloaded: ")
        after = {shown(found[name]) for name in ("http", "management", "grpc")}
        assert len(after) == 1 and not after & certificates
        with pytest.raises(Unauthenticated):  # on the connection that it has
            kept.infer("mnist", digits(1), deadline_ms=30_000)
        kept.close()
        with Client(url, token=TOKENS[1], ca_file=tmp_path / "certificate.pem") as client:
            assert client.infer("mnist", digits(1), deadline_ms=30_000).variant == "linear"
        check_grpc(found["grpc"], tmp_path / "certificate.pem")

        good = (tmp_path / "key.pem").read_bytes()
        for file, content, words in (
            (tmp_path / "key.pem", b"no key", "certificate or key cannot be used"),
            (token, b"short", "token"),
            (config, b"[listen\n", "serve.toml"),
            (config, CONFIG.format(rate=0, level="info").replace("token_file", "#").encode(), "decided at the start"),
        ):
            before = file.read_bytes()
            file.write_bytes(content)
            reloaded(server, "nothing was reloaded, and what was in force stays")
            assert words in next(line for line in reversed(server.lines) if "nothing was reloaded" in line)
            file.write_bytes(before)
        assert (tmp_path / "key.pem").read_bytes() == good
        assert {shown(found[name]) for name in ("http", "management", "grpc")} == after
        with Client(url, token=TOKENS[1], ca_file=tmp_path / "certificate.pem") as client:
            assert client.infer("mnist", digits(1), deadline_ms=30_000).variant == "linear"

        config.write_text(CONFIG.format(rate=0.001, level="info") + "[workers]\nthreads = 2\n[end]\ndrain_s = 7\n")
        for _ in range(2):  # it waits, however often it is read
            reloaded(server, "wait for the next start: threads")
        with Client(url, token=TOKENS[1], ca_file=tmp_path / "certificate.pem") as client:
            assert client.infer("mnist", digits(1), deadline_ms=30_000).variant == "linear"
            with pytest.raises(Exception, match="more requests a second"):
                client.infer("mnist", digits(1), deadline_ms=30_000)
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0, server.lines


def check_grpc(address: str, certificate: Path) -> None:
    """New calls need the new token, and get the new certificate."""
    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    with grpc.secure_channel(address, credentials) as channel:
        ask = channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata")
        assert ask(b"", metadata=(("authorization", f"bearer {TOKENS[1]}"),), timeout=30)
        with pytest.raises(grpc.RpcError) as caught:
            ask(b"", metadata=(("authorization", f"bearer {TOKENS[0]}"),), timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full", "0>&- 1>&- 2>&-"])
def test_it_ends_with_the_same_code_where_nobody_hears_why(closed: str) -> None:
    """Without a standard error uvloop used to abort the process, at the start and at the end of every server."""
    command = f"{sys.executable} -m stretto.cli.main serve zoo:nothing {' '.join(FREE)} {closed}"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run(["sh", "-c", command], cwd=ROOT, env=env, timeout=LIMIT_S).returncode == 2
