"""The healthy application: an open-loop load in a process of its own, so that nothing that we do beside delays it.

As a program it sends until it is interrupted, and writes what it measured, with times on the monotonic clock.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.serving import ROOT
from stretto.cli.queries import sample_of
from stretto.cli.started import Started
from stretto.client.load import LoadOutcome, LoadResult, LoadSpec, run_load
from stretto.client.load.spec import MAX_REQUESTS

APPLICATION = "fashion"
FIRST_PROBE, PROBE_STEP, MOST_PROBES, PROBE_S = 20.0, 1.5, 16, 4.0
SATURATED = 0.9  # of what was sent, on time
LONGEST_S = 3 * 3600.0
NEVER_MS = 60_000.0  # what a request without an answer counts as, refused at once or not


@dataclass(frozen=True, eq=False)
class Measured:
    """One entry for each request, by when it was due."""

    due_ns: NDArray[np.int64]  # on the monotonic clock
    latency_ns: NDArray[np.int64]
    outcome: NDArray[np.uint8]
    slo_ms: float

    def within(self, windows: list[tuple[int, int]]) -> dict[str, Any]:
        """What became of the requests that were due in any of these windows."""
        chosen = np.zeros(len(self.due_ns), bool)
        for start_ns, end_ns in windows:
            chosen |= (self.due_ns >= start_ns) & (self.due_ns < end_ns)
        outcome = self.outcome[chosen]
        total = len(outcome)
        latency_ms = np.where(outcome <= LoadOutcome.LATE, self.latency_ns[chosen] / 1e6, NEVER_MS)
        ends = {one.name.lower(): int((outcome == one).sum()) for one in LoadOutcome}
        return {
            "requests": total,
            "on_time_share": ends["on_time"] / total if total else 0.0,
            "late_share": ends["late"] / total if total else 0.0,
            "failed_share": ends["failed"] / total if total else 0.0,
            "p99_ms": float(np.percentile(latency_ms, 99)) if total else NEVER_MS,
            "ends": {name: count for name, count in ends.items() if count},
        }


def load(url: str, rate: float, seconds: float, seed: int, grace_ms: float = 1_000.0) -> LoadResult:
    inputs, labels = sample_of(APPLICATION)
    spec = LoadSpec(APPLICATION, inputs, labels, url=url, rate=rate, seconds=seconds, seed=seed, grace_ms=grace_ms)
    return run_load(spec)


def capacity(send: Callable[[float, float, int], LoadResult]) -> float:
    """Queries/s: the best goodput over rates that rise until the server is plainly saturated. `send` sends at a rate,
    for some seconds, from a seed.
    """
    best, rate = 0.0, FIRST_PROBE
    send(FIRST_PROBE, 1.0, 99)
    for number in range(MOST_PROBES):
        summary = send(rate, PROBE_S, number).summary()
        best = max(best, float(summary["goodput"]))
        if summary["on_time_share"] < SATURATED:  # what came, not the rate, says what could be answered
            break
        rate *= PROBE_STEP
    return best


class HealthyLoad:
    """Started with the server, stopped at the end."""

    def __init__(self, server: Started, rate: float, seed: int, file: Path) -> None:
        self._file = file
        command = [sys.executable, "-m", "benchmarks.chaos.healthy", server.url, str(rate), str(seed), str(file)]
        self._process = subprocess.Popen(command, cwd=ROOT)

    def stop(self) -> Measured:
        self._process.send_signal(signal.SIGINT)
        self._process.wait(60)
        with np.load(self._file) as arrays:
            return Measured(arrays["due_ns"], arrays["latency_ns"], arrays["outcome"], float(arrays["slo_ms"]))


def main() -> None:
    url, rate, seed, file = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job is started without
    seconds = min(LONGEST_S, 0.9 * MAX_REQUESTS / float(rate))
    result = load(url, float(rate), seconds, int(seed), NEVER_MS)
    start_ns = time.monotonic_ns() - result.elapsed_ns
    slo_ms = 0.0 if result.deadline_ns is None else result.deadline_ns / 1e6
    np.savez(
        file,
        due_ns=result.scheduled_ns + start_ns,
        latency_ns=result.latency_ns,
        outcome=result.outcome,
        slo_ms=np.float64(slo_ms),
    )


if __name__ == "__main__":
    main()
