"""Following the judge: the cheapest fleet whose judged plan keeps the promise, while the load is the one it judged.

The signals see within a period that a load has moved, and the judge takes minutes to say what fewer workers, or other
kinds, would do. So it is asked for a fleet that carries a little more than is measured, and that is kept while the load
is no more; beyond that, or far below, the signals decide, and it is asked again. A fleet that queries are bad with,
once it is there, has failed: it is followed no more, nor is one as cheap for as much. No clock: time comes in with
readings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from stretto.core.advice import JudgedFleet
from stretto.planning.autoscale_options import AutoscaleOptions
from stretto.planning.fleet_reading import Reading

ASK_S = 300.0  # from an answer of the judge to the next time that it is asked for a fleet
ABOVE = 0.05  # of the load that is measured: what a fleet that is to be followed must carry on top of it
BELOW = 0.15  # of the load that a fleet is for: where that is less, another fleet may do
BAD_PERIODS = 2  # in a row, with all of its workers there, after which it has failed


class FollowedJudge:
    """Beside an autoscaler, which asks it each period."""

    def __init__(self, options: AutoscaleOptions) -> None:
        self._options = options
        self._judged: JudgedFleet | None = None
        self._failed: JudgedFleet | None = None
        self._load = math.nan  # queries/s, smoothed
        self._was_near = True  # the last reading to the one before
        self._bad = self._calm = 0  # periods in a row: that were bad; in which fewer workers were enough

    def hear(self, judged: JudgedFleet | None) -> None:
        """Its answer; None: it has none any more."""
        self._judged, self._bad = None if judged is None or self._has_failed(judged) else judged, 0

    def _has_failed(self, judged: JudgedFleet) -> bool:
        """One at least as good has."""
        failed = self._failed
        return failed is not None and judged.cost <= failed.cost and judged.load >= failed.load * (1 - BELOW)

    @property
    def is_behind(self) -> bool:
        """The load is more than it answered for, or far less: it should be asked again."""
        judged = self._judged
        return judged is not None and not (1 - BELOW) * judged.load <= self._load <= judged.load

    def __call__(
        self, signalled: Mapping[str, int], before: Mapping[str, int], reading: Reading, is_bad: bool
    ) -> dict[str, int]:
        """Workers by kind. `signalled` is what the signals want, `before` what was wanted last."""
        self._follow_load(sum(reading.came) / reading.seconds)
        judged = self._judged
        if judged is None:
            return dict(signalled)
        wanted: Mapping[str, int] = {kind: judged.wanted.get(kind, count) for kind, count in signalled.items()}
        is_there = all(reading.present.get(kind, 0) >= count for kind, count in wanted.items())
        self._bad = self._bad + 1 if is_bad and is_there and not self.is_behind else 0
        if self._bad >= BAD_PERIODS:
            self._judged, self._failed = None, judged
            return dict(signalled)
        if is_bad or (self.is_behind and self._load > judged.load):
            wanted = max(wanted, signalled, key=self._cost)
        elif self.is_behind:
            wanted = min(wanted, signalled, key=self._cost)
        return self._limited(wanted, before) if wanted != signalled else dict(signalled)

    def _limited(self, wanted: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
        """Fewer when several periods agree; never many more, or many fewer, at once."""
        options = self._options
        is_less = self._cost(wanted) < self._cost(before)
        self._calm = self._calm + 1 if is_less else 0
        if is_less and self._calm < options.calm_periods:
            return dict(before)
        limited = {}
        for kind, count in wanted.items():
            now = before.get(kind, 0)
            most, least = math.floor(options.growth * max(now, 1)), now - math.floor(options.shrink * now)
            limited[kind] = min(max(count, least), most)
        return limited

    def _cost(self, workers: Mapping[str, int]) -> float:
        return sum(self._options.kinds[kind].cost * count for kind, count in workers.items())

    def _follow_load(self, load: float) -> None:
        """Smoothed; but another counts at once, and so does the one after it, for a step falls into a period."""
        before = load if math.isnan(self._load) else self._load
        is_near = abs(load - before) <= BELOW * before
        self._load = before + self._options.smoothing * (load - before) if is_near and self._was_near else load
        self._was_near = is_near
