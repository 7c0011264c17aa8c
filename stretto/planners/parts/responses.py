"""Response latencies of an application's variants, as measured at many loads: what ModelSwitching goes by."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Responses:
    """`p99_ns[variant][i]` at `loads[i]`; infinite, unmeasured, beyond what a variant answers or bears.

    `described` is what they were measured for.
    """

    loads: tuple[float, ...]
    p99_ns: Mapping[str, tuple[float, ...]]
    described: Mapping[str, str]

    def covering(self, load: float) -> float | None:
        """The lowest load measured that covers this one; none beyond the highest."""
        place = bisect_left(self.loads, load)
        return self.loads[place] if place < len(self.loads) else None

    def at(self, variant: str, load: float) -> float:
        """Measured at the lowest load that covers this one; infinite beyond the highest."""
        place = bisect_left(self.loads, load)
        return self.p99_ns[variant][place] if place < len(self.loads) else math.inf
