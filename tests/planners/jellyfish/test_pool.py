"""One queue for all workers: what it may serve, when it is taken, and that it steps back when more clients come."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.plan import Fixed, Plan, RouteRule
from stretto.core.profile import NS_PER_S, Quantile
from stretto.core.view import View
from stretto.core.worker import Worker
from stretto.planners.jellyfish.demand import Demand
from stretto.planners.jellyfish.planner import Jellyfish
from stretto.planners.jellyfish.pool import best_pool
from stretto.planners.jellyfish.problem import Problem
from stretto.planning.telling import told_by_slot
from tests.planners.jellyfish.problems import problems
from tests.planners.jellyfish.test_planner import client, deployed, seen, variant_of, variants


def values_of_pools(demand: Demand, accuracy: NDArray[np.float64], share: float) -> dict[tuple[int, int], float]:
    """By model and batch, those that serve everybody in time, client by client."""
    problem, found = demand.problem, {}
    for model in range(problem.models):
        for batch in range(1, problem.latency_ns.shape[2]):
            latency_ns = int(problem.latency_ns[0, model, batch])
            needed_ns = latency_ns * (1 + problem.queueing / problem.workers)
            needed_ns += 0 if problem.overhead_ns is None else int(problem.overhead_ns[batch])
            sent = [max(size for size in range(model + 1) if row[size]) for row in demand.carried]
            in_time = all(needed_ns <= problem.budget_ns[place, size] for place, size in enumerate(sent))
            if in_time and problem.rate.sum() <= share * problem.workers * batch * NS_PER_S / latency_ns:
                found[model, batch] = sum(
                    float(problem.rate[place] * accuracy[model, size]) for place, size in enumerate(sent)
                )
    return found


@given(problems(most_kinds=1, most_workers=3), st.sampled_from([0.5, 0.9, 1.0]), st.randoms())
def test_the_best_of_all_pools_that_are_in_time(some: Problem, share: float, random: Random) -> None:
    carried = np.array([[size == 0 or random.random() < 0.7 for size in range(some.models)] for _ in some.rate])
    demand = Demand(some, (), some.clients, carried)
    accuracy = np.array([[random.random() for _ in range(some.models)] for _ in range(some.models)])
    pool, possible = best_pool(demand, accuracy, share), values_of_pools(demand, accuracy, share)
    if some.clients <= some.workers or not possible:
        assert pool is None
    else:
        assert pool is not None and pool.value == pytest.approx(max(possible.values()))
        assert pool.model in {model for model, _ in possible}


def variant_of_pool(plan: Plan) -> int | None:
    """None where clients are mapped to workers."""
    (lane, *others) = plan.lanes
    assert isinstance(lane.select, Fixed)
    return None if others else lane.select.variant


def served(count: int) -> View:
    return seen(deployed(), *(client(slot, 25.0, 40.0) for slot in range(count)))


def test_a_pool_is_taken_where_it_is_more_accurate_and_given_up_when_clients_come() -> None:
    planner, few, more = Jellyfish(pool=0.9), served(3), served(8)
    plan = planner(few)
    check_plan(plan, few.deployment)
    assert variant_of_pool(plan) == 3 and plan.planner == "jellyfish_pool" and plan.lanes[0].workers == (0, 1)
    mapped = Jellyfish()(few)
    assert {variant_of(mapped, slot) for slot in range(3)} == {2, 3}
    crowded = planner(replace(more, plan=plan))
    check_plan(crowded, more.deployment)
    assert variant_of_pool(crowded) is None and crowded.lanes == Jellyfish()(more).lanes
    assert variant_of_pool(planner(replace(few, plan=crowded))) == 3


def test_every_client_is_told_the_size_of_the_pool() -> None:
    view = served(3)
    plan = Jellyfish(pool=0.9)(view)
    assert plan.routes[0].rule is RouteRule.BY_CLIENT
    assert [told.variant for told in told_by_slot(plan, view).values()] == ["size-416"] * 3


def test_clients_are_mapped_where_there_is_no_pool() -> None:
    assert variant_of_pool(Jellyfish()(served(3))) is None  # not asked for
    assert variant_of_pool(Jellyfish(pool=0.5)(served(3))) is None  # more than that share
    clients = served(3).clients()
    short = seen(deployed(memory_bytes=2), *clients)
    assert variant_of_pool(Jellyfish(pool=0.9)(short)) is None  # it would have to load
    detect = replace(deployed().applications[0], variants=variants({"default": 1.0, "slow": 1.1}))
    unequal = Deployment((detect,), (Worker("w0"), Worker("w1", kind="slow")), Quantile.P99)
    assert variant_of_pool(Jellyfish(pool=0.9)(seen(unequal, *clients))) is None


@pytest.mark.parametrize(("mbit_per_s", "variant"), [(2.0, 3), (3.0, None)])
def test_a_slow_client_sends_less_or_prevents_the_pool(mbit_per_s: float, variant: int | None) -> None:
    """Of 2 Mbit/s only the smallest size is carried at its rate, and in time; of 3 the next, which is late."""
    view = seen(deployed(), *(client(slot, 15.0, 40.0) for slot in range(3)), client(3, 15.0, mbit_per_s))
    assert variant_of_pool(Jellyfish(pool=1.0)(view)) == variant


def test_small_frames_that_a_large_variant_answers_badly_count_as_measured() -> None:
    """Three clients gain by the pool less than the fourth, whose frames are made larger, would lose."""
    usual = deployed()
    detect = usual.applications[0]
    small = detect.variants[0].input_size
    models = tuple(replace(each, accuracy_by_size=((small, 0.05),)) for each in detect.variants[1:])
    measured = replace(usual, applications=(replace(detect, variants=(detect.variants[0], *models)),))
    clients = (*(client(slot, 15.0, 40.0) for slot in range(3)), client(3, 15.0, 2.0))
    assert variant_of_pool(Jellyfish(pool=1.0)(seen(usual, *clients))) == 3
    assert variant_of_pool(Jellyfish(pool=1.0)(seen(measured, *clients))) is None
