"""The default plan: the frontier against a search through all mixtures, the table's order, and what it is worth."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan, selected_variants
from stretto.core.deployment import Deployment
from stretto.core.plan import Fixed, Lane, Late, Order, Plan, Table, Tables, by_application
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import Planner, View
from stretto.core.worker import Worker, workers
from stretto.dispatch.dispatcher import Dispatcher
from stretto.planners.parts.fronts import as_profiled, frontier
from stretto.planners.parts.sharing import time_shares
from stretto.planners.priced import LEAST_QUEUED, SLACKS, Priced, price_table
from stretto.planning.readings import view_of
from stretto.repository.read import read_repository
from stretto.sim.arrivals import Load
from stretto.sim.processes import TwoLevel
from stretto.sim.simulator import simulate
from tests.planners.parts.tasks import small_deployment

RATES = (0.0, 20.0, 90.0, 300.0, 3000.0)
BURSTS = TwoLevel(0.3, 2.4, 2.0, 1.0)


def lane_of(deployment: Deployment, rate: float) -> Lane:
    plan = Priced()(View(deployment, expected_rates=(rate,)))
    check_plan(plan, deployment)
    return plan.lanes[0]


def table_of(deployment: Deployment, rate: float, margin: float = 0.15) -> Table:
    count = len(deployment.workers)
    return price_table(as_profiled(deployment), 0, deployment.kinds[0], rate, float(count), count, margin)


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    variants = []
    for number in range(draw(st.integers(1, 5))):
        alpha, beta = draw(st.floats(0.01, 9)), draw(st.floats(0, 30))
        accuracy = draw(st.integers(0, 20)) / 20
        variants.append(
            Variant(f"v{number}", accuracy, (LatencyProfile.linear(alpha, beta, draw(st.integers(1, 12))),))
        )
    slo_ns = draw(st.integers(2, 200)) * NS_PER_MS
    return Deployment((Application("app", slo_ns, tuple(variants)),), workers(draw(st.integers(1, 4))))


@settings(max_examples=120, deadline=None)
@given(deployment=deployments())
def test_the_frontier_is_what_no_mixture_beats(deployment: Deployment) -> None:
    pace = as_profiled(deployment)
    slo_ns = deployment.applications[0].slo_ns
    points = []
    for number, variant in enumerate(deployment.variants):
        latency = variant.profiles[0].table_ns[deployment.quantile]
        able = [b for b in range(1, len(latency)) if latency[b] <= slo_ns] or [1]
        points.append((min(latency[b] / b for b in able) / 1e9, variant.accuracy, number))
    found = frontier(pace, 0)
    assert [point[0] for point in found] == sorted(point[0] for point in found)
    assert all(before[1] < after[1] for before, after in pairwise(found))

    def beaten(cost: float, accuracy: float, by: list[tuple[float, float, int]]) -> bool:
        """Something, or a mixture of two, is as cheap and strictly more accurate."""
        if any(other[0] <= cost and other[1] > accuracy + 1e-12 for other in by):
            return True
        for one, two in combinations(sorted(by), 2):
            if one[0] < cost < two[0]:
                share = (cost - one[0]) / (two[0] - one[0])
                if one[1] + share * (two[1] - one[1]) > accuracy + 1e-9:
                    return True
        return False

    for point in points:
        if beaten(point[0], point[1], [other for other in points if other is not point]):
            assert point[2] not in [number for _, _, number in found]
        else:  # it is there, or another one just as good is, or it lies on the line between two
            assert not beaten(point[0], point[1], [other for other in found if other[2] != point[2]])
            least = min(other[0] for other in points)
            on_frontier = any(other[2] == point[2] for other in found)
            assert on_frontier or point[0] > least or any(other[0] == point[0] for other in found)
    cheapest = min(points, key=lambda point: (point[0], -point[1]))
    best = max(points, key=lambda point: (point[1], -point[0]))
    assert found[0][:2] == pytest.approx(cheapest[:2]) and found[-1][1] == best[1]


@settings(max_examples=60, deadline=None)
@given(deployment=deployments(), rate=st.sampled_from(RATES), margin=st.sampled_from([0.0, 0.15, 0.5]))
def test_queues_and_haste_make_it_cheaper_and_batches_fit(deployment: Deployment, rate: float, margin: float) -> None:
    table = table_of(deployment, rate, margin=margin)
    assert table.variant.shape == table.batch.shape and table.variant.shape[1] == SLACKS + 1
    longest = len(table.variant) - 1
    assert longest >= LEAST_QUEUED
    price = {number: cost for cost, _, number in frontier(as_profiled(deployment), 0)}
    assert set(np.unique(table.variant).tolist()) <= set(price) | {fastest(deployment)}
    cost = np.vectorize(lambda number: price.get(number, 0.0))(table.variant)
    batch = table.batch
    given = batch > 0
    assert (np.diff(cost, axis=0) <= 1e-15)[given[1:] & given[:-1]].all(), "a longer queue made it dearer"
    assert (np.diff(cost, axis=1) >= -1e-15)[given[:, 1:] & given[:, :-1]].all(), "more slack made it cheaper"
    latencies = [variant.profiles[0].table_ns[deployment.quantile] for variant in deployment.variants]
    for queued in (0, 1, 2, 7, 31, longest):
        for column in range(SLACKS + 1):
            size, chosen = int(batch[queued, column]), int(table.variant[queued, column])
            slack_ns = column * table.slack_step_ns * (1 - margin)
            assert 0 <= size <= max(queued, 1)
            if size > 0:
                assert latencies[chosen][size] <= slack_ns + 1, "a batch that cannot end in time"
            else:  # not all that wait can be answered: as many as fit, at the least worker time each
                cheapest = frontier(as_profiled(deployment), 0)[0][2]
                assert chosen == (cheapest if latencies[cheapest][1] <= slack_ns else fastest(deployment))


def fastest(deployment: Deployment) -> int:
    """Of the frontier, alone in a batch."""
    numbers = [number for _, _, number in frontier(as_profiled(deployment), 0)]
    return min(numbers, key=lambda number: deployment.profile(number).latency_ns(1, deployment.quantile))


def test_what_the_load_makes_of_it() -> None:
    deployment = small_deployment(3)
    most = [max(np.unique(table_of(deployment, rate).variant[1])) for rate in (1.0, 60.0, 3000.0)]
    assert most == [2, 2, 1] or most == [2, 2, 0] or most == [2, 1, 0]
    assert "useless" not in {deployment.variants[v].name for v in np.unique(table_of(deployment, 20.0).variant)}
    lane = lane_of(deployment, 60.0)
    assert (lane.order, lane.late, lane.workers) == (Order.EARLIEST_DEADLINE, Late.DROP_WHEN_INFEASIBLE, (0, 1, 2))


def test_equal_loads_share_a_plan() -> None:
    deployment = small_deployment(3)
    planner = Priced()
    plan = planner(View(deployment, expected_rates=(100.0,)))
    assert planner(View(deployment, expected_rates=(100.0,))) is plan
    assert planner(View(deployment, expected_rates=(150.0,))) is not plan
    assert planner(View(small_deployment(3), expected_rates=(100.0,))) is not plan
    assert plan.planner == "priced"


def test_a_single_variant_is_always_it() -> None:
    one = Variant("v", 0.5, (LatencyProfile.linear(1, 4, 8),))
    deployment = Deployment((Application("app", 50 * NS_PER_MS, (one,)),), workers(2))
    for rate in RATES:
        assert selected_variants(lane_of(deployment, rate)) == (0,)


def test_variants_slower_than_the_slo_are_no_choice_but_where_there_is_no_other() -> None:
    slow, fast = (LatencyProfile.linear(1, beta, 8) for beta in (400, 4))
    deployment = Deployment(
        (Application("app", 50 * NS_PER_MS, (Variant("slow", 0.9, (slow,)), Variant("fast", 0.5, (fast,)))),),
        workers(1),
    )
    table = table_of(deployment, 20.0)
    assert set(np.unique(table.variant[table.batch > 0])) == {1}
    only = Deployment((Application("app", 50 * NS_PER_MS, (Variant("slow", 0.9, (slow,)),)),), workers(1))
    hopeless = table_of(only, 20.0)
    assert (hopeless.batch == 0).all() and (hopeless.variant == 0).all()
    assert selected_variants(lane_of(only, 20.0)) == (0,)


def unequal() -> Deployment:
    """Two kinds of worker; b's only variant runs on the second one alone."""
    quick, slow = (
        (lambda ms: LatencyProfile.linear(0.2, ms, 8, "quick")),
        (lambda ms: LatencyProfile.linear(1, ms, 8, "slow")),
    )
    a = Application("a", 60 * NS_PER_MS, (Variant("x", 0.6, (quick(1), slow(5))), Variant("y", 0.9, (quick(9),))))
    b = Application("b", 60 * NS_PER_MS, (Variant("z", 0.7, (slow(8),)),))
    return Deployment((a, b), (Worker("w0", "quick"), Worker("w1", "slow"), Worker("w2", "slow")))


def test_unequal_workers_have_a_table_each() -> None:
    """An application that the first kind cannot serve used to have no frontier at all."""
    deployment = unequal()
    plan = Priced()(View(deployment, expected_rates=(50.0, 20.0)))
    check_plan(plan, deployment)
    first, second = plan.lanes
    assert isinstance(first.select, Tables) and selected_variants(second) == (2,)
    assert {table.kind: set(np.unique(table.variant)) for table in first.select.tables} == {
        "quick": {0, 1},
        "slow": {0},
    }
    assert first.workers == (0, 1, 2) and second.workers == (1, 2)
    result = simulate(deployment, Priced(), Load(BURSTS, 60), seconds=5, replan_s=0.1).summary
    assert result.on_time_rate > 0.99


def test_worker_time_goes_where_it_brings_most() -> None:
    def application(name: str, gain: float) -> Application:
        cheap, dear = LatencyProfile.linear(1, 0.1, 8), LatencyProfile.linear(5, 0.1, 8)
        return Application(name, 100 * NS_PER_MS, (Variant("c", 0.5, (cheap,)), Variant("d", 0.5 + gain, (dear,))))

    deployment = Deployment((application("little", 0.05), application("much", 0.4)), workers(2))
    pace = as_profiled(deployment)
    little, much = time_shares(pace, [300.0, 300.0])
    assert little + much == pytest.approx(1) and much > 2 * little
    even = time_shares(pace, [1e-3, 1e-3])
    assert sum(even) == pytest.approx(1) and min(even) > 0
    crowded = time_shares(pace, [9000.0, 3000.0])
    assert crowded == pytest.approx([0.75, 0.25])
    result = simulate(deployment, Priced(), Load(BURSTS, 500), seconds=10, replan_s=0.1).summary
    shares = {app.name: {v.name: v.share for v in app.variants} for app in result.applications}
    assert result.on_time_rate > 0.98 and shares["much"]["d"] > shares["little"]["d"]


def always(deployment: Deployment, variant: int) -> Planner:
    name, crew = deployment.applications[0].name, tuple(range(len(deployment.workers)))

    def plan(view: View) -> Plan:
        return by_application((Lane(name, crew, Fixed(variant), late=Late.DROP_WHEN_INFEASIBLE),))

    return plan


@pytest.mark.parametrize(
    ("name", "rate"), [("fashion", 150), ("fashion", 1200), ("fashion_resolution", 400), ("fashion_resolution", 1200)]
)
def test_under_bursts_it_is_above_every_fixed_variant(name: str, rate: float) -> None:
    deployment, _ = read_repository(f"zoo:{name}").deployment(2)
    source = Load(BURSTS, 2 * rate)
    fixed = [
        simulate(deployment, always(deployment, number), source, seconds=9, seed=5).summary.correct_on_time
        for number in range(len(deployment.variants))
    ]
    found = simulate(deployment, Priced(), source, seconds=9, seed=5, replan_s=0.1).summary
    assert found.correct_on_time > max(fixed)
    assert found.on_time_rate > 0.999


def test_it_goes_by_the_measured_load() -> None:
    deployment = small_deployment(3)
    planner = Priced()
    dispatcher = Dispatcher(deployment, planner(View(deployment)))
    for number in range(300):
        dispatcher.submit(number * 2 * NS_PER_MS, 0, number * 2 * NS_PER_MS + 1)
    now_ns = 600 * NS_PER_MS
    measured = planner(view_of(deployment, dispatcher.telemetry(now_ns)))
    (lane,) = measured.lanes
    (expected,) = Priced()(View(deployment, expected_rates=(500.0,))).lanes
    assert isinstance(lane.select, Table) and isinstance(expected.select, Table)
    np.testing.assert_array_equal(lane.select.variant, expected.select.variant)


def test_tables_cannot_be_changed_by_whoever_holds_them() -> None:
    table = price_table(as_profiled(small_deployment(1)), 0, "default", 10.0, 1.0, 1, 0.15)
    for array in (table.variant, table.batch):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 3
