"""The process with one number as its state: n queries wait, and they came at the expected pace.

The head's age is then what n − 1 arrivals take on average. Solved exactly by policy iteration with a linear solve for
each policy, it gives the gain, and values to begin the whole problem with. Starting from the policy that clears most
queries per time keeps it stable near saturation, where sweeps over values would take for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.planners.shared_queue.process import Process
from stretto.planners.shared_queue.sweeps import choose, transitions

MAX_ROUNDS = 50
LOST = -1  # in place of an action's number: no variant is in time, and the head is dropped


@dataclass(frozen=True, eq=False)
class Line:
    """By queued n: values over that of n = 1, and the share of decisions; gain per step, and time of a decision."""

    values: NDArray[np.float64]
    share: NDArray[np.float64]
    gain: float
    time: float


def solve_line(process: Process) -> Line:
    p = process
    slack = np.maximum(p.steps - np.maximum(np.arange(p.max_queue + 1) - 1, 0) / p.rate, 0.0)
    chosen = np.full(p.max_queue + 1, LOST, np.int64)
    choose(np.zeros(p.max_queue + 1), 0.0, p.rate, p.least, slack, chosen, True, p.actions)
    values, gain, matrix, time = _follow(p, slack, chosen)
    for _ in range(MAX_ROUNDS):
        before, gain_before = chosen.copy(), gain
        choose(values, gain, p.rate, p.least, slack, chosen, False, p.actions)
        values, gain, matrix, time = _follow(p, slack, chosen)
        if (before == chosen).all() or gain <= gain_before * (1 + 1e-12):
            break
    share = _share(matrix)
    return Line(values, share, gain, float(share @ time))


def _follow(
    p: Process, slack: NDArray[np.float64], chosen: NDArray[np.int64]
) -> tuple[NDArray[np.float64], float, NDArray[np.float64], NDArray[np.float64]]:
    """Values and gain of a policy: h = r − g·τ + P·h with h(1) = 0. Also P, and τ by state."""
    matrix, reward, time = transitions(p.rate, slack, chosen, p.actions)
    size = p.max_queue
    system = np.eye(size) - matrix[1:, 1:]
    system[:, 0] = time[1:]  # in the place of h(1), which is zero: the gain
    found = np.linalg.solve(system, reward[1:])
    values = np.concatenate(([0.0, 0.0], found[1:]))
    return values, float(found[0]), matrix, time


def _share(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The stationary distribution over n ≥ 1."""
    size = len(matrix) - 1
    system = np.eye(size) - matrix[1:, 1:].T
    system[0] = 1.0
    right = np.zeros(size)
    right[0] = 1.0
    share = np.maximum(np.linalg.solve(system, right), 0.0)
    return np.concatenate(([0.0], share / share.sum()))
