"""The line of unequal workers: against that of equal ones, and against a linear programme over all joint choices."""

from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import poisson

from stretto.planners.joint import process as process_module
from stretto.planners.joint.process import Process, process_of
from stretto.planners.joint.solve import solve_line, tables_of
from stretto.planners.joint.sweeps import GIVES_UP, WAITS
from stretto.planners.parts.laws import Poisson
from stretto.planners.parts.task import Task
from stretto.planners.shared_queue import line as shared_line
from stretto.planners.shared_queue import process as shared_process
from tests.planners.shared_queue.explicit import answered_in_time, random_task

LIGHT_MS, HEAVY_MS = 9.9, 33.3


def edge_tasks() -> list[Task]:
    """Two kinds that run one variant each, one query at a time."""
    return [
        Task("edge", kind, 300_000_000, 4, (kind,), np.array([accuracy]), np.array([[0, int(ms * 1e6)]]))
        for kind, ms, accuracy in (("heavy", HEAVY_MS, 0.8278), ("light", LIGHT_MS, 0.7769))
    ]


@pytest.mark.parametrize("use", [0.2, 0.6, 0.9, 1.2])
def test_one_kind_is_the_shared_queue(use: float) -> None:
    for seed in range(6):
        task = random_task(seed)
        load = use * task.capacity()
        options = {"noise": 0.1, "margin": 0.1, "impatience": 0.0005}
        equal = shared_line.solve_line(shared_process.process_of(task, Poisson(), load, 3.0, 30, **options))
        found = solve_line(process_of([task], [3.0], load, 30, **options))
        assert found.gain == pytest.approx(equal.gain, rel=1e-6), seed


@pytest.mark.parametrize("use", [0.2, 0.6, 0.9, 1.2])
def test_a_pool_in_two_halves_is_the_pool(use: float) -> None:
    for seed in range(6):
        task = random_task(seed)
        load = use * task.capacity()
        whole = solve_line(process_of([task], [3.0], load, 30, 0.1, margin=0.1))
        halves = solve_line(process_of([task, task], [1.5, 1.5], load, 30, 0.1, margin=0.1))
        assert halves.gain == pytest.approx(whole.gain, rel=2e-3), seed  # two halves may do different things


@pytest.mark.parametrize("use", [0.3, 0.8, 1.1])
def test_the_gain_is_nearly_that_of_the_best_joint_choice(use: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "LEAST_QUEUE", 8)
    monkeypatch.setattr(process_module, "QUEUE_SHARE", 0.01)
    for seed in range(4):
        quick, slow = random_task(seed).only([0, 1]), random_task(seed + 50).only([1])
        load = use * (quick.capacity() + slow.capacity()) / 3
        process = process_of([quick, slow], [1.0, 1.0], load, 20, 0.1)
        best = best_gain(process)
        found = solve_line(process).gain
        assert found <= best * (1 + 1e-6), seed
        assert found == pytest.approx(best, rel=1e-3), seed


def best_gain(p: Process) -> float:
    """Every choice of both kinds in every state, as a linear programme over how often each is made."""
    rows = []  # state, reward, time, where it leads
    for n in range(1, p.max_queue + 1):
        slack = max(p.steps - (n - 1) / p.rate, 0.0)
        able = [
            [WAITS, *(a for a in range(low, high) if p.batch[a] <= n and p.on_time[a, int(slack)] > 1e-3)]
            for low, high in zip(p.first[:-1], p.first[1:], strict=True)
        ]
        for choice in product(*able):
            working = [a for a in choice if a >= 0]
            if not working and slack < p.least.min() + 1:
                continue
            total = sum(p.pace[a] for a in working)
            time = 1 / total if working else 1.0
            chances = poisson.pmf(np.arange(60), p.rate * time)
            reward, spent, leads_to = 0.0, time, np.zeros(p.max_queue)
            for a in working or [WAITS]:
                part = p.pace[a] * time if working else 1.0
                left = n - int(p.batch[a]) if working else n
                if working:
                    reward += part * (p.accuracy[a] * answered_in_time(p, a, n, slack) - p.running[a])
                reward -= part * p.holding * left * time
                spent += part * chances[0] / p.rate if left == 0 else 0.0
                np.add.at(leads_to, np.clip(left + np.arange(60), 1, p.max_queue) - 1, part * chances)
            rows.append((n - 1, reward, spent, leads_to / leads_to.sum()))
        given_up = np.eye(p.max_queue)[max(n - 2, 0)]
        rows.append((n - 1, 0.0, 0.0 if n > 1 else 1 / p.rate, given_up))
    state, reward, spent, leads_to = (np.array(column) for column in zip(*rows, strict=True))
    balance = np.equal.outer(np.arange(p.max_queue), state).astype(float) - leads_to.T
    solved = linprog(
        -reward, A_eq=np.vstack([balance, spent]), b_eq=np.append(np.zeros(p.max_queue), 1.0), method="highs"
    )
    return float(-solved.fun)


def test_a_light_kind_leaves_queries_for_the_heavy_one() -> None:
    process = process_of(edge_tasks(), [2.0, 2.0], 60.0, 50)
    heavy, light = tables_of(process, solve_line(process))
    soon, late = 45, 3  # columns of 6 ms
    assert light[1, soon] == WAITS and light[2, soon] == WAITS
    assert light[1, late] >= 0  # the heavy kind could not answer in time any more
    assert heavy[1, soon] >= 0 and heavy[20, soon] >= 0
    assert light[30, soon] >= 0  # what is too much for the heavy kind


def test_nothing_is_left_for_a_kind_that_is_no_better() -> None:
    task = random_task(3)
    process = process_of([task, task], [2.0, 2.0], 0.9 * task.capacity() * 4 / 3, 30)
    for action in tables_of(process, solve_line(process)):
        assert (action[10:, 15:] >= 0).mean() > 0.9


def test_where_nobody_can_be_in_time_heads_are_given_up() -> None:
    process = process_of(edge_tasks(), [2.0, 2.0], 60.0, 50)
    for action in tables_of(process, solve_line(process)):
        assert (action[1:, 0] == GIVES_UP).all()


def test_few_workers_and_many_arrivals() -> None:
    """More come within a batch than the queue tells apart: this once wrote beyond the end of an array."""
    process = process_of(edge_tasks(), [0.05, 0.05], 300.0, 50)
    line = solve_line(process)
    assert np.isfinite(line.values).all() and line.gain > 0
