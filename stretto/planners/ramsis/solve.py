"""The solver of a decision process, for the long-run average of reward over length: policy iteration.

It solves the evaluation equations of each policy, and stops when its bounds on the best average are closer than the
tolerance, so the policy returned is at most that far from the best. Value iteration, which the tests hold it against,
takes a hundred times as long near the largest load.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import identity
from scipy.sparse.linalg import LinearOperator, gmres, splu

from stretto.core.errors import StrettoError
from stretto.planners.ramsis.decision_process import DecisionProcess, improve

MAX_POLICIES = 200
MAX_SWEEPS = 20_000
KRYLOV_TOLERANCE = 1e-12
STATIONARY = 1e-11


@dataclass(frozen=True, eq=False)
class Solution:
    """`policy[s]` is a row number. The best average lies between `low` and `high`; `share` is where the chain stays."""

    policy: NDArray[np.int64]
    gain: float
    low: float
    high: float
    share: NDArray[np.float64]
    value: NDArray[np.float64]
    sweeps: int


def policy_iteration(process: DecisionProcess, tolerance: float, start: int = 0) -> Solution:
    """Evaluate a policy, take the best action everywhere, until the bounds are closer than the tolerance.

    Some three to ten policies, also near the largest load, where the chain forgets so slowly that sweeps crawl.
    """
    p = process
    better = np.zeros(p.states)
    policy = p.first[:-1].copy()
    value = np.zeros(p.states)
    for step in range(1, MAX_POLICIES + 1):
        gain, value = evaluated(p, policy, start, value)
        low, high = improve(p.first, p.begin, p.target, p.probability, p.reward, p.length, gain, value, better, policy)
        if high - low <= tolerance:
            share = stationary(p, policy, start)
            return Solution(policy, _gain(p, policy, share), gain + low, gain + high, share, value, step)
    raise StrettoError(
        f"no policy was found within {MAX_POLICIES} steps to a tolerance of {tolerance:g}; raise the tolerance"
    )


def evaluated(
    process: DecisionProcess, policy: NDArray[np.int64], start: int, guess: NDArray[np.float64] | None = None
) -> tuple[float, NDArray[np.float64]]:
    """Gain and relative values of a policy: v + gain·length = reward + P·v with v[start] = 0.

    The gain is the unknown in the place of v[start]. Krylov iterations, which isolated slow modes do not hold up;
    elimination where they fail.
    """
    chain = process.chain(policy)
    length, reward = process.length[policy], process.reward[policy]

    def apply(x: NDArray[np.float64]) -> NDArray[np.float64]:
        rest = x.copy()
        rest[start] = 0.0
        found: NDArray[np.float64] = rest - chain @ rest + x[start] * length
        return found

    system = LinearOperator(chain.shape, matvec=apply, dtype=np.float64)
    solved, failed = gmres(system, reward, x0=guess, rtol=KRYLOV_TOLERANCE, restart=80, maxiter=10)
    if failed:
        whole = (identity(process.states) - chain).tolil()
        whole[:, start] = length[:, None]
        solved = splu(whole.tocsc()).solve(reward)
    gain = float(solved[start])
    solved[start] = 0.0
    return gain, solved


def stationary(
    process: DecisionProcess, policy: NDArray[np.int64], start: int = 0, guess: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Where the chain of a policy stays in the long run (section 5.1).

    Power iteration, as printed, ends what a Krylov solution of π·P = π with Σπ = 1 begins.
    """
    backward = process.chain(policy).T.tocsr()
    share = np.zeros(process.states)
    if guess is None:
        share[start] = 1.0
    else:
        share[:] = guess / guess.sum()

    def apply(x: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = x - backward @ x
        found[start] = x.sum()
        return found

    system = LinearOperator(backward.shape, matvec=apply, dtype=np.float64)
    wanted = np.zeros(process.states)
    wanted[start] = 1.0
    solved, failed = gmres(system, wanted, x0=share, rtol=KRYLOV_TOLERANCE, restart=80, maxiter=10)
    if not failed:
        share = np.maximum(solved, 0.0)
    for _ in range(MAX_SWEEPS):
        share /= share.sum()
        after = backward @ share
        change = float(np.abs(after - share).sum())
        share = after
        if change <= STATIONARY:
            break
    found: NDArray[np.float64] = share / share.sum()
    return found


def _gain(process: DecisionProcess, policy: NDArray[np.int64], share: NDArray[np.float64]) -> float:
    return float(share @ process.reward[policy]) / float(share @ process.length[policy])
