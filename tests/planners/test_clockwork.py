"""Clockwork: the rules that name it, on every worker that can serve; its choice of batches, written out plainly."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import PlanError
from stretto.core.plan import Accumulate, Eager, Fixed, LaneChoice, Late, Missing, Order, RouteRule, Strategies, Tables
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.published import published_table
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.clockwork import Clockwork
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate
from tests.sim.handmade import Handmade


def model_zoo() -> Deployment:
    applications = tuple(
        Application(row.name, round(row.slo_ms * NS_PER_MS), (Variant("only", 0.7, (row.profile(),)),))
        for row in published_table("symphony_1080ti")
    )
    return Deployment(applications, workers(8))


def two_variants() -> Deployment:
    small = Variant("small", 0.6, (LatencyProfile.linear(1, 5, 64), LatencyProfile.linear(2, 10, 32, "lame")))
    large = Variant("large", 0.8, (LatencyProfile.linear(2, 10, 64),))
    return Deployment((Application("app", 50 * NS_PER_MS, (small, large)),), workers(2) + workers(1, "lame"))


@pytest.mark.parametrize(
    "planner",
    [Clockwork(), Clockwork(filling=True), Clockwork(filling=True, powers_of_two=True)],
    ids=["published", "filling", "powers of two"],
)
@pytest.mark.parametrize("made", [model_zoo(), two_variants()], ids=["zoo", "two kinds"])
def test_one_lane_per_application(planner: Clockwork, made: Deployment) -> None:
    plan = planner(View(made))
    check_plan(plan, made)
    assert [lane.name for lane in plan.lanes] == [application.name for application in made.applications]
    assert {route.rule for route in plan.routes} == {RouteRule.BY_APPLICATION}
    assert plan.lane_choice is LaneChoice.EARLIEST_START
    for lane in plan.lanes:
        assert (lane.order, lane.late) == (Order.EARLIEST_DEADLINE, Late.DROP_WHEN_INFEASIBLE)
        assert (lane.delays.ahead_ns, lane.missing) == (5 * NS_PER_MS, Missing.LOAD)


def test_the_most_accurate_variant_unless_one_is_named() -> None:
    default = Clockwork()(View(two_variants())).lanes[0]
    named = Clockwork({"app": "small"}, ahead_ns=7, margin_ns=3)(View(two_variants())).lanes[0]
    filling = Clockwork(filling=True)(View(two_variants())).lanes[0]
    assert (default.select, default.workers, default.release) == (Strategies(1, 5 * NS_PER_MS), (0, 1), Eager(64))
    assert (named.select, named.workers, named.delays.ahead_ns) == (Strategies(0, 3), (0, 1, 2), 7)
    assert filling.select == Fixed(1)


def test_powers_of_two_are_the_largest_that_is_queued_and_fits() -> None:
    made = two_variants()
    (lane,) = Clockwork({"app": "small"}, filling=True, powers_of_two=True)(View(made)).lanes
    assert isinstance(lane.select, Tables)
    assert [table.kind for table in lane.select.tables] == ["default", "lame"]
    for table in lane.select.tables:
        profile = made.profile(0, table.kind)
        assert (table.variant == 0).all()
        for queued, column in np.ndindex(*table.batch.shape):
            room = min(queued, profile.largest_batch_within(column * table.slack_step_ns))
            fitting = [size for size in (1, 2, 4, 8, 16, 32, 64) if size <= room]
            assert table.batch[queued, column] == (fitting[-1] if fitting else 1)
        assert table.batch.max() == (32 if table.kind == "default" else 16)  # 45 and 20 queries fit 50 ms


def followed(slo: int, alpha: int, beta: int, workers: int, ahead: int, margin: int, arrivals: list[int]) -> list[int]:
    """The size of the batch that each query ran in, 0 where it was given up: Clockwork's rule in whole ms or parts."""
    free = [0] * workers
    sizes = [0] * len(arrivals)
    waiting: list[int] = []
    came = now = 0
    while came < len(arrivals) or waiting:
        worker = min(range(workers), key=lambda number: (free[number], number))
        now = max(now, free[worker] - ahead)
        if not waiting and came < len(arrivals):
            now = max(now, arrivals[came])
        while came < len(arrivals) and arrivals[came] <= now:
            waiting.append(came)
            came += 1
        start = max(now, free[worker])
        best: tuple[int, int, int] | None = None
        for size in range(1, len(waiting) + 1):
            end = start + alpha * size + beta
            first = next((n for n, q in enumerate(waiting) if arrivals[q] + slo - margin >= end), len(waiting))
            if len(waiting) - first >= size:
                latest = arrivals[waiting[first]] + slo - margin - alpha * size - beta
                best = min(best or (latest, size, first), (latest, size, first))
        if best is None:  # nobody can be answered on the worker that is free first
            waiting.clear()
            continue
        _, size, first = best
        for query in waiting[first : first + size]:
            sizes[query] = size
        del waiting[: first + size]
        free[worker] = start + alpha * size + beta
    return sizes


@pytest.mark.parametrize("rate", [1000.0, 2000.0, 3000.0])
@pytest.mark.parametrize(("ahead_ms", "margin_ms"), [(0, 0), (5, 0), (0, 5), (5, 5)])
def test_the_batch_that_must_start_soonest_whatever_its_size(ahead_ms: int, margin_ms: int, rate: float) -> None:
    """Symphony table 4's ResNet50. Regression: a worker with a batch in hand was not looked at before it was idle."""
    ns = NS_PER_MS
    profile = LatencyProfile.linear(1.053, 5.072, 64)
    made = Deployment((Application("app", 25 * ns, (Variant("only", 0.7, (profile,)),)),), workers(8))
    random = np.random.default_rng([ahead_ms, margin_ms, int(rate)])
    arrivals = np.cumsum(random.exponential(1e9 / rate, 4_000)).astype(np.int64).tolist()
    planner = Clockwork(ahead_ns=ahead_ms * ns, margin_ns=margin_ms * ns)
    source = Handmade([(0, at, at + 25 * ns) for at in arrivals])
    result = simulate(made, planner, source, seconds=arrivals[-1] / 1e9 + 1, record=True)
    assert result.queries is not None
    expected = followed(25 * ns, 1_053_000, 5_072_000, 8, ahead_ms * ns, margin_ms * ns, arrivals)
    same = np.array(expected) == result.queries["batch"] * (result.queries["outcome"] == 0)
    # Workers that are free at the same moment may be taken in another order, after which runs differ for a while.
    assert same.mean() > 0.97
    assert (np.array(expected) > 0).mean() == pytest.approx(result.summary.on_time_rate, abs=0.005)


def test_sizes_are_spread_evenly() -> None:
    """Figure 8: above one, every size has about the same share of the queries; the filling rule prefers large ones."""
    profile = LatencyProfile.linear(1.053, 5.072, 64)
    made = Deployment((Application("app", 25 * NS_PER_MS, (Variant("only", 0.7, (profile,)),)),), workers(8))
    shares = {}
    for filling in (False, True):
        run = simulate(made, Clockwork(filling=filling), Load(Poisson(), 2000.0), seconds=20).summary
        taken = np.arange(len(run.batch_histogram)) * np.array(run.batch_histogram)
        shares[filling] = taken / taken.sum()
    spread = shares[False][2:7]
    assert spread.max() < 2 * spread.min()
    assert shares[False][1] > 2 * spread.max()


@pytest.mark.parametrize(
    "wrong",
    [
        {"order": Order.FIRST_COME},
        {"late": Late.KEEP},
        {"release": Accumulate(2, 5)},
        {"select": Strategies(0, -1)},
    ],
)
def test_strategies_need_deadlines_and_dropping(wrong: dict[str, object]) -> None:
    made = two_variants()
    plan = Clockwork()(View(made))
    with pytest.raises(PlanError):
        check_plan(replace(plan, lanes=(replace(plan.lanes[0], **wrong),)), made)  # type: ignore[arg-type]
