"""One queue for all workers: what it may serve, when it is taken, and that it steps back when more clients come."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.frame_size import MISCOUNT, carried_bytes
from stretto.core.plan import Plan, RouteRule, Table
from stretto.core.profile import NS_PER_MS, NS_PER_S, Quantile
from stretto.core.view import View
from stretto.core.worker import Worker
from stretto.planners.jellyfish.demand import ALONE, Demand
from stretto.planners.jellyfish.planner import Jellyfish
from stretto.planners.jellyfish.pool import ABOVE, best_pool
from stretto.planners.jellyfish.problem import Problem
from stretto.planners.jellyfish.stepping import throughputs
from stretto.planning.telling import told_by_slot
from tests.planners.jellyfish.problems import problem, problems
from tests.planners.jellyfish.test_planner import (
    client,
    deployed,
    lane_of,
    middle_of_known,
    seen,
    variant_of,
    variants,
)


def brought_in_time(demand: Demand, throughput: NDArray[np.float64], model: int, told: int) -> float:
    """The most that a model brings through in batches that all clients leave time for, if they are told that size."""
    problem, most = demand.problem, 0.0
    sent = sizes_sent(demand, told)
    for batch in range(1, problem.latency_ns.shape[2]):
        needed_ns = int(problem.latency_ns[0, model, batch]) * (1 + problem.queueing / problem.workers)
        needed_ns += 0 if problem.overhead_ns is None else int(problem.overhead_ns[batch])
        if all(needed_ns <= problem.budget_ns[place, size] for place, size in enumerate(sent)):
            most = max(most, float(throughput[model, batch]))
    return most


def sizes_sent(demand: Demand, told: int) -> list[int]:
    return [max(size for size in range(told + 1) if row[size]) for row in demand.carried]


@given(problems(most_kinds=1, most_workers=3, most_models=6), st.sampled_from([0.5, 0.9, 1.0]), st.randoms())
def test_the_largest_of_all_pools_that_are_in_time(some: Problem, share: float, random: Random) -> None:
    carried = np.array([[size == 0 or random.random() < 0.7 for size in range(some.models)] for _ in some.rate])
    demand = Demand(some, (), some.clients, carried)
    accuracy = np.minimum(some.accuracy[:, None], some.accuracy[None, :])
    throughput = throughputs((0.9 * some.latency_ns[0]).astype(np.int64), some.workers)
    pool = best_pool(demand, accuracy, throughput, share)
    asked = some.rate.sum()

    def is_in_time(model: int, told: int) -> bool:
        return asked <= share * brought_in_time(demand, throughput, model, told)

    able = [model for model in range(some.models) if is_in_time(model, model)]
    if some.clients <= some.workers or not able:
        assert pool is None
        return
    values = [some.rate @ some.accuracy[sizes_sent(demand, told)] for told in range(some.models)]
    assert pool is not None and values[pool.model] <= pool.value + 1e-9
    assert pool.value >= max(values[model] for model in able) - 1e-9
    assert pool.told == max(
        told for told in range(pool.model, min(pool.model + ABOVE + 1, some.models)) if is_in_time(pool.model, told)
    )
    assert pool.value <= values[min(pool.model + 1, pool.told)] + 1e-9


def test_the_time_that_is_left_counts_for_the_model_above() -> None:
    """Of 40 queries/s, where the model brings 100 through and the one above 30; with less time, 20 in small batches."""
    rates, latency_ms = [10.0] * 4, [[[10.0, 20.0], [20.0, 40.0]]]
    accuracy, carried = np.array([[0.3, 0.3], [0.3, 0.9]]), np.ones((4, 2), np.bool_)
    some = problem(rates, [1000.0] * 4, latency_ms, [0])
    throughput = np.array([[0.0, 100.0, 100.0], [0.0, 20.0, 30.0]])
    pool = best_pool(Demand(some, (), 4, carried), accuracy, throughput, 1.0)
    assert pool is not None and (pool.model, pool.told) == (0, 1)
    assert pool.value == pytest.approx(40 * (0.3 + 0.6 * (1 / 40 - 1 / 100) / (1 / 30 - 1 / 100)))
    hurried = problem(rates, [45.0] * 4, latency_ms, [0])
    pool = best_pool(Demand(hurried, (), 4, carried), accuracy, throughput, 1.0)
    assert pool is not None
    assert pool.value == pytest.approx(40 * (0.3 + 0.6 * (1 / 40 - 1 / 100) / (1 / 20 - 1 / 100)))


def test_small_frames_that_larger_models_answer_badly_keep_the_told_size_down() -> None:
    some = problem([10.0] * 4, [1000.0] * 4, [[[10.0], [20.0]]], [0])
    carried = np.array([[True, True]] * 2 + [[True, False]] * 2)
    throughput = np.array([[0.0, 100.0], [0.0, 50.0]])
    for small_on_large, told in ((0.3, 1), (0.0, 0)):
        accuracy = np.array([[0.3, 0.3], [small_on_large, 0.5]])
        pool = best_pool(Demand(some, (), 4, carried), accuracy, throughput, 0.5)
        assert pool is not None and (pool.model, pool.told) == (0, told)


def variant_of_pool(plan: Plan) -> int | None:
    """The largest that it runs; None where clients are mapped to workers."""
    lane = plan.lanes[0]
    if not isinstance(lane.select, Table):
        return None
    assert all(other.capacity == 0 for other in plan.lanes[1:]), "others refuse"
    return max(lane.select.variants)


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


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 60.0), st.one_of(st.none(), st.floats(0.5, 80.0)), st.floats(5.0, 300.0)), max_size=12
    ),
    st.integers(1, 4),
    st.floats(0.0, 100.0),
)
def test_every_plan_can_be_followed_and_a_pool_keeps_up(
    drawn: list[tuple[float, float | None, float]], count: int, others: float
) -> None:
    """In batches that some variant of the table has in time, alone, for whatever client leaves least."""
    clients = tuple(client(slot, *values) for slot, values in enumerate(drawn))
    view = seen(deployed(count), *clients, others=others)
    plan = Jellyfish(pool=1.0)(view)
    check_plan(plan, view.deployment)
    if variant_of_pool(plan) is None:
        return
    largest = variant_of_pool(plan) or 0
    told = view.deployment.variants[largest]
    unknown = middle_of_known(clients, 1 / count, ALONE / count)
    left_ns = 100.0 * NS_PER_MS if others else math.inf
    pooled = [one for one in clients if plan.lanes[lane_of(plan, one.slot)].capacity > 0]
    for one in pooled:
        bytes_per_s = one.network.bytes_per_s or unknown
        carried = [
            each.frame_bytes
            for each in view.deployment.variants
            if each.frame_bytes <= min(told.frame_bytes, carried_bytes(bytes_per_s, max(one.rate - MISCOUNT, 0.0)))
        ]
        sent = max(carried, default=view.deployment.variants[0].frame_bytes)
        left_ns = min(left_ns, (one.slo_ns or 0) - sent / bytes_per_s * NS_PER_S)
    profiles = [variant.profiles[0] for variant in view.deployment.variants[: largest + 1]]
    brought = [
        count * batch * NS_PER_S / profile.latency_ns(batch, Quantile.P99)
        for profile in profiles
        if (batch := profile.largest_batch_within(left_ns, Quantile.P99))
    ]
    assert sum(one.rate for one in pooled) <= max(brought) * (1 + 1e-9)


def test_clients_that_ask_for_nothing_are_told_the_largest_size_that_is_in_time() -> None:
    view = seen(deployed(), *(client(slot, 0.0, 40.0) for slot in range(3)))
    plan = Jellyfish(pool=1.0)(view)
    check_plan(plan, view.deployment)
    assert {told.variant for told in told_by_slot(plan, view).values()} == {"size-416"}


def test_every_client_is_told_the_size_of_the_pool() -> None:
    view = served(3)
    plan = Jellyfish(pool=0.9)(view)
    assert plan.routes[0].rule is RouteRule.BY_CLIENT
    assert [told.variant for told in told_by_slot(plan, view).values()] == ["size-416"] * 3


def test_clients_are_mapped_where_there_is_no_pool() -> None:
    assert variant_of_pool(Jellyfish()(served(3))) is None  # not asked for
    assert variant_of_pool(Jellyfish(pool=0.5)(served(3))) is None  # more than that share
    clients = served(3).clients()
    models = len(deployed().variants)
    for memory, has_pool in (
        (models, True),
        (models - 1, False),
    ):  # of one byte each: without all, it would have to load
        plan = Jellyfish(pool=0.9)(seen(deployed(memory_bytes=memory), *clients))
        assert (variant_of_pool(plan) is not None) == has_pool
    detect = replace(deployed().applications[0], variants=variants({"default": 1.0, "slow": 1.1}))
    unequal = Deployment((detect,), (Worker("w0"), Worker("w1", kind="slow")), Quantile.P99)
    assert variant_of_pool(Jellyfish(pool=0.9)(seen(unequal, *clients))) is None


@pytest.mark.parametrize("hopeless", [{"mbit_per_s": 0.008}, {"slo_ms": 1.0}])
def test_a_client_that_nothing_can_serve_does_not_prevent_the_pool(hopeless: dict[str, float]) -> None:
    """The pool was for whoever had least time, so one with a dead link ended it for everybody."""
    others = served(3).clients()
    view = seen(deployed(), *others, client(3, 1.0, **hopeless))
    plan = Jellyfish(pool=0.9)(view)
    check_plan(plan, view.deployment)
    table, table_without = plan.lanes[0].select, Jellyfish(pool=0.9)(served(3)).lanes[0].select
    assert isinstance(table, Table) and isinstance(table_without, Table)
    assert np.array_equal(table.variant, table_without.variant)
    assert plan.routes[0].targets == (0, 0, 0, 1) and plan.lanes[1].capacity == 0
    told = told_by_slot(plan, view)
    assert told[3].variant == "" and told[3].input_size == view.deployment.variants[0].input_size


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
