"""The policy of a Process: accuracy gained per time, in the long run.

The optimality equation of an average-reward semi-Markov process: h(s) = max_a r(s, a) − g·τ(a) + E h(s'), over states
(queued, slack of the head). The values of the line, whose state is the number of queued queries alone, are nearly
those of the whole where many queries come within an SLO: one step of looking ahead from them, with the true slack,
gives a policy that further sweeps over the whole problem hardly improve (thirty of them changed the fourth digit of
what was seen in trials). Where few come, the line takes too little notice of how old a short queue may be (of five
queries within an SLO on one worker, 0.06 of accuracy was lost); a few sweeps over the whole, which is small then, mend
it to 0.001.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.planners.shared_queue.line import GIVE_UP, solve_line
from stretto.planners.shared_queue.process import Process
from stretto.planners.shared_queue.sweeps import look_ahead, sweep

FEW = 48  # queued at most
SWEEPS = 5


@dataclass(frozen=True, eq=False)
class Solution:
    """`action[n, j]` by queued and slack column; `gain` is accuracy per step, so gain over rate is per query."""

    action: NDArray[np.int64]
    gain: float


def solve(process: Process) -> Solution:
    p = process
    line = solve_line(p)
    action = np.full((p.max_queue + 1, p.steps + 1), GIVE_UP, np.int64)
    values = look_ahead(line.values, action, line.gain, p.rate, p.least, p.actions)
    if p.max_queue <= FEW:
        for _ in range(SWEEPS):
            sweep(values, action, line.gain, p.rate, p.least, p.actions)
    return Solution(action, line.gain)
