"""What clients' networks leave of an SLO, and who plans with that."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.application import Application, Variant
from stretto.core.client import Client, Network, Told
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.plan import Fixed, Lane, Late, Plan, by_application
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.dispatch.dispatcher import Dispatcher
from stretto.planners.judged.planner import Judged
from stretto.planning.left import LEAST_SHARE, STEP, left_ns
from stretto.planning.served import served_session
from stretto.planning.session import Session

SLO_NS = 100 * NS_PER_MS
VARIANT = Variant("v", 0.9, (LatencyProfile.linear(1, 4, 8),), input_size=(8, 8), frame_bytes=20_000)
ON = Deployment(tuple(Application(name, SLO_NS, (VARIANT,)) for name in "ab"), workers(1))
TOLD = Told("v", (8, 8))
PLAN = by_application(tuple(Lane(name, (0,), Fixed(n), late=Late.DROP_WHEN_INFEASIBLE) for n, name in enumerate("ab")))


def client(slot: int = 0, mbytes_per_s: float | None = 1.0, rate: float = 10.0, **given: object) -> Client:
    network = Network(None if mbytes_per_s is None else mbytes_per_s * 1e6, given.pop("delay_ns", None))  # type: ignore[arg-type]
    return Client(slot, str(slot), 0, network, TOLD, "a", rate, **given)  # type: ignore[arg-type]


def left_of(*clients: Client, rates: tuple[float, float] | None = None, before: tuple[int, ...] | None = None) -> float:
    """The share of application a."""
    found = left_ns(ON, clients, {}, np.array(rates or (sum(c.rate for c in clients), 0.0)), before)
    return 1.0 if found is None else found[0] / SLO_NS


def test_without_a_network_all_is_left() -> None:
    assert left_ns(ON, (), {}, np.zeros(2)) is None
    assert left_ns(ON, (client(mbytes_per_s=None),), {}, np.array([10.0, 0.0])) is None


def test_a_network_takes_its_time() -> None:
    assert left_of(client()) == pytest.approx(0.8, rel=STEP - 1)  # 20 ms of 100
    assert left_of(client(delay_ns=30 * NS_PER_MS)) == pytest.approx(0.5, rel=STEP - 1)
    assert left_of(client(frame_ratio=2.0)) == pytest.approx(0.6, rel=STEP - 1)
    assert left_of(client(delay_ns=72 * NS_PER_MS)) == pytest.approx(LEAST_SHARE, rel=STEP - 1)
    assert left_ns(ON, (client(),), {}, np.array([10.0, 0.0]))[1] == SLO_NS  # type: ignore[index]


def test_the_worst_off_tenth_of_the_queries_does_not_count() -> None:
    slow, fast = client(0, 0.22, rate=1.0), client(1, 20.0, rate=10.0)
    assert left_of(slow, fast) == 1.0
    assert left_of(slow, client(1, 20.0, rate=8.0)) == pytest.approx(LEAST_SHARE, rel=STEP - 1)
    assert left_of(client(0, 0.22, rate=1.0), rates=(20.0, 0.0)) == 1.0  # most come from nobody who has a network


@pytest.mark.parametrize("hopeless", [{"slo_ns": NS_PER_MS}, {"delay_ns": 60_000 * NS_PER_MS}, {"mbytes_per_s": 0.01}])
def test_a_client_that_nothing_can_answer_in_time_does_not_count(hopeless: dict[str, object]) -> None:
    """One that said it had 1 ms, or a round trip of a minute, and asked for more than a tenth of all queries, used to
    shorten everybody's SLO to a tenth. One that can just be answered still counts.
    """
    honest = [client(slot, 20.0) for slot in range(9)]
    assert left_of(*honest, client(9, rate=11.0, **hopeless)) == left_of(*honest)  # type: ignore[arg-type]
    assert left_of(*honest, client(9, 20.0, rate=11.0, slo_ns=7 * NS_PER_MS)) < 0.2
    assert left_of(client(**hopeless)) == 1.0  # type: ignore[arg-type]


def test_small_moves_do_not_show() -> None:
    first = left_ns(ON, (client(mbytes_per_s=1.0),), {}, np.array([10.0, 0.0]))
    assert left_ns(ON, (client(mbytes_per_s=0.95),), {}, np.array([10.0, 0.0]), first) == first
    assert left_ns(ON, (client(mbytes_per_s=0.4),), {}, np.array([10.0, 0.0]), first) != first


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-3, 1e4), st.floats(0.1, 100), st.integers(0, 300)), max_size=6))
def test_it_is_within_bounds(networks: list[tuple[float, float, int]]) -> None:
    clients = [client(n, w, rate, delay_ns=d * NS_PER_MS) for n, (w, rate, d) in enumerate(networks)]
    assert LEAST_SHARE / STEP <= left_of(*clients) <= 1.0


class Seen:
    """A planner that remembers what it was shown."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def __call__(self, view: View) -> Plan:
        self.views.append(view)
        return PLAN


def test_planners_see_what_is_left_and_clients_keep_their_slo() -> None:
    planner = Seen()
    session = Session(planner)
    telemetry = Dispatcher(ON, PLAN).telemetry(0)
    current = session.first(ON)
    short = Conditions(left_ns=(60 * NS_PER_MS, SLO_NS))
    for _ in range(2):
        current = session.next(current, telemetry, short, clients=lambda: (client(),))
    first, second, third = planner.views
    assert first.deployment is ON and second.deployment is third.deployment is not ON
    assert [application.slo_ns for application in third.deployment.applications] == [60 * NS_PER_MS, SLO_NS]
    assert third.clients()[0].slo_ns == SLO_NS
    assert current.deployment is ON  # what is served has not changed
    whole = session.next(current, telemetry, Conditions())
    assert planner.views[-1].deployment is ON
    assert whole.plan.lanes[0].capacity >= current.plan.lanes[0].capacity


def test_one_that_knows_networks_sees_the_slo_itself() -> None:
    planner = Seen()
    session = Session(planner, knows_networks=True)
    current = session.first(ON)
    session.next(current, Dispatcher(ON, PLAN).telemetry(0), Conditions(left_ns=(1, 1)))
    assert all(view.deployment is ON for view in planner.views)
    assert served_session("judged").knows_networks and Judged().knows_networks
    assert served_session("jellyfish").knows_networks and not served_session("clockwork").knows_networks
