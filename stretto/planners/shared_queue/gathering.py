"""The process of a pool in which one worker may wait for company while the others go on.

In the line of `line.py` a step of waiting blocks the whole pool. Where many queries come that is far too dear: of K
workers one waits, and for as long as it waits a K-th of the pool is lost. Here a free worker may take more queries than
there are: those that are missing are the next ones to come, and the state is how many are there less those that are
spoken for. So n may be below zero, where free workers wait. A batch of b that finds n < b starts when b are there, in
(b − n)/λ on average; it must still be in time for the head then, and holds its worker for so much longer.

Solved by policy iteration as there: a policy's values are one banded system. The table follows with one step of looking
ahead with the true slack, and waits where the best batch is larger than the queue.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, solve_banded

from stretto.core.compiled import compiled
from stretto.core.errors import StrettoError
from stretto.planners.shared_queue.line import GIVE_UP, MAX_ROUNDS, Line, has_settled
from stretto.planners.shared_queue.options import MAX_QUEUE
from stretto.planners.shared_queue.process import Process
from stretto.planners.shared_queue.solve import Solution
from stretto.planners.shared_queue.sweeps import in_time_of

NOT_POSSIBLE = -1e300
POSSIBLE = 1e-3  # a smaller chance of being in time is none
BETTER = 1e-12


def lowest_state(process: Process) -> int:
    """Below zero by so many queries as all workers wait for, one each, and the largest batch."""
    workers = float(process.latency[1] / process.blocks[1])
    return -min(math.ceil(workers) + int(process.batch.max()), MAX_QUEUE)


def solve_gathering(process: Process) -> Solution:
    """By queued and slack column: an action of the process, 0 to wait, or GIVE_UP."""
    p = process
    line = solve_gathering_line(p)
    action = np.full((p.max_queue + 1, p.steps + 1), GIVE_UP, np.int64)
    workers = float(p.latency[1] / p.blocks[1])
    look_ahead(line.values, lowest_state(p), line.gain, p.rate, workers, p.least, action, p.actions)
    return Solution(action, line.gain)


def solve_gathering_line(process: Process) -> Line:
    """Values from the lowest state on, over that of n = 1. A solution that cannot be is refused."""
    p = process
    lowest = lowest_state(p)
    queued = np.arange(lowest, p.max_queue + 1)
    slack = np.where(queued > 0, np.maximum(p.steps - np.maximum(queued - 1, 0) / p.rate, 0.0), float(p.steps))
    workers = float(p.latency[1] / p.blocks[1])
    chosen = np.full(len(queued), GIVE_UP, np.int64)
    values, gain = np.zeros(len(queued)), 0.0
    choose(values, lowest, gain, p.rate, workers, slack, chosen, True, p.actions)
    for number in range(MAX_ROUNDS):
        before, values_before = chosen.copy(), values
        values, gain = _followed(p, lowest, workers, slack, chosen)
        if number and has_settled(values, values_before):
            break
        choose(values, lowest, gain, p.rate, workers, slack, chosen, False, p.actions)
        if (before == chosen).all():
            break
    # Who waits for queries is, each time the memory is used up, given those that are missing.
    given = (1 - lowest) * -math.log(p.lasting[1]) / p.blocks[1]
    if not np.isfinite(values).all() or not 0 <= gain <= (p.rate + given) * p.accuracy.max() * (1 + 1e-6):
        raise StrettoError("the policy for this load could not be solved; the load may be far beyond the workers")
    return Line(values, gain)


def _followed(
    p: Process, lowest: int, workers: float, slack: NDArray[np.float64], chosen: NDArray[np.int64]
) -> tuple[NDArray[np.float64], float]:
    """Values and gain of a policy: h = r − g·τ + P·h, with h(1) = 0. What follows counts for a while only, so that the
    system has one solution for the rewards and one for the times.
    """
    down = int(p.batch[chosen[chosen >= 0]].max(initial=1))
    up = min(int(p.joining.max()) + 1 + math.ceil((int(p.batch.max()) - lowest) / workers), len(chosen) - 1)
    bands, reward, time = transitions(lowest, p.rate, workers, slack, chosen, down, up, p.actions)
    try:
        gathered = solve_banded((down, up), bands, np.stack([reward, time], axis=1), overwrite_ab=True)
    except (LinAlgError, ValueError):
        raise StrettoError("the policy for this load could not be solved: the queue would never end") from None
    gain = float(gathered[1 - lowest, 0] / gathered[1 - lowest, 1])
    return gathered[:, 0] - gain * gathered[:, 1], gain


@compiled
def chance_at(on_time: Any, slack: Any) -> Any:
    """Of being in time with this slack, between two columns."""
    low = min(int(slack), len(on_time) - 2)
    return on_time[low] + (slack - low) * (on_time[low + 1] - on_time[low])


@compiled
def reward_of(n: Any, slack: Any, b: Any, rate: Any, accuracy: Any, on_time: Any) -> Any:
    """Right answers in time of a batch of b where n are there, with the head's slack; NOT_POSSIBLE where it is none."""
    steps = len(on_time) - 1
    if b <= n:
        if on_time[int(slack)] <= POSSIBLE:
            return NOT_POSSIBLE
        return accuracy * in_time_of(n, slack, b, steps, on_time)
    at_start = slack - (b - n) / rate if n > 0 else steps - (b - 1) / rate
    if at_start < 0.0 or chance_at(on_time, at_start) <= POSSIBLE:
        return NOT_POSSIBLE
    return accuracy * in_time_of(b, at_start, b, steps, on_time)


@compiled
def worth_of(h: Any, place: Any, price: Any) -> Any:
    """Of a state by its place. Below the lowest the whole pool waits until so many have come; `price` is that of the
    time between two queries.
    """
    return h[0] + price * place if place < 0 else h[min(place, len(h) - 1)]


@compiled
def worth_after(h: Any, lowest: Any, price: Any, state: Any, joining: Any, chances: Any) -> Any:
    """Of the state that a decision leads to when those have come who join; a part of a query lies between two."""
    whole = math.floor(state)
    part = state - whole
    first = int(whole) - lowest
    worth = 0.0
    if part == 0.0 and first >= 0:  # by far the most
        for number in range(len(joining)):
            if joining[number] < 0:
                break
            worth += chances[number] * h[min(first + joining[number], len(h) - 1)]
        return worth
    for number in range(len(joining)):
        if joining[number] < 0:
            break
        place = first + joining[number]
        worth += chances[number] * worth_of(h, place, price)
        if part > 0.0:
            worth += chances[number] * part * (worth_of(h, place + 1, price) - worth_of(h, place, price))
    return worth


@compiled
def choose(
    h: Any, lowest: Any, gain: Any, rate: Any, workers: Any, slack: Any, chosen: Any, by_pace: Any, actions: Any
) -> None:
    """The best action for each state; `by_pace`: that which takes most queries per time, of those that are there. As in
    the line, what leads to a lower state counts for what its best action is worth.
    """
    batch, blocks, accuracy, on_time, joining, chances, lasting, running, holding = actions
    worth = h.copy()
    best = NOT_POSSIBLE
    for place in range(len(h)):
        n = lowest + place
        chosen[place] = -1
        if n < 1 or by_pace:
            best = NOT_POSSIBLE
        # else it is that of n - 1: the head is given up
        for a in range(1, len(batch)):
            b = batch[a]
            if by_pace:
                if b > max(n, 1) or on_time[a, int(slack[place])] <= POSSIBLE:
                    continue
                value = b / blocks[a]
            else:
                value = reward_of(n, slack[place], b, rate, accuracy[a], on_time[a])
                if value == NOT_POSSIBLE:
                    continue
                missing = max(b - n, 0)
                time = blocks[a] + missing / rate / workers
                value -= (gain + holding * max(n - b, 0)) * time + running[a]
                state = n - b + missing / workers
                value += lasting[a] * worth_after(worth, lowest, gain / rate, state, joining[a], chances[a])
            if value > best + BETTER:
                best = value
                chosen[place] = a
        if not by_pace and best > NOT_POSSIBLE:
            worth[place] = best


@compiled
def transitions(lowest: Any, rate: Any, workers: Any, slack: Any, chosen: Any, down: Any, up: Any, actions: Any) -> Any:
    """(I − P) of a policy in diagonals, reward and time. A head that is given up goes in no time."""
    batch, blocks, accuracy, on_time, joining, chances, lasting, running, holding = actions
    count = len(chosen)
    bands = np.zeros((down + up + 1, count))
    bands[up] = 1.0
    reward = np.zeros(count)
    time = np.zeros(count)
    for place in range(count):
        n = lowest + place
        a = chosen[place]
        if a < 0:
            if place == 0:  # nobody can be answered at all: time passes
                time[0] = 1.0
            else:
                bands[up + 1, place - 1] -= 1.0
            continue
        b = batch[a]
        missing = max(b - n, 0)
        time[place] = blocks[a] + missing / rate / workers
        reward[place] = reward_of(n, slack[place], b, rate, accuracy[a], on_time[a])
        reward[place] -= holding * max(n - b, 0) * time[place] + running[a]
        state = n - b + missing / workers
        whole = math.floor(state)
        part = state - whole
        for number in range(joining.shape[1]):
            if joining[a, number] < 0:
                break
            for more in range(2):  # the states around it
                to = int(whole) - lowest + joining[a, number] + more
                chance = lasting[a] * chances[a, number] * (part if more else 1.0 - part)
                time[place] += chance * max(-to, 0) / rate
                to = min(max(to, 0), count - 1)
                bands[up + place - to, to] -= chance
    return bands, reward, time


@compiled
def look_ahead(h: Any, lowest: Any, gain: Any, rate: Any, workers: Any, least: Any, action: Any, actions: Any) -> None:
    """One step of looking ahead with the true slack of the head. What follows does not know it, so that it is reckoned
    once for each queue and action.
    """
    batch, blocks, accuracy, on_time, joining, chances, lasting, running, holding = actions
    rows, columns = action.shape
    best = np.full(columns, h[-lowest])  # the head is given up: what is best for one less
    for n in range(1, rows):
        for j in range(columns):
            action[n, j] = -1
        for a in range(1, len(batch)):
            b = batch[a]
            missing = max(b - n, 0)
            state = n - b + missing / workers
            after = lasting[a] * worth_after(h, lowest, gain / rate, state, joining[a], chances[a]) - running[a]
            after -= (gain + holding * max(n - b, 0)) * (blocks[a] + missing / rate / workers)
            chances_in_time = on_time[a]
            most = after + accuracy[a] * b  # with all of them in time
            for j in range(least, columns):
                if most <= best[j]:
                    continue
                if b <= n and chances_in_time[j] >= 1.0:  # told apart for its speed alone
                    value = after + accuracy[a] * b
                else:
                    value = after + reward_of(n, float(j), b, rate, accuracy[a], chances_in_time)
                if value > best[j] + BETTER:
                    best[j] = value
                    action[n, j] = a if b <= n else 0
