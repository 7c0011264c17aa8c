"""An open-loop load from several processes, so that a client is never what a fast server waits for.

The moments of all requests are drawn as one process and dealt out; every client starts at the same moment. The
processes are started ahead, so that a load can begin as soon as a server serves.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.client.load import LoadOutcome, LoadSpec
from stretto.client.load.arrivals import arrival_times_ns
from stretto.client.load.generator import Generator
from stretto.client.load.result import LoadResult, percentiles_ms
from stretto.client.load.run import prepared
from stretto.client.quiet_loop import driven

PROCESSES = 6
CONNECTIONS = 256  # of each process
START_TIMEOUT_S = 20.0  # for all of them to be ready to send
UNSEEN = (
    *(LoadOutcome.BROKEN, LoadOutcome.NO_CONNECTION, LoadOutcome.NO_ANSWER, LoadOutcome.NOT_SENT),
    LoadOutcome.BAD_ANSWER,
)

_barrier: Any = None  # of a client process; see Clients


@dataclass(frozen=True)
class Drive:
    """One load: `file` is an .npz with `inputs`, and `labels` where answers are to be checked."""

    url: str
    application: str
    file: Path
    seconds: float
    rate: float | None = None
    kind: str = "poisson"
    rows: int = 1
    version: str = ""
    deadline_ms: float | None = None
    seed: int = 1

    def spec(self, times_ns: NDArray[np.int64] | None = None) -> LoadSpec:
        inputs, labels = _arrays(self.file)
        return LoadSpec(
            self.application,
            inputs,
            labels,
            url=self.url,
            rate=self.rate,
            seconds=self.seconds,
            kind=self.kind,
            times_ns=times_ns,
            rows=self.rows,
            version=self.version,
            deadline_ms=self.deadline_ms,
            connections=CONNECTIONS,
            seed=self.seed,
        )


@lru_cache(maxsize=4)
def _arrays(file: Path) -> tuple[NDArray[Any], NDArray[np.int64] | None]:
    with np.load(file, allow_pickle=False) as arrays:
        return arrays["inputs"], arrays.get("labels")


@dataclass(frozen=True, eq=False)
class Measured:
    """What all clients saw, one entry for each request, in no order."""

    rows: int
    seconds: float
    scheduled_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    lag_ns: NDArray[np.int64]
    outcome: NDArray[np.uint8]
    correct: NDArray[np.int64]  # right rows of those on time
    variant: NDArray[np.str_]  # "" without an answer
    client_cpu_share: float  # of a core, the busiest client

    @property
    def requests(self) -> int:
        return len(self.outcome)

    @property
    def on_time(self) -> int:
        return int((self.outcome == LoadOutcome.ON_TIME).sum())

    @property
    def answers(self) -> int:
        """On time or late."""
        return int((self.outcome <= LoadOutcome.LATE).sum())

    @property
    def on_time_share(self) -> float:
        return self.on_time / max(1, self.requests)

    @property
    def goodput(self) -> float:
        """Images a second that were answered on time."""
        return self.on_time * self.rows / self.seconds

    @property
    def correct_on_time(self) -> float:
        """Share of all images."""
        return float(self.correct.sum()) / max(1, self.requests * self.rows)

    @property
    def unseen(self) -> int:
        """Requests that the clients saw no proper end of."""
        return int(np.isin(self.outcome, [int(one) for one in UNSEEN]).sum())

    def before(self, moment_s: float) -> float:
        """On time, of the requests due before this moment of the load."""
        early = self.scheduled_ns < moment_s * 1e9
        return float((self.outcome[early] == LoadOutcome.ON_TIME).mean()) if early.any() else 0.0

    def _lost_by_second(self) -> str:
        """How many that were due in each half second of the load were not on time, where any were."""
        due = self.scheduled_ns[self.outcome != LoadOutcome.ON_TIME] // 500_000_000
        return ", ".join(
            f"{half / 2:g}: {count}" for half, count in zip(*np.unique(due, return_counts=True), strict=True)
        )

    def row(self) -> dict[str, Any]:
        """What goes into a result's row."""
        answered = self.outcome <= LoadOutcome.LATE
        latency, lag = percentiles_ms(self.latency_ns[answered]), percentiles_ms(self.lag_ns[self.lag_ns >= 0])
        ends = {one.name.lower(): int((self.outcome == one).sum()) for one in LoadOutcome}
        names, counts = np.unique(self.variant[answered], return_counts=True)
        shares = {str(name): round(float(count / answered.sum()), 3) for name, count in zip(names, counts, strict=True)}
        return {
            "requests": self.requests,
            "on_time_share": self.on_time_share,
            "goodput": self.goodput,
            "p50_ms": latency["p50"],
            "p99_ms": latency["p99"],
            "client_lag_p99_ms": lag["p99"],
            "client_cpu_share": self.client_cpu_share,
            "ends": ", ".join(f"{name} {count}" for name, count in ends.items() if count),
            "not_on_time_by_s": self._lost_by_second(),
            "variants": ", ".join(f"{name} {share:g}" for name, share in shares.items()),
        }


def merged(parts: Sequence[LoadResult]) -> Measured:
    """The clients' results as one."""
    names = [np.array([*part.variants, ""])[part.variant] for part in parts]

    def all_of(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    return Measured(
        parts[0].spec.rows,
        parts[0].spec.seconds,
        *(all_of(name) for name in ("scheduled_ns", "latency_ns", "lag_ns", "outcome", "correct_on_time")),
        np.concatenate(names),
        max(part.cpu_ns / max(1, part.elapsed_ns) for part in parts),
    )


class Clients:
    """Client processes that wait for loads; close them at the end."""

    def __init__(self, processes: int = PROCESSES) -> None:
        context = multiprocessing.get_context("spawn")
        self._count = processes
        self._barrier = context.Barrier(processes)
        self._pool = context.Pool(processes, _begin, (self._barrier,))
        self._pool.map(_nothing, range(processes), 1)

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def run(self, drive: Drive) -> Measured:
        """Sends the load from all processes; waits for its end."""
        times_ns = arrival_times_ns(drive.spec())
        count = min(self._count, len(times_ns))
        tasks = [(drive, times_ns[first::count], count == self._count) for first in range(count)]
        return merged(self._all(_drive, tasks))

    def carried(self, drive: Drive) -> float:
        """Images a second that one variant answers when it is never without work; as the demo measures it."""
        return sum(self._all(_carried, [(drive,)] * self._count))

    def _all(self, call: Callable[..., Any], tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        try:
            return self._pool.starmap(call, tasks, 1)
        except Exception:
            self._barrier.reset()  # one that failed never came to it
            raise


def _begin(barrier: Any) -> None:
    global _barrier
    _barrier = barrier


def _nothing(_: int) -> None:
    """Imports are done once this was answered."""


def _drive(drive: Drive, times_ns: NDArray[np.int64], are_all: bool) -> LoadResult:
    """In a client process."""

    async def together(generator: Generator) -> None:
        if are_all:
            _barrier.wait(START_TIMEOUT_S)  # blocks this loop, which has nothing else to do
        await generator.run()

    result = driven(prepared(drive.spec(times_ns)), together).result()
    small = replace(result.spec, inputs=result.spec.inputs[:1], labels=None, times_ns=None)
    return replace(result, spec=small)


def _carried(drive: Drive) -> float:
    from stretto.cli.demo_load import carried

    inputs, _ = _arrays(drive.file)
    _barrier.wait(START_TIMEOUT_S)
    return carried(drive.url, drive.application, inputs, drive.version)
