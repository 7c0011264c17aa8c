"""Markovian arrival processes: gaps that depend on a hidden state, so that bursts and lulls can be given exactly.

The hidden state moves by D0 without an arrival and by D1 with one; D0 + D1 generates a Markov chain with stationary
vector π, and the mean rate is π·D1·1. Markov-modulated Poisson processes are the case of a diagonal D1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike, NDArray

from stretto.core.compiled import compiled
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S
from stretto.sim.choice import AliasTables, shares_of
from stretto.sim.processes import MAX_RATE, check_rate, generator, whole_ns

MAX_STATES = 256
MAX_EVENTS = 10**11  # moves of the hidden state in one run
_TOLERANCE = 1e-9  # of a row sum, against the largest rate


@dataclass(frozen=True, eq=False)
class MarkovianArrivals:
    """`d0` and `d1` hold rates per second. The process starts from its stationary distribution."""

    d0: NDArray[np.float64]
    d1: NDArray[np.float64]
    stationary: NDArray[np.float64] = field(init=False)
    splits: ClassVar[bool] = False

    def __init__(self, d0: ArrayLike, d1: ArrayLike) -> None:
        hidden, arriving = _square("D0", d0), _square("D1", d1)
        if hidden.shape != arriving.shape:
            raise StrettoError(f"D0 has {len(hidden)} rows and D1 has {len(arriving)}; they need one shape")
        moves = hidden - np.diag(np.diag(hidden))
        if (moves < 0).any():
            raise StrettoError("D0 has a negative entry outside its diagonal")
        if (arriving < 0).any():
            raise StrettoError("D1 has a negative entry")
        totals = (hidden + arriving).sum(axis=1)
        largest = float(np.abs(hidden).max(initial=0.0) + arriving.max(initial=0.0))
        if largest > MAX_RATE:
            raise StrettoError(f"a rate of D0 or D1 is above {MAX_RATE:.0e} per second")
        wrong = np.flatnonzero(np.abs(totals) > _TOLERANCE * largest)
        if len(wrong):
            raise StrettoError(
                f"row {wrong[0] + 1} of D0 + D1 sums to {totals[wrong[0]]:g}; every row must sum to zero"
            )
        np.fill_diagonal(hidden, 0.0)
        np.fill_diagonal(hidden, -(hidden + arriving).sum(axis=1))
        for array in (hidden, arriving):
            array.setflags(write=False)
        object.__setattr__(self, "d0", hidden)
        object.__setattr__(self, "d1", arriving)
        object.__setattr__(self, "stationary", _stationary(moves + arriving))
        check_rate("the mean rate of D0 and D1", self.mean_rate())

    def mean_rate(self, seconds: float | None = None) -> float:
        return float(self.stationary @ self.d1.sum(axis=1))

    def at_rate(self, rate: float) -> MarkovianArrivals:
        """Time runs faster or slower: bursts keep their number of queries, not their length."""
        check_rate("the mean rate of Markovian arrivals", rate)
        factor = rate / self.mean_rate()
        return MarkovianArrivals(self.d0 * factor, self.d1 * factor)

    def blocks(self, seed: SeedSequence, size: int, end_ns: int) -> Iterator[NDArray[np.int64]]:
        states = len(self.d0)
        exit_rate = -np.diag(self.d0)
        if float(self.stationary @ exit_rate) * end_ns / NS_PER_S > MAX_EVENTS:
            raise StrettoError(f"the hidden state of Markovian arrivals would move more than {MAX_EVENTS:.0e} times")
        # Next states 0 … states-1 are reached without an arrival, states … 2·states-1 with one.
        moves = np.hstack((self.d0 - np.diag(np.diag(self.d0)), self.d1))
        lasting = exit_rate > 0
        moves[~lasting] = 1.0  # never entered from the stationary distribution
        tables = AliasTables.of([(range(2 * states), shares_of("states", row)) for row in moves])
        hold_ns = np.divide(NS_PER_S, exit_rate, out=np.zeros(states), where=lasting)
        start_seed, hold_seed, move_seed = seed.spawn(3)
        state = int(generator(start_seed).choice(states, p=self.stationary))
        hold_random, move_random = generator(hold_seed), generator(move_seed)
        holds, draws, times = np.empty(size), np.empty(size), np.empty(size)
        now = 0.0
        while now < end_ns:
            hold_random.standard_exponential(out=holds)
            move_random.random(out=draws)
            arrived, state, now = _wander(
                state, now, holds, draws, hold_ns, tables.keep, tables.value, tables.other, times
            )
            if arrived:
                yield whole_ns(times[:arrived])
        yield whole_ns(np.array([now]))  # so that the last block reaches the end


def _square(name: str, matrix: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise StrettoError(f"{name} is not a matrix of numbers") from None
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not 1 <= len(array) <= MAX_STATES:
        raise StrettoError(f"{name} must be a square matrix of 1 to {MAX_STATES} rows")
    if not np.isfinite(array).all():
        raise StrettoError(f"{name} has an entry that is not a finite number")
    return array


def _stationary(moves: NDArray[np.float64]) -> NDArray[np.float64]:
    """π of the chain with these rates, by the elimination of Grassmann, Taksar and Heyman, which never subtracts."""
    states = len(moves)
    reach = np.eye(states, dtype=np.int64) + (moves > 0)
    for _ in range(states.bit_length()):
        reach = np.minimum(reach @ reach, 1)
    recurrent = np.flatnonzero(reach.all(axis=0))  # reachable from every state
    if not len(recurrent):
        raise StrettoError(
            "D0 + D1 falls apart into states that never meet, so its stationary distribution is not unique"
        )
    rates = moves[np.ix_(recurrent, recurrent)].copy()
    np.fill_diagonal(rates, 0.0)
    for last in range(len(recurrent) - 1, 0, -1):
        rates[:last, last] /= rates[last, :last].sum()
        rates[:last, :last] += np.outer(rates[:last, last], rates[last, :last])
    weights = np.ones(len(recurrent))
    for state in range(1, len(recurrent)):
        weights[state] = weights[:state] @ rates[:state, state]
    distribution = np.zeros(states)
    distribution[recurrent] = weights / weights.sum()
    return distribution


@compiled
def _wander(
    state: int, now: float, holds: Any, draws: Any, hold_ns: Any, keep: Any, value: Any, other: Any, times: Any
) -> tuple[int, int, float]:
    """One move of the hidden state per draw; arrival times go to `times`. Returns their number, the state, the time."""
    options = 2 * len(hold_ns)
    arrived = 0
    for i in range(len(draws)):
        now += holds[i] * hold_ns[state]
        draw = draws[i] * options
        column = min(int(draw), options - 1)
        entry = state * options + column
        state = value[entry] if draw - column < keep[entry] else other[entry]
        if state >= len(hold_ns):
            state -= len(hold_ns)
            times[arrived] = now
            arrived += 1
    return arrived, state, now
