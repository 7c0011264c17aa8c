"""A second solver of a decision process, to hold the one in use against.

Between two sweeps over all actions it follows the present policy for a while, which moves values and gain at a fraction
of the cost (modified policy iteration, Puterman 1994, section 8.7).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.planners.ramsis.solve import DecisionProcess, Solution, improve, stationary

FOLLOWED = 32  # sweeps with the present policy between two over all actions
MAX_SWEEPS = 20_000


class NoConvergence(Exception):
    """Not within the most sweeps."""


def value_iteration(process: DecisionProcess, tolerance: float, start: int = 0, followed: int = FOLLOWED) -> Solution:
    """`start` is a state that every policy comes back to; values are relative to it."""
    p = process
    value, spare = np.zeros(p.states), np.zeros(p.states)
    share, after = np.zeros(p.states), np.zeros(p.states)
    share[start] = 1.0
    policy = p.first[:-1].copy()
    gain = 0.0
    for _ in range(MAX_SWEEPS):
        low, high = improve(p.first, p.begin, p.target, p.probability, p.reward, p.length, gain, value, spare, policy)
        if high - low <= tolerance:
            final = stationary(p, policy, start)
            return Solution(policy, _gain(p, policy, final), gain + low, gain + high, final)
        value, spare = spare, value
        for _ in range(followed):
            advance(p.begin, p.target, p.probability, policy, share, after)
            share, after = after, share
        gain = _gain(p, policy, share)
        for _ in range(followed):
            evaluate(p.begin, p.target, p.probability, p.reward, p.length, gain, policy, value, spare)
            value, spare = spare, value
        value -= value[start]
    raise NoConvergence(f"no policy was found within {MAX_SWEEPS} sweeps to a tolerance of {tolerance:g}")


@compiled
def evaluate(
    begin: NDArray[np.int64],
    target: NDArray[np.int32],
    probability: NDArray[np.float64],
    reward: NDArray[np.float64],
    length: NDArray[np.float64],
    gain: float,
    policy: NDArray[np.int64],
    value: NDArray[np.float64],
    updated: NDArray[np.float64],
) -> tuple[float, float]:
    """One sweep with the policy's rows only; `updated` is filled. Returns the least and the largest change."""
    low, high = np.inf, -np.inf
    for state in range(len(policy)):
        row = policy[state]
        q = reward[row] - gain * length[row]
        for k in range(begin[row], begin[row + 1]):
            q += probability[k] * value[target[k]]
        updated[state] = q
        low = min(low, q - value[state])
        high = max(high, q - value[state])
    return low, high


@compiled
def advance(
    begin: NDArray[np.int64],
    target: NDArray[np.int32],
    probability: NDArray[np.float64],
    policy: NDArray[np.int64],
    share: NDArray[np.float64],
    after: NDArray[np.float64],
) -> float:
    """One step of the chain: `after` becomes the distribution that follows `share`. Returns the sum of changes."""
    after[:] = 0.0
    for state in range(len(policy)):
        here = share[state]
        if here > 0.0:
            row = policy[state]
            for k in range(begin[row], begin[row + 1]):
                after[target[k]] += here * probability[k]
    change = 0.0
    for state in range(len(policy)):
        change += abs(after[state] - share[state])
    return change


def _gain(process: DecisionProcess, policy: NDArray[np.int64], share: NDArray[np.float64]) -> float:
    return float(share @ process.reward[policy] / (share @ process.length[policy]))
