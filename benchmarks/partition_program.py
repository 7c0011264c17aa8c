"""The mixed integer program of Symphony's appendix A (equations 4 to 11), by HiGHS, and the paper's random baseline.

Beside what planners know of a partition (stretto/planners/partition.py) it bounds the cost of change from an assignment
in force. A planner does without: a solver that stops by the clock would give the same view different plans on different
machines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from stretto.core.errors import StrettoError
from stretto.planners import partition
from stretto.planners.partition import NO_FIT, NOWHERE, ROUNDING, PartitionProblem, greedy_partition, loads_of


@dataclass(frozen=True, eq=False)
class Change:
    """The assignment in force (-1: the model is nowhere yet), what a change costs and how much may be spent on it."""

    problem: PartitionProblem
    current: tuple[int, ...]
    max_cost: float = math.inf  # C_max
    costs: NDArray[np.float64] | None = None  # c_ij, of loading model i in sub-cluster j or unloading it; None: 1 each
    c: NDArray[np.float64] = field(init=False)  # the same, always there
    present: NDArray[np.float64] = field(init=False)  # x'_ij

    def __post_init__(self) -> None:
        models, clusters = len(self.problem.rates), self.problem.subclusters
        costs = np.ones((models, clusters)) if self.costs is None else np.array(self.costs, dtype=np.float64)
        if costs.shape != (models, clusters) or not (costs >= 0).all():
            raise StrettoError("a partition needs one cost of change per model and sub-cluster, none negative")
        homes = np.array(self.current)
        if homes.shape != (models,) or (homes < NOWHERE).any() or (homes >= clusters).any():
            raise StrettoError(f"the current assignment needs a sub-cluster below {clusters}, or -1, per model")
        object.__setattr__(self, "c", costs)
        object.__setattr__(self, "present", (homes[:, None] == np.arange(clusters)).astype(np.float64))

    def cost(self, assignment: Sequence[int]) -> float:
        """Σ c_ij·|x_ij − x'_ij|: a move pays for unloading and loading, a new model for loading."""
        wanted = np.zeros_like(self.present)
        wanted[np.arange(len(wanted)), list(assignment)] = 1.0
        return float((self.c * np.abs(wanted - self.present)).sum())


@dataclass(frozen=True)
class Partition:
    """`assignment[i]` is the sub-cluster of model i."""

    assignment: tuple[int, ...]
    objective: float  # ΔR + w·ΔS
    rate_gap: float  # ΔR
    bytes_gap: float  # ΔS
    cost: float  # of the change from the current assignment; 0 at the first start
    rate_imbalance: float  # (max − min) / mean over sub-clusters, appendix A.2
    bytes_imbalance: float
    is_optimal: bool = False  # the solver proved that none is better by more than its gap


def evaluate(problem: PartitionProblem, assignment: Sequence[int], change: Change | None = None) -> Partition:
    """The figures of an assignment, whether or not it keeps the limits."""
    rates, sizes, _ = loads_of(problem, assignment)
    rate_gap, bytes_gap = (float(np.abs(loads - loads.mean()).max()) for loads in (rates, sizes))
    return Partition(
        assignment=tuple(int(home) for home in assignment),
        objective=rate_gap + problem.w * bytes_gap,
        rate_gap=rate_gap,
        bytes_gap=bytes_gap,
        cost=0.0 if change is None else change.cost(assignment),
        rate_imbalance=float(np.ptp(rates) / rates.mean()) if rates.any() else 0.0,
        bytes_imbalance=float(np.ptp(sizes) / sizes.mean()) if sizes.any() else 0.0,
    )


def keeps_limits(problem: PartitionProblem, assignment: Sequence[int], change: Change | None = None) -> bool:
    """Equations 5, 6 and 11."""
    is_affordable = change is None or change.cost(assignment) <= change.max_cost * (1 + ROUNDING)
    return is_affordable and partition.keeps_limits(problem, assignment)


def _greedy(problem: PartitionProblem, change: Change | None) -> list[Partition]:
    """The planner's own partition, where it keeps the limits on change too."""
    try:
        assignment = greedy_partition(problem)
    except StrettoError:
        return []
    return [evaluate(problem, assignment, change)] if keeps_limits(problem, assignment, change) else []


def solve_partition(
    problem: PartitionProblem,
    change: Change | None = None,
    *,
    time_limit_s: float = 10.0,
    relative_gap: float = 1e-4,
) -> Partition:
    """The best assignment found within the time limit; the greedy one where that is better, or the only one."""
    found = _greedy(problem, change)
    shape = (len(problem.rates), problem.subclusters)
    unknowns = [shape[0] * shape[1], problem.subclusters + 2]
    solved = milp(
        _objective(problem),
        constraints=_constraints(problem, change),
        integrality=np.repeat([1, 0], unknowns),
        bounds=Bounds(0.0, np.repeat([1.0, np.inf], unknowns)),
        options={"time_limit": time_limit_s, "mip_rel_gap": relative_gap},
    )
    is_optimal = False
    if solved.x is not None:
        chosen = solved.x[: unknowns[0]].reshape(shape).argmax(axis=1).tolist()
        if keeps_limits(problem, chosen, change):
            found.append(evaluate(problem, chosen, change))
            is_optimal = solved.status == 0
    if not found:
        raise StrettoError(NO_FIT)
    return replace(min(found, key=lambda partition: partition.objective), is_optimal=is_optimal)


def random_partition(problem: PartitionProblem, tries: int, seed: int | np.random.Generator) -> Partition | None:
    """The paper's baseline: the best of `tries` random assignments that keep the limits; None where none did."""
    draw = np.random.default_rng(seed)
    best: Partition | None = None
    for _ in range(tries):
        assignment = draw.integers(problem.subclusters, size=len(problem.rates)).tolist()
        if keeps_limits(problem, assignment):
            drawn = evaluate(problem, assignment)
            best = drawn if best is None or drawn.objective < best.objective else best
    return best


# The unknowns, in order: x_ij by model then sub-cluster, D_j (largest dynamic memory in j), ΔR, ΔS. Rates are in units
# of R̄ and memory in units of S̄, so that the solver meets numbers near one.


def _objective(problem: PartitionProblem) -> NDArray[np.float64]:
    rate_unit, bytes_unit = problem.units
    weights = np.array([rate_unit, problem.w * bytes_unit])
    placed = np.zeros((len(problem.rates) + 1) * problem.subclusters)  # x_ij and D_j cost nothing themselves
    return np.concatenate([placed, weights / max(weights.max(), 1e-300)])


def _constraints(problem: PartitionProblem, change: Change | None) -> list[LinearConstraint]:
    models, clusters = len(problem.rates), problem.subclusters
    rate_unit, bytes_unit = problem.units
    rates, sizes = problem.rates / rate_unit, problem.static_bytes / bytes_unit
    each_cluster = sparse.identity(clusters)
    each_model = sparse.kron(sparse.identity(models), np.ones((1, clusters)))
    in_cluster = [sparse.kron(values[None, :], each_cluster) for values in (rates, sizes)]  # Σ_i r_i·x_ij, Σ_i s_i·x_ij
    none, one = sparse.csr_matrix((clusters, 1)), np.ones((clusters, 1))
    no_dynamic = sparse.csr_matrix((clusters, clusters))
    means = rates.sum() / clusters, sizes.sum() / clusters

    def limit(blocks: list[object], low: float, high: float) -> LinearConstraint:
        return LinearConstraint(sparse.hstack(blocks, format="csr"), low, high)

    rows = [
        limit([each_model, sparse.csr_matrix((models, clusters + 2))], 1, 1),  # (9)
        limit([in_cluster[0], no_dynamic, -one, none], -np.inf, means[0]),  # (7) from above, then from below
        limit([in_cluster[0], no_dynamic, one, none], means[0], np.inf),
        limit([in_cluster[1], no_dynamic, none, -one], -np.inf, means[1]),  # (8)
        limit([in_cluster[1], no_dynamic, none, one], means[1], np.inf),
    ]
    if problem.rates.sum() > problem.max_rate:  # (5), where it can bind
        rows.append(limit([in_cluster[0], no_dynamic, none, none], -np.inf, problem.max_rate / rate_unit))
    # (6), where it can bind; the maximum is a D_j ≥ d_i·x_ij for all i
    if problem.static_bytes.sum() + problem.dynamic_bytes.max() > problem.max_bytes:
        rows.append(limit([in_cluster[1], each_cluster, none, none], -np.inf, problem.max_bytes / bytes_unit))
        dynamic = sparse.diags(np.repeat(problem.dynamic_bytes / bytes_unit, clusters))
        largest = sparse.kron(np.ones((models, 1)), each_cluster)
        rows.append(limit([dynamic, -largest, sparse.csr_matrix((models * clusters, 2))], -np.inf, 0))
    # (11): x' is known, so |x − x'| is x where x' = 0 and 1 − x where x' = 1
    if change is not None and math.isfinite(change.max_cost):
        costs = change.c * (1 - 2 * change.present)
        left = change.max_cost - float((change.c * change.present).sum())
        rows.append(limit([costs.reshape(1, -1), sparse.csr_matrix((1, clusters + 2))], -np.inf, left))
    return rows
