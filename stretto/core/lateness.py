"""What a late answer is still worth: 1 − γ of SneakPeek's equation 2."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.application import Penalty
from stretto.core.compiled import compiled

STEP, LINEAR = int(Penalty.STEP), int(Penalty.LINEAR)


@compiled
def kept_share(penalty: int, end_ns: int, deadline_ns: int, length_ns: int) -> float:
    """1 − γ(d, e). Lateness counts from the deadline, in lengths of the deadline from arrival: x = (e − d) / d.

    The paper prints max(1, …), with which every late answer is worth nothing or less; min(1, …) is meant.
    """
    if end_ns <= deadline_ns:
        return 1.0
    x = (end_ns - deadline_ns) / max(1, length_ns)
    if penalty == STEP or x >= 1.0:
        return 0.0
    if penalty == LINEAR:
        return 1.0 - x
    odds = x / (1.0 - x)
    return 1.0 / (1.0 + odds * odds * odds)


@compiled
def kept_shares(penalties: Any, ends_ns: Any, deadlines_ns: Any, arrivals_ns: Any) -> Any:
    """The same of many answers."""
    kept = np.empty(len(ends_ns))
    for number in range(len(kept)):
        deadline_ns = deadlines_ns[number]
        kept[number] = kept_share(penalties[number], ends_ns[number], deadline_ns, deadline_ns - arrivals_ns[number])
    return kept
