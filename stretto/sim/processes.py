"""Arrival processes: the law by which the queries of one stream follow each other.

A process yields its arrival times in blocks, for ever. Times depend on the seed only, never on the size of the blocks:
numbers are drawn in one order and gaps are summed one after the other. Every process is stationary or periodic from
time 0, so that its mean rate holds from the first second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike, NDArray

from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S

MIN_RATE = 1e-30  # queries/s; below, nothing would ever arrive
MAX_RATE = 1e9  # one query each nanosecond
MAX_SECONDS = 4_000_000.0  # 46 days: a float64 of nanoseconds still resolves half a nanosecond
MAX_PERIOD_SECONDS = 1e9
SHAPES = (0.001, 1_000_000.0)

_BEYOND_NS = 2.0**62  # later than any end, and still an int64


class Process(Protocol):
    """One stream of arrivals. `splits`: marking its arrivals at random gives independent streams of the same law."""

    splits: ClassVar[bool]

    def mean_rate(self, seconds: float | None = None) -> float:
        """Expected queries/s, over the first `seconds` or (None) in the long run."""
        ...

    def at_rate(self, rate: float) -> Process:
        """The same law, scaled to a long-run mean rate."""
        ...

    def blocks(self, seed: SeedSequence, size: int, end_ns: int) -> Iterator[NDArray[np.int64]]:
        """Rising times in ns, in blocks of 1 … `size`, until at least one block reached `end_ns`."""
        ...


def check_rate(what: str, rate: float) -> None:
    """Refuses a rate that is not a number, not above zero, or absurd."""
    if not (isinstance(rate, int | float | np.number) and MIN_RATE <= rate <= MAX_RATE):
        raise StrettoError(f"{what} is {rate!r:.40}; it must be above 0 and at most {MAX_RATE:.0e} queries/s")


def generator(seed: SeedSequence) -> np.random.Generator:
    """The random numbers of one stream."""
    return np.random.Generator(np.random.SFC64(seed))


def whole_ns(times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Times rounded down to nanoseconds; `times` is used up."""
    return np.minimum(times, _BEYOND_NS, out=times).astype(np.int64)


@dataclass(frozen=True)
class Uniform:
    """Equal gaps. `phase` is the first arrival as a fraction of a gap; None draws it, so that streams differ."""

    rate: float = 1.0
    phase: float | None = None
    splits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_rate("the rate of uniform arrivals", self.rate)
        if self.phase is not None and not 0 <= self.phase < 1:
            raise StrettoError(f"the phase of uniform arrivals is {self.phase}; it is a fraction from 0 to below 1")

    def mean_rate(self, seconds: float | None = None) -> float:
        return self.rate

    def at_rate(self, rate: float) -> Uniform:
        return replace(self, rate=rate)

    def blocks(self, seed: SeedSequence, size: int, end_ns: int) -> Iterator[NDArray[np.int64]]:
        phase = generator(seed).random() if self.phase is None else self.phase
        first = 0
        while True:
            # Each time from its number, not from the one before, so that gaps never drift.
            times = np.arange(first, first + size, dtype=np.float64)
            times += phase
            times *= NS_PER_S / self.rate
            yield whole_ns(times)
            first += size


@dataclass(frozen=True)
class Poisson:
    """Exponential gaps."""

    rate: float = 1.0
    splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rate("the rate of Poisson arrivals", self.rate)

    def mean_rate(self, seconds: float | None = None) -> float:
        return self.rate

    def at_rate(self, rate: float) -> Poisson:
        return replace(self, rate=rate)

    def blocks(self, seed: SeedSequence, size: int, end_ns: int) -> Iterator[NDArray[np.int64]]:
        for counts in _unit_poisson(seed, size):
            counts *= NS_PER_S / self.rate
            yield whole_ns(counts)


@dataclass(frozen=True)
class Gamma:
    """Gamma distributed gaps: shape 1 is Poisson, below 1 is bursty (squared variation 1/shape), above 1 is smooth."""

    shape: float
    rate: float = 1.0
    splits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_rate("the rate of gamma arrivals", self.rate)
        if not SHAPES[0] <= self.shape <= SHAPES[1]:
            raise StrettoError(
                f"the shape of gamma arrivals is {self.shape}; it must be between {SHAPES[0]:g} and {SHAPES[1]:g}"
            )

    def mean_rate(self, seconds: float | None = None) -> float:
        return self.rate

    def at_rate(self, rate: float) -> Gamma:
        return replace(self, rate=rate)

    def blocks(self, seed: SeedSequence, size: int, end_ns: int) -> Iterator[NDArray[np.int64]]:
        random = generator(seed)
        scale = NS_PER_S / (self.rate * self.shape)
        # The gap that covers time 0 is length-biased, Gamma(shape + 1), and 0 lies anywhere in it. Starting with a
        # plain gap would add (1/shape - 1)/2 queries to the start of every stream.
        last = random.random() * random.standard_gamma(self.shape + 1) * scale
        yield whole_ns(np.array([last]))
        while True:
            times = random.standard_gamma(self.shape, size)
            times *= scale
            times[0] += last
            np.cumsum(times, out=times)
            last = float(times[-1])
            yield whole_ns(times)


@dataclass(frozen=True)
class TwoLevel:
    """Poisson at rate `low` for `low_seconds`, then at `high` for `high_seconds`, and so on."""

    low: float
    high: float
    low_seconds: float
    high_seconds: float
    cycle: RateCycle = field(init=False, repr=False, compare=False)
    splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rate("the high rate of two-level arrivals", self.high)
        if not 0 <= self.low <= self.high:
            raise StrettoError(
                f"the low rate of two-level arrivals is {self.low}; it must be between 0 and {self.high}"
            )
        if not (self.low_seconds > 0 and self.high_seconds > 0):
            raise StrettoError("both parts of the period of two-level arrivals must be above zero seconds")
        rates = (self.low, self.high)
        object.__setattr__(self, "cycle", RateCycle.of((self.low_seconds, self.high_seconds), rates, rates))

    def mean_rate(self, seconds: float | None = None) -> float:
        return self.cycle.mean_rate(seconds)

    def at_rate(self, rate: float) -> Self:
        check_rate("the mean rate of two-level arrivals", rate)
        factor = rate / self.mean_rate()
        return replace(self, low=self.low * factor, high=self.high * factor)

    def blocks(self, seed: SeedSequence, size: int, end_ns: int) -> Iterator[NDArray[np.int64]]:
        return self.cycle.blocks(seed, size)


@dataclass(frozen=True, eq=False)
class RateCycle:
    """A rate that is linear in pieces and repeats: Poisson arrivals by exact inversion of the expected count.

    Piece i begins at `start_ns[i]` with `rate[i]` queries/ns and `slope[i]` queries/ns²; `count[i]` are expected
    before it. The last entry of `start_ns` and `count` closes the cycle.
    """

    start_ns: NDArray[np.float64]
    rate: NDArray[np.float64]
    slope: NDArray[np.float64]
    count: NDArray[np.float64]

    @staticmethod
    def of(seconds: ArrayLike, begin: ArrayLike, end: ArrayLike) -> RateCycle:
        """From each piece's length in seconds and its rates (queries/s) at its begin and end."""
        length_ns = np.asarray(seconds, dtype=np.float64) * NS_PER_S
        first = np.asarray(begin, dtype=np.float64) / NS_PER_S
        last = np.asarray(end, dtype=np.float64) / NS_PER_S
        start_ns = np.concatenate(([0.0], np.cumsum(length_ns)))
        count = np.concatenate(([0.0], np.cumsum((first + last) / 2 * length_ns)))
        if not start_ns[-1] <= MAX_PERIOD_SECONDS * NS_PER_S:
            raise StrettoError(f"rates may repeat after at most {MAX_PERIOD_SECONDS:.0e} seconds")
        check_rate("the mean of rates over time", float(count[-1] / start_ns[-1] * NS_PER_S))
        return RateCycle(start_ns, first, (last - first) / length_ns, count)

    def expected(self, until_ns: float) -> float:
        """Queries expected before `until_ns`."""
        cycles, rest = divmod(until_ns, float(self.start_ns[-1]))
        piece = min(int(np.searchsorted(self.start_ns, rest, side="right")) - 1, len(self.rate) - 1)
        into = rest - self.start_ns[piece]
        inside = self.count[piece] + into * (self.rate[piece] + self.slope[piece] * into / 2)
        return float(cycles * self.count[-1] + inside)

    def mean_rate(self, seconds: float | None = None) -> float:
        """Queries/s over the first `seconds`, or over the cycle."""
        until_ns = float(self.start_ns[-1]) if seconds is None else seconds * NS_PER_S
        return self.expected(until_ns) / until_ns * NS_PER_S

    def times(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """When each of `counts` queries is expected to have come, in ns: the inverse of `expected`."""
        cycles = np.floor(counts / self.count[-1])
        rest = np.clip(counts - cycles * self.count[-1], 0.0, self.count[-1])
        # From the right, so that a piece of rate zero is stepped over.
        piece = np.minimum(np.searchsorted(self.count, rest, side="right") - 1, len(self.rate) - 1)
        rest -= self.count[piece]
        rate = self.rate[piece]
        root = np.sqrt(np.maximum(rate * rate + 2 * self.slope[piece] * rest, 0.0))
        into: NDArray[np.float64] = np.divide(2 * rest, rate + root, out=np.zeros_like(rest), where=rate + root > 0)
        into += self.start_ns[piece]
        np.minimum(into, self.start_ns[piece + 1], out=into)
        into += cycles * self.start_ns[-1]
        return into

    def blocks(self, seed: SeedSequence, size: int) -> Iterator[NDArray[np.int64]]:
        """Poisson arrivals at this rate."""
        last = 0
        for counts in _unit_poisson(seed, size):
            times = whole_ns(self.times(counts))
            # Rounding where two pieces meet may step back by a nanosecond.
            times[0] = max(last, int(times[0]))
            np.maximum.accumulate(times, out=times)
            last = int(times[-1])
            yield times


def _unit_poisson(seed: SeedSequence, size: int) -> Iterator[NDArray[np.float64]]:
    """Poisson arrivals at rate 1, in an array that the next block overwrites."""
    random = generator(seed)
    times = np.empty(size)
    last = 0.0
    while math.isfinite(last):
        random.standard_exponential(out=times)
        times[0] += last
        np.cumsum(times, out=times)
        last = float(times[-1])
        yield times
