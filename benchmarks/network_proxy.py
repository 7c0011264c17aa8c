"""The proxy's rate against the trace it replays and against the kernel's own token bucket, from 1 to 50 Mbit/s.

Payload through the proxy over 2 s, beside what `tc` tbf lets through at the same rate. The kernel counts packets with
their headers and acknowledgements, so its bytes on the wire are what compares with the proxy's payload.
"""

from __future__ import annotations

import argparse

import numpy as np

from benchmarks.harness import Benchmark
from benchmarks.wire_rate import WARM_UP_S, through_proxy, through_tbf, why_no_tbf
from stretto.core.bandwidth import BYTES_PER_MBIT, constant, in_steps

MBITS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
TRACE_MBITS = (10.0, 4.0, 20.0, 1.0, 8.0)
TRACE_STEP_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    bench = Benchmark("network_proxy")
    no_tbf = why_no_tbf()
    ratios, against = [], []
    for mbit in bench.steps(MBITS, len(MBITS), "constant rates"):
        arrivals, _ = through_proxy(constant(mbit * BYTES_PER_MBIT), arguments.seconds)
        rate = arrivals.rate(arrivals.at_ns[0] + round(WARM_UP_S * 1e9), arguments.seconds)
        ratios.append(rate / (mbit * BYTES_PER_MBIT))
        row = {"rate": f"{mbit:g} Mbit/s", "proxy_of_rate": ratios[-1]}
        if not no_tbf:
            tbf = through_tbf(mbit, arguments.seconds)
            against.append(rate / tbf["wire"])
            row |= {
                "tbf_of_rate": tbf["wire"] / (mbit * BYTES_PER_MBIT),
                "tbf_payload_of_rate": tbf["payload"] / (mbit * BYTES_PER_MBIT),
                "proxy_of_tbf": against[-1],
            }
        bench.row(**row)
    trace = in_steps([mbit * BYTES_PER_MBIT for mbit in TRACE_MBITS], TRACE_STEP_S)
    arrivals, start_ns = through_proxy(trace, TRACE_STEP_S * len(TRACE_MBITS))
    steps = []
    for number, mbit in enumerate(TRACE_MBITS):
        if number == 0:
            continue  # the sender was still starting
        rate = arrivals.rate(start_ns + round(number * TRACE_STEP_S * 1e9), TRACE_STEP_S)
        steps.append(rate / (mbit * BYTES_PER_MBIT))
        bench.row(rate=f"step of {mbit:g} Mbit/s", proxy_of_rate=steps[-1])
    worst = max(abs(np.array(ratios) - 1))
    bench.claim(
        "largest error of the rate, 1 to 50 Mbit/s over 2 s", paper="-", target="≤ 3%", ours=worst, met=worst <= 0.03
    )
    worst = max(abs(np.array(steps) - 1))
    bench.claim("largest error in a step of a trace", paper="-", target="≤ 3%", ours=worst, met=worst <= 0.03)
    if against:
        worst = max(abs(np.array(against) - 1))
        bench.claim("largest difference from tc tbf", paper="-", target="≤ 3%", ours=worst, met=worst <= 0.03)
    else:
        bench.console.print(f"not compared with tc tbf: {no_tbf}")
    bench.finish()


if __name__ == "__main__":
    main()
