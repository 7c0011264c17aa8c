"""Goodput: the highest rate at which every application's p99 latency meets its SLO (Symphony section 2.1).

p99 ≤ SLO is the same as: at most one query in a hundred is late, dropped or failed. That is counted exactly, so the
search rests on bad rates, not on histogram percentiles. A rate holds if it holds for more than half of the seeds (the
median bad rate is within the limit): near its limit a schedule may collapse in one run and not in another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stretto.core.errors import StrettoError
from stretto.sim.results import Summary


@dataclass(frozen=True)
class Probe:
    """One simulated rate."""

    rate: float
    seed: int
    bad_rate: float  # of the worst application; 1 where no query came, which shows nothing
    goodput: float

    def is_good(self, max_bad: float) -> bool:
        return self.bad_rate <= max_bad


@dataclass(frozen=True)
class GoodputResult:
    """`rate` is the highest rate that held, `failed` the lowest that did not.

    Both are zero where no rate held, and equal where every rate up to a million times the guess did.
    """

    rate: float
    failed: float
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
    """Bisect between a rate that holds and one that does not, starting from `guess` (queries/s)."""
    if not guess > 0:
        raise StrettoError(f"the search needs a first rate above zero, not {guess}")
    if not 0 < tolerance < 1:
        raise StrettoError(f"the tolerance is a fraction between 0 and 1, not {tolerance}")
    if not seeds:
        raise StrettoError("the search needs at least one seed")
    probes: list[Probe] = []

    def holds(rate: float) -> bool:
        """Most seeds hold; stops as soon as that is settled either way."""
        good = bad = 0
        for seed in seeds:
            summary = run(rate, seed)
            bad_rate = summary.worst_bad_rate if summary.submitted else 1.0
            probes.append(Probe(rate, seed, bad_rate, summary.goodput))
            if probes[-1].is_good(max_bad):
                good += 1
            else:
                bad += 1
            if 2 * max(good, bad) > len(seeds):
                break
        return good > bad

    low, high = _bracket(holds, guess)
    width = high - low
    while high - low > tolerance * high:
        middle = (low + high) / 2
        if holds(middle):
            low = middle
        else:
            high = middle
        if progress is not None:
            progress(min(1.0, math.log(width / (high - low)) / math.log(width / (tolerance * high))))
    if progress is not None:
        progress(1.0)
    return GoodputResult(low, high, tuple(probes))


def _bracket(holds: Callable[[float], bool], guess: float) -> tuple[float, float]:
    """A rate that holds and one that does not; (0, 0) where even a millionth of the guess does not hold."""
    factor = 1.25
    low = high = guess
    if holds(guess):
        while high < guess * 1e6:
            high = low * factor
            if not holds(high):
                break
            low = high
            factor = min(factor * factor, 4.0)
        return low, high
    while low > guess * 1e-6:
        low = high / factor
        if holds(low):
            return low, high
        high = low
        factor = min(factor * factor, 4.0)
    return 0.0, 0.0
