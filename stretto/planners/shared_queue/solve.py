"""The best policy of a Process: accuracy gained per time, in the long run.

The optimality equation of an average-reward semi-Markov process: h(s) = max_a r(s, a) − g·τ(a) + E h(s'). It is solved
by value iteration. A sweep looks about a millisecond ahead and the process forgets over some ten of them, so the start
matters: it is the exact solution of the problem with one number as its state (line.py), whose gain is nearly right.
From then on g follows the drift of the values, which is zero where g is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.planners.shared_queue.line import LOST, solve_line
from stretto.planners.shared_queue.process import Process
from stretto.planners.shared_queue.sweeps import improve

MAX_SWEEPS = 90  # near saturation values settle slowly, and the policy hardly changes any more
LEAST_SWEEPS = 30
WARM_SWEEPS = 40  # from the values of a load close by
DAMPING = 0.3  # of the correction of g by the drift


@dataclass(frozen=True, eq=False)
class Solution:
    """`action[n, j]` by queued and slack column; `gain` is accuracy per step, so gain over rate is per query."""

    action: NDArray[np.int64]
    gain: float
    sweeps: int
    drift: float  # what is left of it, in accuracy per query
    values: NDArray[np.float64]


def solve(process: Process, tolerance: float, near: Solution | None = None) -> Solution:
    """To a drift of values below `tolerance` in accuracy per query, or the most sweeps.

    `near` is the solution for another load, with as long a queue, whose values are a good start.
    """
    p = process
    line = solve_line(p)
    gain = line.gain
    h = np.repeat(line.values[:, None], p.steps + 1, axis=1) if near is None else near.values.copy()
    most = MAX_SWEEPS if near is None else WARM_SWEEPS
    action = np.full(h.shape, LOST, np.int64)
    # What n queries need to come: where the states of the line lie among those of the whole problem.
    queued = np.arange(1, p.max_queue + 1)
    column = np.clip(p.steps - np.rint((queued - 1) / p.rate), 0, p.steps).astype(np.int64)
    weight = line.share[1:]
    drift, sweeps = np.inf, 0
    while sweeps < most and (sweeps < LEAST_SWEEPS or abs(drift) > tolerance * p.rate):
        before = h[queued, column]
        rise = improve(h, action, gain, p.rate, p.least, p.actions)
        drift = float(weight @ (h[queued, column] + rise - before)) / line.time
        gain += DAMPING * drift
        sweeps += 1
    return Solution(action, gain, sweeps, drift / p.rate, h)
