"""How well a way of dealing queries does: the figures of edge RL's table 2, over all queries and by phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.planners.edge_rl.encoding import Setting, Situation
from stretto.training.world import World

Decide = Callable[[Situation, Setting], tuple[NDArray[np.float64], NDArray[np.int64] | None]]
Merit = tuple[bool, float]
WARM_UP_S = 5.0


@dataclass(frozen=True)
class Figures:
    """Shares of the queries that came."""

    goodput: float  # answered right and on time
    violations: float  # refused or late
    refused: float
    late: float
    heavy: float  # answered by the most accurate variant
    queries: int


@dataclass(frozen=True)
class Evaluation:
    """Over all, and by phase."""

    overall: Figures
    normal: Figures
    bursty: Figures


def merit(figures: Figures, error: float, most_violations: float) -> Merit:
    """For comparing policies: most goodput among those whose violations are within what is asked, by a margin of one
    standard error; where none is, as in an overload, goodput less violations, which is the reward.
    """
    is_within = figures.violations + error <= most_violations
    return is_within, figures.goodput - (0.0 if is_within else figures.violations)


def evaluate(world: World, decide: Decide, slots: int, seed: int) -> tuple[Evaluation, NDArray[np.int64]]:
    """Over so many slots in all systems together. Also the raw counts [system, phase, end]."""
    seen = world.restart(seed)
    warm_up = round(WARM_UP_S / world.slot_s)
    total = None
    for number in range(warm_up + -(-slots // world.count)):
        seen, slot = world.step(*decide(seen, world.setting))
        if number >= warm_up:
            total = slot.counts.copy() if total is None else total + slot.counts
    assert total is not None
    return evaluation_of(total, world.accuracy, world.heavy), total


def evaluation_of(counts: NDArray[np.int64], accuracy: NDArray[np.float64], heavy: NDArray[np.int64]) -> Evaluation:
    """From counts [system, phase, end], the accuracy of each variant, and which one is the most accurate."""
    return Evaluation(
        figures_of(counts.sum(axis=1), accuracy, heavy),
        figures_of(counts[:, 0], accuracy, heavy),
        figures_of(counts[:, 1], accuracy, heavy),
    )


def figures_of(counts: NDArray[np.int64], accuracy: NDArray[np.float64], heavy: NDArray[np.int64]) -> Figures:
    """From counts [system, end]."""
    queries = max(1, int(counts.sum()))
    on_time, late, refused = counts[:, :-1:2], counts[:, 1::2], counts[:, -1]
    by_heavy = np.take_along_axis(on_time + late, heavy[:, None], axis=1).sum()
    return Figures(
        goodput=float((on_time * accuracy).sum()) / queries,
        violations=float(late.sum() + refused.sum()) / queries,
        refused=float(refused.sum()) / queries,
        late=float(late.sum()) / queries,
        heavy=float(by_heavy) / queries,
        queries=queries,
    )


def violations_error(counts: NDArray[np.int64]) -> float:
    """Standard error of the share of violations, from counts [system, phase, end]. Systems are independent; queries are
    not, because those of one burst are late together.
    """
    by_end = counts.sum(axis=1)
    queries = by_end.sum(axis=1)
    wrong = by_end[:, 1::2].sum(axis=1) + by_end[:, -1]
    share = wrong.sum() / max(1, queries.sum())
    return float(np.sqrt(((wrong - share * queries) ** 2).sum())) / max(1, int(queries.sum()))
