"""Failures of queries in the log: once for each kind, then when their number has grown tenfold, or a minute later."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("stretto.live")

MAX_KINDS = 1000
MAX_KIND = 200
AGAIN_S = 60.0  # so that whoever looks for a failure finds a line of its minute
NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass
class _Told:
    count: int = 0
    at_s: float = 0.0


class FailureLog:
    """A kind is a model or an application, and a reason whose numbers are left out: a shape makes no new kind."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[tuple[str, str], _Told] = {}

    def add(self, what: str, reason: str, count: int = 1) -> None:
        kind = what, NUMBERS.sub("#", reason[:MAX_KIND])
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS:
            kind = "further models", "further reasons"
        told, now_s = self._kinds.setdefault(kind, _Told()), self._clock()
        before, told.count = told.count, told.count + count
        if before == 0:
            log.error("%s failed on %d queries: %s", what, count, reason)
        elif len(str(told.count)) > len(str(before)) or now_s - told.at_s >= AGAIN_S:
            log.error("%s has failed on %d queries by now: %s", what, told.count, reason)
        else:
            return
        told.at_s = now_s
