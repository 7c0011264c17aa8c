"""A recorded live event log, replayed in the simulator: every decision the same.

Two runs with worker processes, several applications, cancelled calls, a killed worker and a changed repository; the log
then goes through `stretto replay`'s own function.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.harness import Benchmark
from stretto.cli.queries import sample_of
from stretto.cli.started import Started, started_server
from stretto.client.load import LoadSpec, run_load
from stretto.repository.read import zoo_folder
from stretto.sim.replay import replay

SECONDS = 15.0


def disturb(server: Started, repository: Path, stop: threading.Event) -> None:
    """Kills a worker process, then changes the repository, again and again."""
    turn = 0
    while not stop.wait(3.0):
        workers = worker_processes(server.process.pid)
        if turn % 2 == 0 and workers:
            os.kill(workers[turn // 2 % len(workers)], signal.SIGKILL)
        else:
            (repository / "mnist" / "app.toml").touch()
        turn += 1


def worker_processes(pid: int) -> list[int]:
    """The worker processes of a server; what it has computed aside, in another child, is none of them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end while we look
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid and "worker_process" in (entry / "cmdline").read_text():
                found.append(int(entry.name))
    return found


def record(log: Path, executor: str, planner: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        for name in ("fashion", "mnist"):
            shutil.copytree(zoo_folder() / name, repository / name)
        arguments = [
            *(str(repository), "--workers", "2", "--executor", executor, "--planner", planner),
            *("--record", str(log), "--reload-s", "0.5", "--log-level", "error"),
        ]
        with started_server(arguments) as server:
            stop = threading.Event()
            threads = [threading.Thread(target=disturb, args=(server, repository, stop))]
            for number, (name, version, deadline_ms) in enumerate(
                (("fashion", "", 60.0), ("mnist", "", 20.0), ("fashion", "cnn_m", 30.0))
            ):
                inputs, labels = sample_of(name)
                spec = LoadSpec(
                    name,
                    inputs,
                    labels,
                    url=server.url,
                    seconds=SECONDS,
                    kind="burst:40:300:2:0.3",
                    version=version,
                    deadline_ms=deadline_ms,
                    seed=number,
                    grace_ms=1.0,  # who waits no longer closes the connection, which cancels
                )
                threads.append(threading.Thread(target=run_load, args=(spec,)))
            for thread in threads:
                thread.start()
            for thread in threads[1:]:
                thread.join()
            stop.set()
            threads[0].join()
            time.sleep(0.2)


def main() -> None:
    bench = Benchmark("replay")
    cases = (("thread", "priced"), ("process", "priced"), ("process", "symphony"))
    decisions = differences = 0
    for executor, planner in bench.steps(cases, len(cases), "replay"):
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "events.jsonl"
            record(log, executor, planner)
            result = replay(log)
            size = log.stat().st_size
        decisions += result.decisions
        differences += result.difference_count
        bench.row(
            executor=executor,
            planner=planner,
            events=result.events,
            queries=result.submitted,
            decisions=result.decisions,
            different=result.difference_count,
            dispatchers=result.dispatchers,
            log_mb=size / 1e6,
            **{name: count for name, count in result.outcomes.items() if count},
        )
    bench.claim(
        f"decisions of {decisions} that differ in the simulator",
        paper="-",
        target="0",
        ours=differences,
        met=differences == 0 and decisions > 1000,
    )
    bench.finish()


if __name__ == "__main__":
    main()
