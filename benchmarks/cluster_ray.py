"""Stretto on Ray: what becomes of queries when a node or the scheduler is killed under load, five times each.

A head and two nodes with a worker each, all on this machine, and an open loop. A node goes with all its processes at
once, and a new one takes its place. Of the scheduler its process is killed, and its actor in turns with that, each
time when another is ready to take over.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.harness import Benchmark
from benchmarks.ray_nodes import descriptors_by_kind, is_alive, listener, on_ray, roles
from benchmarks.serve_faults import balance, metrics
from stretto.cli.queries import sample_of
from stretto.cli.started import Started
from stretto.client.load import LoadOutcome, LoadResult, LoadSpec, run_load

KILLS = 5
RATE = 60.0  # queries a second; the one worker that is left carries that
# While there is load, a scheduler keeps two processes beside it, one that makes policies and one that judges: eight
# pipes of Python's pool of processes each, and one to its tracker. They do not come with kills.
BESIDE_PIPES = 2 * 8 + 1
BETWEEN_S = 27.0  # kills: the slowest part is Ray, which gives a node up after some ten seconds
BEFORE_S = 5.0
PATIENCE_S = 60.0
WINDOW_S, STEP_S = 1.0, 0.05  # in which goodput is looked at
DEADLINE_MS, GRACE_MS = 250.0, 10_000.0
BACK = 0.9  # of what it was before
UNSEEN = (LoadOutcome.NO_ANSWER, LoadOutcome.BROKEN, LoadOutcome.BAD_ANSWER)


@dataclass(frozen=True)
class Loaded:
    """An open loop while things are killed, and when they were."""

    result: LoadResult
    began_s: float
    kills_s: list[float]

    def share(self, begin_s: float, end_s: float) -> float:
        """Answered on time, of what was due then; 0 where nothing was."""
        due_s = self.result.scheduled_ns / 1e9 + self.began_s
        part = self.result.outcome[(due_s >= begin_s) & (due_s < end_s)] == LoadOutcome.ON_TIME
        return float(part.mean()) if len(part) else 0.0

    def back(self) -> Iterator[tuple[float, float, float, float]]:
        """For each kill: the share on time before it; seconds from it to the first window with as much again; and the
        shares in the worst window and from then on until the next kill.
        """
        end_s = self.began_s + self.result.spec.seconds
        for kill_s, next_s in zip(self.kills_s, [*self.kills_s[1:], end_s], strict=True):
            before = self.share(kill_s - BEFORE_S, kill_s)
            starts = np.arange(kill_s, next_s - WINDOW_S, STEP_S)
            shares = np.array([self.share(start, start + WINDOW_S) for start in starts])
            good = np.flatnonzero(shares >= BACK * before)
            first = starts[good[0]] if len(good) else np.inf
            yield before, float(first - kill_s), float(shares.min()), self.share(first, next_s)


def loaded(server: Started, kill: Callable[[int], None], mend: Callable[[], None], seed: int) -> Loaded:
    """`mend` waits until all is as it was before the kill."""
    inputs, labels = sample_of("fashion")
    seconds = BEFORE_S + KILLS * BETWEEN_S
    spec = LoadSpec(
        "fashion",
        inputs,
        labels,
        server.url,
        rate=RATE,
        seconds=seconds,
        seed=seed,
        deadline_ms=DEADLINE_MS,
        grace_ms=GRACE_MS,
    )
    results: list[LoadResult] = []
    began_s = time.monotonic()
    driver = threading.Thread(target=lambda: results.append(run_load(spec)))
    driver.start()
    kills_s = []
    for number in range(KILLS):
        until(max(began_s + BEFORE_S + number * BETWEEN_S, (time.monotonic() if number else began_s) + BEFORE_S))
        kills_s.append(time.monotonic())
        kill(number)
        mend()
    driver.join()
    return Loaded(results[0], began_s, kills_s)


def until(end_s: float) -> None:
    time.sleep(max(0.0, end_s - time.monotonic()))


def wait_for(is_so: Callable[[], bool], patience_s: float) -> float:
    """Seconds until it was so; infinity where it never was."""
    began = time.monotonic()
    while time.monotonic() - began < patience_s:
        with contextlib.suppress(OSError, KeyError):
            if is_so():
                return time.monotonic() - began
        time.sleep(0.05)
    return float("inf")


def judged(bench: Benchmark, what: str, load: Loaded, server: Started, limit_s: float) -> None:
    """Claims that both kinds of kill share."""
    summary = load.result.summary()
    seen = {name: count for name, count in summary["outcomes"].items() if count}
    bench.row(part=what, killed=KILLS, requests=summary["requests"], on_time_share=summary["on_time_share"], **seen)
    back = []
    for number, (before, seconds, worst_share, after) in enumerate(load.back()):
        back.append(seconds)
        shares = {"before": before, "worst": worst_share, "after": after}
        bench.row(part=f"{what}, {number + 1}: on time before, in the worst second, after", seconds=seconds, **shares)
    bench.claim(f"{what}: kills under load", paper="-", target="5", ours=KILLS, met=len(load.kills_s) == KILLS)
    unseen = sum(summary["outcomes"][outcome.name.lower()] for outcome in UNSEEN)
    bench.claim(f"{what}: requests that the client saw no end of", paper="-", target="0", ours=unseen, met=unseen == 0)
    found = metrics(server)
    lost = balance(found)
    bench.claim(f"{what}: queries without an outcome", paper="-", target="0", ours=lost, met=lost == 0)
    worst = max(back)
    bench.claim(
        f"{what}: goodput back to {BACK:.0%} of before, the longest of {KILLS}, s",
        paper="-",
        target=f"≤ {limit_s:g}",
        ours=worst,
        met=worst <= limit_s,
    )


def node_kills(bench: Benchmark) -> None:
    """One of two nodes, in turns, and a new node in its place."""
    what = "node killed"
    with on_ray([1, 1], ["zoo:fashion", "--worker", "cpu*2"]) as (nodes, server):
        wait_for(lambda: metrics(server)["stretto_workers_ready"] == 2, 60)
        before = metrics(server)
        management = int(server.addresses["management"].rpartition(":")[2])
        scheduler = listener(roles(nodes.processes(), "scheduler"), management)

        def kill(number: int) -> None:
            nodes.kill(nodes.nodes[number % 2])
            killed[0] = number % 2

        def mend() -> None:
            nodes.nodes[killed[0]] = nodes.add(1)
            whole_s.append(wait_for(lambda: metrics(server)["stretto_workers_ready"] == 2, PATIENCE_S))
            held.append({name: descriptors_by_kind(pid, clients_port) for name, pid in looked_at.items()})

        killed, whole_s, held = [0], [], list[dict[str, Counter[str]]]()
        clients_port = int(server.addresses["http"].rpartition(":")[2])
        looked_at = {"server": server.process.pid, "scheduler": scheduler}
        kill(1)  # before the load: the first change of plans, for which the scheduler opens what it keeps
        mend()
        load = loaded(server, kill, mend, seed=2)
        whole = wait_for(lambda: metrics(server)["stretto_workers_ready"] == 2, 60)
        judged(bench, what, load, server, 3.0)
        found = metrics(server)
        answered = sum(found[word] - before.get(word, 0.0) for word in ("on_time", "late"))
        seen = int(load.result.is_answer.sum())
        bench.claim(
            f"{what}: answers counted by the scheduler, less answers that clients saw",
            paper="-",
            target="0",
            ours=answered - seen,
            met=answered == seen,
        )
        bench.row(part=f"{what}: all workers there again, the longest, s", seconds=max([*whole_s, whole]))
        for number, found_then in enumerate(held):
            counts = {f"{name}, {kind}": count for name, found in found_then.items() for kind, count in found.items()}
            bench.row(part=f"{what}, {number}: descriptors but clients' (0: before the load)", **counts)
        for kind, most in (("others", 0), ("pipes", BESIDE_PIPES)):
            grown = max(held[-1][name][kind] - held[0][name][kind] for name in looked_at)
            told = "but pipes" if kind == "others" else "pipes"
            what_grew = f"{what}: descriptors after the last kill ({told}), beyond those before the load"
            bench.claim(what_grew, paper="-", target=f"≤ {most}", ours=grown, met=grown <= most)
        everything = nodes.processes() | {server.process.pid}
        server.end()
        left = still_there(everything)
        bench.claim(f"{what}: processes of ours left at the end", paper="-", target="0", ours=left, met=left == 0)


def scheduler_kills(bench: Benchmark) -> None:
    """The scheduler's process, and its actor with it, in turns."""
    what = "scheduler killed"
    with on_ray([1, 1], ["zoo:fashion", "--worker", "cpu*2"]) as (nodes, server):
        wait_for(lambda: metrics(server)["stretto_workers_ready"] == 2, 60)
        workers = roles(nodes.processes(), "worker")
        management = int(server.addresses["management"].rpartition(":")[2])

        def serving() -> int:
            """The one of the two that does not wait."""
            return listener(roles(nodes.processes(), "scheduler"), management)

        def has_standby() -> bool:
            """A second one is ready, and has asked for its turn."""
            return Path("/proc/net/unix").read_text().count("@stretto tcp://") >= 2

        wait_for(has_standby, 60)

        def kill(number: int) -> None:
            pid = serving()
            with open(f"/proc/{pid}/stat") as file:
                actor = int(file.read().rpartition(")")[2].split()[1])
            os.kill(pid if number % 2 == 0 else actor, signal.SIGKILL)

        def mend() -> None:
            wait_for(lambda: metrics(server)["stretto_workers_ready"] == 2 and has_standby(), PATIENCE_S)

        load = loaded(server, kill, mend, seed=3)
        judged(bench, what, load, server, 5.0)
        after = roles(nodes.processes(), "worker")
        restarted = len(set(workers) - set(after))
        bench.claim(f"{what}: workers restarted for it", paper="-", target="0", ours=restarted, met=restarted == 0)
        everything = nodes.processes() | {server.process.pid}
        server.end()
        left = still_there(everything)
        bench.claim(f"{what}: processes of ours left at the end", paper="-", target="0", ours=left, met=left == 0)


def still_there(pids: set[int]) -> int:
    """Processes of any role, a moment after the end; Ray's own stay with their nodes."""
    ours = [pid for role in ("scheduler", "worker", "front-end", "serve") for pid in roles(pids, role)]
    wait_for(lambda: not any(map(is_alive, ours)), 10)
    return sum(map(is_alive, ours))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("node", "scheduler"), help="this part alone")
    arguments = parser.parse_args()
    bench = Benchmark("cluster_ray")
    if arguments.only != "scheduler":
        node_kills(bench)
    if arguments.only != "node":
        scheduler_kills(bench)
    bench.finish()


if __name__ == "__main__":
    main()
