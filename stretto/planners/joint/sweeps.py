"""The compiled loops over states, kinds and actions, in one file, as compiled code is cached by the file it stands in.

`chosen` is what the kinds choose in one state: [kind] → action, or WAITS. A head that is given up is GIVES_UP for all.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from stretto.core.compiled import compiled
from stretto.planners.shared_queue.sweeps import in_time_of

WAITS = -2
GIVES_UP = -1
POSSIBLE = 1e-3  # a smaller chance of being in time is none
BETTER = 1e-12
UNLIKELY = 1e-8
ROUNDS = 2  # in which the kinds answer to each other's choices, for each policy


@compiled
def most_joining(mean: Any) -> Any:
    """More than so many do not come where `mean` are expected."""
    return int(mean + 6.0 * math.sqrt(mean) + 8.0)


@compiled
def chances_of(mean: Any, chances: Any) -> Any:
    """Of 0, 1, … Poisson arrivals, into `chances`; returns how many of them matter. More than it holds are its last."""
    most = min(most_joining(mean), len(chances) - 1)
    log_mean = math.log(max(mean, 1e-300))
    low = min(max(0, int(mean - 6.0 * math.sqrt(mean) - 1.0)), most)
    for k in range(low):
        chances[k] = 0.0
    if low == most:
        chances[most] = 1.0
        return most + 1
    chance = math.exp(low * log_mean - mean - math.lgamma(low + 1.0))
    total = 0.0
    last = most
    for k in range(low, most + 1):
        chances[k] = chance
        total += chance
        if k > mean and chance < UNLIKELY:
            last = k
            break
        chance *= mean / (k + 1.0)
    if last == len(chances) - 1:
        chances[last] += max(0.0, 1.0 - total)
        return last + 1
    for k in range(low, last + 1):
        chances[k] /= total
    return last + 1


@compiled
def expected(h: Any, left: Any, time: Any, gain: Any, rate: Any, memory: Any, chances: Any, count: Any) -> Any:
    """The worth of what follows where `left` stay in the queue and so many join. An empty pool waits for the next."""
    most = len(h) - 1
    worth = 0.0
    for k in range(count):
        worth += chances[k] * h[min(left + k, most)]
    worth = (worth - (chances[0] * h[0] if left == 0 else 0.0)) * math.exp(-time / memory)
    if left == 0:
        worth += chances[0] * (h[1] - gain / rate)
    return worth


@compiled
def reward_of(n: Any, slack: Any, batch: Any, accuracy: Any, running: Any, on_time: Any) -> Any:
    """What an action brings at once: right answers in time, less the price of the time in its batch.

    It takes what it needs of the process: a call that takes all its arrays costs several times what it does.
    """
    return accuracy * in_time_of(n, slack, batch, len(on_time) - 1, on_time) - running


@compiled
def follow(h: Any, gain: Any, worths: Any, process: Any) -> None:
    """worths[time, left]: what follows where `left` stay in the queue while one of `process.times` passes."""
    rate, holding, memory, times = process.rate, process.holding, process.memory, process.times
    chances = np.zeros(len(h) + 1)
    for place in range(len(times)):
        time = times[place]
        count = chances_of(rate * time, chances)
        for left in range(len(h)):
            worth = expected(h, left, time, gain, rate, memory, chances, count)
            worths[place, left] = worth - holding * left * time


@compiled
def place_of(time: Any, times: Any) -> Any:
    """Where a time lies among `times`, a geometric row: the one before it, and how far on the way to the next."""
    place = math.log(time / times[0]) / math.log(times[1] / times[0])
    low = min(max(int(place), 0), len(times) - 2)
    return low, (time - times[low]) / (times[low + 1] - times[low])


@compiled
def between(worths: Any, left: Any, low: Any, part: Any) -> Any:
    """On the line between two of the times."""
    return worths[low, left] + part * (worths[low + 1, left] - worths[low, left])


@compiled
def value_of(n: Any, actions: Any, rewards: Any, worths: Any, gain: Any, batch: Any, pace: Any, times: Any) -> Any:
    """Of a state in which the kinds do as `actions` says; where all wait, a step passes."""
    total = 0.0
    for kind in range(len(actions)):
        if actions[kind] >= 0:
            total += pace[actions[kind]]
    if total == 0.0:
        low, part = place_of(1.0, times)
        return between(worths, n, low, part) - gain
    low, part = place_of(1.0 / total, times)
    value = 0.0
    for kind in range(len(actions)):
        a = actions[kind]
        if a >= 0:
            value += pace[a] * (rewards[kind] + between(worths, n - batch[a], low, part))
    return (value - gain) / total


@compiled
def line_rewards(slack: Any, rewards: Any, process: Any) -> None:
    """rewards[n, action] on the line; −1e300 where the action is not open."""
    batch, on_time, accuracy, running = process.batch, process.on_time, process.accuracy, process.running
    for n in range(1, rewards.shape[0]):
        for a in range(len(batch)):
            rewards[n, a] = -1e300
            if batch[a] <= n and on_time[a, int(slack[n])] > POSSIBLE:
                rewards[n, a] = reward_of(n, slack[n], batch[a], accuracy[a], running[a], on_time[a])


@compiled
def quickest(rewards: Any, chosen: Any, process: Any) -> None:
    """To begin with: every kind takes most queries per time."""
    first, batch, pace = process.first, process.batch, process.pace
    for n in range(1, chosen.shape[0]):
        works = False
        for kind in range(chosen.shape[1]):
            best = 0.0
            chosen[n, kind] = WAITS
            for a in range(first[kind], first[kind + 1]):
                if rewards[n, a] > -1e299 and batch[a] * pace[a] > best:
                    best = batch[a] * pace[a]
                    chosen[n, kind] = a
                    works = True
        if not works:
            chosen[n] = GIVES_UP


@compiled
def together(
    n: Any, actions: Any, brings: Any, least_value: Any, h: Any, worths: Any, rewards: Any, process: Any
) -> None:
    """What all kinds change to at once, where the state is to be worth more than `least_value`.

    The state is worth (Σ pace·worth − gain) / Σ pace. That is above v if Σ pace·(worth − v) is above the gain, in which
    every kind has a term of its own. What joins meanwhile is taken as it is now, and is no merit of an action.
    """
    first, batch, pace = process.first, process.batch, process.pace
    total = 0.0
    for a in actions:
        if a >= 0:
            total += pace[a]
    time = 1.0 / total if total > 0.0 else 1.0
    low, part = place_of(time, process.times)
    stays = least_value + between(worths, n, low, part) + process.holding * n * time - h[n]
    for kind in range(len(actions)):
        best = 0.0
        actions[kind] = WAITS
        brings[kind] = 0.0
        for a in range(first[kind], first[kind + 1]):
            if rewards[n, a] > -1e299:
                term = pace[a] * (rewards[n, a] + between(worths, n - batch[a], low, part) - stays)
                if term > best:
                    best = term
                    actions[kind] = a
                    brings[kind] = rewards[n, a]


@compiled
def in_turn(
    n: Any, actions: Any, brings: Any, now: Any, may_wait: Any, worths: Any, gain: Any, rewards: Any, process: Any
) -> Any:
    """Each kind takes what is best while the others keep to theirs; `now` is what the state is worth before."""
    first, batch, pace, times = process.first, process.batch, process.pace, process.times
    for _ in range(ROUNDS if len(actions) > 1 else 1):
        changed = False
        for kind in range(len(actions)):
            was = actions[kind]
            taken, taken_brings = was, brings[kind]
            for a in range(first[kind] - 1, first[kind + 1]):
                if a < first[kind]:
                    actions[kind] = WAITS
                    brings[kind] = 0.0
                    if actions.max() < 0 and not may_wait:
                        continue
                elif rewards[n, a] > -1e299:
                    actions[kind] = a
                    brings[kind] = rewards[n, a]
                else:
                    continue
                if actions[kind] == was:
                    continue
                value = value_of(n, actions, brings, worths, gain, batch, pace, times)
                if value > now + BETTER:
                    now, taken, taken_brings = value, actions[kind], brings[kind]
            actions[kind], brings[kind] = taken, taken_brings
            changed = changed or taken != was
        if not changed:
            break
    return now


@compiled
def choose(h: Any, gain: Any, slack: Any, rewards: Any, chosen: Any, process: Any) -> None:
    """A better choice for each n: the best of what is kept, waiting, and a change of all kinds at once; and from there
    each kind in turn.
    """
    batch, pace, least, rate, times = process.batch, process.pace, process.least, process.rate, process.times
    kinds = chosen.shape[1]
    worths = np.empty((len(process.times), len(h)))
    follow(h, gain, worths, process)
    actions = np.empty(kinds, np.int64)
    brings = np.zeros(kinds)
    other = np.empty(kinds, np.int64)
    other_brings = np.zeros(kinds)
    for n in range(1, len(h)):
        may_wait = slack[n] >= least.min() + 1.0
        given_up = h[n - 1] if n > 1 else h[1] - gain / rate
        for kind in range(kinds):
            actions[kind] = chosen[n, kind] if chosen[n, kind] >= 0 else WAITS
            brings[kind] = rewards[n, actions[kind]] if actions[kind] >= 0 else 0.0
        best = -1e300
        if actions.max() >= 0 or may_wait:
            best = value_of(n, actions, brings, worths, gain, batch, pace, times)
        if kinds > 1:
            other[:] = WAITS
            other_brings[:] = 0.0
            if may_wait:
                value = value_of(n, other, other_brings, worths, gain, batch, pace, times)
                if value > best + BETTER:
                    best = value
                    actions[:] = other
                    brings[:] = 0.0
            other[:] = actions
            for _ in range(ROUNDS):
                together(n, other, other_brings, max(best, given_up), h, worths, rewards, process)
                if other.max() < 0:
                    break
                value = value_of(n, other, other_brings, worths, gain, batch, pace, times)
                value = in_turn(n, other, other_brings, value, may_wait, worths, gain, rewards, process)
                if value <= best + BETTER:
                    break
                best = value
                actions[:] = other
                brings[:] = other_brings
        best = in_turn(n, actions, brings, best, may_wait, worths, gain, rewards, process)
        if best > given_up + BETTER:
            chosen[n] = actions
        else:
            chosen[n] = GIVES_UP


@compiled
def transitions(rewards: Any, chosen: Any, process: Any, down: Any, up: Any) -> Any:
    """(I − P) of a policy for n ≥ 2 in diagonals, its row of n = 1, reward and time; as for `shared_queue`."""
    batch, pace, rate, holding = process.batch, process.pace, process.rate, process.holding
    memory = process.memory
    most = len(chosen) - 1
    bands = np.zeros((down + up + 1, most - 1))
    bands[up] = 1.0
    from_one = np.zeros(most + 1)
    reward = np.zeros(most + 1)
    time = np.zeros(most + 1)
    chances = np.zeros(most + 2)
    for n in range(1, most + 1):
        if chosen[n, 0] == GIVES_UP:
            if n == 1:
                time[n] = 1.0 / rate
            elif n > 2:
                bands[up + 1, n - 3] -= 1.0
            continue
        total = 0.0
        for a in chosen[n]:
            if a >= 0:
                total += pace[a]
        step = 1.0 / total if total > 0.0 else 1.0
        count = chances_of(rate * step, chances)
        lasting = math.exp(-step / memory)
        time[n] = step
        for kind in range(chosen.shape[1]):
            a = chosen[n, kind]
            if a < 0 and (total > 0.0 or kind > 0):
                continue
            left = n - batch[a] if a >= 0 else n
            part = pace[a] * step if a >= 0 else 1.0
            reward[n] += part * ((rewards[n, a] if a >= 0 else 0.0) - holding * left * step)
            for k in range(count):
                to = min(left + k, most)
                if to == 0:
                    time[n] += part * chances[k] / rate
                elif to > 1 and n == 1:
                    from_one[to] += part * lasting * chances[k]
                elif to > 1:
                    bands[up + n - to, to - 2] -= part * lasting * chances[k]
    return bands, from_one, reward, time


@compiled
def standing_plans(h: Any, worths: Any, chosen: Any, plans: Any, process: Any) -> None:
    """plans[kind, n, slack]: what a kind would do by itself where the state is worth what the line says."""
    first, batch, pace, on_time = process.first, process.batch, process.pace, process.on_time
    least, accuracy, running = process.least, process.accuracy, process.running
    kinds, rows, columns = plans.shape
    for n in range(1, rows):
        total = 0.0
        for a in chosen[n]:
            if a >= 0:
                total += pace[a]
        step = 1.0 / total if total > 0.0 else process.times[0]
        low, part = place_of(step, process.times)
        stays = between(worths, n, low, part) + process.holding * n * step  # what joins is no merit of an action
        for kind in range(kinds):
            best = np.zeros(columns)
            plans[kind, n] = WAITS
            for a in range(first[kind], first[kind + 1]):
                if batch[a] > n:
                    continue
                after = between(worths, n - batch[a], low, part) - stays
                for j in range(least[kind], columns):
                    if on_time[a, j] > POSSIBLE:
                        value = pace[a] * (
                            reward_of(n, float(j), batch[a], accuracy[a], running[a], on_time[a]) + after
                        )
                        if value > best[j]:
                            best[j] = value
                            plans[kind, n, j] = a


@compiled
def look_ahead(kind: Any, h: Any, gain: Any, worths: Any, plans: Any, action: Any, process: Any) -> None:
    """action[n, slack] for a worker of a kind, the other kinds doing as they plan once one of them is free.

    Who leaves the head for another kind leaves it until then: if that would be too late, only waiting for more queries
    is left, and that is worth what the kind itself makes of it a step later.
    """
    first, batch, latency, pace = process.first, process.batch, process.latency, process.pace
    on_time, workers, least, rate = process.on_time, process.workers, process.least, process.rate
    accuracy, running, times, holding = process.accuracy, process.running, process.times, process.holding
    kinds, rows, columns = plans.shape
    actions = np.empty(kinds, np.int64)
    actions_before = np.full((rows, kinds), GIVES_UP, np.int64)
    brings = np.zeros(kinds)
    at_once = np.zeros((rows, first[kind + 1] - first[kind] + 1))  # the worth of an action but for its own rewards
    worth = np.zeros(rows)
    before = np.zeros(rows)
    joining = np.zeros(rows + 1)
    arriving = chances_of(rate, joining)
    for j in range(columns):
        for n in range(1, rows):
            others = 0.0
            brought = 0.0
            for other in range(kinds):
                actions[other] = WAITS
                brings[other] = 0.0
                a = plans[other, n, j]
                if other == kind or a < 0:
                    continue
                slack = j - latency[a] / max(workers[other], 1.0)
                a = plans[other, n, int(slack)] if slack >= 0.0 else WAITS
                if a >= 0:
                    actions[other] = a
                    others += pace[a]
                    brought += pace[a] * reward_of(n, slack, batch[a], accuracy[a], running[a], on_time[a])
            changed = j == 0
            for other in range(kinds):
                changed = changed or actions[other] != actions_before[n, other]
            if changed:
                actions_before[n] = actions
                for a in range(first[kind], first[kind + 1]):
                    if batch[a] <= n:
                        actions[kind] = a
                        at_once[n, a - first[kind] + 1] = value_of(n, actions, brings, worths, gain, batch, pace, times)
                actions[kind] = WAITS
                if others > 0.0:
                    at_once[n, 0] = value_of(n, actions, brings, worths, gain, batch, pace, times)
            best = h[n - 1] if n > 1 else h[1] - gain / rate
            action[n, j] = GIVES_UP
            if others > 0.0:
                value = at_once[n, 0] + brought / others
                if value > best + BETTER:
                    best = value
                    action[n, j] = WAITS
            elif j >= least[kind] + 1:
                value = -gain - holding * n
                for k in range(arriving):
                    value += joining[k] * before[min(n + k, rows - 1)]
                if value > best + BETTER:
                    best = value
                    action[n, j] = WAITS
            for a in range(first[kind], first[kind + 1]):
                if batch[a] > n or on_time[a, j] <= POSSIBLE:
                    continue
                if on_time[a, j] >= 1.0:
                    brings_at_once = accuracy[a] * batch[a] - running[a]
                else:
                    brings_at_once = reward_of(n, float(j), batch[a], accuracy[a], running[a], on_time[a])
                value = at_once[n, a - first[kind] + 1]
                value += (brought + pace[a] * brings_at_once) / (others + pace[a])
                if value > best + BETTER:
                    best = value
                    action[n, j] = a
            worth[n] = best
        before[:] = worth
