"""The proxy and the kernel's own token bucket let the same through, where this machine has one to ask."""

from __future__ import annotations

import time

import pytest

from benchmarks.wire_rate import WARM_UP_S, through_proxy, through_tbf, why_no_tbf
from stretto.core.bandwidth import BYTES_PER_MBIT, constant


@pytest.mark.parametrize("mbit", [4.0, 20.0])
def test_the_proxy_lets_through_what_tbf_does(mbit: float) -> None:
    reason = why_no_tbf()
    if reason:
        pytest.skip(f"not compared with tc tbf: {reason}")
    ratios: list[float] = []
    while len(ratios) < 4 and not any(0.9 < ratio < 1.1 for ratio in ratios):  # others may take the processor away
        arrivals, _ = through_proxy(constant(mbit * BYTES_PER_MBIT), 1.0)
        rate = arrivals.rate(arrivals.at_ns[0] + round(WARM_UP_S * 1e9), 1.0)
        ratios.append(rate / through_tbf(mbit, 1.0)["wire"])
    if not 0.9 < ratios[-1] < 1.1 and share_of_a_core() < 0.95:
        pytest.skip(f"this machine is too busy to time packets: {ratios}")
    assert 0.9 < ratios[-1] < 1.1, ratios


def share_of_a_core() -> float:
    """What this thread gets of the time while it wants all of it."""
    began_s, cpu_s = time.perf_counter(), time.thread_time()
    while time.perf_counter() - began_s < 0.3:
        pass
    return (time.thread_time() - cpu_s) / (time.perf_counter() - began_s)
