"""The faults, each a function of the stage that says what it saw. All of them leave the stage as they found it."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.chaos.server import Disk
from benchmarks.fuzz.sockets import SocketFuzz
from benchmarks.fuzz.verdict import Findings
from benchmarks.serving import ROOT
from benchmarks.small_models import BAD, SHAPE, write_application
from stretto.cli.started import Started

CALL_S = 150.0  # the longest that a management call may take before we call it a hang
QUERY_S = 15.0
QUERIES = 40  # for each bad model
CALLERS = 8  # of management, at once
EXTRAS = 4  # small applications that come and go
SLOW_CONNECTIONS = 10_000
LARGE_MESSAGES = 100
ATTACKERS = 4
SLOW_S = 40.0  # to open so many takes a while
SPARE_BYTES = 600_000_000  # beyond the budget that slow bodies are allowed to cost, before they stop themselves
NO_ANSWER = "no answer"


@dataclass
class Stage:
    """What faults act on, and what they add up to."""

    server: Started
    repository: Path
    disk: Disk
    random: Random
    kind: str  # of the profiles, for models that are added
    budget_bytes: int
    seconds: float  # that a fault lasts
    calls: int  # of management, in one fault
    tried: Counter[str] = field(default_factory=Counter)  # bad models
    management: Counter[str] = field(default_factory=Counter)  # statuses of load and unload, of sound applications
    fuzz: Findings = field(default_factory=Findings)
    most_connections: int = 0
    large_messages: int = 0

    def address(self, name: str) -> tuple[str, int]:
        host, _, port = self.server.addresses[name].rpartition(":")
        return host, int(port)


def post(url: str, content: Any = None, patience_s: float = CALL_S) -> str:
    """The status as text; a call without an answer is told apart."""
    data = b"" if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=patience_s) as response:
            return str(response.status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except (urllib.error.URLError, OSError):
        return NO_ANSWER


def manage(stage: Stage, application: str, what: str, statuses: Counter[str]) -> None:
    status = post(f"{stage.server.management_url}/v2/repository/models/{application}/{what}")
    statuses[f"{what} {status}"] += 1


def bad_models(stage: Stage) -> dict[str, Any]:
    """Some are added, asked and removed again, by the management API; those that were not tried yet come first."""
    names = sorted(BAD)
    stage.random.shuffle(names)
    names.sort(key=lambda name: stage.tried[name])
    end_s = time.monotonic() + stage.seconds
    seen: dict[str, dict[str, int]] = {}
    calls: Counter[str] = Counter()
    for name in names:
        if seen and time.monotonic() > end_s and all(stage.tried[each] for each in BAD):
            break
        stage.tried[name] += 1
        folder = write_application(stage.repository, name, BAD[name], kind=stage.kind)
        loading = threading.Thread(target=manage, args=(stage, name, "load", calls), daemon=True)
        loading.start()
        loading.join(max(2.0, stage.seconds / 4))  # then it is asked, loaded or not
        ends = asked(stage, name)
        loading.join(CALL_S)
        manage(stage, name, "unload", calls)
        shutil.rmtree(folder)
        seen[name] = ends
    return {"clients of bad models": seen, "calls": dict(calls)}


def asked(stage: Stage, application: str) -> dict[str, int]:
    """Statuses of a few queries, some at a time."""
    row = {"name": "input", "datatype": "FP32", "shape": [1, *SHAPE], "data": [0.0] * SHAPE[0]}
    url = f"{stage.server.url}/v2/models/{application}/infer"
    with ThreadPoolExecutor(4) as pool:
        statuses = pool.map(lambda _: post(url, {"inputs": [row]}, QUERY_S), range(QUERIES))
        return dict(Counter(statuses))


def full_disk(stage: Stage) -> dict[str, Any]:
    """Recording and log have nowhere to go, as spans have all the time."""
    if not stage.disk.is_small:
        time.sleep(1.0)
        return {"disk": "not filled: mounting a small one needs root"}
    stage.disk.fill()
    try:
        time.sleep(stage.seconds)
    finally:
        stage.disk.empty()
    return {"disk": "filled"}


def attacked(stage: Stage, what: str, listener: str, count: int, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.chaos.attackers", what, stage.server.addresses[listener]]
    command += ["--count", str(count), "--seconds", str(seconds)]
    command += ["--total-bytes", str(stage.budget_bytes + SPARE_BYTES)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=seconds + 120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def slow_bodies(stage: Stage) -> dict[str, Any]:
    done = attacked(stage, "slow_bodies", "http", SLOW_CONNECTIONS, max(SLOW_S, stage.seconds))
    stage.most_connections = max(stage.most_connections, done["most_open"])
    return done


def large_messages(stage: Stage) -> dict[str, Any]:
    done = attacked(stage, "large_messages", "grpc", LARGE_MESSAGES, max(15.0, stage.seconds))
    stage.large_messages += LARGE_MESSAGES
    return done


def one_byte_chunks(stage: Stage) -> dict[str, Any]:
    return attacked(stage, "one_byte_chunks", "http", ATTACKERS, stage.seconds)


def management(stage: Stage) -> dict[str, Any]:
    """Applications come and go in parallel, while the planner plans anew."""
    before = stage.management.copy()
    names = [f"extra{number}" for number in range(EXTRAS)]
    orders = [(stage.random.choice(names), stage.random.choice(("load", "unload"))) for _ in range(stage.calls)]
    with ThreadPoolExecutor(CALLERS) as pool:
        list(pool.map(lambda order: manage(stage, *order, stage.management), orders))
    return {"calls": dict(stage.management - before)}


def fuzzed(stage: Stage) -> dict[str, Any]:
    """Mutated requests over real sockets, for the applications that are there and for some that are not."""
    fuzz = SocketFuzz(stage.address("http"), stage.address("grpc"), stage.random.randrange(2**31))
    findings = asyncio.run(fuzz.run_for(stage.seconds))
    stage.fuzz.add(findings)
    return {"inputs": findings.total, "wrong": dict(findings.wrong)}


FAULTS: dict[str, Callable[[Stage], dict[str, Any]]] = {
    "bad models": bad_models,
    "full disk": full_disk,
    "slow bodies": slow_bodies,
    "large messages": large_messages,
    "one-byte chunks": one_byte_chunks,
    "management": management,
    "fuzz": fuzzed,
}
