"""Verdicts by load: on which rung a load is, what was judged there or near it, and what was asked for.

Loads are told apart in rungs, one for each application. A verdict that came for what was asked is an answer; one that
was known before serves too, but is none. What is not answered is asked for again while the load is there: an order may
be lost, with the judge's process or among others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.profile import NS_PER_S
from stretto.core.verdict import Verdict
from stretto.planners.parts.rates import RATE_WINDOW_NS

RUNG = 1.12  # loads of one application that are judged apart
RUNG_OF_SEVERAL = 1.4  # of each of several applications
RUNG_WITH_CLIENTS = 1.5  # where clients' networks are known: what is judged is a planner that follows rates itself
LEAST_RATE = 1.0
FAR = 2.0  # times the load that it was judged at, or less than that part of it: a verdict says nothing there
FAR_OF_SEVERAL = 4.0  # the latter, where several applications move by themselves
COUNTS = 0.1  # of the load, from where on an application matters for that
STAY = 0.6  # of a rung: so far from its middle a load must be before another rung counts
CHANCE = 3.0  # standard deviations of a count
AGAIN_NS = 30 * NS_PER_S  # until what is not answered is asked for again; twice as long each time
MOST_DOUBLED = 6
MOST_RUNGS = 256  # that anything is remembered of

Rungs = tuple[int, ...]
Rates = tuple[float, ...]


@dataclass(frozen=True)
class Ask:
    """For what rates the judge was asked, when, and how often."""

    rates: Rates
    time_ns: int
    times: int = 1

    def is_due(self, now_ns: int) -> bool:
        return now_ns - self.time_ns >= AGAIN_NS << min(self.times - 1, MOST_DOUBLED)


class Ledger:
    """Of one deployment. `rungs` is where the load is."""

    def __init__(self, applications: int) -> None:
        self._are_several = applications > 1
        self._rung = RUNG_OF_SEVERAL if self._are_several else RUNG
        self.rungs: Rungs = ()
        self.verdicts: dict[Rungs, Verdict] = {}
        self.settled: set[Rungs] = set()  # judged at a load that was steady
        self.broken: dict[Rungs, int] = {}  # how often a promise was
        self._asks: dict[Rungs, Ask] = {}
        self._answered: set[Rungs] = set()
        self._asked_for: dict[Rates, Rungs] = {}

    def begin_with_clients(self) -> None:
        """Their networks are known now: what was judged without them is no answer any more."""
        verdicts = list(self.verdicts.values())
        for memory in (self.verdicts, self.settled, self.broken, self._asks, self._answered, self._asked_for):
            memory.clear()
        self._rung, self.rungs = RUNG_WITH_CLIENTS, ()
        self.take(verdicts)

    def take(self, verdicts: Iterable[Verdict]) -> None:
        for verdict in verdicts:
            rungs = self._asked_for.get(verdict.rates)
            if rungs is None:
                rungs = tuple(round(self._height(rate)) for rate in verdict.rates)
            else:
                self._answered.add(rungs)
            self.verdicts[rungs] = verdict
        self._bound()

    def is_answer(self, verdict: Verdict) -> bool:
        """Whether it was asked for."""
        return verdict.rates in self._asked_for

    def is_to_ask(self, now_ns: int) -> bool:
        """Whether nobody was asked for this rung, or has not answered for long."""
        ask = self._asks.get(self.rungs)
        return ask is None or (self.rungs not in self._answered and ask.is_due(now_ns))

    def ask(self, rates: NDArray[np.float64], now_ns: int) -> Rates:
        """What to ask for at this rung. Who waits for an answer asks for the same again."""
        before = self._asks.get(self.rungs)
        if before is not None and self.rungs not in self._answered:
            ask = Ask(before.rates, now_ns, before.times + 1)
        else:
            ask = Ask(tuple(np.maximum(rates, LEAST_RATE).tolist()), now_ns)
        self._asks[self.rungs] = ask
        self._answered.discard(self.rungs)
        self._asked_for[ask.rates] = self.rungs
        return ask.rates

    def ask_anew(self) -> None:
        """The answer for this rung was not worth its promise."""
        self._asks.pop(self.rungs, None)

    def here(self) -> Verdict | None:
        return self.verdicts.get(self.rungs)

    def in_force(self) -> Verdict | None:
        """The verdict of the rung, else of the nearest one that is not far off."""
        if self.rungs in self.verdicts:
            return self.verdicts[self.rungs]
        near = (rungs for rungs in self.verdicts if not self._is_far(rungs))
        nearest = min(near, key=self._distance, default=None)
        return None if nearest is None else self.verdicts[nearest]

    def move(self, rates: NDArray[np.float64], counted_s: Sequence[float], lump: float = 1.0) -> None:
        """To the nearest rungs; one stays as long as its application's load is near enough to it. Those of a load that
        moves, and was judged as a whole, hold at all of its levels. `counted_s`: for how long rates were counted;
        `lump`: how many queries come together.
        """
        for rungs, verdict in self.verdicts.items():
            lowest, highest = verdict.levels
            if lowest < highest and self.is_answer(verdict):
                judged = np.array(verdict.rates)
                is_called = judged > LEAST_RATE
                times = rates[is_called] / judged[is_called]
                if (lowest <= times).all() and (times <= highest).all() and (rates[~is_called] <= LEAST_RATE).all():
                    self.rungs = rungs
                    return
        heights = [self._height(rate) for rate in rates.tolist()]
        self.rungs = tuple(
            rung
            if abs(height - rung) <= self._stay(max(height, rung), max(seconds, RATE_WINDOW_NS / NS_PER_S), lump)
            else round(height)
            for height, rung, seconds in zip(heights, self.rungs or map(round, heights), counted_s, strict=True)
        )

    def _stay(self, height: float, window_s: float, lump: float) -> float:
        """In rungs. A load that is steady is counted for more or less than it has; where queries come in lumps, much
        so. One of several applications always is, so that together they would be on another rung with every look.
        """
        if not self._are_several and lump <= 1:
            return STAY
        return STAY + CHANCE * math.sqrt(lump / (self._rung**height * window_s)) / math.log(self._rung)

    def _height(self, rate: float) -> float:
        return math.log(max(rate, LEAST_RATE)) / math.log(self._rung)

    def _is_far(self, rungs: Rungs) -> bool:
        """At an application that counts, now or then: one that is hardly called changes little for the others. Whoever
        was judged best for several at a higher load stands a lower one better than a start candidate, that knows
        nothing of what they share.
        """
        less = 1 / (FAR_OF_SEVERAL if self._are_several else FAR)
        return any(not less <= self._rung ** (now - then) <= FAR for now, then in self._that_count(rungs))

    def _distance(self, rungs: Rungs) -> tuple[int, int]:
        """That of applications that count, before that of all."""
        return (
            max((abs(now - then) for now, then in self._that_count(rungs)), default=0),
            sum(abs(now - then) for now, then in zip(self.rungs, rungs, strict=True)),
        )

    def _that_count(self, rungs: Rungs) -> list[tuple[int, int]]:
        """Rungs of applications that are much of the load, now or at the other rungs."""
        now, then = ([self._rung**rung for rung in each] for each in (self.rungs, rungs))
        least, least_then = COUNTS * sum(now), COUNTS * sum(then)
        return [
            pair
            for pair, rate, rate_then in zip(zip(self.rungs, rungs, strict=True), now, then, strict=True)
            if rate >= least or rate_then >= least_then
        ]

    def _bound(self) -> None:
        """The oldest give way; they may be asked for again."""
        while len(self.verdicts) > MOST_RUNGS:
            oldest = next(rungs for rungs in self.verdicts if rungs != self.rungs)
            del self.verdicts[oldest]
            for memory in (self._asks, self.broken):
                memory.pop(oldest, None)
            for rungs in (self._answered, self.settled):
                rungs.discard(oldest)
        while len(self._asks) > 2 * MOST_RUNGS:
            del self._asks[next(iter(self._asks))]
        while len(self._asked_for) > 2 * MOST_RUNGS:
            del self._asked_for[next(iter(self._asked_for))]
