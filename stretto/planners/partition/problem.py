"""A partition's terms (Symphony appendix A): models, sub-clusters, the limits of each, and what a change may cost.

Every worker of a sub-cluster holds all its models. So static memory adds up, dynamic memory counts once, for whichever
model runs, and the rates of the models add up in the sub-cluster's dispatcher.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.partition import MAX_SUB_CLUSTERS

ROUNDING = 1e-9  # relative, on every limit: sums of floats
NOWHERE = -1

Assignment = NDArray[np.int64]  # the sub-cluster of each model
Floats = NDArray[np.float64]


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
    names: tuple[str, ...] = ()  # of the models, for people
    part: str = "sub-cluster"  # what it splits into, for people

    def __post_init__(self) -> None:
        models = len(self.rates)
        if models == 0 or not 1 <= self.subclusters <= MAX_SUB_CLUSTERS:
            raise StrettoError(f"a partition needs at least one model and 1 to {MAX_SUB_CLUSTERS} sub-clusters")
        for name in ("rates", "static_bytes", "dynamic_bytes"):
            values = np.array(getattr(self, name), dtype=np.float64)
            if values.shape != (models,) or not np.isfinite(values).all() or (values < 0).any():
                raise StrettoError("a partition needs a rate and two memory sizes per model, none negative")
            object.__setattr__(self, name, values)
        if not (self.max_rate > 0 and self.max_bytes > 0):
            raise StrettoError("a sub-cluster's limits on rate and memory are above zero")
        if len(self.names) not in (0, models):
            raise StrettoError(f"there are {len(self.names)} names for {models} models")

    def name(self, model: int) -> str:
        return self.names[model] if self.names else f"number {model}"

    def of_parts(self, parts: int) -> PartitionProblem:
        """Of clusters, each of which is split again into so many: they take the limits of all together. Dynamic memory
        counts in each, which is too strict where few models are hungry.
        """
        if parts == 1:
            return self
        dynamic_bytes, max_bytes = self.dynamic_bytes * parts, self.max_bytes * parts
        return replace(
            self, dynamic_bytes=dynamic_bytes, max_rate=self.max_rate * parts, max_bytes=max_bytes, part="cluster"
        )

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


@dataclass(frozen=True, eq=False)
class Change:
    """The assignment in force (-1: the model is nowhere yet), what a change costs and how much may be spent on it."""

    problem: PartitionProblem
    current: tuple[int, ...]
    max_cost: float = math.inf  # C_max
    costs: NDArray[np.float64] | None = None  # c_ij, of loading model i in sub-cluster j or unloading it; None: 1 each

    def __post_init__(self) -> None:
        shape = len(self.problem.rates), self.problem.subclusters
        if self.costs is not None:
            costs = np.array(self.costs, dtype=np.float64)
            if costs.shape != shape or not (costs >= 0).all():
                raise StrettoError("a partition needs one cost of change per model and sub-cluster, none negative")
            object.__setattr__(self, "costs", costs)
        homes = np.array(self.current, dtype=np.int64)
        if homes.shape != shape[:1] or (homes < NOWHERE).any() or (homes >= shape[1]).any():
            raise StrettoError(f"the current assignment needs a sub-cluster below {shape[1]}, or -1, per model")
        if not self.max_cost >= 0:
            raise StrettoError(f"the limit on change is {self.max_cost}; it cannot be negative")

    @property
    def c(self) -> NDArray[np.float64]:
        """c_ij, always there."""
        return np.ones((len(self.current), self.problem.subclusters)) if self.costs is None else self.costs

    def costs_of_homes(self) -> NDArray[np.float64]:
        """[model, sub-cluster]: Σ c·|x − x'| of a model with that home. A move pays for unloading and for loading, a
        model that was nowhere for loading only.
        """
        homes, models = np.array(self.current), np.arange(len(self.current))
        is_held = homes != NOWHERE
        paid = self.c.copy()
        paid[is_held] += self.c[models, homes][is_held, None]
        paid[models[is_held], homes[is_held]] = 0.0
        return paid

    def cost(self, assignment: Sequence[int] | Assignment) -> float:
        """Of the whole change (equation 11)."""
        return float(self.costs_of_homes()[np.arange(len(self.current)), np.asarray(assignment)].sum())


@dataclass(frozen=True)
class Balance:
    """How good an assignment is."""

    objective: float  # ΔR + w·ΔS
    rate_gap: float  # ΔR
    bytes_gap: float  # ΔS
    rate_imbalance: float  # (max − min) / mean over sub-clusters, appendix A.2
    bytes_imbalance: float


def balance_of(problem: PartitionProblem, assignment: Sequence[int] | Assignment) -> Balance:
    """Whether or not it keeps the limits."""
    rates, sizes, _ = loads_of(problem, assignment)
    rate_gap, bytes_gap = (float(np.abs(loads - loads.mean()).max()) for loads in (rates, sizes))
    return Balance(
        objective=rate_gap + problem.w * bytes_gap,
        rate_gap=rate_gap,
        bytes_gap=bytes_gap,
        rate_imbalance=float(np.ptp(rates) / rates.mean()) if rates.any() else 0.0,
        bytes_imbalance=float(np.ptp(sizes) / sizes.mean()) if sizes.any() else 0.0,
    )


def loads_of(problem: PartitionProblem, assignment: Sequence[int] | Assignment) -> tuple[Floats, Floats, Floats]:
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


def keeps_limits(
    problem: PartitionProblem, assignment: Sequence[int] | Assignment, change: Change | None = None
) -> bool:
    """Equations 5, 6 and 11."""
    rates, sizes, largest = loads_of(problem, assignment)
    return bool(
        rates.max() <= problem.max_rate * (1 + ROUNDING)
        and (sizes + largest).max() <= problem.max_bytes * (1 + ROUNDING)
        and (change is None or change.cost(assignment) <= change.max_cost * (1 + ROUNDING))
    )


def partition_problem(
    deployment: Deployment,
    chosen: Sequence[int],
    subclusters: int,
    rates: NDArray[np.float64],
    max_rate: float = math.inf,
    max_bytes: float = math.inf,
) -> PartitionProblem:
    """Application i, served by variant `chosen[i]`, is model i; the smallest worker's memory is a limit too."""
    variants = [deployment.variants[variant] for variant in chosen]
    return PartitionProblem(
        rates=rates,
        static_bytes=np.array([variant.memory_bytes for variant in variants], dtype=np.float64),
        dynamic_bytes=np.array([variant.dynamic_memory_bytes for variant in variants], dtype=np.float64),
        subclusters=subclusters,
        max_rate=max_rate,
        max_bytes=min(max_bytes, *(float(worker.memory_bytes) for worker in deployment.workers)),
        names=tuple(application.name for application in deployment.applications),
    )
