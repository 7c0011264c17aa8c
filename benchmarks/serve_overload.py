"""Overload: three times what the server can carry, for a minute. Goodput stays, memory is flat, refusals come at once.

One variant alone (resnet_m, some milliseconds an image). Peak goodput, in images a second, is the best over loads
that rise until the server is saturated; then three times that load for 60 s.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.harness import Benchmark
from benchmarks.serving import every
from stretto.cli.queries import sample_of
from stretto.cli.started import Started, started_server
from stretto.client.load import LoadOutcome, LoadResult, LoadSpec, run_load

APPLICATION = "fashion"
VARIANT = "resnet_m"
ROWS = (
    4  # images of a request, so that the worker and not the sockets is the limit; they are answered or refused as one
)
# Images/s, until less than SATURATED of them is answered on time.
FIRST_PROBE, PROBE_STEP, MOST_PROBES = 100.0, 1.25, 24
SATURATED = 0.85
REFUSALS = (LoadOutcome.OVERLOADED, LoadOutcome.INFEASIBLE, LoadOutcome.EXPIRED)


def drive(server: Started, rate: float, seconds: float, seed: int) -> LoadResult:
    inputs, labels = sample_of(APPLICATION)
    return run_load(
        LoadSpec(
            APPLICATION,
            inputs,
            labels,
            url=server.url,
            rate=rate / ROWS,
            rows=ROWS,
            seconds=seconds,
            seed=seed,
            connections=2000,
        )
    )


def note(bench: Benchmark, what: str, result: LoadResult) -> float:
    """A row for this run; its goodput."""
    summary = result.summary()
    refused = np.isin(result.outcome, [int(outcome) for outcome in REFUSALS])
    overloaded = result.outcome == LoadOutcome.OVERLOADED
    bench.row(
        run=what,
        offered=ROWS * summary["offered_rate"],
        goodput=ROWS * summary["goodput"],
        on_time=summary["on_time_share"],
        late=summary["outcomes"]["late"],
        overloaded=int(overloaded.sum()),
        other_refusals=int(refused.sum() - overloaded.sum()),
        connection_errors=summary["connection_errors"],
        refusal_p99_ms=_p99(result.latency_ns[refused]),
        lag_p99_ms=summary["lag_ms"]["p99"],
    )
    return float(ROWS * summary["goodput"])


def probed(bench: Benchmark, server: Started) -> dict[float, float]:
    """Goodput by load, up to where the server is plainly saturated."""
    goodput: dict[float, float] = {}
    rate = FIRST_PROBE
    for _ in range(MOST_PROBES):
        result = drive(server, rate, 6.0, 1)
        goodput[rate] = note(bench, "probe", result)
        if goodput[rate] < SATURATED * ROWS * result.summary()["offered_rate"]:
            return goodput
        rate *= PROBE_STEP
    raise SystemExit(f"the server is not saturated at {rate:.0f} images/s; probe further")


def _p99(latency_ns: np.ndarray) -> float:
    return float(np.percentile(latency_ns, 99) / 1e6) if len(latency_ns) else 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    bench = Benchmark("serve_overload")
    served = [f"zoo:{APPLICATION}", "--variant", VARIANT, "--workers", "1", "--log-level", "error"]
    with started_server(served) as server:
        drive(server, FIRST_PROBE, 2.0, 7)
        goodput = probed(bench, server)
        peak = max(goodput.values())
        capacity = max(goodput, key=lambda rate: goodput[rate])
        drive(server, 3 * capacity, 5.0, 2)  # so that memory has grown to what such a load takes
        memory: list[int] = []
        with every(1.0, lambda: memory.append(server.memory_bytes())):
            result = drive(server, 3 * capacity, arguments.seconds, 3)
        at_three = note(bench, "3× capacity", result)
        after = drive(server, capacity / 2, 6.0, 4)
        note(bench, "half of capacity, after", after)
    refused = np.isin(result.outcome, [int(outcome) for outcome in REFUSALS])
    refusal_ms = _p99(result.latency_ns[refused])
    half = len(memory) // 2
    growth = np.median(memory[half:]) - np.median(memory[:half])
    bench.claim(
        "goodput at 3× capacity, of peak", paper="-", target="≥ 0.95", ours=at_three / peak, met=at_three >= 0.95 * peak
    )
    bench.claim(
        "memory, second half of the minute over the first, MB",
        paper="-",
        target="≤ 5 (flat)",
        ours=growth / 1e6,
        met=growth <= 5e6,
    )
    bench.claim("p99 of refusals, ms", paper="-", target="< 10", ours=refusal_ms, met=refusal_ms < 10)
    share = after.summary()["on_time_share"]
    bench.claim("on time at half of that load, after it", paper="-", target="≥ 0.99", ours=share, met=share >= 0.99)
    bench.finish()


if __name__ == "__main__":
    main()
