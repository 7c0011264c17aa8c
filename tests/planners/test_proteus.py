"""Proteus: its program against exhaustive search and against its published form, what workers keep, how they batch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.proteus_ground import ARRIVALS, Recorded, ground, is_there
from benchmarks.proteus_program import PUBLISHED_GAP, solve_by_worker
from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import Delays, Late, Missing, Order, Plan, RouteRule, Table
from stretto.core.profile import NS_PER_MS, NS_PER_S, LatencyProfile, Quantile
from stretto.core.view import View
from stretto.core.worker import Worker, workers
from stretto.planners.proteus import (
    HEADROOM,
    WAIT,
    Holding,
    Problem,
    Proteus,
    Solution,
    alike_workers,
    batching_table,
    largest_batch,
    place,
    problem_of,
    solve,
    solve_at,
)
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate
from tests.dispatch.driver import Driver
from tests.dispatch.small import deployed, straight, variant

# -- the program ------------------------------------------------------------------------------------------------------


def small_problem(seed: int) -> Problem:
    """Two or three applications of two variants on two kinds of one to three workers; not every pair is allowed."""
    random = np.random.default_rng(seed)
    applications, groups = int(random.integers(2, 4)), 2
    holdings = []
    for number in range(2 * applications):
        accuracy = float(random.uniform(0.5, 1.0))
        for group in range(groups):
            if random.random() < 0.8:
                holdings.append(Holding(group, number, number // 2, 8, int(random.integers(5, 60)), accuracy))
    counts = tuple(random.integers(1, 4, groups).tolist())
    return Problem(tuple(holdings), counts, tuple(random.uniform(1, 60, applications).tolist()))


def placements(problem: Problem) -> Iterator[list[Holding]]:
    """Every way to give each worker one holding of its group."""
    groups = [group for group, count in enumerate(problem.workers) for _ in range(count)]
    choices = [[h for h in problem.holdings if h.group == group] for group in groups]
    yield from (list(chosen) for chosen in itertools.product(*(choice for choice in choices if choice)))


def searched(problem: Problem, headroom: float) -> float | None:
    """The best mean accuracy by exhaustive search: in each placement the most accurate workers are filled first."""
    best = None
    for placed in placements(problem):
        correct = 0.0
        for application, demand in enumerate(problem.demand):
            left = demand
            held = sorted((h for h in placed if h.application == application), key=lambda h: -h.accuracy)
            for holding in held:
                taken = min(left, holding.throughput / headroom)
                left -= taken
                correct += taken * holding.accuracy
            if left > 1e-9 or not held:
                break
        else:
            best = max(best or 0.0, correct / sum(problem.demand))
    return best


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("headroom", [1.05, 0.5])
def test_the_program_finds_what_exhaustive_search_finds(seed: int, headroom: float) -> None:
    problem = small_problem(seed)
    solution, best = solve_at(problem, headroom), searched(problem, headroom)
    by_worker = solve_by_worker(problem, headroom, 0.0)
    if best is None:
        assert solution is None and by_worker is None
        return
    assert solution is not None and by_worker is not None and solution.is_optimal
    assert solution.accuracy == pytest.approx(best, abs=1e-6)
    assert by_worker.accuracy == pytest.approx(best, abs=1e-6)  # counts lose nothing against a binary per worker
    kept_within(problem, solution)


def kept_within(problem: Problem, solution: Solution) -> None:
    """All of the demand is routed, no worker beyond p, no group beyond its workers, every application somewhere."""
    for group, count in enumerate(problem.workers):
        used = [solution.counts[n] for n, h in enumerate(problem.holdings) if h.group == group]
        assert sum(used) <= count
    for application, demand in enumerate(problem.demand):
        own = [n for n, h in enumerate(problem.holdings) if h.application == application]
        assert solution.flows[own].sum() == pytest.approx(demand, rel=1e-6)
        assert solution.counts[own].sum() >= 1
    for number, holding in enumerate(problem.holdings):
        most = solution.counts[number] * holding.throughput
        assert solution.headroom * solution.flows[number] <= most * (1 + 1e-6) + 1e-6


def test_a_gap_of_half_may_be_worse_and_is_never_better() -> None:
    for seed in range(8):
        problem = small_problem(seed)
        loose = solve_by_worker(problem, 0.5, PUBLISHED_GAP)
        best = solve_at(problem, 0.5)
        assert (loose is None) == (best is None)
        if loose is not None and best is not None:
            assert loose.accuracy <= best.accuracy + 1e-6


def test_headroom_is_lowered_step_by_step_until_something_fits() -> None:
    only = Holding(0, 0, 0, 8, 10, 0.9)
    for demand, headroom in ((9.5, 1.05), (9.6, 1.0), (10.5, 0.95), (49.0, 0.2), (51.0, 0.1), (150.0, 0.05)):
        solution = solve(Problem((only,), (1,), (demand,)))
        assert solution.headroom == pytest.approx(headroom), demand
        assert solution.flows[0] == pytest.approx(demand)


def test_fewer_workers_than_applications_is_said() -> None:
    holdings = (Holding(0, 0, 0, 8, 10, 0.9), Holding(0, 1, 1, 8, 10, 0.9))
    with pytest.raises(StrettoError, match="at least as many workers as applications"):
        solve(Problem(holdings, (1,), (1.0, 1.0)))


# -- what it is made from ---------------------------------------------------------------------------------------------


def profile(points: dict[int, float], kind: str = "default") -> LatencyProfile:
    return LatencyProfile.measured({size: {"p50": ms, "p95": 2 * ms} for size, ms in points.items()}, kind=kind)


def test_the_largest_batch_is_the_largest_size_below_half_the_slo_at_p50() -> None:
    slo_ns = 100 * NS_PER_MS
    assert largest_batch(profile({1: 10, 8: 49}), slo_ns) == 8
    assert largest_batch(profile({1: 10, 4: 40, 8: 50}), slo_ns) == 4  # 50 ms is not below
    assert largest_batch(profile({1: 10, 2: 20, 3: 30}), slo_ns) == 2  # no batch of 4 was measured
    assert largest_batch(profile({1: 50}), slo_ns) == 0


def two_kinds(fast: int, slow: int, memory: int = 2**40) -> Deployment:
    """Two applications; the accurate variant of the second runs on the slow kind only in more than half the SLO."""
    good = Variant("good", 0.9, (profile({1: 20, 8: 40}, "fast"), profile({1: 45, 8: 90}, "slow")), memory_bytes=8)
    quick = Variant("quick", 0.6, (profile({1: 4, 8: 8}, "fast"), profile({1: 8, 8: 16}, "slow")), memory_bytes=4)
    far = Variant("far", 0.95, (profile({1: 20, 8: 40}, "fast"), profile({1: 50, 8: 90}, "slow")), memory_bytes=8)
    applications = (
        Application("first", 100 * NS_PER_MS, (good, quick)),
        Application("second", 100 * NS_PER_MS, (far, quick)),
    )
    crew = (*workers(fast, "fast", memory), *workers(slow, "slow", memory))
    return Deployment(applications, crew, Quantile.P50)


def test_throughput_is_floored_and_pairs_that_are_too_slow_or_too_large_are_left_out() -> None:
    deployment = two_kinds(1, 1)
    problem = problem_of(deployment, alike_workers(View(deployment)), np.array([1.0, 1.0]))
    found = {(h.group, deployment.variant_label(h.variant)): (h.batch, h.throughput) for h in problem.holdings}
    assert found == {
        (0, "first/good"): (8, 200),
        (0, "first/quick"): (8, 1000),
        (0, "second/far"): (8, 200),
        (0, "second/quick"): (8, 1000),
        (1, "first/good"): (1, 22),  # ⌊1 / 45 ms⌋
        (1, "first/quick"): (8, 500),
        (1, "second/quick"): (8, 500),
    }
    crowded = two_kinds(1, 1, memory=4)
    assert {
        crowded.variants[h.variant].name for h in problem_of(crowded, alike_workers(View(crowded)), np.ones(2)).holdings
    } == {"quick"}


def test_workers_of_a_kind_with_other_memory_are_another_group() -> None:
    deployment = two_kinds(2, 1)
    uneven = Deployment(deployment.applications, (*deployment.workers, Worker("odd", "fast", 5)))
    assert alike_workers(View(uneven)) == ((0, 1), (2,), (3,))
    alive = np.array([True, False, True, True])
    assert alike_workers(View(uneven, alive=alive)) == ((0,), (2,), (3,))


def test_an_application_that_nobody_answers_is_named() -> None:
    slow = Application("slow", 10 * NS_PER_MS, (Variant("v", 0.5, (profile({1: 9}),)),))
    with pytest.raises(StrettoError, match="no worker that answers application slow within half its SLO"):
        Proteus()(View(Deployment((slow,), workers(2))))


def test_demand_is_an_exponentially_weighted_mean_of_whole_windows() -> None:
    deployment = two_kinds(2, 2)
    planner = Proteus()
    plan = planner(View(deployment, rates=np.array([500.0, 5.0])))  # expected, not measured: no window yet
    demands = []
    for window, rate in enumerate((10.0, 20.0, 40.0), start=1):
        now_ns = 10 * window * NS_PER_S
        planner(View(deployment, now_ns, rates=np.array([rate, 7.0]), plan=plan))
        planner(View(deployment, now_ns + NS_PER_S, rates=np.array([999.0, 7.0]), plan=plan))  # not a window later
        assert planner._past is not None
        demands.append(planner._past[0] / planner._weight)
    kept = 1.6 / 2.6
    assert demands[0] == 10
    assert demands[1] == pytest.approx((20 + kept * 10) / (1 + kept))
    assert demands[2] == pytest.approx((40 + kept * 20 + kept**2 * 10) / (1 + kept + kept**2))


# -- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rates", [(1.0, 1.0), (300.0, 300.0), (900.0, 20.0), (5000.0, 5000.0), (0.0, 50.0)], ids=str)
@pytest.mark.parametrize("counts", [(1, 1), (3, 5), (6, 0)], ids=str)
def test_a_plan_is_a_lane_for_each_worker_dealt_by_shares(counts: tuple[int, int], rates: tuple[float, ...]) -> None:
    deployment = two_kinds(*counts)
    plan = Proteus()(View(deployment, expected_rates=rates))
    check_plan(plan, deployment)
    assert plan.placement is not None and all(len(held) <= 1 for held in plan.placement)
    for lane in plan.lanes:
        (worker,) = lane.workers
        assert isinstance(lane.select, Table) and lane.select.variants == plan.placement[worker]
        assert (lane.order, lane.late, lane.missing) == (Order.FIRST_COME, Late.DROP_WHEN_DISPATCHED, Missing.WAIT)
    assert {worker for lane in plan.lanes for worker in lane.workers} == set(range(len(deployment.workers)))
    for route in plan.routes:
        assert route.rule is RouteRule.WEIGHTED and sum(route.weights) == pytest.approx(1)
    assert sorted(lane for route in plan.routes for lane in route.lanes) == list(range(len(plan.lanes)))


def test_accuracy_gives_way_as_demand_rises() -> None:
    deployment = two_kinds(3, 3)
    means = []
    for rate in (20.0, 200.0, 400.0, 800.0):
        problem = problem_of(deployment, alike_workers(View(deployment)), np.array([rate, rate]))
        means.append(solve(problem).accuracy)
    assert means[:2] == pytest.approx([0.925, 0.925])  # the most accurate of each, also where that takes four workers
    assert all(later < earlier - 0.01 for earlier, later in itertools.pairwise(means[1:]))


def changed(before: Plan, after: Plan) -> int:
    assert before.placement is not None and after.placement is not None
    return sum(new != old for new, old in zip(after.placement, before.placement, strict=True))


def test_workers_keep_what_they_hold() -> None:
    deployment = two_kinds(6, 6)
    planner = Proteus()
    before = planner(View(deployment, expected_rates=(600.0, 300.0)))
    same = planner(View(deployment, rates=np.array([600.0, 300.0]), plan=before))
    assert same.placement == before.placement
    # A plan that shuffled the same holdings among alike workers is followed, not undone.
    assert before.placement is not None
    shuffled = Plan(
        lanes=before.lanes,
        routes=before.routes,
        placement=(*before.placement[5::-1], *before.placement[:5:-1]),
    )
    again = Proteus()(View(deployment, expected_rates=(600.0, 300.0), plan=shuffled))
    assert again.placement == shuffled.placement


@pytest.mark.parametrize("seed", range(6))
def test_no_assignment_of_the_same_counts_keeps_more_workers(seed: int) -> None:
    random = np.random.default_rng(seed)
    deployment = two_kinds(5, 0)
    numbers = random.integers(0, 4, 5)
    held = Plan((), (), placement=tuple((int(variant),) for variant in numbers))
    view = View(deployment, plan=held)
    groups = alike_workers(view)
    problem = problem_of(deployment, groups, np.array([1.0, 1.0]))
    counts = np.bincount(random.integers(0, 4, 5), minlength=4)
    placed = place(view, groups, problem, Solution(counts, counts * 1.0, 0.0, 1.0, True))
    kept = sum(problem.holdings[placed[worker]].variant == numbers[worker] for worker in range(5))
    most = sum(min(int(counts[v]), int((numbers == v).sum())) for v in range(4))
    assert kept == most
    assert sorted(placed.values()) == sorted(np.repeat(np.arange(4), counts).tolist())


def test_what_a_worker_has_in_memory_is_kept_before_the_first_plan() -> None:
    deployment = two_kinds(3, 0)
    first = Proteus()(View(deployment, expected_rates=(300.0, 100.0)))
    assert first.placement is not None
    holds = np.zeros((3, 4), np.bool_)
    for worker, variants in enumerate(first.placement[::-1]):
        holds[worker, list(variants)] = True
    assert Proteus()(View(deployment, expected_rates=(300.0, 100.0), holds=holds)).placement == first.placement[::-1]


def test_a_spare_worker_helps_where_there_is_most_to_do() -> None:
    deployment = two_kinds(6, 0)
    plan = Proteus()(View(deployment, expected_rates=(180.0, 20.0)))
    assert [len(route.lanes) for route in plan.routes] == [5, 1]
    assert plan.routes[0].weights == pytest.approx((0.2,) * 5)


def test_a_change_takes_its_time_and_one_variant_is_resident() -> None:
    """Where memory holds one variant, a change is a load that keeps the worker busy, and nothing else is evicted."""
    applications = two_kinds(1, 0).applications
    heavy = tuple(
        Application(
            each.name,
            each.slo_ns,
            tuple(Variant(v.name, v.accuracy, v.profiles, memory_bytes=1, load_ns=50_000_000) for v in each.variants),
        )
        for each in applications
    )
    crew = tuple(Worker(f"fast-{number}", "fast", 1, ()) for number in range(4))
    deployment = Deployment(heavy, crew)
    low, high = (Proteus()(View(deployment, expected_rates=rates)) for rates in ((30.0, 30.0), (900.0, 900.0)))
    driver = Driver(deployment, low)
    assert low.placement is not None and high.placement is not None
    for worker in range(4):
        driver.at(50_000_000).finish(worker)
        assert driver.dispatcher.resident(worker) == low.placement[worker]
    driver.adopt(high)
    moved = [worker for worker in range(4) if low.placement[worker] != high.placement[worker]]
    assert moved
    for worker in moved:
        assert driver.dispatcher.resident(worker) == high.placement[worker]
        driver.at(100_000_000).finish(worker)


def test_unequal_workers_in_simulation() -> None:
    deployment = two_kinds(3, 3)
    source = Load(Poisson(), 200.0)
    run = simulate(deployment, Proteus(), source, seconds=25.0, replan_s=10.0).summary
    assert run.unfinished == 0 and run.outcomes["late"] == 0
    assert run.on_time_rate > 0.95 and run.accuracy > 0.85


# -- batching at a worker: l(1), l(2), l(4), l(8) = 12, 14, 18, 26 ns, SLO 100 ns -------------------------------------


def one_worker(**rules: int) -> Driver:
    deployment = deployed(variant("v", straight(2, 10)))
    view = View(deployment, expected_rates=(1.0,), delays=Delays(**rules))
    plan = Proteus()(view)
    assert plan.lanes[0].release.max_batch == 8
    return Driver(deployment, plan)


def rings(made: Driver) -> tuple[int, list[int]]:
    """When the next batch starts if nothing else happens, and its queries."""
    assert made.batches() == []
    while (at_ns := made.wake()) is not None:
        made.at(at_ns).advance()
        if batches := made.batches():
            return at_ns, batches[0][2]
    raise AssertionError("nothing starts by itself")


@pytest.mark.parametrize(
    ("queued", "moment", "size"), [(1, 88, 1), (2, 86, 2), (3, 86, 2), (4, 82, 4), (7, 82, 4), (8, 74, 8)]
)
def test_a_head_waits_until_its_deadline_less_the_latency_of_its_batch(queued: int, moment: int, size: int) -> None:
    made = one_worker()
    head = made.query(100)
    for later in range(1, queued):
        made.at(later).query(100)
    assert rings(made) == (moment, list(range(size)))  # only the size that is filled starts
    assert made.lengths() == [queued - size]
    made.at(100).finish(0)
    assert made.outcome(head) is Outcome.ON_TIME


def test_a_query_that_comes_too_late_for_the_larger_batch_starts_the_one_without_it() -> None:
    made = one_worker()
    for _ in range(3):
        made.query(100)
    made.at(83).query(100)  # slack 17: four would take 18, two take 14 and could have waited until 86
    assert made.batches() == [(0, 0, [0, 1])]
    assert made.lengths() == [2]


def test_more_than_the_largest_batch_start_at_once() -> None:
    made = one_worker()
    for _ in range(8):
        made.query(100)
    assert (made.batches(), made.wake()) == ([], 74)  # the largest batch is full, and waits all the same
    made.at(5).query(100)
    assert made.batches() == [(0, 0, list(range(8)))]
    assert made.lengths() == [1]


def test_the_end_of_a_batch_starts_no_other_unless_a_timer_rang() -> None:
    made = one_worker()
    made.query(40)
    made.at(28).advance()
    assert made.batches() == [(0, 0, [0])]
    made.query(100)
    made.at(40).finish(0)
    assert rings(made) == (116, [1])  # 28 + 100 - 12: the worker is idle and waits on
    made.query(20)
    made.query(20)  # both must start by 122, but the worker is busy until 128
    made.at(117).query(40)
    made.at(122).advance()
    assert made.batches() == []
    made.at(123).finish(0)  # sooner than expected: slack 13, two would take 14
    assert made.batches() == [(0, 0, [2])]


def test_the_end_of_a_batch_starts_the_largest_where_more_wait() -> None:
    made = one_worker()
    for _ in range(9):
        made.query(100)
    for _ in range(8):
        made.query(100)
    assert made.batches() == [(0, 0, list(range(8)))]
    made.at(26).finish(0)
    assert made.batches() == [(0, 0, list(range(8, 16)))]
    made.at(52).finish(0)
    assert rings(made) == (88, [16])


def test_sizes_between_are_not_run() -> None:
    """A worker that was busy beyond the moment of four runs two, although three would end in time."""
    made = one_worker()
    for _ in range(9):
        made.query(100)
    assert made.batches() == [(0, 0, list(range(8)))]
    for _ in range(3):
        made.query(100)
    made.at(84).finish(0)  # slack 16: three take 16, four take 18
    assert made.batches() == [(0, 0, [8, 9])]


def test_heads_that_nobody_can_answer_are_dropped_when_the_worker_looks() -> None:
    made = one_worker()
    gone = made.query(11)  # not even alone
    assert made.outcome(gone) is Outcome.DROPPED_INFEASIBLE
    for _ in range(9):
        made.query(100)
    first = made.query(30)
    second = made.query(37)
    assert made.outcome(first) is None
    made.at(26).finish(0)
    assert made.batches() == [(0, 0, list(range(1, 9)))]
    assert made.lengths() == [3]  # first come, first served: the head has slack, and waits
    made.at(88).advance()
    made.at(100).finish(0)
    assert made.outcome(first) is Outcome.DROPPED_EXPIRED
    assert made.outcome(second) is Outcome.DROPPED_EXPIRED


def test_the_way_to_the_worker_is_allowed_for() -> None:
    made = one_worker(control_ns=3, data_ns=1)
    made.query(100)
    assert rings(made) == (84, [0])  # 100 - 12 - 3 - 1


@pytest.mark.parametrize("needs", [(12, 14, 18, 26), (10, 10, 10, 10), (5, 9, 9, 20)], ids=str)
def test_the_table_is_the_rule(needs: tuple[int, ...]) -> None:
    """At every queue and slack, against the rule written out."""
    sizes = (1, 2, 4, 8)
    table = batching_table(3, sizes, needs)
    assert not table.fault
    for queued, slack in itertools.product(range(1, 14), range(45)):
        row, column = min(queued, len(table.variant) - 1), int(np.searchsorted(table.edges, slack, side="right"))
        filled = max(size for size in sizes if size <= queued)
        moment = needs[sizes.index(filled)]
        if queued <= 8 and slack > moment:
            assert table.variant[row, column] == WAIT
            continue
        assert table.variant[row, column] == 3
        in_time = [size for size, need in zip(sizes, needs, strict=True) if size <= queued and need <= slack]
        assert table.batch[row, column] == max(in_time, default=1)


# -- its own ground ---------------------------------------------------------------------------------------------------

with_ground = pytest.mark.skipif(not is_there(), reason="needs shared/data/proteus_* beside the project")


@with_ground
def test_the_ground_is_read_as_published() -> None:
    deployment = ground()
    assert (len(deployment.applications), len(deployment.variants), len(deployment.workers)) == (9, 46, 40)
    assert deployment.quantile is Quantile.P50
    one = ground(0.5)
    assert all(worker.memory_bytes == 1 and worker.resident == () for worker in one.workers)
    assert {(v.memory_bytes, v.load_ns) for v in one.variants} == {(1, NS_PER_S // 2)}
    for name, queries in zip(ARRIVALS, (75_253, 112_861), strict=True):
        source = Recorded.read(name)
        assert sum(len(chunk) for chunk in source.chunks(deployment, source.seconds, 1)) == queries
        assert source.counts(deployment, 10.0).sum() == queries
        assert sum(source.expected_rates(deployment, 10.0)) * 10 == source.counts(deployment, 10.0)[0].sum()


@with_ground
def test_the_program_is_solved_on_its_ground() -> None:
    deployment = ground()
    groups = alike_workers(View(deployment))
    counts = Recorded.read(ARRIVALS[0]).counts(deployment, 10.0)
    for window in (0, 9):
        problem = problem_of(deployment, groups, counts[window] / 10)
        solution = solve(problem)
        assert solution.is_optimal and math.isclose(solution.headroom, HEADROOM)
        kept_within(problem, solution)
        loose = solve_by_worker(problem, HEADROOM, PUBLISHED_GAP)
        assert loose is not None and loose.accuracy <= solution.accuracy + 1e-6


@with_ground
def test_a_quiet_start_is_served() -> None:
    source = Recorded.read(ARRIVALS[0])
    run = simulate(ground(0.5), Proteus(), source, seconds=20.0, replan_s=10.0).summary
    assert run.unfinished == 0 and run.accuracy > 0.95 and run.on_time_rate > 0.85
