"""Three variants to select from, and tables over them."""

from __future__ import annotations

import numpy as np

from stretto.core.plan import Table
from tests.dispatch.small import straight, variant

# Latencies of batches of 1 and 2: fast 12, 14; middle 30, 40; slow 60, 80.
FAST, MIDDLE, SLOW = 0, 1, 2
MODELS = (
    variant("fast", straight(2, 10)),
    variant("middle", straight(10, 20)),
    variant("slow", straight(20, 40)),
)


def cells(rows: list[list[int]], batch: int = 0, step: int = 20, kind: str | None = None) -> Table:
    made = np.array(rows, dtype=np.int32)
    return Table(step, made, np.full_like(made, batch), kind)
