"""How long a client takes to make its frames ready at each size, from when it chose the size to when the frame can go.

Resizing and encoding a frame of a camera may take longer than the network does. What was measured of a size is kept
for a time that is long beside it, so that a client which was busy finds its large sizes again, and one that is too
slow for them spends little on trying. Pure: time comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SMOOTHING = 0.25
SPREADS = 4.0  # that are left for frames which take longer than most, as TCP leaves them for round trips
KEPT_TIMES = 200  # a measured time is kept for so many times its own length: trying costs one frame in so many


@dataclass
class Measured:
    """What one size took: the mean, how far single frames are from it in the mean, and when the last one was ready."""

    mean_ns: float
    spread_ns: float
    at_ns: int


class Preparation:
    """`pixels` of a frame at each size, smallest first."""

    def __init__(self, pixels: Sequence[int]) -> None:
        self._pixels = pixels
        self._measured: dict[int, Measured] = {}

    def took(self, now_ns: int, size: int, took_ns: int) -> None:
        """A frame of a size was made ready in so long."""
        known = self._fresh(now_ns, size)
        if known is None:
            self._measured[size] = Measured(took_ns, 0.0, now_ns)
            return
        off_ns = took_ns - known.mean_ns
        known.mean_ns += SMOOTHING * off_ns
        known.spread_ns += SMOOTHING * (abs(off_ns) - known.spread_ns)
        known.at_ns = now_ns

    def mean_ns(self, now_ns: int, size: int) -> float:
        """What a frame of a size takes. Where that was not measured lately, the least that the other sizes let expect:
        a larger frame takes no less than a smaller one, and a smaller one at least its share of the pixels.
        """
        known = self._fresh(now_ns, size)
        if known is not None:
            return known.mean_ns
        pixels = self._pixels[size]
        others = ((self._fresh(now_ns, other), self._pixels[other]) for other in self._measured)
        return max((each.mean_ns * min(1.0, pixels / theirs) for each, theirs in others if each), default=0.0)

    def most_ns(self, now_ns: int, size: int) -> float:
        """What nearly every frame of a size takes at most."""
        known = self._fresh(now_ns, size)
        return self.mean_ns(now_ns, size) if known is None else known.mean_ns + SPREADS * known.spread_ns

    def _fresh(self, now_ns: int, size: int) -> Measured | None:
        known = self._measured.get(size)
        return None if known is None or now_ns - known.at_ns > KEPT_TIMES * known.mean_ns else known
