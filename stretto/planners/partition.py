"""Which models live in which sub-cluster (Symphony section 4.7): greedy placement, improved by single moves.

Every worker of a sub-cluster holds all its models. Request rate and static memory are balanced under the limits of a
dispatcher and of a worker. The mixed integer program of appendix A is not for a planner: it stops by the clock, and the
same view must give the same plan (benchmarks/partition_program.py has it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.core.view import View
from stretto.planners.parts.rates import rates_of

ROUNDING = 1e-9  # relative, on every limit: sums of floats
MOVES_PER_MODEL = 10
NOWHERE = -1
NO_FIT = (
    "no partition keeps within the limits on rate, memory and change; allow more of one, or change the sub-clusters"
)


@dataclass(frozen=True, eq=False)
class PartitionProblem:
    """Models by row: r_i in queries/s, s_i and d_i in bytes."""

    rates: NDArray[np.float64]
    static_bytes: NDArray[np.float64]
    dynamic_bytes: NDArray[np.float64]
    subclusters: int
    max_rate: float = math.inf  # R_max, of one sub-cluster's dispatcher
    max_bytes: float = math.inf  # S_max, of one worker
    weight: float | None = None  # None weighs rate and memory by their averages

    def __post_init__(self) -> None:
        models = len(self.rates)
        if models == 0 or self.subclusters < 1:
            raise StrettoError("a partition needs at least one model and one sub-cluster")
        for name in ("rates", "static_bytes", "dynamic_bytes"):
            values = np.array(getattr(self, name), dtype=np.float64)
            if values.shape != (models,) or not np.isfinite(values).all() or (values < 0).any():
                raise StrettoError("a partition needs a rate and two memory sizes per model, none negative")
            object.__setattr__(self, name, values)

    @property
    def w(self) -> float:
        """What a byte of imbalance costs, where a query/s costs one."""
        if self.weight is not None:
            return self.weight
        total_bytes = float(self.static_bytes.sum())
        return float(self.rates.sum()) / total_bytes if total_bytes else 0.0

    @property
    def units(self) -> tuple[float, float]:
        """Mean rate and mean static memory of a sub-cluster."""
        rate, memory = (float(values.sum()) / self.subclusters for values in (self.rates, self.static_bytes))
        return rate or 1.0, memory or 1.0


def keeps_limits(problem: PartitionProblem, assignment: Sequence[int]) -> bool:
    """Equations 5 and 6; `assignment[i]` is the sub-cluster of model i."""
    rates, sizes, largest = loads_of(problem, assignment)
    return bool(
        rates.max() <= problem.max_rate * (1 + ROUNDING)
        and (sizes + largest).max() <= problem.max_bytes * (1 + ROUNDING)
    )


def loads_of(problem: PartitionProblem, assignment: Sequence[int]) -> tuple[NDArray[np.float64], ...]:
    """By sub-cluster: rate, static memory, and the largest dynamic memory, of the models that have a place."""
    homes = np.asarray(assignment)
    placed = homes != NOWHERE
    largest = np.zeros(problem.subclusters)
    np.maximum.at(largest, homes[placed], problem.dynamic_bytes[placed])
    rates, sizes = (
        np.bincount(homes[placed], weights=values[placed], minlength=problem.subclusters).astype(np.float64)
        for values in (problem.rates, problem.static_bytes)
    )
    return rates, sizes, largest


def greedy_partition(problem: PartitionProblem) -> list[int]:
    """The sub-cluster of each model: always the same for the same problem, however fast the machine is."""
    assignment = _improve(problem, _place(problem))
    if not keeps_limits(problem, assignment):
        raise StrettoError(NO_FIT)
    return assignment


def _place(problem: PartitionProblem) -> list[int]:
    """The largest model first, each to the sub-cluster with room that has least of what it would add."""
    sizes = _model_sizes(problem)
    assignment = [NOWHERE] * len(sizes)
    loads = np.zeros((problem.subclusters, 2))
    for model in np.argsort(-sizes.sum(axis=1), kind="stable").tolist():
        fits = _room(problem, assignment)[model]
        if not fits.any():
            raise StrettoError(NO_FIT)
        home = int(np.argmin(np.where(fits, loads @ sizes[model], np.inf)))
        assignment[model] = home
        loads[home] += sizes[model]
    return assignment


def _improve(problem: PartitionProblem, assignment: list[int]) -> list[int]:
    """Again and again the move that most lowers Σ_j (difference from the average)², of rate and of memory."""
    sizes = _model_sizes(problem)
    homes = np.array(assignment)
    models = np.arange(len(homes))
    for _ in range(MOVES_PER_MODEL * len(homes)):
        loads = np.stack([np.bincount(homes, weights=part, minlength=problem.subclusters) for part in sizes.T], axis=1)
        # Half of what the sum of squares falls by when model i leaves its home a for j: v·(L_a − v − L_j).
        gain = (sizes * (loads[homes] - sizes)).sum(axis=1, keepdims=True) - sizes @ loads.T
        allowed = _room(problem, homes.tolist())
        allowed[models, homes] = False
        model, target = np.unravel_index(int(np.argmax(np.where(allowed, gain, -np.inf))), gain.shape)
        if not allowed[model, target] or gain[model, target] <= ROUNDING:
            break
        homes[model] = target
    return [int(home) for home in homes]


def _model_sizes(problem: PartitionProblem) -> NDArray[np.float64]:
    """Each model's rate and memory in units of the averages, weighed as in the objective."""
    rate_unit, bytes_unit = problem.units
    weight = problem.w * bytes_unit / rate_unit
    return np.stack([problem.rates / rate_unit, weight * problem.static_bytes / bytes_unit], axis=1)


def _room(problem: PartitionProblem, assignment: Sequence[int]) -> NDArray[np.bool_]:
    """Whether sub-cluster j could take model i besides what it has, by equations 5 and 6."""
    rates, sizes, largest = loads_of(problem, assignment)
    memory = sizes + problem.static_bytes[:, None] + np.maximum(largest, problem.dynamic_bytes[:, None])
    room: NDArray[np.bool_] = (rates + problem.rates[:, None] <= problem.max_rate) & (memory <= problem.max_bytes)
    return room


def partition_problem(view: View, chosen: Sequence[int], subclusters: int) -> PartitionProblem:
    """Application i, served by variant `chosen[i]`, is model i; the smallest worker's memory is the limit."""
    variants = [view.deployment.variants[variant] for variant in chosen]
    return PartitionProblem(
        rates=rates_of(view, 1.0),
        static_bytes=np.array([variant.memory_bytes for variant in variants], dtype=np.float64),
        dynamic_bytes=np.array([variant.dynamic_memory_bytes for variant in variants], dtype=np.float64),
        subclusters=subclusters,
        max_bytes=float(min(worker.memory_bytes for worker in view.deployment.workers)),
    )
