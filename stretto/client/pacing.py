"""The rule of `stretto.core.pacing` in the words of a client: heights and widths, and the server's parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stretto.core.pacing import Pacing
from stretto.core.preparation import Preparation

Size = tuple[int, int]  # height and width

MAX_SIZE_TEXT = 100


class Pacer:
    """`sizes` are those that may be sent; `guess_bytes` of a frame at each, until one was sent. `probe_bytes` are those
    of a message that goes there and back to see how long that takes.
    """

    def __init__(
        self, now_ns: int, slo_ns: int, sizes: Sequence[Size], guess_bytes: Sequence[float], probe_bytes: int = 0
    ) -> None:
        self._sizes = sorted(sizes, key=math.prod)
        self._order = [list(sizes).index(size) for size in self._sizes]
        self._preparation = Preparation([math.prod(size) for size in self._sizes])
        self._pacing = Pacing(now_ns, slo_ns, self._by_size(guess_bytes), probe_bytes, self._preparation)
        self._told: Size | None = None
        self.made = self._pacing.made
        self.acknowledged = self._pacing.acknowledged
        self.went = self._pacing.went
        self.is_held_back = self._pacing.is_held_back
        self.bytes_per_s = self._pacing.bytes_per_s
        self.rate = self._pacing.rate

    def guess(self, guess_bytes: Sequence[float]) -> None:
        """How many bytes a frame has at each size, in the order in which sizes were given, until one was sent."""
        self._pacing.guess(self._by_size(guess_bytes))

    def prepared(self, now_ns: int, size: Size, took_ns: int) -> None:
        """A frame was made ready at a size in so long."""
        self._preparation.took(now_ns, self._sizes.index(size), took_ns)

    def sent(self, size: Size, frame_bytes: int) -> None:
        """A frame has so many bytes at a size."""
        self._pacing.sent(self._sizes.index(size), frame_bytes)

    def answered(self, now_ns: int, serving_ns: float, parameters: dict[str, Any]) -> None:
        """An answer came, so long after the server had the frame."""
        self._pacing.answered(now_ns, serving_ns, *self._heard(parameters))

    def refused(self, now_ns: int, is_overload: bool, parameters: dict[str, Any], had_ns: int | None = None) -> None:
        """The server did not answer; `is_overload`: it has too much work. `had_ns`: what the frame had left of its SLO
        when it came.
        """
        self._pacing.refused(now_ns, is_overload, *self._heard(parameters), had_ns)

    def size_for(self, now_ns: int, left_ns: int) -> Size | None:
        """The size to send a frame at that has so much of its SLO left; None: it cannot come back in time at any."""
        size = self._pacing.size_for(now_ns, left_ns)
        return None if size is None else self._sizes[size]

    @property
    def slo_ns(self) -> int:
        return self._pacing.slo_ns

    @property
    def round_trip_ns(self) -> int:
        return self._pacing.round_trip_ns

    @property
    def told(self) -> Size | None:
        """The size that the server said last."""
        return self._told

    @property
    def is_held(self) -> bool:
        return self._pacing.is_held

    def network_parameters(self, now_ns: int, waited_ns: int) -> dict[str, float]:
        """What goes with a request. A bandwidth is reported once, so that the server's mean counts it once."""
        said: dict[str, float] = {
            "slo_ms": self.slo_ns / 1e6,
            "waited_ms": max(0, waited_ns) / 1e6,
            "rate": round(self.rate(now_ns), 3),
        }
        if self._pacing.has_round_trip:
            said["rtt_ms"] = self.round_trip_ns / 1e6
        bandwidth = self._pacing.to_report()
        if bandwidth is not None:
            said["bandwidth"] = round(bandwidth, 1)
        return said

    def _by_size(self, guess_bytes: Sequence[float]) -> list[float]:
        return [guess_bytes[place] for place in self._order]

    def _heard(self, parameters: dict[str, Any]) -> tuple[int | None, bool]:
        """The place of the size that the server tells, or of the largest below it; and whether it has no place for
        this client.
        """
        size, is_nowhere = size_of(parameters.get("input_size")), parameters.get("mapped") == ""
        if size is None:
            return None, is_nowhere
        self._told = size
        within = [place for place, each in enumerate(self._sizes) if math.prod(each) <= math.prod(size)]
        return (within[-1] if within else 0), is_nowhere


def size_of(text: Any) -> Size | None:
    """Height and width of an input size as the server tells it, "1,20,20"; None where that is none."""
    if not isinstance(text, str) or len(text) > MAX_SIZE_TEXT:
        return None
    parts = text.split(",")
    if len(parts) < 2 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    height, width = (int(part) for part in parts[-2:])
    return (height, width) if height and width else None
