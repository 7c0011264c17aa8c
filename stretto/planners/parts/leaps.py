"""A load that leapt, as it is since then.

λ is counted over a window, so that it shows a leap in full only when the window is over. But when one look finds more
than chance can bring since the last, the load leapt between the two, and what was counted is a mixture of the load
before and the load since: counted · window = before · (window − since) + now · since. Solved for `now` until the window
is over. Loads that fall or climb slowly are left as counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SURELY = 3.0  # deviations of what is counted in a window
LEAST = 1.0  # queries/s that a deviation is reckoned for
SOON = 0.1  # of the window: two looks may come at once, and what came between them says nothing


@dataclass(eq=False)
class Leaps:
    """`window_s`: that λ is counted over."""

    window_s: float
    _counted: Floats | None = field(default=None, init=False, repr=False)  # by application, at the last look
    _before: Floats = field(default_factory=lambda: np.zeros(0), init=False, repr=False)  # the last leap
    _since_s: Floats = field(default_factory=lambda: np.zeros(0), init=False, repr=False)
    _looked_ns: int = field(default=0, init=False, repr=False)

    def rates(self, now_ns: int, counted: Floats) -> Floats:
        """By application: λ as counted, or since it leapt."""
        last, passed_s = self._counted, (now_ns - self._looked_ns) / 1e9
        self._counted, self._looked_ns = counted.copy(), now_ns
        if last is None or len(last) != len(counted) or passed_s < 0:
            self._before, self._since_s = counted.copy(), np.full(len(counted), np.inf)
            return counted
        self._since_s = self._since_s + passed_s
        leapt = counted - last > SURELY * np.sqrt(np.maximum(last, LEAST) / self.window_s)
        # A leap may have been as late as at its first look: until a look after its window the count goes on to rise.
        is_new = leapt & (self._since_s > self.window_s + 2.0 * passed_s)
        self._before = np.where(is_new, last, self._before)
        self._since_s = np.where(is_new, max(passed_s, SOON * self.window_s), self._since_s)
        risen = np.maximum(counted - self._before, 0.0) * self.window_s / self._since_s
        return np.where(self._since_s < self.window_s, np.maximum(self._before + risen, counted), counted)
