"""Placed: the program against exhaustive search, how a placement changes, and how it does where loading takes time."""

from itertools import combinations_with_replacement, product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.plan import Missing
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.view import View
from stretto.core.worker import Worker
from stretto.planners.placed.planner import Placed, staged
from stretto.planners.placed.program import (
    ABSENT,
    HORIZON_S,
    MOST_SPARE,
    NOBODY,
    SPARE_WORTH,
    Holding,
    holdings_of,
    solve,
    tasks_of,
)
from stretto.sim.arrivals import Load, Weights
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate

LOAD_S = 0.5


def profile(kind: str, first_ms: float) -> LatencyProfile:
    row = np.array([0, *(int(first_ms * (0.6 + 0.4 * size) * 1e6) for size in range(1, 9))])
    return LatencyProfile(np.tile(row, (len(Quantile), 1)), kind)


def small(slow: int = 2, fast: int = 2, applications: int = 2) -> Deployment:
    """Workers that hold one variant, none at the start; three variants, on fast workers three times as fast."""
    made = []
    for number in range(applications):
        variants = [
            Variant(
                f"v{place}",
                accuracy + 0.01 * number,
                (profile("slow", ms), profile("fast", ms / 3)),
                memory_bytes=1,
                load_ns=int(LOAD_S * 1e9),
            )
            for place, (accuracy, ms) in enumerate(((0.6, 8.0), (0.75, 20.0), (0.85, 55.0)))
        ]
        made.append(Application(f"app{number}", 200_000_000, tuple(variants)))
    crew = [Worker(f"slow-{n}", "slow", 1, ()) for n in range(slow)]
    crew += [Worker(f"fast-{n}", "fast", 1, ()) for n in range(fast)]
    return Deployment(tuple(made), tuple(crew), Quantile.MEAN)


def worth_of(
    holdings: list[Holding], counts: NDArray[np.int64], demand: NDArray[np.float64], headroom: float, now: list[int]
) -> float:
    """What the best flows bring at these counts, by a linear programme; less what the changes cost."""
    throughput = np.array([h.throughput for h in holdings])
    owner = np.equal.outer(np.arange(len(demand)), [h.application for h in holdings]).astype(float)
    capacity = owner @ (counts * throughput)
    size = len(holdings)
    solved = linprog(
        np.concatenate([[-h.accuracy for h in holdings], np.full(len(demand), -SPARE_WORTH)]),
        A_ub=np.block([[owner, np.zeros((len(demand), len(demand)))], [headroom * owner, np.eye(len(demand))]]),
        b_ub=np.concatenate([demand, capacity]),
        bounds=[*((0, n * p / headroom) for n, p in zip(counts, throughput, strict=True)),
                *((0, MOST_SPARE * rate) for rate in demand)],
    )  # fmt: skip
    held = [now.count(h.variant * 10 + h.kind) for h in holdings]
    change = sum(
        max(0, n - had) * h.load_s * min(h.throughput, demand[h.application]) * h.accuracy / HORIZON_S
        for h, n, had in zip(holdings, counts, held, strict=True)
    )
    absent = sum(ABSENT for row in owner if row @ counts == 0)
    assert len(solved.x) == size + len(demand)
    return float(-solved.fun) - change - absent


def every_placement(holdings: list[Holding], workers: dict[int, int]) -> list[NDArray[np.int64]]:
    """All counts that give an application one variant on a kind at most."""
    by_kind = []
    for kind, count in workers.items():
        places = [NOBODY, *(place for place, h in enumerate(holdings) if h.kind == kind)]
        fitting = []
        for chosen in combinations_with_replacement(places, count):
            used = {place for place in chosen if place != NOBODY}
            if len({holdings[place].application for place in used}) == len(used):
                fitting.append(np.bincount([place for place in chosen if place != NOBODY], minlength=len(holdings)))
        by_kind.append(fitting)
    return [sum(parts, np.zeros(len(holdings), np.int64)) for parts in product(*by_kind)]


@pytest.mark.parametrize("demand", [(5.0, 5.0), (60.0, 10.0), (150.0, 120.0), (900.0, 900.0)])
@pytest.mark.parametrize("is_placed", [False, True])
def test_the_program_finds_what_exhaustive_search_finds(demand: tuple[float, float], is_placed: bool) -> None:
    deployment = small()
    rates = np.array(demand)
    tasks = [tasks_of(deployment, number) for number in range(2)]
    holdings = holdings_of(deployment, tasks, rates)
    now = np.array([2, 5, 1, 4]) if is_placed else np.full(4, NOBODY)
    counts = solve(deployment, holdings, rates, 1.3, (0, 1, 2, 3), now)
    kinds = {deployment.kinds.index("slow"): 2, deployment.kinds.index("fast"): 2}
    held = [int(v) * 10 + deployment.kinds.index(deployment.workers[w].kind) for w, v in enumerate(now) if v >= 0]
    best = max(worth_of(holdings, placement, rates, 1.3, held) for placement in every_placement(holdings, kinds))
    assert worth_of(holdings, counts, rates, 1.3, held) >= best * (1 - 2e-3)


def test_one_variant_of_an_application_on_a_kind() -> None:
    deployment = small(4, 4, 3)
    plan = Placed()(View(deployment, expected_rates=(50.0, 20.0, 5.0)))
    check_plan(plan, deployment)
    assert plan.placement is not None
    for lane in plan.lanes:
        assert lane.workers and lane.missing == Missing.WAIT
        for kind in deployment.kinds:
            held = {plan.placement[w] for w in lane.workers if deployment.workers[w].kind == kind}
            assert len(held) <= 1


def test_the_same_load_gives_the_very_same_plan() -> None:
    deployment, planner = small(4, 4), Placed()
    first = planner(View(deployment, rates=np.array([50.0, 20.0])))
    assert planner(View(deployment, rates=np.array([50.5, 20.1]), plan=first, now_ns=10**8)) is first


def test_at_most_half_of_an_application_changes_at_once() -> None:
    deployment = small(4, 2)
    now, goal = np.array([0, 0, 0, 0, 3, 3]), np.array([1, 1, 1, 1, 3, 3])
    ready = np.ones(6, bool)
    after = staged(deployment, now, goal, ready)
    assert after.tolist() == [1, 1, 0, 0, 3, 3]
    ready[:2] = False  # those that load do not answer yet: of the two that do, one may go
    assert staged(deployment, after, goal, ready).tolist() == [1, 1, 1, 0, 3, 3]


def test_the_only_worker_waits_for_the_one_that_relieves_it() -> None:
    deployment = small(2, 1)
    now, goal = np.array([0, NOBODY, 3]), np.array([3, 0, 3])
    assert staged(deployment, now, goal, np.ones(3, bool)).tolist() == [0, 0, 3]
    assert staged(deployment, np.array([0, 0, 3]), goal, np.ones(3, bool)).tolist() == [3, 0, 3]


def test_who_wait_for_each_other_change_all_the_same() -> None:
    deployment = small(1, 1)
    goal = np.array([3, 0])
    assert staged(deployment, np.array([0, 3]), goal, np.ones(2, bool)).tolist() == goal.tolist()


def test_loading_loses_little_when_the_load_moves() -> None:
    deployment = small(6, 4)
    rates = (150.0, 40.0)
    summary = simulate(
        deployment,
        Placed(),
        Load(Poisson(), sum(rates), Weights(rates)),
        seconds=30.0,
        warmup_s=2.0,
        replan_s=0.1,
        expected_rates=(30.0, 100.0),
    ).summary
    assert summary.on_time_rate > 0.98
    assert summary.accuracy > 0.7
