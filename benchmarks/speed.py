"""How fast the heart beats: simulated queries per CPU second, memory over 100 million queries, one submit from Python.

CPU time of this process on one core, after compilation; making the arrivals is part of it.
"""

from __future__ import annotations

import hashlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import Benchmark, like

from stretto.core.deployment import Deployment
from stretto.core.profile import LatencyProfile
from stretto.core.view import View
from stretto.dispatch.decisions import Run
from stretto.dispatch.dispatcher import Dispatcher
from stretto.planners.symphony import Symphony
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate

PROFILE = LatencyProfile.linear(1.053, 5.072)
QUERIES = 4_000_000
LONG = 100_000_000


def simulated_per_second(deployment: Deployment, rate: float, queries: int) -> tuple[float, float]:
    """(queries per CPU second, bad rate)."""
    simulate(deployment, Symphony(), Load(Poisson(), rate), seconds=0.05)
    before = time.process_time()
    summary = simulate(deployment, Symphony(), Load(Poisson(), rate), seconds=queries / rate).summary
    return summary.submitted / (time.process_time() - before), summary.bad_rate


def submit_us() -> float:
    """Median of single submits under a steady load, batches started and ended as they fall due."""
    deployment = like(PROFILE, 25.0, 1, 8)
    dispatcher = Dispatcher(deployment, Symphony()(View(deployment)))
    ends: dict[int, int] = {}
    taken = []
    now = 0
    for number in range(60_000):
        now += 220_000  # 4545 queries/s
        for worker in [worker for worker, end in ends.items() if end <= now]:
            dispatcher.finished(ends.pop(worker), worker)
        wake = dispatcher.wake_at_ns()
        if wake is not None and wake <= now:
            dispatcher.advance(now)
        before = time.perf_counter_ns()
        dispatcher.submit(now, 0, now + 25_000_000, number)
        taken.append(time.perf_counter_ns() - before)
        for decision in dispatcher.decisions():
            if isinstance(decision, Run):
                ends[decision.worker] = decision.expected_ns
    return statistics.median(taken) / 1000


def resident_mb() -> float:
    """Largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def same_bytes() -> bool:
    """Two runs of the command line with one seed, in their own processes."""
    scenario = Path(__file__).parent.parent / "examples" / "resnet50_8_workers.toml"
    digests = set()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2):
            out = Path(folder) / f"{number}.npz"
            command = [
                sys.executable,
                "-m",
                "stretto",
                "simulate",
                str(scenario),
                "--seed",
                "7",
                "--json",
                "--out",
                str(out),
            ]
            shown = subprocess.run(command, check=True, capture_output=True).stdout.replace(out.name.encode(), b"")
            digests.add(hashlib.sha256(shown + out.read_bytes()).hexdigest())
    return len(digests) == 1


def help_seconds() -> float:
    """Best of five, from the start of Python."""
    times = []
    for _ in range(5):
        before = time.perf_counter()
        subprocess.run([sys.executable, "-m", "stretto", "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - before)
    return min(times)


def main() -> None:
    """All of it."""
    bench = Benchmark("speed")
    for what, applications, workers, slo, rate, target in (
        ("simulator, 20 applications × 100 workers, deferred (queries/s of one core)", 20, 100, 25.0, 40_000.0, 2e6),
        ("simulator, 20 applications × 512 workers, deferred (queries/s of one core)", 20, 512, 25.0, 220_000.0, 1e6),
    ):
        rates = [simulated_per_second(like(PROFILE, slo, applications, workers), rate, QUERIES) for _ in range(3)]
        ours = max(rate for rate, _ in rates)
        bench.row(
            applications=applications, workers=workers, slo_ms=slo, offered=rate, per_s=ours, bad_rate=rates[0][1]
        )
        bench.claim(what, paper="—", target=f"≥ {target:.0f}", ours=ours, met=ours >= target)
    deployment = like(PROFILE, 25.0, 20, 100)
    simulate(deployment, Symphony(), Load(Poisson(), 40_000.0), seconds=50.0)
    before_mb, before = resident_mb(), time.process_time()
    summary = simulate(deployment, Symphony(), Load(Poisson(), 40_000.0), seconds=LONG / 40_000.0).summary
    grown = resident_mb() - before_mb
    bench.row(queries=summary.submitted, cpu_s=time.process_time() - before, before_mb=before_mb, grown_mb=grown)
    bench.claim(
        "100 million queries: growth of memory after 2 million (MB)",
        paper="—",
        target="≤ 5",
        ours=grown,
        met=grown <= 5,
    )
    ours = min(submit_us() for _ in range(3))
    bench.claim("one submit from Python, median (µs)", paper="—", target="≤ 3", ours=ours, met=ours <= 3)
    identical = same_bytes()
    bench.claim(
        "same seed, two processes: result files",
        paper="—",
        target="byte-identical",
        ours="identical" if identical else "differ",
        met=identical,
    )
    ours = help_seconds()
    bench.claim("stretto --help (s)", paper="—", target="≤ 0.3", ours=ours, met=ours <= 0.3)
    bench.finish()


if __name__ == "__main__":
    main()
