"""Front ends on one host: requests/s with 1, 2 and 4 of them, and what each role of the server costs a request.

Several client processes in a closed loop ask for a tiny model, so that neither they nor the workers are the limit. More
front ends answer more only where there are cores for them: a machine with fewer is told so, and the claim is not met.
Where there are, every process has a core of its own, with all its threads: where the system put them, one process took
75 or 50 µs for a request. Processor time by role needs no cores to spare, and says how many front ends one scheduler
could feed.

One process is compared with the project as it was before front ends and the scheduler were apart (`--older FOLDER`, or
taken out of git into build/): both run, in turns, on one core. Without it that claim is left out, with a sentence.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import RESULTS, Benchmark
from benchmarks.serving import ROOT, closed_loop, cpu_s, infer_body, on_core, physical_cores, pin
from stretto.cli.started import Started, started_server
from stretto.client import Client

APPLICATION, VARIANT = "fashion", "linear"
FRONT_ENDS = (1, 2, 4)
LEAST = {2: 1.8, 4: 3.2}  # requests/s over those of one
WORKERS = 2
CORES = 16  # that the claim is made for: 4 front ends, the scheduler, 2 workers, and clients
MOST_FRONT_ENDS = max(FRONT_ENDS)
BESIDE = MOST_FRONT_ENDS + 2  # cores of a server, set apart: front ends, the scheduler, workers
CLIENTS = 2  # processes for each front end
CONNECTIONS = 64  # of each client
SECONDS, REPEATS, TURNS = 3.0, 2, 3
BEFORE = "98458e2"  # the last commit without the face
ROUNDS, ROUND_S = 12, 2.0
MOST = 1.02
PATH = f"/v2/models/{APPLICATION}/infer"
ROLES = {"stretto.api.front_process": "front end", "stretto.live.worker_process": "worker"}
US = 1e6


@dataclass
class Marks:
    """Processor time by role and queries run, at the moments between which every client counts."""

    server: Started
    clients: int
    cpu_s: list[Counter[str]] = field(default_factory=list)
    queries: list[int] = field(default_factory=list)
    begun: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def counting(self) -> None:
        with self.lock:
            self.begun += 1
            if self.begun == self.clients:
                self.mark()

    def counted(self) -> None:
        with self.lock:
            if len(self.cpu_s) == 1:
                self.mark()

    def mark(self) -> None:
        self.queries.append(queries_run(self.server))
        self.cpu_s.append(cpu_by_role(self.server.process.pid))

    def us(self) -> dict[str, float]:
        """Of a request, by role."""
        count = self.queries[1] - self.queries[0]
        return {role: US * (self.cpu_s[1][role] - self.cpu_s[0][role]) / count for role in self.cpu_s[1]}


def roles_of(pid: int) -> dict[str, list[int]]:
    """The processes of a server by what they are for; its own is the scheduler."""
    found = {"scheduler": [pid]}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            role = next((role for module, role in ROLES.items() if module in words), "beside")
            found.setdefault(role, []).append(int(child))
    return found


def cpu_by_role(pid: int) -> Counter[str]:
    return Counter({role: sum(map(cpu_s, pids)) for role, pids in roles_of(pid).items()})


def queries_run(server: Started) -> int:
    with Client(server.management_url) as client:
        return sum(each["inference_count"] for each in client.statistics(APPLICATION)["model_stats"])


@dataclass(frozen=True)
class Places:
    """Which processors each process has, so that no run is faster or slower for where the system put it: every front
    end (or the only process) a core, the scheduler another, workers one together, clients all others.
    """

    cores: list[list[int]]

    @property
    def are_enough(self) -> bool:
        return len(self.cores) > BESIDE

    def set_apart(self, pid: int) -> None:
        """All processes of a server. What is neither front end nor worker keeps the scheduler's core."""
        pids = roles_of(pid)
        fronts = pids.get("front end", [])
        pin(pid, self.cores[MOST_FRONT_ENDS if fronts else 0])
        for core, front in zip(self.cores, fronts, strict=False):
            pin(front, core)
        for worker in pids.get("worker", []):
            pin(worker, self.cores[MOST_FRONT_ENDS + 1])

    @property
    def of_clients(self) -> list[int]:
        return [cpu for core in self.cores[BESIDE:] for cpu in core] if self.are_enough else []


def measured(bench: Benchmark, places: Places, count: int, turn: int) -> tuple[float, dict[str, float]]:
    """Requests/s, and µs of each role, with so many front ends; the means of one start."""
    clients = CLIENTS * count if places.are_enough else count
    body, headers = infer_body(APPLICATION, deadline_ms=5000)
    arguments = [f"zoo:{APPLICATION}", "--variant", VARIANT, "--planner", "priced", "--log-level", "error"]
    arguments += ["--workers", str(WORKERS), "--executor", "process", "--front-ends", str(count)]
    rates, costs = [], []
    with started_server(arguments) as server:
        if places.are_enough:
            places.set_apart(server.process.pid)
        for repeat in range(REPEATS + 1):
            marks, results = Marks(server, clients), []

            def drive(marks: Marks = marks, results: list[dict[str, float]] = results) -> None:
                watched = {"counting": marks.counting, "counted": marks.counted, "cpus": places.of_clients}
                given = {"connections": CONNECTIONS, "seconds": SECONDS}
                results.append(closed_loop(server.addresses["http"], PATH, body, headers, **given, **watched))

            threads = [threading.Thread(target=drive) for _ in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if not repeat:  # it warms all of them
                continue
            rates.append(sum(each["answers"] / each["seconds"] for each in results))
            costs.append(marks.us())
            errors = sum(each["errors"] for each in results)
            busy = sum(each["cpu_s"] / each["seconds"] for each in results)
            row = {f"{role} µs": cost for role, cost in costs[-1].items()}
            bench.row(
                turn=turn,
                front_ends=count,
                clients=clients,
                requests_s=rates[-1],
                errors=errors,
                clients_busy=busy,
                of_processors=len(places.of_clients) or "all",
                **row,
            )
    return statistics.mean(rates), {role: statistics.mean(cost[role] for cost in costs) for role in costs[0]}


def scaling(bench: Benchmark) -> None:
    """Servers of 1, 2 and 4 in turns, each started anew; ratios are taken within a turn, and their median counts."""
    places, cores = Places(physical_cores()), len(os.sched_getaffinity(0))
    if not places.are_enough:
        print(f"processes are not set apart: that needs more than {BESIDE} cores", file=sys.stderr)
    order = [(turn, count) for turn in range(TURNS) for count in (*FRONT_ENDS[turn:], *FRONT_ENDS[:turn])]
    found = {each: measured(bench, places, each[1], each[0]) for each in bench.steps(order, len(order), "servers")}
    costs = {
        count: {
            role: statistics.median(found[turn, count][1][role] for turn in range(TURNS)) for role in found[0, count][1]
        }
        for count in FRONT_ENDS
    }
    for count, least in LEAST.items():
        ratios = [found[turn, count][0] / found[turn, 1][0] for turn in range(TURNS)]
        ratio = statistics.median(ratios)
        bench.row(front_ends=f"{count} over one process", least=min(ratios), median=ratio, most=max(ratios))
        if cores < CORES:
            print(f"{count} front ends need {CORES} cores to show what they are for; here are {cores}", file=sys.stderr)
        bench.claim(
            f"{count} front ends, requests/s over those of one process",
            paper="-",
            target=f"≥ {least} with {CORES} cores",
            ours=ratio if cores >= CORES else f"not measured: {cores} cores (there {ratio:.2f})",
            met=cores >= CORES and ratio >= least,
        )
    alone, most = costs[1]["scheduler"], costs[MOST_FRONT_ENDS]
    front, scheduler = most["front end"], most["scheduler"]
    bench.row(
        front_ends="by processor time",
        one_process_us=alone,
        front_end_us=front,
        scheduler_us=scheduler,
        front_ends_one_scheduler_feeds=front / scheduler,
        requests_s_of_a_scheduler=US / scheduler,
        **{f"{count} front ends over one process": min(count * alone / front, alone / scheduler) for count in LEAST},
    )


# -- one process, before and after -----------------------------------------------------------------------------------


def older_tree(given: Path | None) -> Path | None:
    """Where the project lies as it was; None, with a sentence, where it cannot be had."""
    if given is not None:
        return given.resolve()
    folder = ROOT / "build" / f"before-{BEFORE}"
    if not folder.is_dir():
        done = subprocess.run(["git", "archive", BEFORE, "stretto"], cwd=ROOT, capture_output=True, check=False)
        if done.returncode:
            print(f"one process is not compared: commit {BEFORE} is not there; see --older", file=sys.stderr)
            return None
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
            files.extractall(folder, filter="data")
    return folder


@contextlib.contextmanager
def one_process(tree: Path) -> Iterator[Started]:
    arguments = [f"zoo:{APPLICATION}", "--variant", VARIANT, "--planner", "priced", "--log-level", "error"]
    search = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])  # packages may come by it
    prefix = [*on_core(0), "env", f"--chdir={tree}", f"PYTHONPATH={search}"]
    with started_server([*arguments, "--workers", "1"], prefix=prefix) as server:
        yield server


def before_and_after(bench: Benchmark, older: Path) -> None:
    body, headers = infer_body(APPLICATION, deadline_ms=5000)
    with one_process(older) as before, one_process(ROOT) as after:
        costs: dict[str, list[float]] = {"before": [], "after": []}
        for turn in range(ROUNDS + 1):
            pair = [("before", before), ("after", after)]
            for name, server in pair if turn % 2 else reversed(pair):
                marks = Marks(server, 1)
                watched = {"counting": marks.counting, "counted": marks.counted}
                given = {"connections": CONNECTIONS, "seconds": ROUND_S, "core": 1}
                closed_loop(server.addresses["http"], PATH, body, headers, **given, **watched)
                if turn:  # the first warms them
                    costs[name].append(marks.us()["scheduler"])
    ratio = statistics.median(new / old for new, old in zip(costs["after"], costs["before"], strict=True))
    bench.row(
        front_ends="one process, before and after",
        before_us=statistics.median(costs["before"]),
        after_us=statistics.median(costs["after"]),
        rounds=ROUNDS,
        ratio=ratio,
    )
    bench.claim(
        "one process: CPU per request against before the face",
        paper="-",
        target=f"≤ {MOST} ×",
        ours=ratio,
        met=ratio <= MOST,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--older", type=Path, help="the project as it was before the face")
    parser.add_argument("--only-scaling", action="store_true", help="one process before and after stays as it was")
    arguments = parser.parse_args()
    bench = Benchmark("cluster_front_ends")
    file = RESULTS / f"{bench.name}.json"
    if arguments.only_scaling and file.exists():
        before = json.loads(file.read_text())
        bench.rows = [row for row in before["rows"] if "before_us" in row]
        bench.claims = [claim for claim in before["claims"] if claim["what"].startswith("one process:")]
    else:
        older = older_tree(arguments.older)
        if older is not None:
            before_and_after(bench, older)
    scaling(bench)
    bench.finish()


if __name__ == "__main__":
    main()
