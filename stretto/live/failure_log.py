"""Failures of models in the log: once for each kind, then only when their number has grown tenfold."""

from __future__ import annotations

import logging
import re

log = logging.getLogger("stretto.live")

MAX_KINDS = 1000
MAX_KIND = 200
NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


class FailureLog:
    """A kind is a model and a reason whose numbers are left out, so that a shape or an address makes no new kind."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, model: str, reason: str, count: int = 1) -> None:
        kind = model, NUMBERS.sub("#", reason[:MAX_KIND])
        if kind not in self._counts and len(self._counts) >= MAX_KINDS:
            kind = "further models", "further reasons"
        before = self._counts.get(kind, 0)
        self._counts[kind] = now = before + count
        if before == 0:
            log.error("%s failed on %d queries: %s", model, count, reason)
        elif len(str(now)) > len(str(before)):
            log.error("%s has failed on %d queries by now: %s", model, now, reason)
