"""The compiled loops over states and actions. One file, because compiled code is cached by the file it stands in."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.compiled import compiled


@compiled
def in_time_of(n: Any, slack: Any, b: Any, steps: Any, on_time: Any) -> Any:
    """How many of the first b of n are in time, the head's slack being such: their ages are spread evenly.

    The first and the last count for themselves, and Simpson's rule over them and the middle for those in between; exact
    for two, and where the first is sure to be in time.
    """
    low = min(int(slack), steps - 1)
    first = on_time[low] + (slack - low) * (on_time[low + 1] - on_time[low])
    if first >= 1.0:  # and so are all that came later
        return float(b)
    if b == 1:
        return first
    age = steps - slack
    later = steps - age * (1.0 - 0.5 * (b - 1) / n)
    low = min(int(later), steps - 1)
    middle = on_time[low] + (later - low) * (on_time[low + 1] - on_time[low])
    later = steps - age * (1.0 - (b - 1) / n)
    low = min(int(later), steps - 1)
    last = on_time[low] + (later - low) * (on_time[low + 1] - on_time[low])
    return first + last + (b - 2) * (first + 4.0 * middle + last) / 6.0


@compiled
def choose(h: Any, gain: Any, rate: Any, least: Any, slack: Any, chosen: Any, by_pace: Any, actions: Any) -> None:
    """The best action for each n; `by_pace`: that which takes most queries per time.

    What leads to a shorter queue counts for what its best action is worth, which is known by then: with the values from
    before, a change for one n would reach those a batch above it only in the next round. Giving the head up takes no
    time, so it is worth what the best action for n − 1 is.
    """
    batch, blocks, accuracy, on_time, joining, chances, lasting, running, holding = actions
    steps = on_time.shape[1] - 1
    most = len(h) - 1
    worth = h.copy()
    best = -1e300
    for n in range(1, most + 1):
        chosen[n] = -1
        if by_pace:
            best = -1e300
        elif n == 1:
            best = worth[1] - gain / rate
        # else it is that of n - 1: the head is given up
        for a in range(len(batch)):
            b = batch[a]
            if b > n or (b > 0 and on_time[a, int(slack[n])] <= 1e-3) or (b == 0 and slack[n] < least + 1.0):
                continue
            if by_pace:
                value = b / blocks[a]
            else:
                value = -(gain + holding * (n - b)) * blocks[a] - running[a]
                if b > 0:
                    value += accuracy[a] * in_time_of(n, slack[n], b, steps, on_time[a])
                for place in range(joining.shape[1]):
                    k = joining[a, place]
                    if k < 0:
                        break
                    if n - b + k == 0:
                        value += chances[a, place] * (worth[1] - gain / rate)
                    else:
                        value += chances[a, place] * lasting[a] * worth[min(n - b + k, most)]
            if value > best + 1e-12:
                best = value
                chosen[n] = a
        worth[n] = best


@compiled
def transitions(rate: Any, slack: Any, chosen: Any, actions: Any, down: Any, up: Any) -> Any:
    """(I − P) of a policy for n ≥ 2 in diagonals, its row of n = 1, reward and time.

    What leads to n = 1 ends there. A head that is given up goes in no time; an empty pool waits for the next query.
    """
    batch, blocks, accuracy, on_time, joining, chances, lasting, running, holding = actions
    steps = on_time.shape[1] - 1
    most = len(chosen) - 1
    bands = np.zeros((down + up + 1, most - 1))
    bands[up] = 1.0
    to_one = np.zeros(most + 1)
    reward = np.zeros(most + 1)
    time = np.zeros(most + 1)
    for n in range(1, most + 1):
        a = chosen[n]
        if a < 0:
            if n == 1:
                time[n] = 1.0 / rate
            elif n > 2:
                bands[up + 1, n - 3] -= 1.0
            continue
        b = batch[a]
        time[n] = blocks[a]
        reward[n] = -holding * (n - b) * blocks[a] - running[a]
        if b > 0:
            reward[n] += accuracy[a] * in_time_of(n, slack[n], b, steps, on_time[a])
        for place in range(joining.shape[1]):
            k = joining[a, place]
            if k < 0:
                break
            to = n - b + k
            if to == 0:
                time[n] += chances[a, place] / rate
            elif to > 1:
                to = min(to, most)
                if n == 1:
                    to_one[to] += lasting[a] * chances[a, place]
                else:
                    bands[up + n - to, to - 2] -= lasting[a] * chances[a, place]
    return bands, to_one, reward, time


@compiled
def let_wait(best: Any, action: Any, gain: Any, least: Any, actions: Any) -> None:
    """Waits one step (action 0) wherever that is worth more than what was chosen. It costs a step of the head's slack,
    so slack is gone through from the least on, and a wait is worth what it ends in: a queue that grew old does not
    become a young one by waiting.
    """
    _, blocks, _, _, joining, chances, lasting, running, holding = actions
    rows, columns = best.shape
    for j in range(least + 1, columns):
        for n in range(1, rows):
            value = -(gain + holding * n) * blocks[0] - running[0]
            for place in range(joining.shape[1]):
                k = joining[0, place]
                if k < 0:
                    break
                value += chances[0, place] * lasting[0] * best[min(n + k, rows - 1), j - 1]
            if value > best[n, j] + 1e-12:
                best[n, j] = value
                action[n, j] = 0


@compiled
def look_ahead(h: Any, action: Any, gain: Any, rate: Any, least: Any, actions: Any) -> Any:
    """The same step as `sweep` makes, where what follows a batch is worth what `h` says by queued alone: it is then
    reckoned once for each queue and action, whatever the slack. Returns what states are worth.
    """
    batch, blocks, accuracy, on_time, joining, chances, lasting, running, holding = actions
    rows, columns = action.shape
    empty = h[1] - gain / rate
    all_best = np.zeros((rows, columns))
    for n in range(1, rows):
        best = all_best[n]
        for j in range(columns):
            action[n, j] = -1
            best[j] = empty if n == 1 else h[n - 1]  # the head is given up
        for a in range(1, len(batch)):
            b = batch[a]
            left = n - b
            if left < 0:
                continue
            after = -(gain + holding * left) * blocks[a] - running[a]
            for place in range(joining.shape[1]):
                k = joining[a, place]
                if k < 0:
                    break
                if left + k == 0:
                    after += chances[a, place] * empty
                else:
                    after += chances[a, place] * lasting[a] * h[min(left + k, rows - 1)]
            in_time = on_time[a]
            most = after + accuracy[a] * b  # with all of them in time
            for j in range(least, columns):
                if most <= best[j] or in_time[j] <= 1e-3:
                    continue
                # The first case is told apart for its speed alone.
                right = float(b) if in_time[j] >= 1.0 else in_time_of(n, float(j), b, columns - 1, in_time)
                value = after + accuracy[a] * right
                if value > best[j] + 1e-12:
                    best[j] = value
                    action[n, j] = a
    let_wait(all_best, action, gain, least, actions)
    return all_best


@compiled
def sweep(h: Any, action: Any, gain: Any, rate: Any, least: Any, actions: Any) -> None:
    """One step of looking ahead where what follows is worth what `h` says by queued and slack, which is renewed.

    Values are over that of one query with all of its slack; they are interpolated between slacks.
    """
    batch, blocks, accuracy, on_time, joining, chances, lasting, running, holding = actions
    rows, columns = h.shape
    steps = columns - 1
    most = rows - 1
    empty = h[1, steps] - gain / rate
    best = np.empty((rows, columns))
    ahead = np.empty((rows, columns))
    for n in range(1, rows):
        for j in range(columns):
            action[n, j] = -1
            if n == 1:
                best[n, j] = empty
            else:
                slack = steps - (steps - j) * ((n - 1.0) / n)
                low = min(int(slack), steps - 1)
                best[n, j] = h[n - 1, low] + (slack - low) * (h[n - 1, low + 1] - h[n - 1, low])
    for a in range(len(batch)):
        b = batch[a]
        tau = blocks[a]
        # ahead[r, j]: r are left, so many join them; the slack has not gone down yet
        for r in range(1, rows - b):
            for j in range(columns):
                ahead[r, j] = 0.0
            for place in range(joining.shape[1]):
                if joining[a, place] < 0:
                    break
                chance = chances[a, place] * lasting[a]
                after = h[min(r + joining[a, place], most)]
                for j in range(columns):
                    ahead[r, j] += chance * after[j]
        none_left = 0.0
        for place in range(joining.shape[1]):
            k = joining[a, place]
            if k < 0:
                break
            if k == 0:
                none_left += chances[a, place] * empty
                continue
            slack = max(steps - tau * k / (k + 1.0), 0.0)
            low = min(int(slack), steps - 1)
            after = h[min(k, most)]
            between = after[low] + (slack - low) * (after[low + 1] - after[low])
            none_left += chances[a, place] * lasting[a] * between
        for n in range(max(b, 1), rows):
            left = n - b
            for j in range(least + 1 if b == 0 else least, columns):
                if b > 0 and on_time[a, j] <= 1e-3:
                    continue
                if left == 0:
                    value = none_left
                else:
                    slack = max(steps - (steps - j) * (left / n) - tau, 0.0)
                    low = min(int(slack), steps - 1)
                    value = ahead[left, low] + (slack - low) * (ahead[left, low + 1] - ahead[left, low])
                value -= (gain + holding * left) * tau + running[a]
                if b > 0:
                    value += accuracy[a] * in_time_of(n, float(j), b, steps, on_time[a])
                if value > best[n, j] + 1e-12:
                    best[n, j] = value
                    action[n, j] = a
    reference = best[1, steps]
    for n in range(1, rows):
        for j in range(columns):
            h[n, j] = best[n, j] - reference
