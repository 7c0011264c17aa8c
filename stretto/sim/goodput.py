"""Goodput: the highest rate at which every application's p99 latency meets its SLO (Symphony section 2.1).

p99 ≤ SLO is the same as: at most one query in a hundred is late, dropped or failed. That is counted exactly, so the
search rests on bad rates, not on histogram percentiles. Each seed is searched by itself; the answer is the median.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from stretto.core.errors import StrettoError
from stretto.sim.results import Summary


@dataclass(frozen=True)
class Probe:
    """One simulated rate."""

    rate: float
    seed: int
    bad_rate: float  # of the worst application
    goodput: float

    def is_good(self, max_bad: float) -> bool:
        return self.bad_rate <= max_bad


@dataclass(frozen=True)
class GoodputResult:
    """`rate` is the median over seeds of the highest rate that held."""

    rate: float
    rates: tuple[float, ...]
    probes: tuple[Probe, ...]


def find_goodput(
    run: Callable[[float, int], Summary],
    *,
    guess: float,
    seeds: Sequence[int] = (1,),
    tolerance: float = 0.005,
    max_bad: float = 0.01,
    progress: Callable[[float], None] | None = None,
) -> GoodputResult:
    """Bisect for each seed between a rate that holds and one that does not, starting from `guess` (queries/s)."""
    if not guess > 0:
        raise StrettoError(f"the search needs a first rate above zero, not {guess}")
    if not 0 < tolerance < 1:
        raise StrettoError(f"the tolerance is a fraction between 0 and 1, not {tolerance}")
    if not seeds:
        raise StrettoError("the search needs at least one seed")
    rates: list[float] = []
    probes: list[Probe] = []

    def probe(rate: float, seed: int) -> bool:
        summary = run(rate, seed)
        probes.append(Probe(rate, seed, summary.worst_bad_rate, summary.goodput))
        return probes[-1].is_good(max_bad)

    for number, seed in enumerate(seeds):
        # After the first seed the answer is known roughly, and the bracket starts narrow.
        low, high = _bracket(probe, seed, rates[-1] if rates else guess, 1.05 if rates else 1.5)
        while high - low > tolerance * high:
            middle = (low + high) / 2
            if probe(middle, seed):
                low = middle
            else:
                high = middle
            if progress is not None:
                done = min(1.0, tolerance * high / max(high - low, 1e-300))
                progress((number + done) / len(seeds))
        rates.append(low)
    if progress is not None:
        progress(1.0)
    return GoodputResult(median(rates), tuple(rates), tuple(probes))


def _bracket(probe: Callable[[float, int], bool], seed: int, guess: float, factor: float) -> tuple[float, float]:
    """A rate that holds and one that does not; (0, rate) where even a millionth of the guess does not hold."""
    low = high = guess
    if probe(guess, seed):
        while True:
            high = low * factor
            if not probe(high, seed):
                return low, high
            low = high
            factor = min(factor * factor, 4.0)
            if high > guess * 1e6:
                return low, high
    while True:
        low = high / factor
        if probe(low, seed):
            return low, high
        high = low
        factor = min(factor * factor, 4.0)
        if low < guess * 1e-6:
            return 0.0, 0.0
