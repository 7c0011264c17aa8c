"""How long batches are on their way and how late they end, measured while serving, for the plans to come.

A plan reckons with these, or a batch that should start at the last moment would end behind it. They are told in steps
and go down only when they are well below, so that a plan changes only when a delay really did.
"""

from __future__ import annotations

import math
from collections import deque

from stretto.core.plan import Delays

STEP = 1.25  # delays within this factor are the same
WELL_BELOW = 0.5  # of what was told last
SMALLEST_NS = 50_000
HANDOFF_WEIGHT = 0.05  # of the newest batch in the running mean
HANDOFF_MARGIN = 1.5
REMEMBERED = 512  # batches whose lateness is looked at
LATE_SHARE = 0.005  # of batches may end later than the timers allow for
LATE_MARGIN = 1.5
FEWEST = 32  # batches, before what they tell is believed

EVIDENCE_SHARE = 0.9  # of queries are told of within the time that plans reckon with

LEAST = Delays(control_ns=200_000, timer_ns=1_000_000)
MOST = Delays(control_ns=10_000_000, timer_ns=25_000_000, evidence_ns=100_000_000)
FIRST_TIMER_NS = 8_000_000  # before anything was measured


class DelayMeter:
    """`least` and `most` bound what it tells."""

    def __init__(self, least: Delays = LEAST, most: Delays = MOST) -> None:
        self._least, self._most = least, most
        self._handoff_ns = float(least.control_ns)
        self._overruns_ns: deque[int] = deque(maxlen=REMEMBERED)
        self._told_ns: deque[int] = deque(maxlen=REMEMBERED)
        self._last = Delays()

    def handed_over(self, took_ns: int) -> None:
        """How long a batch was on its way, to a worker that had nothing else and back."""
        self._handoff_ns += HANDOFF_WEIGHT * (took_ns - self._handoff_ns)

    def ended(self, expected_ns: int, now_ns: int) -> None:
        """A batch was answered: so much later (or sooner) than was expected when it was decided."""
        self._overruns_ns.append(now_ns - expected_ns)

    def told(self, took_ns: int) -> None:
        """Evidence told a query's class so long after it came."""
        self._told_ns.append(took_ns)

    @property
    def delays(self) -> Delays:
        """What a plan should reckon with now."""
        control_ns = stepped(HANDOFF_MARGIN * self._handoff_ns)
        timer_ns = FIRST_TIMER_NS
        if len(self._overruns_ns) >= FEWEST:
            latest = sorted(self._overruns_ns)
            timer_ns = stepped(LATE_MARGIN * latest[math.ceil((1 - LATE_SHARE) * len(latest)) - 1])
        evidence_ns = 0
        if len(self._told_ns) >= FEWEST:
            evidence_ns = stepped(sorted(self._told_ns)[math.ceil(EVIDENCE_SHARE * len(self._told_ns)) - 1])
        last, least, most = self._last, self._least, self._most
        self._last = Delays(
            control_ns=_held(last.control_ns, min(max(control_ns, least.control_ns), most.control_ns)),
            timer_ns=_held(last.timer_ns, min(max(timer_ns, least.timer_ns), most.timer_ns)),
            evidence_ns=_held(last.evidence_ns, min(evidence_ns, most.evidence_ns)),
        )
        return self._last


def _held(told_ns: int, measured_ns: int) -> int:
    return told_ns if WELL_BELOW * told_ns < measured_ns < told_ns else measured_ns


def stepped(value_ns: float) -> int:
    """The next step above."""
    if value_ns <= SMALLEST_NS:
        return SMALLEST_NS
    return round(SMALLEST_NS * STEP ** math.ceil(math.log(value_ns / SMALLEST_NS, STEP) - 1e-9))
