"""What a planner's policy promises, seen from outside: the policy's own expectation, and the table in force."""

import numpy as np
import pytest

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.parts.policy import Policy
from stretto.planners.parts.task import task_of
from stretto.planners.promise import PolicyPlanner, promise_of
from stretto.planners.ramsis.options import Options
from stretto.planners.ramsis.planner import Ramsis
from stretto.planners.ramsis.policy import make_policy
from stretto.planners.shared_queue.planner import SharedQueue
from stretto.sim.trial import simulated_trial
from tests.planners.parts.tasks import small_deployment

STEPS = 20


def test_the_promise_is_that_of_the_policy_for_the_load() -> None:
    deployment = small_deployment(3)
    promise = promise_of(Ramsis(slack_steps=STEPS), deployment, 90.0)
    policy = make_policy(task_of(deployment, 0), Options(slack_steps=STEPS), 90.0)
    assert (promise.accuracy, promise.violation) == (policy.expectation.accuracy, policy.expectation.violation)
    assert (promise.workers, promise.load) == (3, 90.0)
    np.testing.assert_array_equal(promise.table.variant, policy.table(range(4)).variant)


def test_dropped_queries_are_violations_too() -> None:
    policy = make_policy(task_of(small_deployment(1), 0), Options(slack_steps=STEPS), 200.0)
    assert policy.expectation.violation == policy.expectation.late > 0


def test_several_applications_have_no_single_promise() -> None:
    first = small_deployment(3)
    second = Deployment((first.applications[0],), workers(2) + workers(1, "default2"))
    with pytest.raises(StrettoError, match="one application on workers of one kind"):
        promise_of(Ramsis(slack_steps=STEPS), second, 10.0)


def test_a_planner_without_a_policy_for_it_is_told() -> None:
    class Silent:
        def __call__(self, view: View) -> Plan:
            return Ramsis(slack_steps=STEPS)(view)

        uses_stored = False
        options = Options()
        make = staticmethod(make_policy)

        def in_force(self) -> dict[tuple[str, str], Policy]:
            return {}

    assert isinstance(Silent(), PolicyPlanner)
    with pytest.raises(StrettoError, match="no policy for application app"):
        promise_of(Silent(), small_deployment(2), 10.0)


def test_what_comes_beyond_the_most_that_can_be_answered_is_a_violation() -> None:
    deployment = small_deployment(3)
    capacity = task_of(deployment, 0).capacity()
    planner = SharedQueue(slack_steps=STEPS, queries=2000, prior=0.0, trial=simulated_trial)
    promise = promise_of(planner, deployment, 10 * capacity)
    assert promise.violation >= 0.89
