"""RAMSIS online: lanes and routes, the policy that covers the load, and what is missing."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Late, Order, RouteRule, Table
from stretto.core.profile import NS_PER_MS, NS_PER_S, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.parts.laws import Gamma, law_of_shape
from stretto.planners.parts.library import make_library
from stretto.planners.parts.policy import Stored
from stretto.planners.parts.rates import rates_of
from stretto.planners.parts.sharing import workers_of_applications
from stretto.planners.parts.store import description
from stretto.planners.parts.task import Task, task_of
from stretto.planners.ramsis.options import Options
from stretto.planners.ramsis.planner import Ramsis
from stretto.planners.ramsis.policy import make_policy
from stretto.sim.arrivals import Load
from stretto.sim.processes import Gamma as GammaGaps
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate
from tests.planners.parts.port import HandPort
from tests.planners.parts.tasks import small_deployment

STEPS = 20


def two_applications(kinds: bool = False) -> Deployment:
    first = small_deployment().applications[0]
    profiles = (LatencyProfile.linear(4, 10, 8), LatencyProfile.linear(8, 20, 8, "lame"))
    second = Application("second", 120 * NS_PER_MS, (Variant("only", 0.8, profiles[: 1 + kinds]),))
    return Deployment((first, second), workers(4) + (workers(2, "lame") if kinds else ()))


def at_load(planner: Ramsis, deployment: Deployment, load: float) -> float:
    """The load of the policy that is in force when this load was measured."""
    planner(View(deployment, NS_PER_S, np.array([load])))
    (policy,) = planner.in_force().values()
    return policy.load


def stored_for(task: Task, low: float, high: float) -> Stored:
    options = Options(slack_steps=STEPS)
    library = make_library(task, options, make_policy, low, high, largest_gap=0.05)
    return Stored("policies.npz", description(task, options), task.variants, library.complete_to, library.policies)


@pytest.mark.parametrize("shortest", [False, True])
@pytest.mark.parametrize("drop", [False, True])
def test_one_lane_per_worker(shortest: bool, drop: bool) -> None:
    deployment = small_deployment(3)
    planner = Ramsis(slack_steps=STEPS, shortest=shortest, drop=drop)
    plan = planner(View(deployment, expected_rates=(60.0,)))
    check_plan(plan, deployment)
    assert [lane.workers for lane in plan.lanes] == [(0,), (1,), (2,)]
    assert plan.routes[0].rule is (RouteRule.SHORTEST if shortest else RouteRule.ROUND_ROBIN)
    assert plan.routes[0].lanes == (0, 1, 2)
    assert plan.rate_window_ns == 500 * NS_PER_MS
    for lane in plan.lanes:
        assert isinstance(lane.select, Table)
        assert (lane.order, lane.release) == (Order.EARLIEST_DEADLINE, Eager(8))
        assert lane.late is (Late.DROP_WHEN_DISPATCHED if drop else Late.KEEP)


def test_the_load_is_what_the_view_says() -> None:
    deployment = two_applications()
    view = View(deployment, NS_PER_S, np.array([22.0, 7.0]), (99.0, 98.0))
    assert rates_of(view, 5.0).tolist() == [22.0, 7.0]
    assert rates_of(View(deployment, expected_rates=(99.0, 98.0)), 5.0).tolist() == [99.0, 98.0]
    assert rates_of(View(deployment), 5.0).tolist() == [5.0, 5.0]


def test_a_stated_load_has_its_own_policy_and_the_same_load_the_same_plan() -> None:
    deployment = small_deployment(3)
    planner = Ramsis(slack_steps=STEPS)
    plan = planner(View(deployment, expected_rates=(61.0,)))
    assert planner(View(deployment, expected_rates=(61.0,))) is plan
    assert [policy.load for policy in planner.in_force().values()] == [61.0]


def test_policies_on_demand_cover_the_measured_load_closely() -> None:
    deployment = small_deployment(3)
    planner = Ramsis(slack_steps=STEPS)
    planner(View(deployment, expected_rates=(61.0,)))
    for load in (61.0, 63.0, 90.0, 20.0, 61.5):
        assert load <= at_load(planner, deployment, load) <= load * 1.05 * 1.05
    assert at_load(planner, deployment, 1e6) <= 1.35 * task_of(deployment, 0).capacity()


def test_stored_policies_are_used_and_must_match() -> None:
    deployment = small_deployment(3)
    stored = stored_for(task_of(deployment, 0), 20.0, 100.0)
    planner = Ramsis(slack_steps=STEPS, stored=(stored,))
    loads = [policy.load for policy in stored.policies]
    for load in (5.0, 20.0, 47.3, 99.9):
        assert at_load(planner, deployment, load) == min(known for known in loads if known >= load)
    with pytest.raises(StrettoError, match="for workers 3, not 4"):
        Ramsis(slack_steps=STEPS, stored=(stored,))(View(small_deployment(4), expected_rates=(60.0,)))


def test_a_missing_policy_is_asked_for_once_and_used_when_it_comes() -> None:
    deployment = small_deployment(3)
    task = task_of(deployment, 0)
    port = HandPort()
    planner = Ramsis(slack_steps=STEPS, stored=(stored_for(task, 20.0, 100.0),), policies=port)
    assert at_load(planner, deployment, 130.0) == 100.0  # the nearest there is
    assert at_load(planner, deployment, 130.5) == 100.0
    (load,) = port.loads
    assert 130.5 <= load <= 130.5 * 1.06
    port.deliver(task, load, make_policy(task, planner.options, load))
    assert at_load(planner, deployment, 130.0) == load
    assert at_load(planner, deployment, 101.0) == load  # above the stored ones: the gap is not said to be small
    assert len(port.asked) == 2


def seen(deployment: Deployment, load: float, dispersion: float) -> View:
    return View(deployment, NS_PER_S, np.array([load]), dispersion=np.array([dispersion]))


@pytest.mark.parametrize(("dispersion", "shape"), [(0.3, 1.0), (1.15, 1.0), (1.6, 1 / 1.5), (5.0, 1 / 1.5**4)])
def test_policies_are_for_the_dispersion_that_was_measured(dispersion: float, shape: float) -> None:
    deployment = small_deployment(3)
    planner = Ramsis(slack_steps=STEPS)
    planner(seen(deployment, 60.0, dispersion))
    (policy,) = planner.in_force().values()
    expected = make_policy(task_of(deployment, 0), Options(slack_steps=STEPS, law=law_of_shape(shape)), policy.load)
    assert policy.expectation == expected.expectation and (policy.variant == expected.variant).all()
    told = Ramsis(slack_steps=STEPS, gamma_shape=1.0)  # whoever states a law is not contradicted
    told(seen(deployment, 60.0, dispersion))
    (policy,) = told.in_force().values()
    assert (
        policy.expectation == make_policy(task_of(deployment, 0), Options(slack_steps=STEPS), policy.load).expectation
    )


def test_until_the_policy_for_bursts_is_made_the_one_for_independent_arrivals_serves() -> None:
    deployment = small_deployment(3)
    task = task_of(deployment, 0)
    port = HandPort()
    planner = Ramsis(slack_steps=STEPS, stored=(stored_for(task, 20.0, 100.0),), policies=port)
    planner(seen(deployment, 60.0, 5.0))
    (policy,) = planner.in_force().values()
    assert policy.load in [each.load for each in stored_for(task, 20.0, 100.0).policies]
    (load,) = port.loads
    port.deliver(task, load, make_policy(task, port.options, load))
    planner(seen(deployment, 60.0, 5.0))
    (bursty,) = planner.in_force().values()
    assert bursty.load == load and port.options.law == Gamma(1 / 1.5**4)
    assert bursty.expectation.accuracy < policy.expectation.accuracy
    planner(seen(deployment, 60.0, 1.0))
    assert list(planner.in_force().values()) == [policy]


def test_bursts_that_are_measured_cost_fewer_late_answers() -> None:
    """Gamma gaps of shape 0.2: as served, the policy learns of them; one for independent arrivals stays too late."""
    deployment = small_deployment(2)
    load = 0.6 * task_of(deployment, 0).capacity()
    late = {}
    for shape in (0.0, 1.0):
        planner = Ramsis(slack_steps=STEPS, gamma_shape=shape)
        run = simulate(deployment, planner, Load(GammaGaps(0.2), load), seconds=60, seed=5, replan_s=10)
        late[shape] = run.summary.bad_rate
    assert late[0.0] < 0.8 * late[1.0]


def test_with_a_worker_lost_the_policy_is_for_those_that_are_left() -> None:
    deployment = small_deployment(3)
    stored = stored_for(task_of(deployment, 0), 20.0, 100.0)
    planner = Ramsis(slack_steps=STEPS, stored=(stored,))
    planner(View(deployment, expected_rates=(60.0,)))
    whole = View(deployment, NS_PER_S, np.array([60.0]))
    plan = planner(replace(whole, alive=np.array([True, False, True])))
    check_plan(plan, deployment)
    assert [lane.workers for lane in plan.lanes] == [(0,), (2,)]
    (policy,) = planner.in_force().values()
    expected = make_policy(task_of(deployment, 0, workers=2), planner.options, policy.load)
    assert policy.load == pytest.approx(60.0)
    assert (policy.variant == expected.variant).all()
    back = planner(whole)
    assert [lane.workers for lane in back.lanes] == [(0,), (1,), (2,)]


def test_each_application_has_its_own_workers_and_policy() -> None:
    deployment = two_applications(kinds=True)
    planner = Ramsis(slack_steps=STEPS)
    plan = planner(View(deployment, expected_rates=(60.0, 60.0)))
    check_plan(plan, deployment)
    served = [{lane.workers[0] for lane in plan.lanes if lane.name.startswith(name)} for name in ("app/", "second/")]
    assert served[0] | served[1] == set(range(6))
    assert not served[0] & served[1]
    assert served[1] >= {4, 5}  # only the second application runs on the lame ones
    for lane in plan.lanes:
        assert isinstance(lane.select, Table)
        assert lane.select.kind == deployment.workers[lane.workers[0]].kind
    assert set(planner.in_force()) == {("app", "default"), ("second", "default"), ("second", "lame")}
    result = simulate(deployment, Ramsis(slack_steps=STEPS), Load(Poisson(), 80.0), seconds=20).summary
    assert all(application.bad_rate < 0.05 for application in result.applications)


def test_workers_are_shared_out_by_work() -> None:
    deployment = two_applications()
    even = workers_of_applications(deployment, [50.0, 50.0], {})
    assert sorted(worker for own in even for worker in own) == [0, 1, 2, 3]
    assert [len(own) for own in workers_of_applications(deployment, np.array([1e-6, 100.0]), {})] == [1, 3]
    assert [len(own) for own in workers_of_applications(deployment, None, {"app": 3, "second": 1})] == [3, 1]
    for counts, sentence in (
        ({"app": 1}, "for every application"),
        ({"app": 4, "second": 4}, "at most 4"),
        ({"app": 0, "second": 1}, "at least one worker"),
        ({"other": 1}, "'other'"),
    ):
        with pytest.raises(StrettoError, match=sentence):
            workers_of_applications(deployment, None, counts)
    with pytest.raises(StrettoError, match="at least as many workers"):
        workers_of_applications(replace(deployment, workers=workers(1)), None, {})
