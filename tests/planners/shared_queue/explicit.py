"""The decision processes of the shared queue written out in full, state by state, and solved by a linear programme.

Slow and plain on purpose: it follows the words of process.py and line.py and shares none of their code. In every state
the head may be given up: n − 1 are left, in no time; the last one is followed by the next query to come.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, vstack

from stretto.planners.parts.task import Task
from stretto.planners.shared_queue.process import WAIT, Process

GIVE_UP = -1
POSSIBLE = 1e-3  # a smaller chance of being in time is none


def assert_actions_of(p: Process, action: NDArray[np.int64]) -> None:
    """Of a policy by queries waiting and slack: what it does can be done."""
    for n in range(1, p.max_queue + 1):
        assert (action[n, : p.least] == GIVE_UP).all(), "whom no variant can answer in time"
        for column in range(p.least, p.steps + 1):
            taken = action[n, column]
            assert taken == GIVE_UP or p.batch[taken] <= n
            assert taken <= 0 or p.on_time[taken, column] > POSSIBLE
    assert (action[1:4, p.steps] >= 0).all(), "of a few new queries none is given up"


def random_task(seed: int, workers: int = 3) -> Task:
    """Two to four variants, dearer ones more accurate, with latencies that no grid of slack divides."""
    random = np.random.default_rng(seed)
    count = int(random.integers(2, 5))
    alpha = np.sort(random.uniform(1.0, 9.0, count))
    beta = np.sort(random.uniform(2.0, 18.0, count))
    sizes = np.arange(7)
    latency = np.rint(1e6 * np.where(sizes > 0, alpha[:, None] * sizes + beta[:, None], 0.0)).astype(np.int64)
    accuracy = np.sort(random.uniform(0.4, 0.95, count))
    return Task("app", "default", 60_000_000, workers, tuple(f"v{m}" for m in range(count)), accuracy, latency)


@dataclass(frozen=True, eq=False)
class Explicit:
    """Choices in rows: the state each belongs to, its action, reward, time, and chances of the next state."""

    states: int
    state: NDArray[np.int64]
    action: NDArray[np.int64]
    reward: NDArray[np.float64]
    time: NDArray[np.float64]
    chance: coo_array  # [choice, next state]

    def best_gain(self) -> float:
        """Most reward per time in the long run: max Σ r·x over flows x ≥ 0 that are balanced, with Σ τ·x = 1."""
        leaving = coo_array((np.ones(len(self.state)), (self.state, np.arange(len(self.state)))), shape=self._shape)
        balance = leaving - self.chance.T
        equal = vstack([balance, coo_array(self.time[None, :])]).tocsc()
        right = np.append(np.zeros(self.states), 1.0)
        found = linprog(-self.reward, A_eq=equal, b_eq=right, bounds=(0, None), method="highs")
        assert found.status == 0, found.message
        return float(-found.fun)

    def gain_of(self, wanted: NDArray[np.int64]) -> float:
        """Reward per time of the policy that takes action `wanted[state]`, from its stationary distribution."""
        rows = {(int(s), int(a)): row for row, (s, a) in enumerate(zip(self.state, self.action, strict=True))}
        chosen = [rows[s, int(wanted[s])] for s in range(self.states)]
        chain = self.chance.tocsr()[chosen].toarray()
        system = chain.T - np.eye(self.states)
        system[0] = 1.0  # one of the equations follows from the others
        share = np.linalg.solve(system, np.eye(self.states)[0])
        return float(share @ self.reward[chosen] / (share @ self.time[chosen]))

    @property
    def _shape(self) -> tuple[int, int]:
        return self.states, len(self.state)


@dataclass
class _Builder:
    """Collects choices one after the other."""

    state: list[int]
    action: list[int]
    reward: list[float]
    time: list[float]
    places: list[tuple[int, int, float]]

    @staticmethod
    def empty() -> _Builder:
        return _Builder([], [], [], [], [])

    def choice(self, state: int, action: int, reward: float, time: float, leads_to: list[tuple[int, float]]) -> None:
        row = len(self.state)
        self.state.append(state)
        self.action.append(action)
        self.reward.append(reward)
        self.time.append(time)
        assert abs(sum(chance for _, chance in leads_to) - 1.0) < 1e-9
        self.places += [(row, to, chance) for to, chance in leads_to]

    def built(self, states: int) -> Explicit:
        row, to, chance = zip(*self.places, strict=True)
        matrix = coo_array((chance, (row, to)), shape=(len(self.state), states))
        return Explicit(
            states, np.array(self.state), np.array(self.action), np.array(self.reward), np.array(self.time), matrix
        )


def answered_in_time(p: Process, action: int, queued: int, slack: float) -> float:
    """Of the batch's queries, the i-th of n being of age a·(1 − i/n). Those between the first and the last are
    taken by Simpson's rule.
    """
    size = int(p.batch[action])
    first, middle, last = in_time_at(p, action, queued, slack, (size - 1) * np.array([0.0, 0.5, 1.0])).tolist()
    if size <= 1 or first >= 1.0:
        return float(size * first)
    return float(first + last + (size - 2) * (first + 4 * middle + last) / 6)


def in_time_at(p: Process, action: int, queued: int, slack: float, places: NDArray[np.float64]) -> NDArray[np.float64]:
    """The chance of being in time by place in the queue, 0 being the head."""
    own = p.steps - (p.steps - slack) * (1.0 - places / queued)
    return np.interp(own, np.arange(p.steps + 1), p.on_time[action])


def patience(p: Process, action: int, left: int) -> float:
    """The price of time: that which those who are left wait, and that in its batch for those who are taken."""
    waits, runs = left * p.blocks[action], p.batch[action] * p.latency[action]
    return float(p.holding * (waits + runs))


def arrivals(p: Process, action: int) -> list[tuple[int, float]]:
    return [(int(k), float(c)) for k, c in zip(p.joining[action], p.chance[action], strict=True) if k >= 0]


def remembered(p: Process, action: int, leads_to: list[tuple[int, float]], new: int) -> list[tuple[int, float]]:
    """With the chance that the action's time has used the memory up, the queue is as if `new`, in no more time."""
    lasting = float(p.lasting[action])
    return [*((to, chance * lasting) for to, chance in leads_to), (new, 1.0 - lasting)]


def whole(p: Process) -> Explicit:
    """States (n, slack column), numbered n by n. As if new: one query, with all of its slack."""
    columns = p.steps + 1

    def at(queued: int, slack: float) -> list[tuple[int, float]]:
        """Between two columns: either, in proportion."""
        first = (min(queued, p.max_queue) - 1) * columns
        slack = max(slack, 0.0)
        low = min(int(slack), p.steps - 1)
        return [(first + low, 1.0 - (slack - low)), (first + low + 1, slack - low)]

    builder = _Builder.empty()
    for n in range(1, p.max_queue + 1):
        for j in range(columns):
            state = (n - 1) * columns + j
            age = p.steps - j
            able = [a for a in range(len(p.batch)) if _is_open(p, a, n, j, j >= p.least)]
            for a in able:
                left, time = n - int(p.batch[a]), float(p.blocks[a])
                leads_to: list[tuple[int, float]] = []
                for k, chance in arrivals(p, a):
                    if left > 0:
                        to = at(left + k, p.steps - age * left / n - time)
                    elif k > 0:  # the first of k came after 1/(k+1) of the time
                        to = at(k, p.steps - time * k / (k + 1))
                    else:
                        to = at(1, p.steps)
                    leads_to += [(place, chance * part) for place, part in to]
                idle = sum(chance for k, chance in arrivals(p, a) if left + k == 0) / p.rate
                reward = float(p.accuracy[a]) * answered_in_time(p, a, n, j) - patience(p, a, left)
                builder.choice(state, a, reward, time + idle, remembered(p, a, leads_to, p.steps))
            to = at(n - 1, p.steps - age * (n - 1) / n) if n > 1 else at(1, p.steps)
            builder.choice(state, GIVE_UP, 0.0, 0.0 if n > 1 else 1.0 / p.rate, to)
    return builder.built(p.max_queue * columns)


def line(p: Process) -> Explicit:
    """States n: the head is as old as n − 1 arrivals take on average."""
    builder = _Builder.empty()
    for n in range(1, p.max_queue + 1):
        slack = max(p.steps - (n - 1) / p.rate, 0.0)
        able = [a for a in range(len(p.batch)) if _is_open(p, a, n, slack, True)]
        for a in able:
            left = n - int(p.batch[a])
            leads_to = [(min(max(left + k, 1), p.max_queue) - 1, chance) for k, chance in arrivals(p, a)]
            idle = sum(chance for k, chance in arrivals(p, a) if left + k == 0) / p.rate
            reward = float(p.accuracy[a]) * answered_in_time(p, a, n, slack) - patience(p, a, left)
            builder.choice(n - 1, a, reward, float(p.blocks[a]) + idle, remembered(p, a, leads_to, 0))
        builder.choice(n - 1, GIVE_UP, 0.0, 0.0 if n > 1 else 1.0 / p.rate, [(max(n - 2, 0), 1.0)])
    return builder.built(p.max_queue)


def gathering(p: Process, workers: int, lowest: int) -> Explicit:
    """States n from `lowest` on: queries that are there, less those that free workers wait for. A batch that is larger
    than what is there starts when the others have come, and only then holds its worker.
    """
    builder = _Builder.empty()
    for n in range(lowest, p.max_queue + 1):
        slack = max(p.steps - (n - 1) / p.rate, 0.0)
        for a in range(1, len(p.batch)):
            size = int(p.batch[a])
            missing = max(size - n, 0)
            if missing == 0:
                queued, start = n, slack
                chance = p.on_time[a, int(slack)]
            else:
                queued, start = size, slack - missing / p.rate if n > 0 else p.steps - (size - 1) / p.rate
                chance = np.interp(start, np.arange(p.steps + 1), p.on_time[a]) if start >= 0 else 0.0
            if chance <= POSSIBLE:
                continue
            waited = missing / p.rate / workers  # as a part of the pool
            time = float(p.blocks[a]) + waited
            leads_to: dict[int, float] = {}
            for k, chance in arrivals(p, a):
                exact = n - size + missing / workers + k
                low = int(np.floor(exact))
                for to, part in ((low, low + 1 - exact), (low + 1, exact - low)):
                    time += float(p.lasting[a]) * chance * part * max(lowest - to, 0) / p.rate
                    place = min(max(to, lowest), p.max_queue) - lowest
                    leads_to[place] = leads_to.get(place, 0.0) + chance * part
            held = max(n - size, 0) * (float(p.blocks[a]) + waited) + size * float(p.latency[a])
            reward = float(p.accuracy[a]) * answered_in_time(p, a, queued, start) - p.holding * held
            builder.choice(n - lowest, a, reward, time, remembered(p, a, list(leads_to.items()), 1 - lowest))
        if n > 0:
            builder.choice(n - lowest, GIVE_UP, 0.0, 0.0, [(n - lowest - 1, 1.0)])
    return builder.built(p.max_queue + 1 - lowest)


def _is_open(p: Process, action: int, queued: int, slack: float, is_feasible: bool) -> bool:
    if p.variant[action] == WAIT:
        return slack >= p.least + 1
    return bool(is_feasible and p.batch[action] <= queued and p.on_time[action, int(slack)] > POSSIBLE)
