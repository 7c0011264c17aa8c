"""Whether another partition is worth its moves: without this, rates that waver would move models to and fro."""

from __future__ import annotations

import math
from collections.abc import Callable

from stretto.planners.partition.problem import Change, balance_of

UNBALANCED = 0.1  # (max − min) / mean, of rate or memory: from there on models move
CLEARLY = 0.9  # times the imbalance that there is: a partition that is no better than that is not worth moving for
MOVED_SHARE = 0.1  # of the models, at most at a time, where nobody says


def usual_moves(models: int) -> int:
    return max(1, math.ceil(MOVED_SHARE * models))


def rebalanced(change: Change, find: Callable[[], list[int]]) -> list[int]:
    """Another partition than the current one, where that is out of balance and the other one clearly better. The
    current one keeps all limits, and every model has a place in it.
    """
    before = balance_of(change.problem, change.current)
    if max(before.rate_imbalance, before.bytes_imbalance) <= UNBALANCED:
        return list(change.current)
    proposed = find()
    is_better = balance_of(change.problem, proposed).objective < CLEARLY * before.objective
    return proposed if is_better else list(change.current)
