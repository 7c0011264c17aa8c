"""`stretto serve --engine ray`: what it says without Ray or a cluster, what it tells its roles, and a real cluster."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.api.limits import Limits
from stretto.api.serve_options import ServeOptions
from stretto.cli import serve_ray
from stretto.cli.serve_config import ServeConfig, read_serve_config
from stretto.cli.serve_options import serve_options, with_config
from stretto.cli.serve_ray import _free_port, config_text
from stretto.core.errors import StrettoError
from stretto.live.scaling_options import ScalingOptions, read_bounds
from stretto.repository.read import read_repository
from tests.live.cluster.joined import free_endpoint, ports_of

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


def said(*arguments: str, code: str = "") -> tuple[int, str]:
    """Exit status and last line of a command that ends soon; `code` runs before it, in the same process."""
    program = f"import sys\n{code}\nfrom stretto.cli.main import app\napp({['serve', *arguments]!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S)
    return done.returncode, done.stderr.strip().splitlines()[-1]


def test_without_ray_it_says_how_to_install_it() -> None:
    status, line = said("zoo:fashion", "--engine", "ray", code="sys.modules['ray'] = None")
    assert status == 2
    assert line == "error: serving on Ray needs Ray: pip install 'stretto[ray]'"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--engine", "slurm"), "there is no engine 'slurm'; there are local, ray"),
        (("--address", "127.0.0.1:6379"), "--address is for --engine ray"),
        (("--key-file", "key"), "--key-file is for --engine ray"),
    ],
)
def test_options_that_do_not_fit(arguments: tuple[str, ...], sentence: str) -> None:
    status, line = said("zoo:fashion", *arguments)
    assert (status, line) == (2, f"error: {sentence}")


def test_what_roles_are_told_is_what_was_asked_for(tmp_path: Path) -> None:
    """All options go to another process as a file, and mean the same there."""
    (tmp_path / "token").write_text("a-token-of-some-length\n")
    given = tmp_path / "given.toml"
    given.write_text(
        '[listen]\nhost = "0.0.0.0"\nhttp_port = -1\ntoken_file = "token"\nmanagement_port = 0\n'
        '[workers]\nworker = ["cpu*2,threads=3", "cuda,kind=gpu-x"]\nhang_s = 3.5\n'
        '[models]\nvariant = ["cnn_s"]\nready_all = true\n'
        '[planner]\nname = "shared_queue"\nreplan_ms = 250\nmax_late = 0.002\n'
        "[limits]\nconnections = 77\nbody_bytes = 1234\n"
        '[log]\nrecord = "a \\"quoted\\" name.jsonl"\nlog_format = "json"\n'
    )
    options, values = _options(given)
    again = tmp_path / "elsewhere" / "again.toml"
    again.parent.mkdir()
    again.write_text(config_text(values, options))
    options_again, _ = _options(again)
    assert options_again == options
    assert options.listen.limits != Limits() and options.service.worker and options.record is not None


def _options(file: Path | None) -> tuple[ServeOptions, dict[str, object]]:
    import inspect

    from stretto.cli.serve import serve

    defaults = {name: each.default for name, each in inspect.signature(serve).parameters.items() if name != "ctx"}
    values, config = with_config(defaults | {"repository": "zoo:fashion"}, lambda name: False, file)
    return serve_options(values, config), values


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for them")
def test_ports_are_none_that_the_system_gives_to_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = {_free_port("127.0.0.1") for _ in range(20)}
    assert len(found) > 10 and max(found) < first
    with socket.create_server(("127.0.0.1", taken := found.pop())):
        monkeypatch.setattr(serve_ray, "PORTS", range(taken, taken + 1))
        assert _free_port("127.0.0.1") >= first  # there is no other


def test_places_for_all_workers_that_may_come_of_every_kind() -> None:
    """Whoever is scaled has places up to its bound, and the others as many as there are."""
    gpu, cpu = "gpu-nvidia-h200", read_repository("zoo:fashion").kind_for("cpu")
    options, _ = _options(None)

    def scaled(worker: tuple[str, ...], *bounds: str) -> tuple[ServeOptions, dict[str, tuple[int, range]]]:
        given = replace(options, service=replace(options.service, worker=worker))
        return serve_ray._with_all_places(given, ScalingOptions(tuple(map(read_bounds, bounds))))

    made, of_kinds = scaled((f"cuda,kind={gpu}", "cpu*2,threads=2"), "gpu=1:4@2.5", "cpu=3:8@0.1")
    assert made.service.worker == (f"cuda*4,kind={gpu}", "cpu*8,threads=2")
    assert of_kinds == {gpu: (1, range(4)), cpu: (3, range(4, 12))}
    workers = serve_ray._workers(made, "tcp://127.0.0.1:9")
    assert [role.num_gpus for role in workers] == [1] * 4 + [0] * 8
    made, of_kinds = scaled((f"cuda,kind={gpu}", "cpu*2"), "cpu=1:8")
    assert made.service.worker == (f"cuda,kind={gpu}", "cpu*8")
    assert of_kinds == {cpu: (2, range(1, 9))}
    made, of_kinds = scaled(("cpu*2,variant=linear", "cpu,variant=mlp"), f"{cpu}:linear=1:8")
    assert made.service.worker == ("cpu*8,variant=linear", "cpu,variant=mlp")
    assert of_kinds == {f"{cpu}:linear": (2, range(8))}
    with pytest.raises(StrettoError, match="written once"):
        scaled(("cpu", "cpu,threads=2"), "1:8")


def test_without_a_file_it_is_the_same_too(tmp_path: Path) -> None:
    options, values = _options(None)
    file = tmp_path / "all.toml"
    file.write_text(config_text(values, options))
    assert read_serve_config(file) != ServeConfig()
    assert _options(file)[0] == options


# -- with Ray --------------------------------------------------------------------------------------------------------


@pytest.mark.extras
@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:9", "there is no Ray cluster at 127.0.0.1:9; start one with ray start --head"),
        ("nonsense", "there is no Ray cluster at nonsense; start one with ray start --head"),
        ("ray://127.0.0.1:10001", "'ray://127.0.0.1:10001' is Ray's address for remote clients"),
    ],
)
def test_a_cluster_that_is_not_there(address: str, sentence: str) -> None:
    pytest.importorskip("ray")
    began = time.monotonic()
    status, line = said("zoo:fashion", "--engine", "ray", "--address", address)
    assert status == 2
    assert line.startswith(f"error: {sentence}")
    assert time.monotonic() - began < PATIENCE_S / 2  # Ray itself would try for two minutes


def until(is_so: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def webhook_of(scheduler: int) -> str:
    """Whom a scheduler tells how many workers it wants: in its configuration, which only its own user can read."""
    words = Path(f"/proc/{scheduler}/cmdline").read_text().split("\0")
    descriptor = words[words.index("--config") + 1].rpartition("/")[2]
    config = tomllib.loads(Path(f"/proc/{scheduler}/fd/{descriptor}").read_text())
    return str(config["autoscale"]["webhook"])


def told(url: str, content: dict[str, object]) -> int:
    try:
        request = urllib.request.Request(url, json.dumps(content).encode(), method="POST")
        return int(urllib.request.urlopen(request, timeout=PATIENCE_S).status)
    except urllib.error.HTTPError as error:
        return int(error.code)


@pytest.mark.extras
def test_two_nodes_of_which_one_is_scaled_away_and_one_is_lost() -> None:
    pytest.importorskip("ray")
    from benchmarks.ray_nodes import is_alive, processes_of, ray_nodes, roles
    from benchmarks.serve_faults import metrics
    from stretto.cli.queries import sample_of
    from stretto.cli.started import started_server
    from stretto.client import Client

    inputs, _ = sample_of("fashion")
    with ray_nodes([1, 1]) as nodes:
        arguments = ["zoo:fashion", "--engine", "ray", "--address", nodes.address, "--worker", "cpu*2"]
        arguments += ["--autoscale", "1:2", "--autoscale-period-s", "3600"]
        with started_server(arguments) as server, Client(server.url) as client:
            until(lambda: metrics(server)["stretto_workers_ready"] == 2, "a worker is missing")
            assert client.infer("fashion", inputs[:3], deadline_ms=5000).output.shape == (3, 10)
            status, line = said(*arguments)
            assert status == 2
            assert "a service named 'stretto' runs already in this Ray cluster" in line
            status, line = said(*arguments[:5], "--name", "another", "--worker", "cuda*2,kind=gpu-nvidia-h200")
            assert status == 2
            assert line.startswith("error: no node of the Ray cluster has a GPU for a worker on cuda; add a node")
            webhook = webhook_of(roles(nodes.processes(), "scheduler")[0])
            kind = read_repository("zoo:fashion").kind_for("cpu")
            for count in (1, 2):
                assert told(webhook, {"kind": kind, "workers": count}) == 204
                until(lambda count=count: metrics(server)["stretto_workers_ready"] == count, "not scaled")
            for wrong in ({"kind": kind}, {"kind": "another", "workers": 1}):
                assert told(webhook, wrong) == 404
            assert told(webhook[:-1], {"kind": kind, "workers": 1}) == 404
            lost = processes_of(nodes.nodes[0])
            assert len(roles(lost, "worker")) == 1
            nodes.kill(nodes.nodes[0])
            until(lambda: metrics(server)["stretto_workers_ready"] == 1, "a worker that is gone is not missed")
            assert client.infer("fashion", inputs[:1], deadline_ms=5000).outcome == "on_time"
            everything = nodes.processes() | {server.process.pid}
            ours = [pid for role in ("scheduler", "worker", "serve") for pid in roles(everything, role)]
            assert len(ours) >= 3
        assert server.process.returncode == 0, server.lines
        until(lambda: not any(map(is_alive, ours)), "something is left behind")
        assert not any(map(is_alive, lost))


@pytest.mark.extras
def test_each_worker_sees_the_gpu_that_ray_gave_it() -> None:
    """Ray is told of two; whether they are there only their users find out."""
    pytest.importorskip("ray")
    from benchmarks.ray_nodes import ray_nodes, roles
    from stretto.live.ray import placing

    options, _ = _options(None)
    service = replace(options.service, worker=("cuda*2,kind=gpu-nvidia-h200", "cpu"))
    endpoint = free_endpoint()
    workers = serve_ray._workers(replace(options, service=service), endpoint)
    assert [(role.num_cpus, role.num_gpus) for role in workers] == [(1, 1), (1, 1), (1, 0)]
    assert all(role.arguments[4] == "cuda:0" for role in workers[:2]), "the first that it sees"
    with ray_nodes([3], gpus=2) as nodes:
        placing.connect(nodes.address)
        placed = placing.Placed("test", b"a key of some length")
        try:
            assert placing.has_gpus()
            for role in workers:
                placed.place(role)
            until(lambda: not placed.waiting(workers, 10.0), "a worker has no place")
            until(lambda: placing.room().get("GPU", 0.0) == 0.0, "not both GPUs are reserved")
            until(lambda: len(roles(nodes.processes(), "worker")) == 3, "a worker's process is missing")
            words = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in roles(nodes.processes(), "worker")}
            on_gpu = [pid for pid, line in words.items() if "cuda:0" in line]
            seen = [environment_of(pid)["CUDA_VISIBLE_DEVICES"] for pid in on_gpu]
            assert sorted(seen) == ["0", "1"], "each has another one"
        finally:
            placed.close(PATIENCE_S)


def environment_of(pid: int) -> dict[str, str]:
    texts = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(text.split("=", 1) for text in texts if "=" in text)


@pytest.mark.extras
def test_a_front_end_elsewhere_serves_and_sighup_reaches_everybody(tmp_path: Path) -> None:
    """Two front ends: the command's own, and an actor's, whose process is killed and started again. To the system they
    are on one machine: they share a port that is named, and a free one each has for itself.
    """
    pytest.importorskip("ray")
    from benchmarks.ray_nodes import is_alive, ray_nodes, roles
    from stretto.cli.queries import sample_of
    from stretto.cli.started import started_server
    from stretto.client import Client, StrettoClientError

    inputs, _ = sample_of("fashion")
    tokens = {name: tmp_path / name for name in ("clients", "managers")}

    def write(which: str) -> None:
        for name, file in tokens.items():
            file.write_text(f"{which}-token-of-{name}\n")

    def takes(url: str, which: str) -> bool:
        try:
            with Client(url, token=f"{which}-token-of-clients") as client:
                return client.infer("fashion", inputs[:1], deadline_ms=5000).outcome in ("on_time", "late")
        except StrettoClientError:
            return False

    def manages(url: str, which: str) -> bool:
        try:
            request = urllib.request.Request(
                f"{url}/v2/fleet", headers={"Authorization": f"Bearer {which}-token-of-managers"}
            )
            return bool(urllib.request.urlopen(request, timeout=PATIENCE_S).status == 200)
        except OSError:
            return False

    write("first")
    shared = int(free_endpoint().rpartition(":")[2])
    with ray_nodes([1, 1]) as nodes:
        arguments = ["zoo:fashion", "--engine", "ray", "--address", nodes.address, "--worker", "cpu"]
        arguments += ["--token-file", str(tokens["clients"]), "--management-token-file", str(tokens["managers"])]
        arguments += ["--grpc-port", str(shared), "--front-ends", "2"]
        with started_server(arguments) as server:
            until(lambda: len(roles(nodes.processes(), "front-end")) == 1, "the other front end is missing")

            def elsewhere() -> str:
                (pid,) = roles(nodes.processes(), "front-end") or [0]
                ports = [port for port in (ports_of(pid) if pid else []) if port != shared]
                return f"http://127.0.0.1:{ports[0]}" if ports else "http://127.0.0.1:9"

            until(lambda: takes(server.url, "first") and takes(elsewhere(), "first"), "not everybody serves")
            until(lambda: manages(server.management_url, "first"), "management does not answer")
            (other,) = roles(nodes.processes(), "front-end")
            assert shared in ports_of(other) and shared in ports_of(server.process.pid)
            write("second")
            os.kill(server.process.pid, signal.SIGHUP)
            until(lambda: takes(server.url, "second") and takes(elsewhere(), "second"), "not everybody has heard")
            until(lambda: manages(server.management_url, "second"), "the scheduler has not heard")
            assert not takes(server.url, "first") and not takes(elsewhere(), "first")
            assert not manages(server.management_url, "first")
            (other,) = roles(nodes.processes(), "front-end")
            os.kill(other, signal.SIGKILL)
            until(lambda: not is_alive(other) and takes(elsewhere(), "second"), "it is not started again")
            ours = [pid for role in ("scheduler", "worker", "front-end") for pid in roles(nodes.processes(), role)]
        assert server.process.returncode == 0, server.lines
        until(lambda: not any(map(is_alive, ours)), "something is left behind")
