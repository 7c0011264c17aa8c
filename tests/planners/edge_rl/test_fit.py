"""Whether a policy fits an application: judged once, against its own SLO, and never in flight."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stretto.core.conditions import Conditions
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan
from stretto.core.view import View
from stretto.dispatch.dispatcher import Dispatcher
from stretto.planners.edge_rl.planner import EdgeRL
from stretto.planning.session import Session
from stretto.training.settings import instance_deployment
from tests.planners.edge_rl.test_policy import ACCURACY, SERVICE_MS, SLO_MS, four, made


def in_a_session(planner: EdgeRL, left_ms: float | None) -> Plan:
    """Its second plan, made while queries have so much of their SLO left when they come."""
    session = Session(planner, knows_networks=planner.knows_networks)
    deployment = four()
    first = session.first(deployment)
    telemetry = Dispatcher(deployment, first.plan).telemetry(0)
    conditions = Conditions(left_ns=None if left_ms is None else (round(left_ms * 1e6),))
    return session.next(first, telemetry, conditions).made


@pytest.mark.parametrize("left_ms", [299.0, 272.7, 150.0, 30.0])
def test_a_policy_decides_whatever_networks_leave_of_the_slo(left_ms: float) -> None:
    """It was trained for the application's SLO, and is shown that one."""
    planner = EdgeRL(policies=(made(),))
    assert planner.knows_networks
    assert in_a_session(planner, left_ms) == in_a_session(planner, None)


def test_a_policy_for_any_instances_is_shown_what_networks_leave() -> None:
    planner = EdgeRL()
    assert not planner.knows_networks
    assert in_a_session(planner, 70.0) != in_a_session(planner, None)


def test_a_policy_is_refused_once_and_never_in_flight() -> None:
    """An instance that joins, or another pace, stops no plan: queries are dealt by speed."""
    planner = EdgeRL(policies=(made(),))
    larger, slower = (
        instance_deployment((2, count), (9.9, ms), ACCURACY, SLO_MS) for count, ms in ((3, 33.3), (2, 40.0))
    )
    for other in (larger, slower):
        with pytest.raises(StrettoError):
            planner(View(other))
        weights = np.array(planner(View(other, plan=planner(View(four())))).routes[0].weights)
        speed = np.array(
            [1 / lane_ms for lane_ms in (9.9, 9.9, *[33.3 if other is larger else 40.0] * (len(weights) - 2))]
        )
        assert weights == pytest.approx(speed / speed.sum())


def test_where_a_model_broke_those_that_are_left_are_served() -> None:
    """The deployment without it is another one, whose first plan must come all the same."""
    deployment = four()
    (application,) = deployment.applications
    light = replace(deployment, applications=(replace(application, variants=application.variants[:1]),))
    planner = EdgeRL(policies=(made(),))
    with pytest.raises(StrettoError, match="is for 4 instances, and there are 2"):
        planner(View(light))
    planner(View(deployment))
    assert planner(View(light)).routes[0].weights == (0.5, 0.5)


def test_a_misfit_is_told_at_once_also_while_a_worker_is_away() -> None:
    with pytest.raises(StrettoError, match="is for 4 instances, and there are 5"):
        larger = instance_deployment((2, 3), SERVICE_MS, ACCURACY, SLO_MS)
        EdgeRL(policies=(made(),))(View(larger, alive=np.array([True, True, True, True, False])))
