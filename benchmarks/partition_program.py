"""The mixed integer program of Symphony's appendix A (equations 4 to 11), by HiGHS, and the paper's random solver.

Both are what the planners' own search is compared with (cluster_partition.py). A planner does without: a solver that
stops by the clock would give the same view different plans on different machines.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from stretto.planners.partition.problem import NOWHERE, ROUNDING, Change, PartitionProblem, keeps_limits

TRIES = 2000  # of the random solver between two looks at the clock


def solve_partition(
    problem: PartitionProblem, change: Change | None = None, *, time_limit_s: float = 10.0, relative_gap: float = 1e-4
) -> tuple[list[int] | None, bool]:
    """The best assignment found within the time limit, if any, and whether it is proven that none is better by more
    than the gap.
    """
    shape = (len(problem.rates), problem.subclusters)
    unknowns = [shape[0] * shape[1], problem.subclusters + 2]
    solved = milp(
        _objective(problem),
        constraints=_constraints(problem, change),
        integrality=np.repeat([1, 0], unknowns),
        bounds=Bounds(0.0, np.repeat([1.0, np.inf], unknowns)),
        options={"time_limit": time_limit_s, "mip_rel_gap": relative_gap},
    )
    if solved.x is None:
        return None, False
    chosen = solved.x[: unknowns[0]].reshape(shape).argmax(axis=1).tolist()
    return (chosen, solved.status == 0) if keeps_limits(problem, chosen, change) else (None, False)


def random_partition(
    problem: PartitionProblem, seed: int, *, seconds: float = math.inf, tries: int | None = None
) -> tuple[list[int] | None, int]:
    """The best of random assignments that keep the limits, and how many were tried within so much CPU time; compiled,
    so that it loses by its idea and not by its language.
    """
    best = np.full(len(problem.rates), NOWHERE)
    objective, done, state = math.inf, 0, np.array([np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]])
    terms = problem.rates, problem.static_bytes, problem.dynamic_bytes, problem.subclusters
    limits = problem.max_rate * (1 + ROUNDING), problem.max_bytes * (1 + ROUNDING), problem.w
    _try(*terms, *limits, best, math.inf, state.copy(), 0)  # compiled before the clock runs
    end = time.process_time() + seconds
    while (tries is None or done < tries) and time.process_time() < end:
        count = TRIES if tries is None else min(TRIES, tries - done)
        objective = _try(*terms, *limits, best, objective, state, count)
        done += count
    return (None if best[0] == NOWHERE else best.tolist()), done


@njit(cache=False)
def _try(
    rates: Any,
    static: Any,
    dynamic: Any,
    count: int,
    max_rate: float,
    max_bytes: float,
    weight: float,
    best: Any,
    objective: float,
    state: Any,
    tries: int,
) -> float:
    """Draw, check against the limits, evaluate by equation 4, keep the best; splitmix64."""
    homes = np.zeros(len(rates), np.int64)
    load, size, largest = np.zeros(count), np.zeros(count), np.zeros(count)
    mean_rate, mean_size = rates.sum() / count, static.sum() / count
    for _ in range(tries):
        load[:] = 0.0
        size[:] = 0.0
        largest[:] = 0.0
        for model in range(len(rates)):
            state[0] += np.uint64(0x9E3779B97F4A7C15)
            z = state[0]
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z ^= z >> np.uint64(31)
            home = int(z % np.uint64(count))
            homes[model] = home
            load[home] += rates[model]
            size[home] += static[model]
            largest[home] = max(largest[home], dynamic[model])
        if load.max() > max_rate or (size + largest).max() > max_bytes:
            continue
        drawn = np.abs(load - mean_rate).max() + weight * np.abs(size - mean_size).max()
        if drawn < objective:
            objective = drawn
            best[:] = homes
    return objective


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
        present = (np.array(change.current)[:, None] == np.arange(clusters)).astype(np.float64)
        costs = change.c * (1 - 2 * present)
        left = change.max_cost - float((change.c * present).sum())
        rows.append(limit([costs.reshape(1, -1), sparse.csr_matrix((1, clusters + 2))], -np.inf, left))
    return rows
