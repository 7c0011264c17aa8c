"""What load to send where; everything in it is checked before the first request leaves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.client.address import DEFAULT_URL
from stretto.client.asking import MAX_DEADLINE_MS
from stretto.client.tensors import Array
from stretto.core.errors import StrettoError
from stretto.sim.processes import Gamma, Poisson, Process, TwoLevel, Uniform
from stretto.sim.traces import RateTrace

MAX_RATE = 100_000.0  # requests/s; more than one process could send
MAX_SECONDS = 86_400.0
MAX_REQUESTS = 5_000_000  # some 40 bytes of memory each
MAX_ROWS = 10_000
MAX_CONNECTIONS = 10_000
KINDS = "poisson, uniform, gamma:SHAPE or burst:LOW:HIGH:PERIOD_S:SHARE"


@dataclass(frozen=True, eq=False)
class LoadSpec:
    """`kind` is one of KINDS: a burst goes from LOW to HIGH requests/s for SHARE of every PERIOD_S seconds.

    `rate` is the mean in requests/s; a burst or a trace has its own, and is scaled where a rate is given. `trace` is a
    CSV of second,rate in place of a kind. Without `inputs`, the sample of the zoo's application of that name is sent;
    with `labels`, answers are checked. Without `deadline_ms` the application's SLO holds.
    """

    application: str
    url: str = DEFAULT_URL
    rate: float | None = None
    seconds: float = 10.0
    kind: str = "poisson"
    trace: Path | None = None
    rows: int = 1
    deadline_ms: float | None = None
    version: str = ""
    min_accuracy: float | None = None
    connections: int = 512
    seed: int = 0
    inputs: Array | None = None
    labels: NDArray[np.int64] | None = None
    token: str | None = None
    ca_file: Path | None = None
    grace_ms: float = 1_000.0

    def __post_init__(self) -> None:
        if not self.application:
            raise StrettoError("name the application that the load is for")
        _check("the rate", self.rate, 0, MAX_RATE, "requests/s")
        _check("the duration", self.seconds, 0, MAX_SECONDS, "seconds")
        _check("the deadline", self.deadline_ms, 0, MAX_DEADLINE_MS, "ms")
        _check("the grace", self.grace_ms, 0, MAX_DEADLINE_MS, "ms")
        if self.min_accuracy is not None and not 0 <= self.min_accuracy <= 1:
            raise StrettoError(f"the least accuracy is {self.min_accuracy}; it is a fraction from 0 to 1")
        if not 1 <= self.rows <= MAX_ROWS:
            raise StrettoError(f"a request has from 1 to {MAX_ROWS} rows, not {self.rows}")
        if not 1 <= self.connections <= MAX_CONNECTIONS:
            raise StrettoError(f"there may be from 1 to {MAX_CONNECTIONS} connections, not {self.connections}")
        if not 0 <= self.seed < 2**63:
            raise StrettoError(f"the seed is {self.seed}; it is a whole number from 0 on")

    @property
    def arrivals(self) -> str:
        """For titles."""
        return self.kind if self.trace is None else self.trace.name


def arrival_times_ns(spec: LoadSpec) -> NDArray[np.int64]:
    """When each request is due, from the start; the same spec gives the same times."""
    process = _process(spec)
    end_ns = round(spec.seconds * 1e9)
    expected = process.mean_rate(spec.seconds) * spec.seconds
    if expected > MAX_REQUESTS:
        raise StrettoError(f"this load is about {expected:,.0f} requests; at most {MAX_REQUESTS:,} are sent in one run")
    blocks: list[NDArray[np.int64]] = []
    count = 0
    for block in process.blocks(np.random.SeedSequence(spec.seed), max(64, min(65_536, round(1.2 * expected))), end_ns):
        blocks.append(block.copy())
        count += len(block)
        if block[-1] >= end_ns:
            break
        if count > 2 * MAX_REQUESTS:
            raise StrettoError("this load bursts into too many requests; lower its rate or its duration")
    times = np.concatenate(blocks)
    times = times[: int(np.searchsorted(times, end_ns))]
    if not len(times):
        raise StrettoError(f"no request falls due within {spec.seconds:g} s; raise the rate or the duration")
    return times


def _process(spec: LoadSpec) -> Process:
    if spec.trace is not None:
        if spec.kind != "poisson":
            raise StrettoError(f"a trace has Poisson arrivals at its own rates; leave the kind {spec.kind[:40]!r} out")
        trace = RateTrace.read(spec.trace)
        process: Process = trace if spec.rate is None else trace.at_rate(spec.rate)
    else:
        word, _, rest = spec.kind.partition(":")
        if word == "burst":
            burst = _burst(spec.kind, rest)
            process = burst if spec.rate is None else burst.at_rate(spec.rate)
        else:
            if spec.rate is None:
                raise StrettoError("say how many requests a second to send, as --rate 200")
            process = _steady(spec.kind, word, rest).at_rate(spec.rate)
    _check("the mean rate", process.mean_rate(spec.seconds), -1, MAX_RATE, "requests/s")
    return process


def _steady(kind: str, word: str, rest: str) -> Process:
    match word, bool(rest):
        case "poisson", False:
            return Poisson()
        case "uniform", False:
            return Uniform()
        case "gamma", True:
            return Gamma(_number(kind, rest))
    raise StrettoError(f"arrivals of kind {kind[:40]!r} are not known; use {KINDS}")


def _burst(kind: str, rest: str) -> TwoLevel:
    parts = rest.split(":")
    if len(parts) != 4:
        raise StrettoError(
            f"a burst is written as burst:LOW:HIGH:PERIOD_S:SHARE, as burst:200:1000:10:0.2, not {kind!r:.60}"
        )
    low, high, period, share = (_number(kind, part) for part in parts)
    if not 0 < share < 1:
        raise StrettoError(
            f"the share of a burst is {share:g}; it is the part of the period at the high rate, from 0 to 1"
        )
    _check("the period of a burst", period, 0, MAX_SECONDS, "seconds")
    _check("the high rate of a burst", high, 0, MAX_RATE, "requests/s")
    return TwoLevel(low, high, period * (1 - share), period * share)


def _number(kind: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise StrettoError(f"{text[:20]!r} in {kind[:40]!r} is no number; use {KINDS}")
    return value


def _check(what: str, value: float | None, above: float, highest: float, unit: str) -> None:
    if value is not None and not above < value <= highest:
        raise StrettoError(f"{what} is {value:g} {unit}; it must be above {above:g} and at most {highest:,.0f}")
