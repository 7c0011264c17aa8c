"""The process with one number as its state: n queries wait, and they came at the expected pace.

The head's age is then what n − 1 arrivals take on average. Solved exactly by policy iteration, with one banded system
for each policy: a decision leads down by a batch at most, and up by what comes meanwhile. Starting from the policy that
clears most queries per time keeps it stable near saturation, where sweeps over values would take for ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, solve_banded

from stretto.core.errors import StrettoError
from stretto.planners.shared_queue.process import Process
from stretto.planners.shared_queue.sweeps import choose, transitions

MAX_ROUNDS = 50
SETTLED = 1e-7  # of the largest value
Floats = NDArray[np.float64]
GIVE_UP = -1  # in place of an action's number: the head is dropped


@dataclass(frozen=True, eq=False)
class Line:
    """By queued n: values over that of n = 1; and the gain, accuracy per step."""

    values: NDArray[np.float64]
    gain: float


def solve_line(process: Process) -> Line:
    """The best policy of the line. A solution that cannot be (more accuracy than any variant has) is refused."""
    p = process
    slack = np.maximum(p.steps - np.maximum(np.arange(p.max_queue + 1) - 1, 0) / p.rate, 0.0)
    chosen = np.full(p.max_queue + 1, GIVE_UP, np.int64)
    choose(np.zeros(p.max_queue + 1), 0.0, p.rate, p.least, slack, chosen, True, p.actions)
    values, gain = _followed(p, slack, chosen)
    for _ in range(MAX_ROUNDS):
        before, values_before = chosen.copy(), values
        choose(values, gain, p.rate, p.least, slack, chosen, False, p.actions)
        values, gain = _followed(p, slack, chosen)
        if (before == chosen).all() or has_settled(values, values_before):
            break
    if not np.isfinite(values).all() or not 0 <= gain <= p.rate * p.accuracy.max() * (1 + 1e-6):
        raise StrettoError("the policy for this load could not be solved; the load may be far beyond the workers")
    return Line(values, gain)


def _followed(p: Process, slack: NDArray[np.float64], chosen: NDArray[np.int64]) -> tuple[NDArray[np.float64], float]:
    """Values and gain of a policy: h = r − g·τ + P·h with h(1) = 0.

    With x and y the accuracy and the time that are gathered until n = 1 is next come to, h = x − g·y.
    """
    down = int(max(p.batch[chosen[chosen >= 0]].max(initial=1), 1))
    up = min(int(p.joining.max(initial=1)), max(p.max_queue - 2, 1))
    bands, to_one, reward, time = transitions(p.rate, slack, chosen, p.actions, down, up)
    return values_and_gain(bands, to_one, reward, time, down, up)


def values_and_gain(
    bands: Floats, from_one: Floats, reward: Floats, time: Floats, down: int, up: int
) -> tuple[Floats, float]:
    """Of a policy whose I − P for n ≥ 2 stands in `bands`, and whose row of n = 1 is `from_one`."""
    try:
        gathered = solve_banded((down, up), bands, np.stack([reward[2:], time[2:]], axis=1), overwrite_ab=True)
    except (LinAlgError, ValueError):
        raise StrettoError("the policy for this load could not be solved: the queue would never end") from None
    x = np.concatenate(([0.0, 0.0], gathered[:, 0]))
    y = np.concatenate(([0.0, 0.0], gathered[:, 1]))
    gain = float((reward[1] + from_one @ x) / (time[1] + from_one @ y))
    return x - gain * y, gain


def has_settled(values: Floats, before: Floats) -> bool:
    """Not by the gain: a round may improve only queues that the policy never comes to, of use for the next round."""
    return bool(np.abs(values - before).max() <= SETTLED * max(1.0, np.abs(values).max()))
