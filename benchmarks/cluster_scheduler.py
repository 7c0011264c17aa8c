"""The scheduler alone over the message face (Symphony figure 11): how many queries a second one core schedules, with
1,000 simulated workers behind it.

Engine, dispatcher, plan and desk are the server's own. A front end in another process sends SUBMIT messages over a
socket and hears ENDED, as front ends do; a worker is an object that ends its batch after the profile's l(b). What is
counted is the CPU time of the scheduler's process, simulated workers included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import heapq
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import uvloop
from harness import Benchmark, like

from stretto.alarm import Alarm
from stretto.api.beginning import GC_THRESHOLDS
from stretto.backends.source import ModelSource
from stretto.core.client import Clients
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.published import published_model
from stretto.core.view import View
from stretto.live.engine import Engine
from stretto.live.executor import Job, Listener, Loading
from stretto.live.face.desk import Desk
from stretto.live.face.link import HEAD, StreamLink
from stretto.live.face.memory import FrontMemory
from stretto.live.face.messages import ENDED, SUBMIT, Kind, unpacked
from stretto.live.generation import Served
from stretto.live.requests import Request
from stretto.live.shelf import ModelSpec, Report
from stretto.live.state import State
from stretto.planning.served import served_session
from stretto.repository.tensors import InputTensor, OutputTensor

APPLICATIONS, WORKERS, SLO_MS = 20, 1000, 100.0
TURN_S = 0.001  # between two messages of the front end
SECONDS, WARM_S = 8.0, 2.0
TARGET = 100_000
RATES = (25_000, 50_000, TARGET, 150_000)
MODEL = "symphony_1080ti:ResNet50"
MEMORY = 1 << 16
MOST = 20_000  # queries of one message
ANSWER = np.zeros((1, 1), np.float32)


class SimulatedWorkers:
    """All of them: batches end after l(b), by one alarm for the next of them."""

    def __init__(self, deployment: Deployment, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.latencies = [
            [0, *(variant.profiles[0].latency_ns(batch + 1) for batch in range(variant.profiles[0].max_batch))]
            for variant in deployment.variants
        ]
        self.answers = np.zeros((4096, 1), np.float32)
        self._ends: list[tuple[int, int, Job, Listener]] = []
        self._count = 0
        self._alarm: Alarm | None = None

    def worker(self, number: int, loop: asyncio.AbstractEventLoop, listener: Listener) -> SimulatedWorker:
        if self._alarm is None:
            self._alarm = Alarm(loop, self.advance)
        return SimulatedWorker(number, loop, listener, self)

    def begin(self, job: Job, listener: Listener) -> None:
        end_ns = max(self._clock(), job.decided_ns) + int(self.latencies[job.variant][job.count])
        self._count += 1
        heapq.heappush(self._ends, (end_ns, self._count, job, listener))
        if self._ends[0][1] == self._count and self._alarm is not None:
            self._alarm.set(end_ns)

    def advance(self) -> None:
        now_ns = self._clock()
        while self._ends and self._ends[0][0] <= now_ns:
            end_ns, _, job, listener = heapq.heappop(self._ends)
            took_ns = int(self.latencies[job.variant][job.count])
            listener.job_ended(job, Report(self.answers, {}, end_ns - took_ns, end_ns))
        if self._ends and self._alarm is not None:
            self._alarm.set(self._ends[0][0])


class SimulatedWorker:
    """An Executor."""

    is_awaited = False

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop, listener: Listener, all_of_them: SimulatedWorkers):
        self._number, self._loop, self._listener, self._all = number, loop, listener, all_of_them

    def start(self, specs: Sequence[ModelSpec]) -> None:
        self._loop.call_soon(self._listener.worker_ready, self._number, {})

    def run(self, job: Job) -> None:
        self._all.begin(job, self._listener)

    def load(self, spec: ModelSpec, alone: bool) -> None:
        if alone:
            self._loop.call_soon(self._listener.load_ended, self._number, spec.key, None, True)

    def prepare(self, specs: Sequence[ModelSpec], done: Callable[[dict[str, str]], None]) -> None:
        self._loop.call_soon(done, {})

    def unload(self, key: str) -> None: ...

    def loading(self) -> Sequence[Loading]:
        return ()

    def memory_bytes(self) -> int:
        return 0

    def growth(self) -> Mapping[str, int]:
        return {}

    def kill(self) -> None: ...

    async def stop(self, patience_s: float = 10.0) -> None: ...


class Station:
    """What the desk asks of a service, around an engine without a repository."""

    def __init__(
        self,
        deployment: Deployment,
        rate: float,
        clock: Callable[[], int] = time.monotonic_ns,
        planner: str = "symphony",
    ):
        session = served_session(planner, {})
        takes, gives = InputTensor("x", "float32", (1,)), OutputTensor("y", "float32", (1,))
        source = ModelSource("callable", code="nothing:nothing")
        specs = tuple(
            ModelSpec(deployment.variant_label(number), source, "x", "float32", (1,), "y", "float32", (1,), 4096)
            for number in range(len(deployment.variants))
        )
        served = Served(deployment, (), specs)
        rates = np.full(APPLICATIONS, rate / APPLICATIONS)
        first = session.first(deployment, clock(), Conditions(), view=View(deployment, clock(), rates))
        self.workers = SimulatedWorkers(deployment, clock)
        self.engine = Engine(served, session, self.workers.worker, first=first, clock=clock)
        self.state, self.clients, self.moves = State.SERVING, Clients(), None
        files = SimpleNamespace(input=takes, output=gives)
        self.files = dict.fromkeys((application.name for application in deployment.applications), files)
        self.offer = SimpleNamespace(known=self.files, unloaded=set(), quarantine=SimpleNamespace(entries={}))

    def is_ready(self, application: str | None = None) -> bool:
        return True

    def variants_of(self, application: str) -> tuple[str, ...]:
        return ("only",)


class Heard:
    """A link that counts what the front end would hear."""

    transit_ns = 0

    def __init__(self) -> None:
        self.ended: Counter[int] = Counter()

    def send(self, kind: int, payload: bytes = b"") -> None:
        if kind == Kind.ENDED:
            self.ended.update(unpacked(ENDED, payload)[1]["outcome"].tolist())

    def close(self) -> None: ...


async def at_no_time(
    rate: float,
    seconds: float,
    turn_s: float,
    *,
    workers: int = WORKERS,
    planner: str = "symphony",
    seed: int = 1,
    begin: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """The same events under a clock that this function moves: what else runs on the machine changes no decision. It is
    the CPU time of scheduling alone, without that of making arrivals or counting what was heard. `begin` is called when
    all is ready.
    """
    now_ns = time.monotonic_ns()
    deployment = like(published_model(MODEL).profile(), SLO_MS, APPLICATIONS, workers)
    station = Station(deployment, rate, lambda: now_ns, planner)
    engine = station.engine
    engine.start()
    while engine.crew.ready_count < workers:
        await asyncio.sleep(0.01)
    lookout = engine.crew.lookout
    lookout._proven, lookout._unproven = lookout._unproven | lookout._proven, frozenset()  # as after some batches
    lookout._want()
    engine.trials_changed()
    desk, heard = Desk(station), Heard()  # type: ignore[arg-type]
    there = desk.connect(heard, FrontMemory.made(MEMORY))
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    rng, number, spent, counted = np.random.default_rng(seed), 0, 0.0, 0
    begin()
    for turn in range(round(seconds / turn_s)):
        now_ns += round(turn_s * 1e9)
        payload, count = submits(rng, rate * turn_s, number)
        number += count
        began = time.process_time()
        if count:
            there.heard(Kind.SUBMIT, memoryview(payload))
        station.workers.advance()
        wake_ns = engine.generation.dispatcher.wake_at_ns()
        if wake_ns is not None and wake_ns <= now_ns:
            engine._rang()
        await asyncio.sleep(0)  # what came in this turn enters
        if turn * turn_s >= WARM_S:
            spent += time.process_time() - began
            counted += count
    desk.stop()
    on_time = heard.ended[int(Outcome.ON_TIME)]
    await engine.stop()
    return {
        "clock": "moved by the benchmark",
        "offered": rate,
        "queries_a_message": rate * turn_s,
        "cpu_us_a_query": spent / counted * 1e6,
        "queries_a_core_second": counted / spent,
        "bad_rate": 1 - on_time / sum(heard.ended.values()),
    }


def submits(rng: np.random.Generator, mean: float, first: int) -> tuple[bytes, int]:
    """A SUBMIT message of as many queries as come in a turn."""
    count = min(MOST, int(rng.poisson(mean)))
    records = np.zeros(count, SUBMIT)
    records["number"] = np.arange(first, first + count)
    records["application"] = rng.integers(0, APPLICATIONS, count)
    records["left_ns"], records["rows"] = round(SLO_MS * 1e6), 1
    return struct.pack("<II", APPLICATIONS, count) + records.tobytes(), count


async def schedule(rate: float, seconds: float, turn_s: float) -> dict[str, Any]:
    """One run: what the front end heard, and the CPU time that scheduling took once it had warmed up."""
    deployment = like(published_model(MODEL).profile(), SLO_MS, APPLICATIONS, WORKERS)
    station = Station(deployment, rate)
    station.engine.start()
    while station.engine.crew.ready_count < WORKERS:
        await asyncio.sleep(0.01)
    await prove(station.engine)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)  # as the server does
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    desk = Desk(station)  # type: ignore[arg-type]
    loop = asyncio.get_running_loop()
    _, link = await loop.create_connection(lambda: StreamLink(), sock=ours)
    link.peer = desk.connect(link, FrontMemory.made(MEMORY))
    arguments = [str(theirs.fileno()), str(rate), str(seconds), str(turn_s)]
    front = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--front", *arguments), pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE
    )
    theirs.close()
    await asyncio.sleep(WARM_S)
    cpu, began = time.process_time(), time.perf_counter()
    before = sum(int(ended.sum()) for _, ended in station.engine.books.totals(station.engine.generations()).values())
    await asyncio.sleep(seconds - WARM_S - 0.5)
    cpu, took = time.process_time() - cpu, time.perf_counter() - began
    after = sum(int(ended.sum()) for _, ended in station.engine.books.totals(station.engine.generations()).values())
    output, _ = await front.communicate()
    counts = dict(pair.split("=") for pair in output.decode().split())
    desk.stop()
    await station.engine.stop()
    sent, on_time = int(counts["sent"]), int(counts["on_time"])
    return {
        "clock": "as time passes",
        "offered": rate,
        "queries_a_message": rate * turn_s,
        "ended_a_second": (after - before) / took,
        "cpu_us_a_query": cpu / max(1, after - before) * 1e6,
        "core_share": cpu / took,
        "bad_rate": 1 - on_time / sent,
        "unended": sent - int(counts["ended"]),
    }


async def prove(engine: Engine) -> None:
    """A model that is new runs on one worker until it has answered some batches; so that the run begins behind that."""
    while engine.crew.lookout.on_trial or engine.crew.lookout.wanted:
        for name in engine.generation.numbers:
            engine.submit(Request(name, np.zeros((1, 1), np.float32), round(SLO_MS * 1e6), lambda ended: None))
        await asyncio.sleep(0.02)


def front(descriptor: int, rate: float, seconds: float, turn_s: float) -> None:
    """A front end: what came in a turn is one message. Blocking sockets: it has nothing else to do."""
    link = socket.socket(fileno=descriptor)
    link.setblocking(False)
    rng, held, number, ended = np.random.default_rng(1), bytearray(), 0, Counter()
    pending = b""
    began = time.perf_counter()
    sent_s = 0.0

    def hear() -> None:
        nonlocal held
        try:
            while True:
                data = link.recv(1 << 20)
                if not data:
                    return
                held += data
        except BlockingIOError:
            pass
        place = 0
        while len(held) - place >= HEAD.size:
            length, kind = HEAD.unpack_from(held, place)
            if len(held) < place + HEAD.size + length:
                break
            if kind == Kind.ENDED:
                _, said, _ = unpacked(ENDED, bytes(held[place + HEAD.size : place + HEAD.size + length]))
                for outcome, count in zip(*np.unique(said["outcome"], return_counts=True), strict=True):
                    ended[int(outcome)] += int(count)
            place += HEAD.size + length
        del held[:place]

    while (now := time.perf_counter() - began) < seconds:
        if not pending:
            payload, count = submits(rng, rate * (now - sent_s), number)
            sent_s, number = now, number + count
            pending = HEAD.pack(len(payload), Kind.SUBMIT) + payload
        if pending:
            with contextlib.suppress(BlockingIOError):
                pending = pending[link.send(pending) :]
        hear()
        time.sleep(turn_s)
    end = time.perf_counter() + 2.0
    while sum(ended.values()) < number and time.perf_counter() < end:
        hear()
        time.sleep(0.002)
    outcomes = " ".join(f"{Outcome(number).name}={count}" for number, count in ended.items())
    print(f"sent={number} ended={sum(ended.values())} on_time={ended[int(Outcome.ON_TIME)]} {outcomes}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--front", nargs=4)
    parser.add_argument("--rate", type=float)
    options = parser.parse_args()
    if options.front:
        front(int(options.front[0]), *map(float, options.front[1:]))
        return
    uvloop.install()
    if options.rate:
        for run in (at_no_time, schedule):
            print(asyncio.run(run(options.rate, SECONDS, TURN_S)))
        return
    bench = Benchmark("cluster_scheduler")
    steps = [(at_no_time, rate, TURN_S) for rate in RATES] + [(at_no_time, TARGET, 5 * TURN_S)]
    steps += [(schedule, rate, TURN_S) for rate in RATES]
    found = {}
    for run, rate, turn_s in bench.steps(steps, len(steps), "scheduling"):
        found[run, rate, turn_s] = asyncio.run(run(rate, SECONDS, turn_s))
        bench.row(**found[run, rate, turn_s])
    alone, live = found[at_no_time, TARGET, TURN_S], found[schedule, TARGET, TURN_S]
    bench.claim(
        f"queries/s that one core schedules over the message face, {WORKERS} simulated workers",
        paper="millions on many threads (figure 11)",
        target=f"≥ {TARGET}",
        ours=round(alone["queries_a_core_second"]),
        met=alone["queries_a_core_second"] >= TARGET,
    )
    bench.claim(
        f"bad rate at {TARGET} queries/s from another process, as time passes",
        paper="-",
        target="≤ 0.01",
        ours=live["bad_rate"],
        met=live["bad_rate"] <= 0.01,
    )
    unended = sum(row["unended"] for row in found.values() if "unended" in row)
    bench.claim("queries without an outcome, all rates", paper="-", target="0", ours=unended, met=unended == 0)
    bench.finish()


if __name__ == "__main__":
    main()
