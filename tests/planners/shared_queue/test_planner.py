"""The shared queue online: lanes, policies that are missing or stored, slower and lost workers, bursts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Fixed, Lane, Late, Order, Plan, RouteRule, Table, Tables
from stretto.core.profile import NS_PER_MS, NS_PER_S, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.parts.library import Library, make_library
from stretto.planners.parts.store import load_libraries, matching, save_libraries
from stretto.planners.parts.task import Task, task_of
from stretto.planners.priced import Priced
from stretto.planners.shared_queue import process as process_module
from stretto.planners.shared_queue.planner import RUNG, SharedQueue
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson, TwoLevel
from stretto.sim.simulator import simulate
from stretto.sim.trial import simulated_trial
from tests.planners.parts.port import HandPort
from tests.planners.parts.tasks import small_deployment

QUICK: dict[str, Any] = {"slack_steps": 20, "queries": 2_000, "noise": 0.0, "margin": 0.0}


def shared(prior: float = 0.0, **options: Any) -> SharedQueue:
    return SharedQueue(prior=prior, trial=simulated_trial, **{**QUICK, **options})


def deliver(port: HandPort, planner: SharedQueue, task: Task, load: float) -> None:
    """Make what was asked for."""
    port.deliver(task, load, planner.make(task, planner.options, load))


def measured(deployment: Deployment, rates: list[float], ratio: float | None = None) -> View:
    """A second has passed, and this was seen."""
    view = View(deployment, NS_PER_S, np.array(rates))
    if ratio is None:
        return view
    shape = view.latency_ratio.shape
    return replace(view, latency_ratio=np.full(shape, ratio), is_measured=np.ones(shape, np.bool_))


def at_load(planner: SharedQueue, deployment: Deployment, load: float, ratio: float | None = None) -> Plan:
    plan = planner(measured(deployment, [load], ratio))
    check_plan(plan, deployment)
    return plan


def in_force(planner: SharedQueue) -> float:
    (policy,) = planner.in_force().values()
    return policy.load


def only_table(plan: Plan) -> Table:
    (lane,) = plan.lanes
    assert isinstance(lane.select, Table)
    return lane.select


def several(kinds: bool = False) -> Deployment:
    """Two applications with a choice, one without; the second kind of worker runs only the last two."""
    first = small_deployment().applications[0]

    def profiles(alpha: float, beta: float) -> tuple[LatencyProfile, ...]:
        lame = LatencyProfile.linear(2 * alpha, 2 * beta, 8, "lame")
        return (LatencyProfile.linear(alpha, beta, 8), lame)[: 1 + kinds]

    second = Application(
        "second", 120 * NS_PER_MS, (Variant("quick", 0.7, profiles(2, 6)), Variant("good", 0.9, profiles(6, 12)))
    )
    third = Application("third", 100 * NS_PER_MS, (Variant("only", 0.8, profiles(4, 10)),))
    return Deployment((first, second, third), workers(4) + (workers(2, "lame") if kinds else ()))


def test_one_lane_that_all_workers_serve() -> None:
    deployment = small_deployment(3)
    planner = shared()
    plan = planner(View(deployment, expected_rates=(120.0,)))
    check_plan(plan, deployment)
    (lane,) = plan.lanes
    assert plan.planner == "shared_queue" and plan.rate_window_ns == 500 * NS_PER_MS
    assert plan.routes[0].rule is RouteRule.BY_APPLICATION
    assert (lane.name, lane.workers) == ("app", (0, 1, 2))
    assert (lane.order, lane.late) == (Order.EARLIEST_DEADLINE, Late.DROP_WHEN_INFEASIBLE)
    assert lane.release == Eager()
    table = only_table(plan)
    assert table.slack_step_ns == 3 * NS_PER_MS and table.variant.shape[1] == 21
    assert in_force(planner) == 120.0  # a stated load has its own policy
    assert planner(View(deployment, expected_rates=(120.0,))) is plan


def test_several_applications_share_the_workers() -> None:
    deployment = several()
    planner = shared()
    plan = planner(View(deployment, expected_rates=(100.0, 100.0, 50.0)))
    check_plan(plan, deployment)
    assert [lane.name for lane in plan.lanes] == ["app", "second", "third"]
    assert all(lane.workers == (0, 1, 2, 3) for lane in plan.lanes)
    assert [type(lane.select) for lane in plan.lanes] == [Table, Table, Fixed]
    assert set(planner.in_force()) == {("app", "default"), ("second", "default")}
    result = simulate(deployment, shared(), Load(Poisson(), 150.0), seconds=30, seed=3).summary
    assert all(application.bad_rate < 0.02 for application in result.applications)
    theirs = simulate(deployment, Priced(), Load(Poisson(), 150.0), seconds=30, seed=3).summary
    assert result.correct_on_time > theirs.correct_on_time


def test_a_part_of_the_pool_follows_the_load() -> None:
    """The more of the others' queries there are, the cheaper an application's own table is."""
    deployment = several()
    used = []
    for others in (1.0, 200.0, 600.0):
        planner = shared()
        planner(View(deployment, expected_rates=(100.0, others, 1.0)))
        used.append(planner.in_force()["app", "default"].expectation.accuracy)
    assert used == sorted(used, reverse=True) and used[0] > used[-1] + 0.02


def test_only_single_variants_leave_nothing_to_solve() -> None:
    deployment = Deployment(several().applications[2:], workers(2))
    planner = shared()
    plan = planner(View(deployment, expected_rates=(10.0,)))
    check_plan(plan, deployment)
    assert isinstance(plan.lanes[0].select, Fixed) and planner.in_force() == {}


def test_several_kinds_of_workers_have_a_table_each() -> None:
    deployment = several(kinds=True)
    planner = shared()
    plan = planner(View(deployment, expected_rates=(100.0, 100.0, 50.0)))
    check_plan(plan, deployment)
    first, second, third = plan.lanes
    assert first.workers == (0, 1, 2, 3) and second.workers == third.workers == (0, 1, 2, 3, 4, 5)
    assert isinstance(first.select, Table) and first.select.kind == "default"
    assert isinstance(second.select, Tables)
    assert [table.kind for table in second.select.tables] == ["default", "lame"]
    assert set(planner.in_force()) == {("app", "default"), ("second", "default"), ("second", "lame")}
    result = simulate(deployment, planner, Load(Poisson(), 150.0), seconds=20).summary
    assert all(application.bad_rate < 0.02 for application in result.applications)


def test_a_kind_that_is_gone_for_now_keeps_its_table() -> None:
    """All workers of a kind may be lost at once; the lane still lists them, for when they come back."""
    deployment = several(kinds=True)
    deployment = Deployment(deployment.applications[1:2], deployment.workers)
    planner = shared()
    plan = planner(replace(measured(deployment, [100.0]), alive=np.array([True] * 4 + [False] * 2)))
    check_plan(plan, deployment)
    (lane,) = plan.lanes
    assert isinstance(lane.select, Tables)
    assert [table.kind for table in lane.select.tables] == ["default", "lame"]


def test_policies_on_demand_cover_the_measured_load_closely() -> None:
    deployment = small_deployment(3)
    planner = shared()
    capacity = task_of(deployment, 0).capacity()
    for load in (120.0, 123.0, 300.0, 60.0, 121.0):
        at_load(planner, deployment, load)
        assert load <= in_force(planner) <= load * RUNG * 1.001
    at_load(planner, deployment, 1e6)
    assert in_force(planner) <= 1.05 * RUNG * capacity
    at_load(planner, deployment, 0.0)
    assert in_force(planner) <= 0.1 * RUNG * 3 * 4 / 0.052  # a tenth of what the best one does, 4 in 52 ms each


def test_the_same_load_is_the_same_plan() -> None:
    deployment = small_deployment(3)
    planner = shared()
    first = at_load(planner, deployment, 120.0)
    assert at_load(planner, deployment, 119.0) is first
    assert at_load(planner, deployment, 240.0) is not first


def test_a_missing_policy_is_asked_for_once_and_the_default_serves_meanwhile() -> None:
    deployment = small_deployment(3)
    port = HandPort()
    planner = shared(policies=port)
    plan = at_load(planner, deployment, 200.0)
    priced = Priced()(measured(deployment, [200.0]))
    assert (only_table(plan).variant == only_table(priced).variant).all()
    assert planner.in_force() == {}
    at_load(planner, deployment, 201.0)
    ((task, load),) = port.asked
    assert 201.0 <= load <= 201.0 * RUNG
    deliver(port, planner, task, load)
    after = at_load(planner, deployment, 200.0)
    assert in_force(planner) == load
    assert only_table(after).variant.shape[1] == 21 and len(port.asked) == 1


def test_the_next_higher_policy_serves_until_the_own_one_comes() -> None:
    deployment = small_deployment(3)
    port = HandPort()
    planner = shared(policies=port)
    task = task_of(deployment, 0)
    at_load(planner, deployment, 400.0)
    (high,) = port.loads
    deliver(port, planner, task, high)
    at_load(planner, deployment, 100.0)
    assert not planner.in_force()  # for four times the load: too much
    at_load(planner, deployment, 320.0)
    assert in_force(planner) == high
    deliver(port, planner, task, port.loads[-1])
    at_load(planner, deployment, 320.0)
    assert len(port.asked) == 3 and in_force(planner) == port.loads[-1] < high


def test_a_burst_asks_for_what_is_above_and_serves_once_all_of_it_is_there() -> None:
    deployment = small_deployment(3)
    port = HandPort()
    planner = shared(prior=20.0, policies=port)
    task = task_of(deployment, 0)
    at_load(planner, deployment, 100.0)
    asked = port.loads
    assert len(asked) > 2 and asked == sorted(asked) and asked[-1] > 3 * asked[0]
    for load in asked[:-1]:
        deliver(port, planner, task, load)
        at_load(planner, deployment, 100.0)
        assert not planner.in_force()  # half a ladder is worse than the table that stands in
    deliver(port, planner, task, asked[-1])
    mixed = only_table(at_load(planner, deployment, 100.0))
    alone = planner._policies.library(task).covering(asked[0])
    assert alone is not None and in_force(planner) == alone.load
    own = alone.table(range(len(task.variants)), task.kind)
    rows = len(own.variant)
    assert (mixed.variant[:rows] != own.variant).any() and len(mixed.variant) >= rows


@pytest.fixture(scope="module")
def library() -> Library:
    task, options = task_of(small_deployment(3), 0), SharedQueue(**QUICK).options
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_module, "LEAST_QUEUE", 6)  # so that tables differ in length
        made = make_library(task, options, shared().make, 100.0, 600.0, largest_gap=0.1)
    for policy in made.policies:
        policy.variant[3, 15] = -1  # these policies never wait by themselves
    return made


def test_stored_policies_there_and_back(library: Library, tmp_path: Path) -> None:
    lengths = {len(policy.variant) for policy in library.policies}
    assert len(lengths) > 1 and any((policy.variant < 0).any() for policy in library.policies)
    path = tmp_path / "policies.npz"
    save_libraries(path, [library])
    found = matching(load_libraries(path), library.task, library.options)
    assert found.complete_to == 600.0
    for ours, theirs in zip(library.policies, found.policies, strict=True):
        rows = len(ours.variant)
        assert (ours.load, ours.expectation) == (theirs.load, theirs.expectation)
        assert (ours.slack_ns == theirs.slack_ns).all() and len(theirs.variant) == max(lengths)
        for mine, other in ((ours.variant, theirs.variant), (ours.batch, theirs.batch)):
            assert (mine == other[:rows]).all() and (other[rows:] == mine[-1]).all()


def test_stored_policies_are_used(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "policies.npz"
    save_libraries(path, [library])
    port = HandPort()
    planner = shared(stored=load_libraries(path), policies=port)
    loads = [policy.load for policy in library.policies]
    for load in (50.0, 100.0, 333.0, 599.0):
        at_load(planner, small_deployment(3), load)
        assert in_force(planner) == min(known for known in loads if known >= load)
    assert not port.asked and planner.uses_stored


def test_stored_policies_for_something_else_are_refused(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "policies.npz"
    save_libraries(path, [library])
    stored = load_libraries(path)
    slower = small_deployment(3)
    (application,) = slower.applications
    fast = replace(application.variants[0], profiles=(LatencyProfile.linear(3.1, 5, 8),))
    slower = replace(slower, applications=(replace(application, variants=(fast, *application.variants[1:])),))
    for deployment, planner, sentence in (
        (slower, shared(stored=stored), "for other latencies or accuracies of the variants than the profile in use"),
        (small_deployment(4), shared(stored=stored), "for workers 3, not 4"),
        (small_deployment(3, slo_ms=50), shared(stored=stored), "for SLO 60 ms, not 50 ms"),
        (small_deployment(3), shared(stored=stored, noise=0.1), "for noise 0.0, not 0.1"),
        (small_deployment(3), shared(stored=stored, gamma_shape=0.5), "for arrivals poisson, not gamma:0.5"),
    ):
        with pytest.raises(StrettoError, match=f"^policies.npz: these policies are {sentence}.*; make them anew$"):
            planner(View(deployment, expected_rates=(100.0,)))


def test_with_a_worker_lost_the_policy_is_for_those_that_are_left(library: Library, tmp_path: Path) -> None:
    """There is nothing stored for fewer workers, and that is no mistake: it is made."""
    path = tmp_path / "policies.npz"
    save_libraries(path, [library])
    deployment = small_deployment(3)
    planner = shared(stored=load_libraries(path))
    at_load(planner, deployment, 200.0)
    whole = planner.in_force()["app", "default"]
    plan = planner(replace(measured(deployment, [200.0]), alive=np.array([True, False, True])))
    check_plan(plan, deployment)
    left = planner.in_force()["app", "default"]
    assert left.load >= 200.0 and left.expectation.accuracy < whole.expectation.accuracy
    assert plan.lanes[0].workers == (0, 1, 2)  # the dispatcher knows who is alive
    at_load(planner, deployment, 200.0)
    assert planner.in_force()["app", "default"] is whole


def test_slower_workers_are_a_higher_load_with_less_slack() -> None:
    deployment = small_deployment(3)
    planner = shared()
    as_profiled = only_table(at_load(planner, deployment, 120.0))
    slow = only_table(at_load(planner, deployment, 120.0, ratio=1.5))
    assert slow.slack_step_ns == pytest.approx(1.5 * as_profiled.slack_step_ns, rel=0.03)
    assert 1.45 * 120.0 <= in_force(planner) <= 1.55 * 120.0 * RUNG
    faster = only_table(at_load(planner, deployment, 120.0, ratio=0.8))
    assert faster.slack_step_ns < as_profiled.slack_step_ns


@pytest.mark.parametrize("peak", [0.85, 1.1])
def test_a_burst_that_the_measured_load_lags_behind(peak: float) -> None:
    """Within capacity the table for the load from before the burst keeps up, for it takes a long queue for an old one.
    Beyond it, what the queue shows is believed at once; by the measured load alone far more is lost.
    """
    deployment = small_deployment(12)
    capacity = task_of(deployment, 0).capacity()
    low = 0.1 * capacity
    source = Load(TwoLevel(low, peak * capacity, 1.0, 0.3))
    lost = {}
    for prior in (0.0, 10.0):
        planner = shared(prior)
        run = simulate(deployment, planner, source, seconds=10, seed=2, replan_s=0.1, expected_rates=(low,)).summary
        lost[prior] = run.bad_rate
    if peak < 1:
        assert max(lost.values()) < 0.01
    else:
        assert lost[10.0] < lost[0.0] - 0.015


def lane_named(plan: Plan, name: str) -> Lane:
    return next(lane for lane in plan.lanes if lane.name == name)


def test_while_one_kind_is_missing_the_whole_lane_is_the_default_one() -> None:
    deployment = several(kinds=True)
    port = HandPort()
    planner = shared(policies=port)
    view = View(deployment, expected_rates=(100.0, 100.0, 50.0))
    planner(view)
    for task, load in port.asked:
        if task.kind == "default":
            deliver(port, planner, task, load)
    plan = planner(view)
    check_plan(plan, deployment)
    theirs = Priced()(view)
    assert isinstance(lane_named(plan, "app").select, Table)
    second, default = lane_named(plan, "second").select, lane_named(theirs, "second").select
    assert isinstance(second, Tables) and isinstance(default, Tables)
    assert (second.tables[0].variant == default.tables[0].variant).all()


def test_a_policy_of_another_deployment_is_not_taken() -> None:
    """Regression: one that was still being made when the repository changed entered the new library."""
    old, new = small_deployment(3), small_deployment(3)
    changed = replace(new.applications[0], slo_ns=new.applications[0].slo_ns * 2)
    new = replace(new, applications=(changed,))
    port = HandPort()
    planner = shared(policies=port)
    at_load(planner, old, 100.0)
    at_load(planner, new, 100.0)
    deliver(port, planner, task_of(old, 0), port.loads[0])
    at_load(planner, new, 100.0)
    assert not planner.in_force()
    port.deliver(task_of(new, 0), port.loads[-1], None)
    at_load(planner, new, 100.0)
    assert port.loads[-1] == port.loads[-2], "what could not be made is asked for again"
    at_load(planner, small_deployment(3), 100.0)
    assert in_force(planner) == port.loads[0], "the same task in another deployment has its policies still"
    assert len(port.asked) == 3


def test_without_a_trial_the_table_that_stands_in_serves() -> None:
    deployment = small_deployment(3)
    planner = SharedQueue(**QUICK)
    plan = at_load(planner, deployment, 200.0)
    assert (only_table(plan).variant == only_table(Priced()(measured(deployment, [200.0]))).variant).all()
    assert planner.in_force() == {}
    with pytest.raises(StrettoError, match="chosen by trial"):
        planner.make(task_of(deployment, 0), planner.options, 100.0)


def test_a_load_that_leapt_has_the_policy_for_what_it_is_since_then() -> None:
    deployment, loads = small_deployment(3), []
    for leaps in (False, True):
        planner = shared(caution=1.0, leaps=leaps)
        for number, rate in enumerate((30.0, 30.0, 70.0)):
            planner(View(deployment, number * NS_PER_S // 10, np.array([rate])))
        loads += [policy.load for policy in planner.in_force().values()]
    assert 70.0 <= loads[0] <= 70.0 * RUNG and 230.0 <= loads[1] <= 230.0 * RUNG
