"""Loads that a plan of some weight is made for: smoothed, and in steps that hold on until a load has clearly moved."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

SURELY = 4.0  # deviations of what is counted in a window: a load that has changed by more is followed at once

Steps = tuple[int, ...]


@dataclass(eq=False)
class SteadyLoads:
    """`within_s`: the time of the moving average. `rung`: loads within this factor are told alike."""

    within_s: float
    rung: float
    window_s: float  # that λ is counted over
    _smooth: NDArray[np.float64] | None = field(default=None, init=False, repr=False)
    _smooth_ns: int = field(default=0, init=False, repr=False)
    _steps: Steps = field(default=(), init=False, repr=False)

    def steps(self, now_ns: int, measured: NDArray[np.float64]) -> Steps:
        """By application: the power of the rung. One that has moved by less than a whole step stays."""
        places = np.log(self._smoothed(now_ns, measured)) / math.log(self.rung)
        before = np.array(self._steps) if len(self._steps) == len(places) else np.full(len(places), np.inf)
        moved = np.abs(places - before) >= 1.0
        self._steps = tuple(int(step) for step in np.where(moved, np.rint(places), before))
        return self._steps

    def _smoothed(self, now_ns: int, measured: NDArray[np.float64]) -> NDArray[np.float64]:
        """A moving average, but a clear change counts at once."""
        if self._smooth is None or len(self._smooth) != len(measured):
            self._smooth = measured.copy()
        part = 1.0 - math.exp(-max(now_ns - self._smooth_ns, 0) / 1e9 / self.within_s)
        moved = self._smooth + part * (measured - self._smooth)
        deviation = np.sqrt(self._smooth * self.window_s + 1.0)
        is_clear = np.abs(measured - self._smooth) * self.window_s > SURELY * deviation
        self._smooth, self._smooth_ns = np.where(is_clear, measured, moved), now_ns
        return self._smooth
