"""Chaos: one server with process workers, and every fault that a model, a disk or a client can bring, in an order that
is drawn from a seed. One healthy application is measured throughout, at half of what it can carry.

Before that: how much later the healthy application is served where bad models are in the repository at the start, and a
million fuzzed inputs for the parsers, in a process with an engine of its own. More of them go over sockets to the
server. `--seconds` is how long faults are injected; every fault comes at least once, however short that is. With
`--only` some faults alone are injected, and shown without claims: to look at one of them.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.chaos.faults import EXTRAS, FAULTS, LARGE_MESSAGES, SLOW_CONNECTIONS, Stage
from benchmarks.chaos.healthy import APPLICATION, HealthyLoad, Measured, capacity, load
from benchmarks.chaos.server import Disk, chaos_server, has_exporter, small_disk
from benchmarks.chaos.watch import Watch
from benchmarks.fuzz.corpus import ROWS
from benchmarks.harness import Benchmark
from benchmarks.serving import ROOT
from benchmarks.small_models import BAD, write_application
from stretto.api.limits import Limits
from stretto.repository.read import read_repository, zoo_folder

ROUND_S = 150.0  # every fault once
START_S = 120.0  # the longest that we wait for the healthy application
SETTLE_S = 3.0  # between two faults, so that each is told apart
CALLS = 1_000  # of management, in all
FUZZ_INPUTS = 1_000_000
LATER_S = 5.0
SPARE_MB = 200.0
CONNECTIONS = 12_000
# Of all bytes in flight, in the whole server; 512 MB where the server has no such limit.
BUDGET_BYTES: int = asdict(Limits()).get("memory_bytes", 512_000_000)
Windows = dict[str, list[tuple[int, int]]]


def repository_in(folder: Path, kind: str, bad: tuple[str, ...] = ()) -> Path:
    """The healthy application, small ones that come and go, and bad ones where they are wanted."""
    folder.mkdir()
    shutil.copytree(zoo_folder() / APPLICATION, folder / APPLICATION)
    write_application(folder, ROWS, kind=kind)
    for number in range(EXTRAS):
        write_application(folder, f"extra{number}", kind=kind)
    for name in bad:
        write_application(folder, name, BAD[name], kind=kind)
    return folder


def served(repository: Path, disk: Disk, config: Path) -> list[str]:
    config.write_text(f"[limits]\nconnections = {CONNECTIONS}\n")
    return [
        *(str(repository), "--workers", "2", "--executor", "process", "--reload-s", "0", "--replan-ms", "200"),
        *("--config", str(config), "--record", str(disk.folder / "events.jsonl"), "--log-level", "warning"),
        *(["--traces"] if has_exporter() else []),
    ]


def starts(bench: Benchmark, folder: Path, kind: str) -> None:
    """Seconds until the healthy application is answered, without bad models and beside those that fail at load."""
    bad = tuple(name for name in BAD if name.endswith("at_load"))
    took: dict[str, float] = {}
    for what, names in (("without", ()), ("beside bad models", bad)):
        repository = repository_in(folder / f"start {what}", kind, names)
        began = time.monotonic()
        arguments = [str(repository), "--workers", "2", "--executor", "process", "--reload-s", "0"]
        with chaos_server(arguments, folder / "start.log", APPLICATION, START_S):
            took[what] = time.monotonic() - began
        bench.row(part=f"start {what}", seconds=took[what])
    later = took["beside bad models"] - took["without"]
    bench.claim(
        "start: the healthy application is served later beside models that fail at load, s",
        paper="-",
        target=f"≤ {LATER_S:g}",
        ours=later,
        met=later <= LATER_S,
    )


def parsers_fuzzed(bench: Benchmark, inputs: int) -> dict[str, Any]:
    """In a process of its own, with an engine of its own."""
    command = [sys.executable, "-m", "benchmarks.fuzz.run", "--inputs", str(inputs), "--seed", str(bench.seed)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        return {"inputs": 0, "wrong": {"the fuzz ended with an error": 1}, "by_kind": {}}
    found: dict[str, Any] = json.loads(done.stdout)
    bench.row(part="fuzz of the parsers", seconds=found["seconds"], seen=json.dumps(found["by_kind"]))
    return found


def injected(stage: Stage, watch: Watch, seconds: float, faults: Sequence[str]) -> tuple[Windows, list[dict[str, Any]]]:
    """Round after round, each in an order of its own, until the time is over; all of the first one in any case."""
    windows: Windows = {name: [] for name in faults}
    told: list[dict[str, Any]] = []
    end_s = time.monotonic() + seconds
    while not told or time.monotonic() < end_s:
        names = list(faults)
        stage.random.shuffle(names)
        for name in names:
            if len(told) >= len(faults) and time.monotonic() >= end_s:
                break
            start_ns = time.monotonic_ns()
            seen = FAULTS[name](stage)
            watch.look()
            windows[name].append((start_ns, time.monotonic_ns()))
            took_s = (time.monotonic_ns() - start_ns) / 1e9
            told.append({"part": f"injected: {name}", "seconds": took_s, "seen": json.dumps(seen)})
            time.sleep(SETTLE_S)
    return windows, told


def shown(bench: Benchmark, watch: Watch, measured: Measured, windows: Windows) -> None:
    """The healthy application and the server's memory, during each fault."""
    for name, inside in windows.items():
        seen = measured.within(inside)
        ends = ", ".join(f"{end} {count}" for end, count in seen["ends"].items())
        bench.row(
            part=f"healthy during: {name}",
            requests=seen["requests"],
            on_time_share=seen["on_time_share"],
            late_share=seen["late_share"],
            p99_ms=seen["p99_ms"],
            memory_mb=watch.most_memory(inside) / 1e6,
            seen=ends,
        )


def judged(bench: Benchmark, stage: Stage, watch: Watch, measured: Measured, windows: Windows, is_alive: bool) -> None:
    """The claims on the faults."""

    def healthy(*faults: str) -> dict[str, Any]:
        return measured.within([window for name in faults for window in windows[name]])

    def claim(what: str, target: str, ours: float | str, met: bool) -> None:
        bench.claim(what, paper="-", target=target, ours=ours, met=met)

    share = healthy("bad models")["on_time_share"]
    tried = sum(stage.tried[name] > 0 for name in BAD)
    claim(
        f"healthy application on time beside {tried} of {len(BAD)} kinds of bad models, at half load",
        "≥ 0.99, all kinds tried",
        share,
        share >= 0.99 and tried == len(BAD),
    )
    beside_disks = healthy("full disk")
    late = beside_disks["late_share"] + beside_disks["failed_share"]
    lost = watch.worst_balance(windows["full disk"])
    made = watch.last.get("stretto_spans_total", 0.0)  # none of them is taken, so that all are of those made
    spans = f"{made:.0f} spans to nowhere" if has_exporter() else "no spans: the extra telemetry is not installed"
    disk = "recording and log on a full disk" if stage.disk.is_small else "no disk filled: needs root"
    is_tried = stage.disk.is_small and made > 0
    claim(f"{disk}, {spans}: queries late or failed", "≤ 0.01", late, late <= 0.01 and is_tried)
    claim("the same: queries without an outcome", "0", lost, lost == 0)
    memory_mb = watch.most_memory(windows["slow bodies"] + windows["large messages"]) / 1e6
    limit_mb = BUDGET_BYTES / 1e6 + SPARE_MB
    claim(
        f"memory during {stage.most_connections} slow bodies and {stage.large_messages} messages of 63 MB, MB",
        f"≤ {limit_mb:g}, of {SLOW_CONNECTIONS} and {LARGE_MESSAGES}",
        memory_mb,
        memory_mb <= limit_mb and stage.large_messages >= LARGE_MESSAGES,
    )
    p99_ms = healthy("slow bodies", "large messages")["p99_ms"]
    claim("p99 of the healthy client during those, ms", f"≤ {measured.slo_ms:g}", p99_ms, p99_ms <= measured.slo_ms)
    p99_ms = healthy("one-byte chunks")["p99_ms"]
    claim("p99 of the healthy client beside 4 senders of one-byte chunks, ms", "< 100", p99_ms, p99_ms < 100)
    calls = stage.management.total()
    bad = sum(count for what, count in stage.management.items() if what.split(" ", 1)[1][:1] not in "24")
    claim(f"of {calls} management calls: 5xx or no answer", f"0, of ≥ {CALLS}", bad, bad == 0 and calls >= CALLS)
    failed = watch.last.get("stretto_plans_failed_total")
    claim("failed replans", "0", "unknown" if failed is None else failed, failed == 0)
    worst = watch.worst_balance()
    claim(
        f"submitted less ended, waiting and running, the worst of {len(watch.balances)} looks",
        "0",
        worst,
        worst == 0 and bool(watch.balances),
    )
    claim("the server lives at the end", "yes", "yes" if is_alive else "no", is_alive)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0, help="of faults")
    parser.add_argument("--fuzz-inputs", type=int, default=FUZZ_INPUTS, help="for the parsers, in process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=FAULTS, action="append", help="this fault; may be given several times")
    arguments = parser.parse_args()
    faults = arguments.only or list(FAULTS)
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # for the server, which inherits it
    bench = Benchmark("serve_chaos", seed=arguments.seed)
    kind = read_repository(f"zoo:{APPLICATION}").kind_in_use()
    fuzz = {} if arguments.only else parsers_fuzzed(bench, arguments.fuzz_inputs)
    with tempfile.TemporaryDirectory() as name, small_disk() as disk:
        folder = Path(name)
        if not arguments.only:
            starts(bench, folder, kind)
        repository = repository_in(folder / "models", kind)
        with chaos_server(served(repository, disk, folder / "serve.toml"), disk.log, APPLICATION, START_S) as server:
            most = capacity(lambda rate, seconds, seed: load(server.url, rate, seconds, seed))
            bench.row(part="capacity of the healthy application", seen=f"{most:.4g} queries/s, of which half is sent")
            rounds = max(1, round(arguments.seconds / ROUND_S))
            length_s = max(5.0, arguments.seconds / rounds / len(faults) - SETTLE_S)
            calls = -(-CALLS // max(1, rounds // 2))  # a slow machine has fewer rounds
            stage = Stage(server, repository, disk, Random(bench.seed), kind, BUDGET_BYTES, length_s, calls)
            healthy_load = HealthyLoad(server, most / 2, bench.seed, folder / "healthy.npz")
            with Watch(server) as watch:
                time.sleep(SETTLE_S)
                windows, told = injected(stage, watch, arguments.seconds, faults)
                measured = healthy_load.stop()
                watch.look()
            is_alive = server.process.poll() is None
        for row in told:
            bench.row(**row)
        shown(bench, watch, measured, windows)
        if arguments.only:
            bench.show()
            return
        judged(bench, stage, watch, measured, windows, is_alive)
    total = fuzz["inputs"] + stage.fuzz.total
    wrong = sum(fuzz["wrong"].values()) + stage.fuzz.wrong.total()
    bench.claim(
        f"fuzz inputs tried, {stage.fuzz.total} of them over sockets to this server",
        paper="-",
        target=f"≥ {FUZZ_INPUTS}",
        ours=total,
        met=total >= FUZZ_INPUTS,
    )
    bench.claim(
        "fuzz: 5xx, hangs, crashes, queries without an outcome", paper="-", target="0", ours=wrong, met=not wrong
    )
    bench.finish()


if __name__ == "__main__":
    main()
