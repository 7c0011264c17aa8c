"""How much processor time judging anew may take where nothing but the conditions has drifted: a hundredth of a core.

A verdict whose promise is broken is replaced at once, whatever that takes. Drift alone is another matter: a machine
that changes its own pace each minute would keep the judge busy for hardly any gain, and it is one of the conditions.
Nobody waits for longer than ten minutes, so verdicts that take more than six seconds come to more than that share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

SHARE = 0.01  # of a core, in the long run
SAVED_S = 4.0  # of processor time that a load has at first, and can save up: one or two verdicts
OWED_S = SHARE * 600.0  # at most: after a verdict that took very long it waits for ten minutes

Rates = tuple[float, ...]

_is_new = True  # in the judge's process: nothing was weighed there yet


class Thrift:
    """By load; only the load in force earns, so that several loads take no more than one."""

    def __init__(self) -> None:
        self._left_s: dict[Rates, float] = {}

    def passed(self, rates: Rates, seconds: float) -> None:
        """The load was in force for so long."""
        self._left_s[rates] = min(SAVED_S, self.left_s(rates) + SHARE * seconds)

    def took(self, rates: Rates, cpu_s: float) -> None:
        self._left_s[rates] = max(self.left_s(rates) - cpu_s, -OWED_S)

    def left_s(self, rates: Rates) -> float:
        return self._left_s.get(rates, SAVED_S)

    def forget(self, rates: Rates) -> None:
        self._left_s.pop(rates, None)

    def clear(self) -> None:
        self._left_s.clear()


def weighed(work: Callable[[], Any]) -> tuple[Any, float]:
    """In the judge's process: what came of an order, and its processor time; that of the first with the start."""
    global _is_new
    began_s, _is_new = 0.0 if _is_new else time.process_time(), False
    return work(), time.process_time() - began_s
