"""The reward of a slot (edge RL, equation 2), and weights in it that see to the tail requirement."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

LARGEST_WEIGHT = 30.0


@dataclass(frozen=True)
class Weights:
    """r = −late·v − refused·b + right·Σ gᵢνᵢ. In the paper `late` is 1, `refused` is α and `right` is β."""

    late: float = 1.0
    refused: float = 1.0
    right: float = 1.0

    def adjusted(self, violations: float, target: float, step: float = 0.25) -> Weights:
        """Weightier violations where there were more of them than the target, lighter ones where there were fewer."""
        factor = float(np.exp(step * np.clip(violations / target - 1.0, -1.0, 1.0)))
        late = min(self.late * factor, LARGEST_WEIGHT)
        return replace(self, late=late, refused=min(self.refused * factor, LARGEST_WEIGHT))


def rewards(counts: NDArray[np.int64], accuracy: NDArray[np.float64], weights: Weights) -> NDArray[np.float64]:
    """Equation 2 by system. `counts` [system, 2·variant + (0 on time, 1 late) or 2·variants for refused], `accuracy`
    [system, variant].
    """
    on_time, late, refused = counts[:, :-1:2], counts[:, 1::2], counts[:, -1]
    right = (on_time * accuracy).sum(axis=1)
    total: NDArray[np.float64] = weights.right * right - weights.late * late.sum(axis=1) - weights.refused * refused
    return total


def shortfalls(
    counts: NDArray[np.int64], accuracy: NDArray[np.float64], weights: Weights, arrivals: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The reward less what it would be if the best variant had answered every query that came, in time.

    How many come does not depend on what the policy does, so the same policy is best; but the reward no longer rises
    and falls with chance arrivals, and far fewer slots are needed to learn from it.
    """
    best: NDArray[np.float64] = weights.right * accuracy.max(axis=1) * arrivals
    return rewards(counts, accuracy, weights) - best
