"""SlackFit: buckets of latency, the slack that admits them, and one table for each kind of worker."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays, Eager, Late, Order, RouteRule, Table, Tables
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners import slackfit
from stretto.planners.slackfit import SlackFit, bucket_table
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate


def served(slo_ms: int = 100) -> Deployment:
    """Three variants on the front and one that is beaten; the best runs on one of the kinds only."""

    def variant(name: str, accuracy: float, **line: tuple[float, float]) -> Variant:
        profiles = tuple(LatencyProfile.linear(*alpha_beta, 8, kind) for kind, alpha_beta in line.items())
        return Variant(name, accuracy, profiles)

    variants = (
        variant("small", 0.6, fast=(1, 4), slow=(3, 12)),
        variant("middle", 0.8, fast=(4, 8), slow=(12, 24)),
        variant("beaten", 0.7, fast=(9, 10), slow=(20, 30)),
        variant("large", 0.9, fast=(10, 20)),
    )
    return Deployment((Application("app", slo_ms * NS_PER_MS, variants),), workers(2, "fast") + workers(3, "slow"))


def chosen_at(table: Table, slack_ns: int) -> tuple[int, int]:
    column = int(np.searchsorted(table.edges, slack_ns, side="right"))
    return int(table.variant[0, column]), int(table.batch[0, column])


def pairs_of(deployment: Deployment, kind: str) -> list[tuple[int, int, int]]:
    """(latency, variant, batch) of the variants on the front, within the SLO."""
    found = []
    for number in (0, 1, 3):
        profile = deployment.variants[number].profile_on(kind)
        for size in range(1, 9) if profile is not None else ():
            assert profile is not None
            found.append((profile.latency_ns(size), number, size))
    return sorted(pair for pair in found if pair[0] <= deployment.applications[0].slo_ns)


@pytest.mark.parametrize("kind", ["fast", "slow"])
@pytest.mark.parametrize("buckets", [1, 3, 8, 32, 4096])
def test_the_highest_bucket_whose_pair_fits(kind: str, buckets: int) -> None:
    """Against the rule written out, at every millisecond of slack."""
    deployment = served()
    table = bucket_table(View(deployment), 0, kind, buckets)
    assert table is not None and not table.fault and table.kind == kind
    pairs = pairs_of(deployment, kind)
    low, high = pairs[0][0], pairs[-1][0]
    width = -(-(high - low + 1) // buckets)
    best: dict[int, tuple[int, int, int]] = {}
    for latency, number, size in pairs:
        bucket = (latency - low) // width
        held = best.get(bucket)
        accuracy = deployment.variants[number].accuracy
        if held is None or (size, accuracy) > (held[2], deployment.variants[held[1]].accuracy):
            best[bucket] = (latency, number, size)
    for slack_ms in range(101):
        admitted = [pair for _, pair in sorted(best.items()) if pair[0] <= slack_ms * NS_PER_MS]
        expected = admitted[-1] if admitted else best[0]
        assert chosen_at(table, slack_ms * NS_PER_MS) == expected[1:], slack_ms


def test_what_is_chosen_ends_within_the_slack_and_latency_rises_with_it() -> None:
    deployment = served()
    table = bucket_table(View(deployment), 0, "fast", 32)
    assert table is not None
    taken = []
    for slack_ns in (0, *table.edges.tolist()):
        number, size = chosen_at(table, slack_ns)
        latency_ns = deployment.profile(number, "fast").latency_ns(size)
        assert slack_ns == 0 or latency_ns == slack_ns  # admitted at the very moment, not a step later
        taken.append((latency_ns, deployment.variants[number].accuracy))
    assert taken == sorted(taken)  # here accuracy rises as well
    assert 2 not in table.variants  # the beaten one


def test_delays_take_from_the_slack() -> None:
    deployment = served()
    plain, delayed = (
        bucket_table(View(deployment, delays=delays), 0, "fast", 4096)
        for delays in (Delays(), Delays(control_ns=NS_PER_MS, data_ns=NS_PER_MS))
    )
    assert plain is not None and delayed is not None
    assert chosen_at(plain, 30 * NS_PER_MS) == (3, 1)
    assert chosen_at(delayed, 31 * NS_PER_MS) == (1, 4)  # 24 ms and 5 ms around it
    assert chosen_at(delayed, 32 * NS_PER_MS) == (3, 1)


def test_the_lane_is_shared_eager_and_drops() -> None:
    deployment = served()
    plan = SlackFit()(View(deployment))
    check_plan(plan, deployment)
    (lane,) = plan.lanes
    assert plan.routes[0].rule is RouteRule.BY_APPLICATION
    assert (lane.order, lane.release, lane.late) == (
        Order.EARLIEST_DEADLINE,
        Eager(),
        Late.DROP_WHEN_INFEASIBLE,
    )
    assert lane.workers == (0, 1, 2, 3, 4)
    assert isinstance(lane.select, Tables)
    assert [table.kind for table in lane.select.tables] == ["fast", "slow"]
    assert 3 not in lane.select.tables[1].variants


def test_a_kind_that_is_too_slow_is_left_out() -> None:
    deployment = served(slo_ms=10)
    (lane,) = SlackFit()(View(deployment)).lanes
    assert lane.workers == (0, 1) and isinstance(lane.select, Table)
    with pytest.raises(StrettoError, match="no variant of application app answers a single query"):
        SlackFit()(View(served(slo_ms=4)))


def test_load_eats_slack_and_with_it_accuracy() -> None:
    deployment = Deployment(served().applications, workers(2, "fast"))
    runs = [simulate(deployment, SlackFit(), Load(Poisson(), rate), seconds=5.0).summary for rate in (10, 150, 400)]
    assert all(run.unfinished == 0 and run.outcomes["late"] == 0 for run in runs)
    assert runs[0].accuracy > runs[1].accuracy > runs[2].accuracy
    assert runs[0].on_time_rate > 0.99


def test_it_is_one_page() -> None:
    assert len(inspect.getsource(slackfit).splitlines()) < 90
