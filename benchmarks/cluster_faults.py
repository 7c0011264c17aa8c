"""A cluster of processes on one machine: a scheduler, two workers and a front end over ZeroMQ, and what becomes of
queries when parts of it are killed under load.

The scheduler is killed five times while another process stands by (`--standby`), and, to compare, twice while none
does and it is started anew at once; then a worker, five times. Every query has one outcome, and workers outlive the
scheduler with their models. Last, what a query costs that goes through these processes, beside the same through one
server: one query at a time, in turns.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from harness import Benchmark
from prometheus_client.parser import text_string_to_metric_families

from stretto.cli.queries import sample_of
from stretto.cli.started import started_server
from stretto.client import Client, StrettoClientError
from stretto.client.load import LoadResult, LoadSpec, run_load

KILLS, COLD_KILLS = 5, 2
BETWEEN_S = 16.0
RATE = 25.0  # requests/s: what is lost is lost to the kills
DEADLINE_MS = 1_000.0
WORKERS = 2
BACK_S, WORKER_BACK_S = 5.0, 3.0
ROUNDS, ASKED = 5, 60
START_S = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Roles:
    """The processes, by role. Each can be killed and started again."""

    def __init__(self, workers: int = WORKERS, has_standby: bool = True) -> None:
        self.scheduler_port, self.management_port, self.http_port = free_port(), free_port(), free_port()
        self.workers, self.has_standby = workers, has_standby
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        role = name.partition(" ")[0]
        endpoint = f"tcp://127.0.0.1:{self.scheduler_port}"
        management = (
            f"--workers={self.workers} --management-port={self.management_port} --management-grpc-port=-1".split()
        )
        arguments = {
            "scheduler": ["zoo:fashion", "--bind", endpoint, *management, *(["--standby"] if self.has_standby else [])],
            "worker": ["--scheduler", endpoint],
            "front-end": ["zoo:fashion", "--scheduler", endpoint, "--http-port", str(self.http_port), "--grpc-port=-1"],
        }[role]
        command = [sys.executable, "-m", "stretto", role, *arguments, "--log-level", "error"]
        self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self, name: str) -> None:
        """And start it again, unless another process does so."""
        process = self.processes[name]
        if name == "scheduler" and self.has_standby:
            os.kill(min(children_of(process.pid)), signal.SIGKILL)  # the older one serves
            return
        process.kill()
        process.wait()
        self.start(name)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def wait_until_ready(self, workers: int) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            with contextlib.suppress(StrettoClientError, OSError), Client(self.url) as client:
                if client.ready() and self.metrics()["stretto_workers_ready"] == workers:
                    return
            time.sleep(0.05)
        raise SystemExit("the cluster was not ready in time")

    def metrics(self) -> dict[str, float]:
        """Sums by name."""
        address = f"http://127.0.0.1:{self.management_port}/metrics"
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(urllib.request.urlopen(address, timeout=10).read().decode()):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    def worker_pids(self) -> list[list[int]]:
        """Of each worker, and of the process that holds its models."""
        found = [process.pid for name, process in self.processes.items() if name.startswith("worker")]
        return [[pid, *children_of(pid)] for pid in found]


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


@contextlib.contextmanager
def roles(workers: int = WORKERS, has_standby: bool = True) -> Iterator[Roles]:
    made = Roles(workers, has_standby)
    try:
        for name in ("scheduler", *(f"worker {number}" for number in range(workers)), "front-end"):
            made.start(name)
        made.wait_until_ready(workers)
        yield made
    finally:
        for process in made.processes.values():
            process.terminate()
        for process in made.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def back_after_s(result: LoadResult, killed_ns: list[int]) -> list[float]:
    """From each kill to the first moment from which on nine of ten queries of the next second are answered."""
    found = []
    for kill_ns, next_ns in zip(killed_ns, [*killed_ns[1:], 2**62], strict=True):
        is_in = (result.scheduled_ns >= kill_ns) & (result.scheduled_ns < next_ns)
        due_ns, is_answer = result.scheduled_ns[is_in], result.is_answer[is_in]
        windows = zip(due_ns, np.searchsorted(due_ns, due_ns + 10**9), strict=True)
        back_ns = (due for first, (due, end) in enumerate(windows) if is_answer[first:end].mean() >= 0.9)
        found.append(float(next(back_ns, next_ns) - kill_ns) / 1e9)
    return found


def under_load(cluster: Roles, name: str, seed: int, kills: int = KILLS) -> tuple[LoadResult, list[int]]:
    """A load during which one process is killed and started again, and when that was."""
    inputs, labels = sample_of("fashion")
    seconds = (kills + 0.5) * BETWEEN_S
    spec = LoadSpec(
        "fashion",
        inputs,
        labels,
        url=cluster.url,
        rate=RATE,
        seconds=seconds,
        deadline_ms=DEADLINE_MS,
        grace_ms=5_000.0,
        seed=seed,
    )
    results: list[LoadResult] = []
    began: list[float] = []

    def drive() -> None:
        results.append(run_load(spec, lambda progress: began or began.append(time.monotonic() - progress.elapsed_s)))

    driver = threading.Thread(target=drive)
    driver.start()
    while not began:
        time.sleep(0.01)
    killed_ns = []
    for number in range(kills):
        time.sleep(max(0.0, began[0] + (number + 0.4) * BETWEEN_S - time.monotonic()))
        killed_ns.append(round((time.monotonic() - began[0]) * 1e9))
        cluster.kill(name)
    driver.join()
    return results[0], killed_ns


def tell(bench: Benchmark, part: str, result: LoadResult, back_s: list[float], limit_s: float | None = None) -> None:
    """Also as a claim, where there is a limit."""
    summary = result.summary()
    outcomes = {f"seen as {name}": count for name, count in summary["outcomes"].items() if count}
    bench.row(
        part=part,
        requests=len(result),
        on_time_share=summary["on_time_share"],
        back_s=str(np.round(back_s, 2)),
        **outcomes,
    )
    if limit_s is None:
        return
    bench.claim(
        f"{part} killed under load {KILLS} times: queries that come are answered again after, at most",
        paper="-",
        target=f"≤ {limit_s:g} s",
        ours=max(back_s),
        met=max(back_s) <= limit_s,
    )
    unseen = sum(summary["outcomes"][name] for name in ("no_answer", "broken", "not_sent", "no_connection"))
    bench.claim(f"{part} killed: requests without an end", paper="-", target="0", ours=unseen, met=unseen == 0)


def balanced(bench: Benchmark, cluster: Roles, part: str) -> None:
    found = cluster.metrics()
    lost = found["stretto_queries_submitted_total"] - found["stretto_queries_ended_total"]
    bench.claim(
        f"{part} killed: queries that the scheduler has counted no end of",
        paper="-",
        target="0",
        ours=lost,
        met=lost == 0,
    )


def cold_starts(bench: Benchmark) -> None:
    with roles(has_standby=False) as cluster:
        result, killed_ns = under_load(cluster, "scheduler", 1, COLD_KILLS)
        tell(bench, "scheduler, none standing by", result, back_after_s(result, killed_ns))


def kills(bench: Benchmark) -> None:
    with roles() as cluster:
        before = cluster.worker_pids()
        result, killed_ns = under_load(cluster, "scheduler", 2)
        tell(bench, "scheduler", result, back_after_s(result, killed_ns), BACK_S)
        cluster.wait_until_ready(WORKERS)
        balanced(bench, cluster, "scheduler")
        changed = sum(ours != theirs for ours, theirs in zip(before, cluster.worker_pids(), strict=True))
        bench.claim("workers restarted for it", paper="-", target="0", ours=changed, met=changed == 0)
        result, killed_ns = under_load(cluster, "worker 0", 3)
        tell(bench, "worker", result, back_after_s(result, killed_ns), WORKER_BACK_S)
        cluster.wait_until_ready(WORKERS)
        balanced(bench, cluster, "worker")


def overhead(bench: Benchmark) -> None:
    """One query at a time, of the fastest variant; the two take turns."""
    inputs, _ = sample_of("fashion")
    arguments = ["zoo:fashion", "--workers", "1", "--executor", "process", "--log-level", "error"]
    took_ms: dict[str, list[float]] = {"one process": [], "three processes": []}
    with roles(1) as cluster, started_server(arguments) as server:
        urls = {"one process": server.url, "three processes": cluster.url}
        with contextlib.ExitStack() as stack:
            clients = {name: stack.enter_context(Client(url)) for name, url in urls.items()}
            variant = clients["one process"].metadata("fashion")["versions"][0]
            for _ in bench.steps(range(ROUNDS), ROUNDS, "rounds"):
                for name, client in clients.items():
                    for number in range(ASKED):
                        began = time.perf_counter()
                        client.infer("fashion", inputs[number : number + 1], version=variant, deadline_ms=10_000)
                        took_ms[name].append(1e3 * (time.perf_counter() - began))
    for name, values in took_ms.items():
        p50, p99 = np.percentile(values, (50, 99))
        bench.row(part=f"one query at a time, {name}", requests=len(values), p50_ms=float(p50), p99_ms=float(p99))


def main() -> None:
    bench = Benchmark("cluster_faults", seed=2)
    kills(bench)
    cold_starts(bench)
    overhead(bench)
    bench.finish()


if __name__ == "__main__":
    main()
