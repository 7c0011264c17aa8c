"""Proteus's program as published: one binary unknown for every worker and variant, and flows from worker to worker.

The planner solves the same program with counts of alike workers (stretto/planners/proteus.py); this is what it is held
against, in tests on small fleets and in the benchmark on the published one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from stretto.planners.proteus import Problem

PUBLISHED_GAP = 0.5  # within which the artifact takes an answer for good enough


@dataclass(frozen=True)
class ByWorker:
    """The mean accuracy of the placement found, and the bound above which none can be."""

    accuracy: float
    bound: float


def solve_by_worker(
    problem: Problem, headroom: float, relative_gap: float, time_limit_s: float = 500.0
) -> ByWorker | None:
    """None where nothing was found. Unknowns: x by worker and holding, then the flow of each."""
    groups = [group for group, count in enumerate(problem.workers) for _ in range(count)]
    unknowns = [(w, h) for w, group in enumerate(groups) for h in problem.holdings if h.group == group]
    size, demand = len(unknowns), np.array(problem.demand)
    each = np.arange(size)
    of_worker = sparse.csr_matrix((np.ones(size), ([w for w, _ in unknowns], each)), (len(groups), size))
    of_application = sparse.csr_matrix(
        (np.ones(size), ([h.application for _, h in unknowns], each)), (len(demand), size)
    )
    can_hold = np.asarray(of_worker.sum(axis=1)).ravel() > 0
    throughput = sparse.diags([float(h.throughput) for _, h in unknowns])
    accuracy = np.array([h.accuracy for _, h in unknowns])
    solved = milp(
        np.concatenate([np.zeros(size), -accuracy / demand.sum()]),
        constraints=[
            LinearConstraint(sparse.hstack([of_worker, 0 * of_worker]), can_hold, 1),
            LinearConstraint(sparse.hstack([of_application, 0 * of_application]), 1, np.inf),
            LinearConstraint(sparse.hstack([0 * of_application, of_application]), demand, demand),
            LinearConstraint(sparse.hstack([-throughput, headroom * sparse.identity(size)]), -np.inf, 0),
        ],
        integrality=np.repeat([1, 0], size),
        bounds=Bounds(0.0, np.concatenate([np.ones(size), demand[[h.application for _, h in unknowns]]])),
        options={"mip_rel_gap": relative_gap, "time_limit": time_limit_s},
    )
    if solved.x is None:
        return None
    return ByWorker(-float(solved.fun), -float(solved.mip_dual_bound))
