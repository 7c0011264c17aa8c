"""Faults: a minute at half load beside a variant that fails, in each of several ways; 20 kills of a worker process
under load; then minutes of mixed load with everything that can go wrong.

Every query has one outcome, the service goes on, and nothing is left behind: no slot, no shared memory, no descriptor,
no process. The mixed load has cancelled calls, broken connections, bad requests and changes of the repository; memory
stays flat.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.chaos.failing import failing
from benchmarks.harness import Benchmark
from benchmarks.replay import worker_processes
from benchmarks.serving import every, infer_body
from stretto.cli.queries import sample_of
from stretto.cli.started import Started, started_server
from stretto.client import Client, StrettoClientError
from stretto.client.load import LoadResult, LoadSpec, run_load
from stretto.repository.read import zoo_folder

KILLS = 20
LEFT_S = 10.0  # the longest that descriptors are waited for
BETWEEN_S = 5.0  # at most, on average: each kill waits until all workers are back


def metrics(server: Started) -> dict[str, float]:
    """Sums by name of the metric; outcomes by their words too, and sums and counts of the stages of latency."""
    text = urllib.request.urlopen(f"{server.management_url}/metrics", timeout=10).read().decode()
    sums: dict[str, float] = {}
    for metric in text_string_to_metric_families(text):
        for sample in metric.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
            if sample.name in ("stretto_latency_seconds_sum", "stretto_latency_seconds_count"):
                by_stage = f"{sample.labels['stage']} {sample.name.rpartition('_')[2]}"
                sums[by_stage] = sums.get(by_stage, 0.0) + sample.value
            outcome = sample.labels.get("reason") or sample.labels.get("outcome")
            if sample.name == "stretto_queries_ended_total" and outcome:
                sums[outcome] = sums.get(outcome, 0.0) + sample.value
    return sums


def descriptors(pid: int) -> int:
    """That are open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def descriptors_left(pid: int, before: int) -> int:
    """Descriptors more than before, once connections have ended."""
    end = time.monotonic() + LEFT_S
    while (more := descriptors(pid) - before) > 0 and time.monotonic() < end:
        time.sleep(0.1)
    return more


def shared_memory(pid: int) -> int:
    """Mappings of shared memory that the server holds."""
    return sum("memfd:stretto" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())


def settled(server: Started, workers: int) -> dict[str, float]:
    """The metrics once all workers are back and nothing is open."""
    end = time.monotonic() + 30
    while True:
        found = metrics(server)
        is_calm = found["stretto_requests_open"] == 0 and found["stretto_workers_ready"] == workers
        if is_calm or time.monotonic() > end:
            return found
        time.sleep(0.1)


def balance(found: dict[str, float]) -> float:
    """Submitted less all outcomes: nothing, when nothing is open."""
    return found["stretto_queries_submitted_total"] - found["stretto_queries_ended_total"]


def load(server: Started, seconds: float, rate: float, seed: int, **more: Any) -> LoadResult:
    inputs, labels = sample_of("fashion")
    return run_load(LoadSpec("fashion", inputs, labels, url=server.url, rate=rate, seconds=seconds, seed=seed, **more))


def kills(bench: Benchmark) -> None:
    # Without the judge, whose process comes and goes by itself, and with it its pipes.
    arguments = ["zoo:fashion", "--workers", "2", "--executor", "process", "--no-judging", "--log-level", "error"]
    with started_server(arguments) as server:
        pid = server.process.pid
        load(server, 2.0, 100.0, 1)
        before = settled(server, 2)
        fds, maps = descriptors(pid), shared_memory(pid)
        results: list[LoadResult] = []
        driver = threading.Thread(target=lambda: results.append(load(server, KILLS * BETWEEN_S, 150.0, 2)))
        driver.start()
        killed = 0
        while killed < KILLS and driver.is_alive():
            time.sleep(1.0)
            if metrics(server)["stretto_workers_ready"] == 2:
                os.kill(random.choice(worker_processes(pid)), signal.SIGKILL)
                killed += 1
        driver.join()
        after = settled(server, 2)
        fds_left = descriptors_left(pid, fds)
        maps_left, children = shared_memory(pid) - maps, len(worker_processes(pid))
        last = load(server, 3.0, 100.0, 3).summary()
    summary = results[0].summary()
    ended = {f"seen as {name}": count for name, count in summary["outcomes"].items() if count}
    bench.row(
        part="kills", killed=killed, requests=summary["requests"], on_time_share=summary["on_time_share"], **ended
    )
    bench.claim("kills of a worker process under load", paper="-", target="20", ours=killed, met=killed == KILLS)
    lost = balance(after)
    bench.claim("queries without an outcome", paper="-", target="0", ours=lost, met=lost == 0)
    unseen = summary["outcomes"]["no_answer"] + summary["outcomes"]["broken"]
    bench.claim("requests that the client saw no end of", paper="-", target="0", ours=unseen, met=unseen == 0)
    restarts = after["stretto_worker_restarts_total"] - before["stretto_worker_restarts_total"]
    bench.claim("workers started again", paper="-", target=f"{killed}", ours=restarts, met=restarts == killed)
    bench.claim(
        "answered on time afterwards",
        paper="-",
        target="≥ 0.98",
        ours=last["on_time_share"],
        met=last["on_time_share"] >= 0.98,
    )
    for what, left in (
        ("descriptors", fds_left),
        ("mappings of shared memory", maps_left),
        ("worker processes", children - 2),
    ):
        bench.claim(f"{what} left behind", paper="-", target="0", ours=left, met=left <= 0)


def nuisances(server: Started, repository: Path, stop: threading.Event, tally: dict[str, int]) -> None:
    """Cancels, broken connections, bad requests, slow readers and changes of the repository."""
    rng = random.Random(5)
    body, headers = infer_body("fashion", 4)
    host, _, port = server.addresses["http"].rpartition(":")
    whole = (
        "\r\n".join(["POST /v2/models/fashion/infer HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers])
        + "\r\n\r\n"
    ).encode() + body
    bad = [
        b"POST /v2/models/fashion/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /v2/models/nobody/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
        b"GARBAGE\r\n\r\n",
        whole.replace(b"FP32", b"FP99"),
        b"POST /v2/models/fashion/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ]
    while not stop.is_set():
        kind = rng.choice(("disconnect", "half", "bad", "bad", "reload", "slow"))
        tally[kind] = tally.get(kind, 0) + 1
        if kind == "reload":
            if tally[kind] % 10 == 1:  # another model under the same name: it is loaded, and the old one unloaded
                model = repository / "fashion" / "variants" / "mlp" / "model.onnx"
                other = repository / "fashion" / "variants" / "linear" / "model.onnx"
                models = [model.read_bytes(), other.read_bytes()]
                for path, content in zip((model, other), reversed(models), strict=True):
                    part = path.with_suffix(".part")
                    part.write_bytes(content)
                    part.replace(path)
            continue
        with socket.create_connection((host, int(port)), 5) as connection:
            if kind == "disconnect":
                connection.sendall(whole)
            elif kind == "half":
                connection.sendall(whole[: rng.randrange(1, len(whole))])
            elif kind == "bad":
                connection.sendall(rng.choice(bad))
                connection.settimeout(5)
                status = connection.recv(4096)
                assert b" 4" in status[:13], status[:100]
            else:
                connection.sendall(whole)
                time.sleep(rng.random() * 0.2)
                connection.recv(64)
        stop.wait(rng.random() * 0.04)


def mixed(bench: Benchmark, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        for name in ("fashion", "mnist"):
            shutil.copytree(zoo_folder() / name, repository / name)
        arguments = [
            str(repository),
            "--workers",
            "2",
            "--executor",
            "process",
            "--reload-s",
            "1",
            "--log-level",
            "error",
        ]
        with started_server(arguments) as server:
            load(server, 5.0, 150.0, 1)
            stop = threading.Event()
            tally: dict[str, int] = {}
            memory: list[int] = []
            nuisance = threading.Thread(target=nuisances, args=(server, repository, stop, tally))
            nuisance.start()
            with every(2.0, lambda: memory.append(server.memory_bytes())):
                result = load(server, seconds, 150.0, 9, grace_ms=1.0)
            stop.set()
            nuisance.join()
            found = settled(server, 2)
            with Client(server.url) as client:
                try:
                    is_well = client.ready("fashion")
                except StrettoClientError:
                    is_well = False
    summary = result.summary()
    bench.row(
        part=f"mixed, {seconds:g} s",
        requests=summary["requests"],
        on_time_share=summary["on_time_share"],
        cancelled=found.get("cancelled", 0.0),
        **{f"nuisance: {kind}": count for kind, count in tally.items()},
    )
    third = max(1, len(memory) // 3)
    growth = float(np.median(memory[-third:]) - np.median(memory[third : 2 * third])) / 1e6
    bench.claim(
        f"mixed load for {seconds:g} s: queries without an outcome",
        paper="-",
        target="0",
        ours=balance(found),
        met=balance(found) == 0,
    )
    bench.claim(
        "mixed load: memory, last third over the middle third, MB",
        paper="-",
        target="≤ 5 (flat)",
        ours=growth,
        met=growth <= 5,
    )
    bench.claim("mixed load: ready at its end", paper="-", target="yes", ours="yes" if is_well else "no", met=is_well)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=240.0, help="of the mixed load; serve_soak has more")
    parser.add_argument("--failing-seconds", type=float, default=60.0, help="of load beside each failing variant")
    parser.add_argument("--only-failing", action="store_true", help="only the load beside failing variants")
    parser.add_argument("--seed", type=int, default=1, help="of the faults that come by chance")
    arguments = parser.parse_args()
    bench = Benchmark("serve_faults", seed=arguments.seed)
    random.seed(bench.seed)
    failing(bench, arguments.failing_seconds)
    if arguments.only_failing:
        bench.show()
        return
    kills(bench)
    mixed(bench, arguments.seconds)
    bench.finish()


if __name__ == "__main__":
    main()
