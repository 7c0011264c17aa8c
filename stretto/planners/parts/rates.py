"""What planners make of the measured load and of how queries ended."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.core.outcome import Outcome
from stretto.core.profile import NS_PER_MS
from stretto.core.view import View

RATE_WINDOW_NS = 500 * NS_PER_MS  # of plans that follow the load: a moving average (RAMSIS section 6)
LOST_SHARE = 0.01
PRESSURE_STEP = 1.25
PRESSURE_RELIEF = 0.98
MOST_PRESSURE = 4.0


def rates_of(view: View, unknown: float) -> NDArray[np.float64]:
    """λ by application (queries/s); `unknown` for each where nobody knows any, or nothing comes."""
    if view.rates is None or not view.rates.sum() > 0:
        return np.full(len(view.deployment.applications), unknown)
    return view.rates


def pressure_of(view: View, before: float) -> float:
    """Rises while more than a few queries end late or without an answer, and falls slowly when none do.

    It covers what no profile tells: another program on the same cores, say, which makes some batches late by far.
    """
    ended = view.ended.sum(axis=0)
    ended[Outcome.DROPPED_CANCELLED] = ended[Outcome.DROPPED_OVERLOAD] = 0  # refused at the door: λ tells that already
    if ended.sum() - ended[Outcome.ON_TIME] > LOST_SHARE * ended.sum():
        return min(before * PRESSURE_STEP, MOST_PRESSURE)
    return max(1.0, before * PRESSURE_RELIEF)
