"""A finite decision process as plain arrays, and its solver: policy iteration. Knows no queue.

Every row of transition probabilities earns a reward and has a length, and a policy is judged by reward over length in
the long run: by the step where all lengths are one, by the query where a length is a number of queries, by the
second where it is a time.

The solver solves the evaluation equations of each policy, and stops when its bounds on the best average are closer than
the tolerance, so the policy returned is at most that far from the best. Value iteration, which the tests hold it
against, takes a hundred times as long near the largest load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, identity
from scipy.sparse.linalg import LinearOperator, gmres, splu

from stretto.core.compiled import compiled
from stretto.core.errors import StrettoError

MAX_POLICIES = 200
MAX_SWEEPS = 20_000
KRYLOV_TOLERANCE = 1e-12
STATIONARY = 1e-11


@dataclass(frozen=True, eq=False)
class DecisionProcess:
    """Rows `first[s]` … `first[s + 1] − 1` are the actions of state s.

    Row i leads to `target[k]` with `probability[k]` for k in `begin[i]` … `begin[i + 1] − 1`.
    """

    first: NDArray[np.int64]
    begin: NDArray[np.int64]
    target: NDArray[np.int32]
    probability: NDArray[np.float64]
    reward: NDArray[np.float64]
    length: NDArray[np.float64]  # above zero

    @property
    def states(self) -> int:
        return len(self.first) - 1

    def chain(self, policy: NDArray[np.int64]) -> Any:
        """The transition matrix of a policy (a row number per state), as a sparse matrix."""
        begin, taken = entries_of(policy, self.begin)
        return csr_matrix((self.probability[taken], self.target[taken], begin), shape=(self.states, self.states))


def entries_of(rows: NDArray[np.int64], begin: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the entries of each of these rows begin if only these rows are kept, and where all of them are now."""
    counts = begin[rows + 1] - begin[rows]
    begins = np.concatenate([[0], np.cumsum(counts)])
    return begins, np.arange(begins[-1]) + np.repeat(begin[rows] - begins[:-1], counts)


@compiled
def improve(
    first: NDArray[np.int64],
    begin: NDArray[np.int64],
    target: NDArray[np.int32],
    probability: NDArray[np.float64],
    reward: NDArray[np.float64],
    length: NDArray[np.float64],
    gain: float,
    value: NDArray[np.float64],
    better: NDArray[np.float64],
    policy: NDArray[np.int64],
) -> tuple[float, float]:
    """One sweep over all rows: `better` and `policy` are filled. Returns bounds of the best reward per length.

    With q(s, a) = reward − gain·length + Σ p·value, no policy is above gain + max (q − value)/length over all rows, and
    the greedy one is not below gain + min (q − value)/length over its own: both average (q − value)/length.
    """
    low, high = np.inf, -np.inf
    for state in range(len(first) - 1):
        best, chosen = -np.inf, first[state]
        for row in range(first[state], first[state + 1]):
            q = reward[row] - gain * length[row]
            for k in range(begin[row], begin[row + 1]):
                q += probability[k] * value[target[k]]
            high = max(high, (q - value[state]) / length[row])
            if q > best:
                best, chosen = q, row
        better[state] = best
        policy[state] = chosen
        low = min(low, (best - value[state]) / length[chosen])
    return low, high


@dataclass(frozen=True, eq=False)
class Solution:
    """`policy[s]` is a row number. The best average lies between `low` and `high`; `share` is where the chain stays."""

    policy: NDArray[np.int64]
    gain: float
    low: float
    high: float
    share: NDArray[np.float64]


def policy_iteration(process: DecisionProcess, tolerance: float, start: int = 0) -> Solution:
    """Evaluate a policy, take the best action everywhere, until the bounds are closer than the tolerance.

    Some three to ten policies, also near the largest load, where the chain forgets so slowly that sweeps crawl.
    """
    p = process
    better = np.zeros(p.states)
    policy = p.first[:-1].copy()
    value = np.zeros(p.states)
    for _ in range(MAX_POLICIES):
        gain, value = evaluated(p, policy, start, value)
        low, high = improve(p.first, p.begin, p.target, p.probability, p.reward, p.length, gain, value, better, policy)
        if high - low <= tolerance:
            share = stationary(p, policy, start)
            return Solution(policy, _gain(p, policy, share), gain + low, gain + high, share)
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
        applied: NDArray[np.float64] = rest - chain @ rest + x[start] * length
        return applied

    system = LinearOperator(chain.shape, matvec=apply, dtype=np.float64)
    solved, failed = gmres(system, reward, x0=guess, rtol=KRYLOV_TOLERANCE, restart=80, maxiter=10)
    if failed:
        whole = (identity(process.states) - chain).tolil()
        whole[:, start] = length[:, None]
        solved = splu(whole.tocsc()).solve(reward)
    gain = float(solved[start])
    solved[start] = 0.0
    return gain, solved


def stationary(process: DecisionProcess, policy: NDArray[np.int64], start: int = 0) -> NDArray[np.float64]:
    """Where the chain of a policy stays in the long run (section 5.1).

    Power iteration, as printed, ends what a Krylov solution of π·P = π with Σπ = 1 begins.
    """
    backward = process.chain(policy).T.tocsr()
    at_start = np.zeros(process.states)
    at_start[start] = 1.0

    def apply(x: NDArray[np.float64]) -> NDArray[np.float64]:
        applied: NDArray[np.float64] = x - backward @ x
        applied[start] = x.sum()
        return applied

    system = LinearOperator(backward.shape, matvec=apply, dtype=np.float64)
    solved, failed = gmres(system, at_start, x0=at_start, rtol=KRYLOV_TOLERANCE, restart=80, maxiter=10)
    share = at_start if failed else np.maximum(solved, 0.0)
    for _ in range(MAX_SWEEPS):
        share /= share.sum()
        after = backward @ share
        change = float(np.abs(after - share).sum())
        share = after
        if change <= STATIONARY:
            break
    shares: NDArray[np.float64] = share / share.sum()
    return shares


def _gain(process: DecisionProcess, policy: NDArray[np.int64], share: NDArray[np.float64]) -> float:
    return float(share @ process.reward[policy]) / float(share @ process.length[policy])
