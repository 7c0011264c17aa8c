"""The commands of a cluster as processes: what they refuse, and a scheduler that is killed while it serves."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from stretto.cli.main import app
from stretto.cli.roles import role_options
from stretto.cli.serve_ray import _when_it_listens
from stretto.client import Client, StrettoClientError, Unavailable
from stretto.core.errors import StrettoError
from stretto.live.cluster import worker as cluster_worker
from stretto.live.cluster.worker import own_kind
from tests.live.cluster.joined import ENVIRONMENT, children_of, free_endpoint, ports_of
from tests.live.test_service import ROWS
from tests.repository.build import KIND, Built, build

START_S = 60.0


@pytest.fixture
def built(tmp_path: Path) -> Built:
    return build(tmp_path / "models")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["worker", "--scheduler", "tcp://10.0.0.1:9300"], "--key-file"),
        (["worker", "--scheduler", "10.0.0.1:9300"], "tcp://127.0.0.1:9300"),
        (["worker", "--device", "tpu"], "there is no device"),
        (["worker", "--repository", "/no/such/folder"], "no such folder"),
        (["scheduler", "zoo:fashion", "--bind", "tcp://0.0.0.0:9300"], "--key-file"),
        (["front-end", "zoo:fashion", "--scheduler", "tcp://node-7:9300"], "--key-file"),
    ],
)
def test_what_is_refused_is_told_in_a_sentence(arguments: list[str], told: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and told in result.output and "Traceback" not in result.output


@pytest.mark.parametrize("command", ["scheduler", "serve"])
@pytest.mark.parametrize(
    ("given", "written", "fleet"),
    [
        (["--worker", "cpu*2", "--worker", "cpu,threads=2"], "", [(2, 1), (1, 2)]),
        (["--worker", "cpu*3"], "[workers]\nworkers = 4\n", [(3, 1)]),
        (["--workers", "3"], '[workers]\nworker = ["cpu*2"]\n', [(3, 1)]),
        ([], '[workers]\nworker = ["cpu*2"]\n', [(2, 1)]),
        (["--workers", "3", "--worker", "cpu*2"], "", "not both"),
        ([], '[workers]\nworkers = 3\nworker = ["cpu*2"]\n', "not both"),
    ],
)
def test_places_by_a_list_or_a_number(
    command: str, given: list[str], written: str, fleet: list[tuple[int, int]] | str, tmp_path: Path
) -> None:
    """A scheduler refused every `--worker`, as the guide and the manifest have it, for its own default of one place."""
    config = tmp_path / "serve.toml"
    config.write_text(written)
    context = typer.main.get_command(app).commands[command].make_context(command, ["zoo:fashion", *given])  # type: ignore[attr-defined]
    if isinstance(fleet, str):
        with pytest.raises(StrettoError, match=fleet):
            role_options(context, config)
    else:
        specs = role_options(context, config).service.fleet()
        assert [(spec.workers, spec.threads) for spec in specs] == fleet


def test_a_key_that_is_too_short_or_not_one(tmp_path: Path) -> None:
    file = tmp_path / "key"
    for content, told in (("short", "16 characters"), ("a-key-of-some-length\nanother-key-of-it", "one key")):
        file.write_text(content)
        result = CliRunner().invoke(app, ["worker", "--key-file", str(file)])
        assert result.exit_code == 2 and told in result.output


def test_a_planner_that_looks_at_tensors_is_refused(built: Built) -> None:
    free = ["--management-port", "0", "--management-grpc-port", "-1", "--kind", KIND]
    arguments = ["scheduler", str(built.root), "--bind", free_endpoint(), "--planner", "sneakpeek", *free]
    result = subprocess.run(
        [sys.executable, "-m", "stretto", *arguments], env=ENVIRONMENT, capture_output=True, text=True, timeout=START_S
    )
    assert result.returncode == 2 and "never sees that" in result.stderr


@pytest.mark.parametrize(
    ("device", "usable", "told"),
    [
        ("cuda:1", ("NVIDIA H200", "NVIDIA H200"), "gpu-nvidia-h200"),
        ("cuda", ("NVIDIA L4", "NVIDIA H200"), "gpu-nvidia-l4"),
        ("cuda:2", ("NVIDIA H200", "NVIDIA H200"), "there is no cuda:2 on this machine"),
        ("cuda:0", (None, None), "GPUs of several kinds"),
    ],
)
def test_a_worker_says_which_gpu_it_has(
    device: str, usable: tuple[str | None, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two equal ones was said not to be there."""
    monkeypatch.setattr(cluster_worker, "usable_accelerators", lambda: usable)
    try:
        assert own_kind(device) == told
    except StrettoError as error:
        assert told in str(error)


def test_front_ends_that_say_so_share_a_port(built: Built) -> None:
    url = free_endpoint().replace("tcp", "http")
    ports = ["--http-port", url.rpartition(":")[2], "--grpc-port", "-1"]
    front = ["front-end", str(built.root), "--scheduler", free_endpoint(), *ports]

    def is_alive() -> bool:
        with contextlib.suppress(StrettoClientError), Client(url) as client:
            return client.live()
        return False

    with started([*front, "--share-ports"], [*front, "--share-ports"]) as (one, other):
        until(lambda: all(port_of(url) in ports_of(process.pid) for process in (one, other)))
        refused = subprocess.run(
            [sys.executable, "-m", "stretto", *front], env=ENVIRONMENT, capture_output=True, text=True, timeout=START_S
        )
        assert refused.returncode == 2 and "cannot listen on" in refused.stderr, "who does not say so has it alone"
        assert is_alive()
        one.terminate()
        assert one.wait(20) == 0
        assert is_alive(), "the other one is still there"
        assert other.poll() is None


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


@contextlib.contextmanager
def started(*commands: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            whole = [sys.executable, "-m", "stretto", *command, "--log-level", "warning"]
            made.append(subprocess.Popen(whole, env=ENVIRONMENT, stdin=subprocess.DEVNULL))
        yield made
    finally:
        for process in made:
            process.terminate()
        for process in made:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until(condition: Callable[[], bool], seconds: float = START_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_scheduler_is_killed_and_the_one_that_stands_by_takes_over(built: Built, tmp_path: Path) -> None:
    """Every request has one end, and the worker keeps its process and its models."""
    endpoint, management, url = free_endpoint(), free_endpoint(), free_endpoint().replace("tcp", "http")
    key = tmp_path / "key"
    key.write_text("a-key-of-some-length\n")
    secured = ["--key-file", str(key)]
    scheduler = ["scheduler", str(built.root), "--bind", endpoint, *secured, "--kind", KIND, "--standby"]
    scheduler += ["--management-port", management.rpartition(":")[2], "--management-grpc-port", "-1"]
    worker = ["worker", "--scheduler", endpoint, *secured, "--kind", KIND]
    front = ["front-end", str(built.root), "--scheduler", endpoint, *secured]
    front += ["--http-port", url.rpartition(":")[2], "--grpc-port", "-1"]

    def is_ready() -> bool:
        with contextlib.suppress(StrettoClientError), Client(url) as client:
            return client.ready()
        return False

    with started(scheduler, worker, front) as (keeper, helper, _):
        until(is_ready)
        with Client(url) as client:
            expected = client.infer("rows", ROWS, version="good").output
        processes = children_of(helper.pid)
        until(lambda: len(children_of(keeper.pid)) == 2)
        ends: list[str] = []
        is_over = threading.Event()

        def ask() -> None:
            with Client(url) as client:
                while not is_over.is_set():
                    try:
                        answer = client.infer("rows", ROWS, version="good", deadline_ms=5_000).output
                        np.testing.assert_allclose(answer, expected, rtol=1e-5)
                        ends.append("answered")
                    except Unavailable:
                        ends.append("unavailable")
                        time.sleep(0.02)

        askers = [threading.Thread(target=ask) for _ in range(2)]
        for asker in askers:
            asker.start()
        until(lambda: len(ends) > 10)
        os.kill(min(children_of(keeper.pid)), signal.SIGKILL)
        until(lambda: "unavailable" in ends)
        until(lambda: ends[-1] == "answered")
        is_over.set()
        for asker in askers:
            asker.join(10)
            assert not asker.is_alive()
        assert set(ends) == {"answered", "unavailable"}
        assert children_of(helper.pid) == processes


def status_of(url: str, token: str) -> int:
    """Of a document that needs a token; 0 where nobody answers."""
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_sighup_without_a_change_says_so(built: Built, tmp_path: Path) -> None:
    """A scheduler took its own default, a bound of a worker's memory, for a change that waits for the next start."""
    file = tmp_path / "log"
    free = ["--management-port", "0", "--management-grpc-port", "-1", "--kind", KIND]
    command = [sys.executable, "-m", "stretto", "scheduler", str(built.root), "--bind", free_endpoint(), *free]
    with file.open("w") as log, subprocess.Popen(command, env=ENVIRONMENT, stderr=log) as scheduler:
        try:
            until(lambda: "management" in file.read_text())
            scheduler.send_signal(signal.SIGHUP)
            until(lambda: "reloaded" in file.read_text())
        finally:
            scheduler.terminate()
    assert "wait for the next start" not in file.read_text()


def test_a_scheduler_says_where_it_listens_when_it_does(built: Built, tmp_path: Path) -> None:
    """It named the address of the cluster seconds before it was open there."""
    file, endpoint = tmp_path / "log", free_endpoint()
    free = ["--management-port", "0", "--management-grpc-port", "-1", "--kind", KIND]
    command = [sys.executable, "-m", "stretto", "scheduler", str(built.root), "--bind", endpoint, *free]
    with file.open("w") as log, subprocess.Popen(command, env=ENVIRONMENT, stderr=log) as scheduler:
        try:
            until(lambda: "management" in file.read_text())
            until(lambda: endpoint in file.read_text())
            socket.create_connection(("127.0.0.1", port_of(endpoint)), 1).close()
            told = [line.split() for line in file.read_text().splitlines() if "p://127" in line]
            assert sorted(words[0] for words in told) == ["cluster", "management"]
        finally:
            scheduler.terminate()


def test_what_another_process_opens_is_told_when_it_is_open() -> None:
    """As `serve --engine ray` does for its scheduler."""

    class Placed:
        is_over = False

    told, placed, address = threading.Event(), Placed(), ("127.0.0.1", port_of(free_endpoint()))
    waiting = threading.Thread(target=_when_it_listens, args=(address, placed, told.set))
    waiting.start()
    assert not told.wait(1.0)
    with socket.create_server(address):
        assert told.wait(30.0)
    waiting.join(10)
    told.clear()
    placed.is_over = True
    _when_it_listens(address, placed, told.set)  # type: ignore[arg-type]
    assert not told.is_set()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_sighup_reads_tokens_anew_in_scheduler_and_front_end(built: Built, tmp_path: Path) -> None:
    """Also in the scheduler that stood by when the signal came."""
    endpoint, managed, url = free_endpoint(), *(free_endpoint().replace("tcp", "http") for _ in range(2))
    token, manager = tmp_path / "token", tmp_path / "manager"
    token.write_text("first-token-of-clients\n")
    manager.write_text("first-token-of-managers\n")
    scheduler = ["scheduler", str(built.root), "--bind", endpoint, "--kind", KIND, "--standby"]
    scheduler += ["--management-port", managed.rpartition(":")[2], "--management-grpc-port", "-1"]
    scheduler += ["--management-token-file", str(manager)]
    front = ["front-end", str(built.root), "--scheduler", endpoint, "--token-file", str(token)]
    front += ["--http-port", url.rpartition(":")[2], "--grpc-port", "-1"]
    client_of, manager_of = f"{url}/v2/models/rows/config", f"{managed}/v2/fleet"

    def are(which: str) -> bool:
        """These tokens are taken, and those of before or after are not."""
        other = {"first": "second", "second": "first"}[which]
        pairs = (client_of, "clients"), (manager_of, "managers")
        taken = all(status_of(document, f"{which}-token-of-{who}") not in (0, 401, 403) for document, who in pairs)
        return taken and all(status_of(document, f"{other}-token-of-{who}") in (401, 403) for document, who in pairs)

    with started(scheduler, front) as (keeper, server):
        until(lambda: are("first"))
        until(lambda: len(children_of(keeper.pid)) == 2)
        token.write_text("second-token-of-clients\n")
        manager.write_text("second-token-of-managers\n")
        for process in (keeper, server):
            process.send_signal(signal.SIGHUP)
        until(lambda: are("second"))
        first = min(children_of(keeper.pid))
        os.kill(first, signal.SIGKILL)
        until(lambda: first not in children_of(keeper.pid) and are("second"))
        assert keeper.poll() is None and server.poll() is None
