"""The line of a pool of unequal workers, solved exactly, and the table of each kind that follows from its values.

Policy iteration: a policy's values are one banded system; the kinds improve it one after the other, each with the
others' choices before it, so that no step makes it worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.planners.joint.process import Process
from stretto.planners.joint.sweeps import (
    GIVES_UP,
    WAITS,
    choose,
    follow,
    line_rewards,
    look_ahead,
    most_joining,
    quickest,
    standing_plans,
    transitions,
)
from stretto.planners.shared_queue.line import has_settled, values_and_gain

MAX_ROUNDS = 50


@dataclass(frozen=True, eq=False)
class Line:
    """By queued n: values over that of n = 1, and what the kinds do; the gain is accuracy per step."""

    values: NDArray[np.float64]
    chosen: NDArray[np.int64]  # [n, kind]
    gain: float


def solve_line(process: Process) -> Line:
    """A policy that no kind can improve by itself. A solution that cannot be is refused."""
    p = process
    queued = np.arange(p.max_queue + 1)
    slack = np.maximum(p.steps - np.maximum(queued - 1, 0) / p.rate, 0.0)
    rewards = np.full((p.max_queue + 1, len(p.batch)), -1e300)
    line_rewards(slack, rewards, p)
    chosen = np.full((p.max_queue + 1, len(p.workers)), GIVES_UP, np.int64)
    quickest(rewards, chosen, p)
    values, gain = _followed(p, rewards, chosen)
    for _ in range(MAX_ROUNDS):
        before, values_before = chosen.copy(), values
        choose(values, gain, slack, rewards, chosen, p)
        values, gain = _followed(p, rewards, chosen)
        if (before == chosen).all() or has_settled(values, values_before):
            break
    if not np.isfinite(values).all() or not 0 <= gain <= p.rate * p.accuracy.max() * (1 + 1e-6):
        raise StrettoError("the policy for this load could not be solved; the load may be far beyond the workers")
    return Line(values, chosen, gain)


def _followed(p: Process, rewards: NDArray[np.float64], chosen: NDArray[np.int64]) -> tuple[NDArray[np.float64], float]:
    """Values and gain of a policy: h = r − g·τ + P·h with h(1) = 0, as in `shared_queue`."""
    down = int(max(p.batch[chosen[chosen >= 0]].max(initial=1), 1))
    pace = np.where(chosen >= 0, p.pace[np.maximum(chosen, 0)], 0.0).sum(axis=1)
    longest = float(1.0 / pace[pace > 0].min(initial=1.0))
    up = min(int(most_joining(p.rate * max(longest, 1.0))), p.max_queue)
    bands, from_one, reward, time = transitions(rewards, chosen, p, down, up)
    return values_and_gain(bands, from_one, reward, time, down, up)


def tables_of(process: Process, line: Line) -> list[NDArray[np.int64]]:
    """By kind: the action by queued and slack column; WAITS and GIVES_UP are no actions."""
    p = process
    shape = (p.max_queue + 1, p.steps + 1)
    plans = np.full((len(p.workers), *shape), WAITS, np.int64)
    worths = np.empty((len(p.times), p.max_queue + 1))
    follow(line.values, line.gain, worths, p)
    if len(p.workers) > 1:  # else there are no others to reckon with
        standing_plans(line.values, worths, line.chosen, plans, p)
    tables = []
    for kind in range(len(p.workers)):
        action = np.full(shape, GIVES_UP, np.int64)
        look_ahead(kind, line.values, line.gain, worths, plans, action, p)
        tables.append(action)
    return tables
