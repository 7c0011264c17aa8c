"""What planners make of the measured load."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.core.profile import NS_PER_MS
from stretto.core.view import View

RATE_WINDOW_NS = 500 * NS_PER_MS  # of plans that follow the load: a moving average (RAMSIS section 6)


def rates_of(view: View, unknown: float) -> NDArray[np.float64]:
    """λ by application (queries/s); `unknown` for each where nobody knows any, or nothing comes."""
    if view.rates is None or not view.rates.sum() > 0:
        return np.full(len(view.deployment.applications), unknown)
    return view.rates
