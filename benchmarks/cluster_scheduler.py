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
MEMORY = 1 << 16
MOST = 20_000  # queries of one message
ANSWER = np.zeros((1, 1), np.float32)


class SimulatedWorkers:
    """All of them: batches end after l(b), by one alarm for the next of them."""

    def __init__(self, deployment: Deployment) -> None:
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
            self._alarm = Alarm(loop, self._rang)
        return SimulatedWorker(number, loop, listener, self)

    def begin(self, job: Job, listener: Listener) -> None:
        end_ns = max(time.monotonic_ns(), job.decided_ns) + int(self.latencies[job.variant][job.count])
        self._count += 1
        heapq.heappush(self._ends, (end_ns, self._count, job, listener))
        if self._ends[0][1] == self._count and self._alarm is not None:
            self._alarm.set(end_ns)

    def _rang(self) -> None:
        now_ns = time.monotonic_ns()
        while self._ends and self._ends[0][0] <= now_ns:
            end_ns, _, job, listener = heapq.heappop(self._ends)
            took_ns = int(self.latencies[job.variant][job.count])
            listener.job_ended(job, Report(self.answers, {}, end_ns - took_ns, end_ns))
        if self._ends and self._alarm is not None:
            self._alarm.set(self._ends[0][0])


class SimulatedWorker:
    """An Executor."""

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

    def __init__(self, deployment: Deployment, rate: float):
        session = served_session("symphony", {})
        takes, gives = InputTensor("x", "float32", (1,)), OutputTensor("y", "float32", (1,))
        source = ModelSource("callable", code="nothing:nothing")
        specs = tuple(
            ModelSpec(deployment.variant_label(number), source, "x", "float32", (1,), "y", "float32", (1,), 4096)
            for number in range(len(deployment.variants))
        )
        served = Served(deployment, (), specs)
        rates = np.full(APPLICATIONS, rate / APPLICATIONS)
        view = View(deployment, time.monotonic_ns(), rates)
        first = session.first(deployment, time.monotonic_ns(), Conditions(), view=view)
        self.engine = Engine(served, session, SimulatedWorkers(deployment).worker, first=first)
        self.state, self.clients = State.SERVING, Clients()
        files = SimpleNamespace(input=takes, output=gives)
        self.files = dict.fromkeys((application.name for application in deployment.applications), files)
        self.offer = SimpleNamespace(known=self.files, unloaded=set(), quarantine=SimpleNamespace(entries={}))

    def is_ready(self, application: str | None = None) -> bool:
        return True

    def from_fast_to_accurate(self, application: str) -> tuple[str, ...]:
        return ("only",)


async def schedule(rate: float, seconds: float, turn_s: float) -> dict[str, Any]:
    """One run: what the front end heard, and the CPU time that scheduling took once it had warmed up."""
    model = published_model("symphony_1080ti:ResNet50")
    deployment = like(model.profile(), SLO_MS, APPLICATIONS, WORKERS)
    station = Station(deployment, rate)
    station.engine.start()
    while station.engine.crew.ready_count < WORKERS:
        await asyncio.sleep(0.01)
    await prove(station.engine)
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
    print(counts)
    sent, on_time = int(counts["sent"]), int(counts["on_time"])
    return {
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
        count = min(MOST, int(rng.poisson(rate * (now - sent_s))))
        if count and not pending:
            sent_s = now
            records = np.zeros(count, SUBMIT)
            records["number"] = np.arange(number, number + count)
            records["application"] = rng.integers(0, APPLICATIONS, count)
            records["left_ns"], records["rows"] = round(SLO_MS * 1e6), 1
            number += count
            payload = struct.pack("<II", APPLICATIONS, count) + records.tobytes()
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
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if options.front:
        front(int(options.front[0]), *map(float, options.front[1:]))
        return
    bench = Benchmark("cluster_scheduler")
    uvloop.install()
    if options.rate:
        if options.profile:
            import cProfile

            cProfile.runctx(
                "asyncio.run(schedule(options.rate, SECONDS, TURN_S))", globals(), locals(), "/tmp/sched.prof"
            )
        print(asyncio.run(schedule(options.rate, SECONDS, TURN_S)))
        return


if __name__ == "__main__":
    main()
