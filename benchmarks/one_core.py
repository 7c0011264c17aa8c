"""The same ONNX MLP behind Triton, behind a bare aiohttp server with a batcher, and behind Stretto: one core each.

The peers are set up from ../shared/peers, where that is there, in .venv-peers. Saturated: 64 connections in a closed
loop, the servers in turns, medians. Goodput: an open loop of Poisson arrivals at rising rates, latency from when each
was due; the highest rate with p99 within 50 ms and at most 0.1% refused. A miss is tried once more, for the machine may
have been busy. Part of serve_peers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.harness import Benchmark
from benchmarks.mlp import mlp_body, mlp_repository, plain_body
from benchmarks.serving import ROOT, closed_loop, cpu_s, family, on_core
from stretto.cli.started import started_server

RECIPE = ROOT.parent / "shared" / "peers"
HOME = ROOT / ".venv-peers"
MISSING = (
    "Triton and the bare aiohttp server are left out: ../shared/peers, which says how to set them up, is not there"
)
CONNECTIONS, SECONDS, ROUNDS = 64, 4.0, 3
LIMIT_MS, MOST_REFUSED = 50.0, 0.001
RATES = (0.72, 0.76, 0.80, 0.84, 0.88, 0.92, 0.96, 1.0)  # of what was answered when saturated
PROBE_S = 6


@dataclass(frozen=True)
class Peer:
    """A server that listens, its process, and how it is asked."""

    name: str
    pid: int
    port: int
    path: str
    kind: str  # of load.py: x is the bare server's own, v2 the protocol's

    def cpu_s(self) -> float:
        """Of its process and of those that it started."""
        return sum(cpu_s(pid) for pid in family(self.pid))


def is_set_up() -> bool:
    """True where the peers are there, or could be set up now."""
    if not RECIPE.is_dir():
        print(MISSING, file=sys.stderr)
        return False
    if not (HOME / "tri" / "backends").is_dir():
        done = subprocess.run(
            ["bash", str(RECIPE / "setup.sh")], env={**os.environ, "PEERS": str(HOME)}, capture_output=True, check=False
        )
        if done.returncode:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            print(f"Triton and the bare aiohttp server cannot be set up: {' '.join(last)}", file=sys.stderr)
            return False
    return True


def measure(bench: Benchmark) -> None:
    """Rows and claims; nothing where the peers are not there."""
    if not is_set_up():
        return
    with contextlib.ExitStack() as stack:
        repository = stack.enter_context(mlp_repository(HOME / "mlp.onnx"))
        port = _free_port()
        bare = [str(HOME / "venvs/base/bin/python"), str(HOME / "srv/base_aiohttp.py"), str(port)]
        peers = [
            stack.enter_context(_started("bare aiohttp", bare, port, "/infer", "x")),
            stack.enter_context(_started("Triton", [str(HOME / "tri/start.sh")], 8107, "/v2/models/mlp/infer", "v2")),
        ]
        arguments = [str(repository), "--workers", "1", "--executor", "thread", "--log-level", "error"]
        server = stack.enter_context(started_server(arguments, prefix=on_core(0)))
        at = int(server.addresses["http"].rpartition(":")[2])
        ours = Peer("Stretto", server.process.pid, at, "/v2/models/mlp/infer", "v2")
        rates = _saturated(bench, [*peers, ours])
        goodputs = {peer.name: _goodput(bench, peer, rates[peer.name, "JSON"]) for peer in [*peers, ours]}
    for tensors, least in (("JSON", 1.15), ("binary", 1.2)):
        ratio = rates["Stretto", tensors] / rates["Triton", tensors]
        what = f"MLP on one core, saturated, requests/s over Triton's, {tensors}"
        bench.claim(what, paper="-", target=f"≥ {least}", ours=ratio, met=ratio >= least)
    for name in ("Triton", "bare aiohttp"):
        ratio = goodputs["Stretto"] / goodputs[name] if goodputs[name] else 0.0
        what = f"MLP on one core, goodput (p99 ≤ 50 ms, at most 0.1% refused) over that of {name}, JSON"
        bench.claim(what, paper="-", target="≥ 1.1", ours=ratio, met=ratio >= 1.1)


def _saturated(bench: Benchmark, peers: list[Peer]) -> dict[tuple[str, str], float]:
    """Requests a second by server and tensors."""
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for peer in peers:
            for tensors in ("JSON", "binary") if peer.kind == "v2" else ("JSON",):
                body, headers = plain_body() if peer.kind == "x" else mlp_body(tensors == "binary")
                used: list[float] = []

                def mark(peer: Peer = peer, used: list[float] = used) -> None:
                    used.append(peer.cpu_s())

                result = closed_loop(
                    f"127.0.0.1:{peer.port}",
                    peer.path,
                    body,
                    headers,
                    connections=CONNECTIONS,
                    seconds=SECONDS,
                    core=1,
                    counting=mark,
                    counted=mark,
                )
                rate = result["answers"] / result["seconds"]
                found.setdefault((peer.name, tensors), []).append(rate)
                bench.row(
                    server=peer.name,
                    model="mlp",
                    tensors=tensors,
                    connections=CONNECTIONS,
                    answers_s=rate,
                    p50_ms=result["p50_ms"],
                    p99_ms=result["p99_ms"],
                    errors=result["errors"],
                    cpu_ms=(used[1] - used[0]) / max(1, result["answers"]) * 1e3,
                )
    return {key: statistics.median(values) for key, values in found.items()}


def _goodput(bench: Benchmark, peer: Peer, saturated: float) -> float:
    """The highest rate that was kept, of those before the first that was missed twice."""
    best = 0.0
    for share in RATES:
        rate = round(share * saturated, -1)
        if not any(_is_kept(bench, peer, rate) for _ in range(2)):
            break
        best = rate
    bench.row(server=f"goodput of {peer.name}, JSON", model="mlp", answers_s=best)
    return best


def _is_kept(bench: Benchmark, peer: Peer, rate: float) -> bool:
    command = [
        *on_core(1),
        *(str(HOME / "venvs/base/bin/python"), str(HOME / "load.py")),
        *("--url", f"http://127.0.0.1:{peer.port}{peer.path}", "--kind", peer.kind, "--pid", str(peer.pid)),
        *("--rates", str(rate), "--secs", str(PROBE_S), "--warm", "50", "--name", peer.name),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        found = next((json.loads(line) for line in client.stdout if line.startswith("{")), None)
        client.kill()  # a rate that was kept is run again at half of it, which says nothing here
    if found is None:
        raise SystemExit(f"{peer.name}: the open loop ended without a result")
    refused = found["err"] / found["n"]
    bench.row(
        server=peer.name,
        model="mlp",
        tensors="JSON",
        rate=rate,
        p50_ms=found["p50"],
        p99_ms=found["p99"],
        refused=refused,
        cpu_ms=found["cpu_ms_per_req"],
    )
    return bool(found["p99"] <= LIMIT_MS and refused <= MOST_REFUSED)


@contextlib.contextmanager
def _started(name: str, command: list[str], port: int, path: str, kind: str) -> Iterator[Peer]:
    """It batches at once what waits, up to 32; ended as one group."""
    process = subprocess.Popen(
        [*on_core(0), *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": "", "MAXB": "32", "WAIT_MS": "0"},
    )
    try:
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{name} does not listen")
            time.sleep(0.2)
        time.sleep(2)  # models are loaded after the port is open
        yield Peer(name, process.pid, port, path, kind)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
