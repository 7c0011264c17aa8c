"""When requests are due: a few arrival processes, drawn as one array. The same spec gives the same moments.

Each one has its mean rate from the first moment on. stretto.sim has more of them, for loads without end; whoever wants
another passes its moments to LoadSpec.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stretto.client.load.spec import KINDS, MAX_RATE, MAX_REQUESTS, MAX_SECONDS, LoadSpec, check_range
from stretto.core.errors import StrettoError

MIN_PERIOD_S = 0.01
SHAPES = (0.01, 10_000.0)

Times = NDArray[np.float64]


def arrival_times_ns(spec: LoadSpec) -> NDArray[np.int64]:
    """Rising, from the start of the load."""
    if spec.times_ns is not None:
        times_ns = np.asarray(spec.times_ns, dtype=np.int64)
        if times_ns.ndim != 1 or (np.diff(times_ns, prepend=0) < 0).any():
            raise StrettoError("the moments of a load must rise, from 0 on")
    else:
        times_ns = (_times(spec) * 1e9).astype(np.int64)
    times_ns = times_ns[: int(np.searchsorted(times_ns, round(spec.seconds * 1e9)))]
    if not len(times_ns):
        raise StrettoError(f"no request falls due within {spec.seconds:g} s; raise the rate or the duration")
    if len(times_ns) > MAX_REQUESTS:
        raise StrettoError(f"these are {len(times_ns):,} requests; at most {MAX_REQUESTS:,} are sent in one run")
    return times_ns


def _times(spec: LoadSpec) -> Times:
    """In seconds."""
    word, _, rest = spec.kind.partition(":")
    random = np.random.default_rng((spec.seed, 0))
    if word == "burst":
        return _burst(spec, rest, random)
    if spec.rate is None:
        raise StrettoError("say how many requests a second to send, as --rate 200")
    _check_count(spec.rate * spec.seconds)
    match word, bool(rest):
        case "poisson", False:
            return _unit_poisson(spec.rate * spec.seconds, random) / spec.rate
        case "uniform", False:
            return (np.arange(math.ceil(spec.rate * spec.seconds), dtype=np.float64) + random.random()) / spec.rate
        case "gamma", True:
            return _gamma(spec.rate, spec.seconds, _number(spec.kind, rest), random)
    raise StrettoError(f"arrivals of kind {spec.kind[:40]!r} are not known; use {KINDS}")


def _unit_poisson(until: float, random: np.random.Generator) -> Times:
    """Poisson arrivals at rate 1 before `until`."""
    return _sums(random.standard_exponential, random.standard_exponential(), until)


def _gamma(rate: float, seconds: float, shape: float, random: np.random.Generator) -> Times:
    """Gaps with a squared variation of 1/shape."""
    check_range("the shape of gamma arrivals", shape, 0, SHAPES[1], "")
    if shape < SHAPES[0]:
        raise StrettoError(f"the shape of gamma arrivals is {shape:g}; it must be at least {SHAPES[0]:g}")
    # The gap that covers the start is length-biased, Gamma(shape + 1), and the start lies anywhere in it.
    first = random.random() * random.standard_gamma(shape + 1) / shape
    return _sums(lambda count: random.standard_gamma(shape, count) / shape, first, rate * seconds) / rate


def _burst(spec: LoadSpec, rest: str, random: np.random.Generator) -> Times:
    """Poisson at two rates in turn, by inversion of the expected count."""
    parts = rest.split(":")
    if len(parts) != 4:
        raise StrettoError(f"a burst is burst:LOW:HIGH:PERIOD_S:SHARE, as burst:200:1000:10:0.2, not {spec.kind!r:.60}")
    low, high, period_s, share = (_number(spec.kind, part) for part in parts)
    check_range("the high rate of a burst", high, 0, MAX_RATE, "requests/s")
    check_range("the period of a burst", period_s, 0, MAX_SECONDS, "seconds")
    if not 0 <= low <= high or not 0 < share < 1 or period_s < MIN_PERIOD_S:
        raise StrettoError(
            f"a burst has a LOW rate from 0 to HIGH, a period of at least {MIN_PERIOD_S} s and a SHARE of it between "
            f"0 and 1, not {spec.kind!r:.60}"
        )
    moments = np.array([0.0, period_s * (1 - share), period_s])
    counts = np.array([0.0, low * moments[1], low * moments[1] + high * period_s * share])
    if spec.rate is not None:
        counts *= spec.rate * period_s / counts[-1]
    periods, remainder = divmod(spec.seconds, period_s)
    until = float(periods * counts[-1] + np.interp(remainder, moments, counts))
    _check_count(until)
    cycles, into = np.divmod(_unit_poisson(until, random), counts[-1])
    return cycles * period_s + np.interp(into, counts, moments)


def _sums(gaps: Callable[[int], Times], first: float, until: float) -> Times:
    """The sums of `first` and gaps of mean 1, as far as they stay below `until`."""
    blocks = [np.array([first])]
    while blocks[-1][-1] < until:
        last = float(blocks[-1][-1])
        more = until - last
        blocks.append(last + np.cumsum(gaps(math.ceil(more + 4 * math.sqrt(more)) + 16)))
    sums = np.concatenate(blocks)
    return sums[: int(np.searchsorted(sums, until))]


def _check_count(expected: float) -> None:
    if expected > MAX_REQUESTS:
        raise StrettoError(f"this load is about {expected:,.0f} requests; at most {MAX_REQUESTS:,} are sent in one run")


def _number(kind: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise StrettoError(f"{text[:20]!r} in {kind[:40]!r} is no number; use {KINDS}")
    return value
