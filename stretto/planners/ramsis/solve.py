"""Two solvers of a decision process, for the long-run average of reward over length. They must agree.

Value iteration stops when its bounds on the best average are closer than the tolerance, so the policy returned is at
most that far from the best. Between two sweeps over all actions it follows the present policy for a while, which moves
values and gain at a fraction of the cost (modified policy iteration, Puterman 1994, section 8.7). Policy iteration
solves the evaluation equations of each policy by elimination, and ends when no action improves on the policy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.planners.ramsis.decision_process import DecisionProcess, advance, evaluate, improve

FOLLOWED = 32  # sweeps with the present policy between two over all actions
MAX_SWEEPS = 20_000
MAX_POLICIES = 1000


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


def value_iteration(process: DecisionProcess, tolerance: float, start: int = 0, followed: int = FOLLOWED) -> Solution:
    """`start` is a state that every policy comes back to; values are relative to it."""
    p = process
    value, spare = np.zeros(p.states), np.zeros(p.states)
    share, after = np.zeros(p.states), np.zeros(p.states)
    share[start] = 1.0
    policy = p.first[:-1].copy()
    gain = 0.0
    for sweep in range(1, MAX_SWEEPS + 1):
        low, high = improve(
            p.first, p.begin, p.target, p.probability, p.reward, p.length, gain, value, spare, policy
        )
        if high - low <= tolerance:
            final = stationary(p, policy, start, share)
            return Solution(policy, _gain(p, policy, final), gain + low, gain + high, final, spare, sweep)
        value, spare = spare, value
        for _ in range(followed):
            advance(p.begin, p.target, p.probability, policy, share, after)
            share, after = after, share
        gain = _gain(p, policy, share)
        for _ in range(followed):
            evaluate(p.begin, p.target, p.probability, p.reward, p.length, gain, policy, value, spare)
            value, spare = spare, value
        value -= value[start]
    raise StrettoError(
        f"no policy was found within {MAX_SWEEPS} sweeps to a tolerance of {tolerance:g}; raise the tolerance"
    )


def policy_iteration(process: DecisionProcess, start: int = 0, least_gain: float = 1e-11) -> Solution:
    """Exact up to rounding. The equations are dense: for up to some thousands of states."""
    p = process
    value, better = np.zeros(p.states), np.zeros(p.states)
    policy, candidate = p.first[:-1].copy(), np.zeros(p.states, dtype=np.int64)
    for step in range(1, MAX_POLICIES + 1):
        chain = p.chain(policy)
        # v + gain·length = reward + P·v with v[start] = 0: the unknown gain takes the place of v[start].
        system = np.eye(p.states) - chain
        system[:, start] = p.length[policy]
        solved = np.linalg.solve(system, p.reward[policy])
        gain = float(solved[start])
        value[:] = solved
        value[start] = 0.0
        low, high = improve(
            p.first, p.begin, p.target, p.probability, p.reward, p.length, gain, value, better, candidate
        )
        improved = better > value + least_gain * (1.0 + np.abs(value))
        if not improved.any():
            share = stationary(p, policy, start)
            return Solution(policy, gain, gain + low, gain + high, share, value.copy(), step)
        policy[improved] = candidate[improved]
    raise StrettoError(f"policy iteration did not end within {MAX_POLICIES} policies")


def stationary(
    process: DecisionProcess,
    policy: NDArray[np.int64],
    start: int = 0,
    guess: NDArray[np.float64] | None = None,
    tolerance: float = 1e-11,
) -> NDArray[np.float64]:
    """Where the chain of a policy stays in the long run, by power iteration (section 5.1), from `start` or a guess."""
    p = process
    share, after = np.zeros(p.states), np.zeros(p.states)
    if guess is None:
        share[start] = 1.0
    else:
        share[:] = guess / guess.sum()
    for _ in range(MAX_SWEEPS):
        change = advance(p.begin, p.target, p.probability, policy, share, after)
        share, after = after, share
        if change <= tolerance:
            break
    found: NDArray[np.float64] = share / share.sum()
    return found


def _gain(process: DecisionProcess, policy: NDArray[np.int64], share: NDArray[np.float64]) -> float:
    return float(share @ process.reward[policy]) / float(share @ process.length[policy])
