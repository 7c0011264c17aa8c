"""Which models live in which sub-cluster, and which workers each gets (Symphony section 4.7 and appendix A).

Every worker of a sub-cluster holds all its models. A mixed integer program (equations 4 to 11) balances request rate
and static memory under the limits of a dispatcher and of a worker, and bounds the cost of change from the assignment in
force. The solver's time limit is its own; nothing here reads a clock.
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
    """Models by row: r_i in queries/s, s_i and d_i in bytes. `current` is each model's sub-cluster now, -1 for none."""

    rates: NDArray[np.float64]
    static_bytes: NDArray[np.float64]
    dynamic_bytes: NDArray[np.float64]
    subclusters: int
    max_rate: float = math.inf  # R_max, of one sub-cluster's dispatcher
    max_bytes: float = math.inf  # S_max, of one worker
    weight: float | None = None  # None weighs rate and memory by their averages
    current: tuple[int, ...] | None = None
    change_cost: NDArray[np.float64] | None = None  # by model and sub-cluster; None: 1 each
    max_cost: float = math.inf  # C_max
    w: float = field(init=False)
    c: NDArray[np.float64] = field(init=False)  # c_ij, of loading model i in sub-cluster j or unloading it there
    present: NDArray[np.float64] = field(init=False)  # x'_ij

    def __post_init__(self) -> None:
        models = len(self.rates)
        if models == 0 or self.subclusters < 1:
            raise StrettoError("a partition needs at least one model and one sub-cluster")
        for name in ("rates", "static_bytes", "dynamic_bytes"):
            values = np.array(getattr(self, name), dtype=np.float64)
            if values.shape != (models,) or not np.isfinite(values).all() or (values < 0).any():
                raise StrettoError("a partition needs a rate and two memory sizes per model, none negative")
            object.__setattr__(self, name, values)
        shape = (models, self.subclusters)
        costs = np.ones(shape) if self.change_cost is None else np.array(self.change_cost, dtype=np.float64)
        if costs.shape != shape or not (costs >= 0).all():
            raise StrettoError("a partition needs one cost of change per model and sub-cluster, none negative")
        homes = np.full(models, NOWHERE) if self.current is None else np.array(self.current)
        if homes.shape != (models,) or (homes < NOWHERE).any() or (homes >= self.subclusters).any():
            raise StrettoError(f"the current assignment needs a sub-cluster below {self.subclusters}, or -1, per model")
        total_bytes = float(self.static_bytes.sum())
        by_averages = float(self.rates.sum()) / total_bytes if total_bytes else 0.0
        object.__setattr__(self, "w", by_averages if self.weight is None else self.weight)
        object.__setattr__(self, "c", costs)
        object.__setattr__(self, "present", (homes[:, None] == np.arange(self.subclusters)).astype(np.float64))

    @property
    def bounds_change(self) -> bool:
        return self.current is not None and math.isfinite(self.max_cost)


@dataclass(frozen=True)
class Partition:
    """`assignment[i]` is the sub-cluster of model i."""

    assignment: tuple[int, ...]
    objective: float  # ΔR + w·ΔS
    rate_gap: float  # ΔR
    bytes_gap: float  # ΔS
    cost: float  # of the change from the current assignment
    rate_imbalance: float  # (max − min) / mean over sub-clusters, appendix A.2
    bytes_imbalance: float
    is_optimal: bool = False  # the solver proved that none is better by more than its gap


def evaluate(problem: PartitionProblem, assignment: Sequence[int]) -> Partition:
    """The figures of an assignment, whether or not it keeps the limits."""
    rates, sizes, _ = _loads(problem, assignment)
    rate_gap, bytes_gap = (float(np.abs(loads - loads.mean()).max()) for loads in (rates, sizes))
    return Partition(
        assignment=tuple(int(home) for home in assignment),
        objective=rate_gap + problem.w * bytes_gap,
        rate_gap=rate_gap,
        bytes_gap=bytes_gap,
        cost=_cost(problem, assignment),
        rate_imbalance=float(np.ptp(rates) / rates.mean()) if rates.any() else 0.0,
        bytes_imbalance=float(np.ptp(sizes) / sizes.mean()) if sizes.any() else 0.0,
    )


def keeps_limits(problem: PartitionProblem, assignment: Sequence[int]) -> bool:
    """Equations 5, 6 and 11."""
    rates, sizes, largest = _loads(problem, assignment)
    return bool(
        rates.max() <= problem.max_rate * (1 + ROUNDING)
        and (sizes + largest).max() <= problem.max_bytes * (1 + ROUNDING)
        and (problem.current is None or _cost(problem, assignment) <= problem.max_cost * (1 + ROUNDING))
    )


def _loads(problem: PartitionProblem, assignment: Sequence[int]) -> tuple[NDArray[np.float64], ...]:
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


def _cost(problem: PartitionProblem, assignment: Sequence[int]) -> float:
    """Σ c_ij·|x_ij − x'_ij|: a move pays for unloading and loading, a new model for loading; 0 at the first start."""
    if problem.current is None:
        return 0.0
    wanted = np.zeros_like(problem.present)
    wanted[np.arange(len(wanted)), list(assignment)] = 1.0
    return float((problem.c * np.abs(wanted - problem.present)).sum())


def greedy_partition(problem: PartitionProblem) -> Partition:
    """Greedy placement improved by single moves: always the same for the same problem, however fast the machine is."""
    found = [evaluate(problem, chosen) for chosen in _greedy_assignments(problem)]
    if not found:
        raise StrettoError(NO_FIT)
    return min(found, key=lambda partition: partition.objective)


def solve_partition(problem: PartitionProblem, time_limit_s: float = 10.0, relative_gap: float = 1e-4) -> Partition:
    """The best assignment found within the time limit; the greedy one where that is better, or the only one."""
    found = [evaluate(problem, chosen) for chosen in _greedy_assignments(problem)]
    solved = milp(
        _objective(problem),
        constraints=_constraints(problem),
        integrality=np.repeat([1, 0], [problem.present.size, problem.subclusters + 2]),
        bounds=Bounds(0.0, np.repeat([1.0, np.inf], [problem.present.size, problem.subclusters + 2])),
        options={"time_limit": time_limit_s, "mip_rel_gap": relative_gap},
    )
    is_optimal = False
    if solved.x is not None:
        chosen = solved.x[: problem.present.size].reshape(problem.present.shape).argmax(axis=1).tolist()
        if keeps_limits(problem, chosen):
            found.append(evaluate(problem, chosen))
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


def _units(problem: PartitionProblem) -> tuple[float, float]:
    mean_rate = float(problem.rates.sum()) / problem.subclusters
    mean_bytes = float(problem.static_bytes.sum()) / problem.subclusters
    return mean_rate or 1.0, mean_bytes or 1.0


def _objective(problem: PartitionProblem) -> NDArray[np.float64]:
    rate_unit, bytes_unit = _units(problem)
    weights = np.array([rate_unit, problem.w * bytes_unit])
    return np.concatenate([np.zeros(problem.present.size + problem.subclusters), weights / max(weights.max(), 1e-300)])


def _constraints(problem: PartitionProblem) -> list[LinearConstraint]:
    models, clusters = problem.present.shape
    rate_unit, bytes_unit = _units(problem)
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
    if problem.bounds_change:  # (11): x' is known, so |x − x'| is x where x' = 0 and 1 − x where x' = 1
        change = problem.c * (1 - 2 * problem.present)
        left = problem.max_cost - float((problem.c * problem.present).sum())
        rows.append(limit([change.reshape(1, -1), sparse.csr_matrix((1, clusters + 2))], -np.inf, left))
    return rows


def _greedy_assignments(problem: PartitionProblem) -> list[list[int]]:
    """Free placement and, where there is an assignment, one in which models stay where they can; both improved."""
    placed = (_place(problem, stay) for stay in ((True, False) if problem.current else (False,)))
    improved = (_improve(problem, chosen) for chosen in placed if chosen is not None)
    return [chosen for chosen in improved if keeps_limits(problem, chosen)]


def _place(problem: PartitionProblem, stay: bool) -> list[int] | None:
    """The largest model first, each to the sub-cluster with room that has least of what it would add."""
    sizes, change = _model_sizes(problem), _change_costs(problem)
    budget = problem.max_cost - float(change.min(axis=1).sum()) if problem.bounds_change else math.inf
    assignment = [NOWHERE] * len(sizes)
    loads = np.zeros((problem.subclusters, 2))
    for model in np.argsort(-sizes.sum(axis=1), kind="stable").tolist():
        extra = change[model] - change[model].min()
        fits = _room(problem, assignment)[model] & (extra <= budget)
        if not fits.any():
            return None
        score = np.where(fits, loads @ sizes[model], np.inf)
        if stay:
            score = np.where(fits & (problem.present[model] > 0), -1.0, score)
        home = int(np.argmin(score))
        assignment[model] = home
        loads[home] += sizes[model]
        budget -= float(extra[home])
    return assignment


def _improve(problem: PartitionProblem, assignment: list[int]) -> list[int]:
    """Again and again the move that most lowers Σ_j (difference from the average)², of rate and of memory."""
    sizes, change = _model_sizes(problem), _change_costs(problem)
    homes = np.array(assignment)
    models = np.arange(len(homes))
    for _ in range(MOVES_PER_MODEL * len(homes)):
        loads = np.stack([np.bincount(homes, weights=part, minlength=problem.subclusters) for part in sizes.T], axis=1)
        spent = change[models, homes]
        left = problem.max_cost - spent.sum() if problem.bounds_change else math.inf
        # Half of what the sum of squares falls by when model i leaves its home a for j: v·(L_a − v − L_j).
        gain = (sizes * (loads[homes] - sizes)).sum(axis=1, keepdims=True) - sizes @ loads.T
        allowed = _room(problem, homes.tolist()) & (change - spent[:, None] <= left)
        allowed[models, homes] = False
        model, target = np.unravel_index(int(np.argmax(np.where(allowed, gain, -np.inf))), gain.shape)
        if not allowed[model, target] or gain[model, target] <= ROUNDING:
            break
        homes[model] = target
    return [int(home) for home in homes]


def _model_sizes(problem: PartitionProblem) -> NDArray[np.float64]:
    """Each model's rate and memory in units of the averages, weighed as in the objective."""
    rate_unit, bytes_unit = _units(problem)
    weight = problem.w * bytes_unit / rate_unit
    return np.stack([problem.rates / rate_unit, weight * problem.static_bytes / bytes_unit], axis=1)


def _change_costs(problem: PartitionProblem) -> NDArray[np.float64]:
    """The cost of having model i in sub-cluster j, from where it is now; zero where change is not bounded."""
    if not problem.bounds_change:
        return np.zeros_like(problem.c)
    unload = (problem.c * problem.present).sum(axis=1, keepdims=True)
    return np.where(problem.present > 0, 0.0, problem.c + unload)


def _room(problem: PartitionProblem, assignment: Sequence[int]) -> NDArray[np.bool_]:
    """Whether sub-cluster j could take model i besides what it has, by equations 5 and 6."""
    rates, sizes, largest = _loads(problem, assignment)
    memory = sizes + problem.static_bytes[:, None] + np.maximum(largest, problem.dynamic_bytes[:, None])
    room: NDArray[np.bool_] = (rates + problem.rates[:, None] <= problem.max_rate) & (memory <= problem.max_bytes)
    return room


def partition_problem(
    view: View,
    chosen: Sequence[int],
    subclusters: int,
    max_rate: float = math.inf,
    current: tuple[int, ...] | None = None,
    max_cost: float = math.inf,
) -> PartitionProblem:
    """Application i, served by variant `chosen[i]`, is model i; the smallest worker's memory is the limit."""
    variants = [view.deployment.variants[variant] for variant in chosen]
    return PartitionProblem(
        rates=rates_of(view, 1.0),
        static_bytes=np.array([variant.memory_bytes for variant in variants], dtype=np.float64),
        dynamic_bytes=np.array([variant.dynamic_memory_bytes for variant in variants], dtype=np.float64),
        subclusters=subclusters,
        max_rate=max_rate,
        max_bytes=float(min(worker.memory_bytes for worker in view.deployment.workers)),
        current=current,
        max_cost=max_cost,
    )
