"""The short queue: what its table says, and what that is worth where workers are nearly always busy."""

import pytest

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import GIVE_UP, Late, Order, Tables
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planners.short_queue import WAIT, ShortQueue
from stretto.planners.symphony import Symphony
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.sim.simulator import simulate

RESNET50 = LatencyProfile.linear(1.053, 5.072)


def resnet50() -> Deployment:
    """One model of Symphony's table 4 on eight workers."""
    return Deployment((Application("app", 25 * NS_PER_MS, (Variant("resnet50", 1.0, (RESNET50,)),)),), workers(8))


def test_the_table_waits_for_a_good_batch_and_gives_up_beyond_the_longest_queue() -> None:
    deployment = resnet50()
    plan = ShortQueue(gathered=0.85, longest=2.25)(View(deployment))
    check_plan(plan, deployment)
    (lane,) = plan.lanes
    assert (lane.order, lane.late) == (Order.EARLIEST_DEADLINE, Late.DROP_WHEN_INFEASIBLE)
    assert isinstance(lane.select, Tables)
    (table,) = lane.select.tables
    # The staggered batch is 16: 9/8 of 21.92 ms are within 25. 0.85 of it are 14, and 2.25 of it 36.
    assert table.edges_ns == (RESNET50.latency_ns(14),)
    assert (table.variant[1:14, 1] == WAIT).all() and (table.variant[14:, 1] == 0).all()
    assert (table.variant[:, 0] == 0).all()
    assert len(table.batch) == 38 and (table.batch[:37] == 0).all() and (table.batch[37] == GIVE_UP).all()


def test_kinds_of_workers_have_tables_of_their_own() -> None:
    slow = LatencyProfile.linear(2.0, 8.0, 64, "slow")
    variant = Variant("v", 1.0, (RESNET50, slow))
    deployment = Deployment((Application("app", 25 * NS_PER_MS, (variant,)),), workers(4) + workers(4, "slow"))
    plan = ShortQueue()(View(deployment))
    check_plan(plan, deployment)
    select = plan.lanes[0].select
    assert isinstance(select, Tables)
    assert {table.kind: table.edges_ns for table in select.tables} == {
        RESNET50.kind: (RESNET50.latency_ns(14),),
        "slow": (slow.latency_ns(6),),  # of 7
    }


def test_it_loses_less_than_batch_aware_pruning_and_does_not_collapse() -> None:
    deployment = resnet50()
    lost = {}
    for times in (1.0, 2.0):
        for name, planner in (("short", ShortQueue()), ("pruned", Symphony(batch_aware=True))):
            source = Load(Poisson(), 5550.0 * times)
            summaries = [
                simulate(deployment, planner, source, seconds=10.0, seed=seed).summary for seed in (71, 72, 73)
            ]
            lost[name, times] = 1.0 - sum(summary.on_time_rate for summary in summaries) / len(summaries)
    assert lost["short", 1.0] < 0.87 * lost["pruned", 1.0]
    assert lost["short", 2.0] < 0.51  # no more than what the workers cannot do at all


@pytest.mark.parametrize(("gathered", "longest"), [(0.0, 2.0), (1.1, 2.0), (0.8, 0.9)])
def test_what_cannot_be_is_refused(gathered: float, longest: float) -> None:
    with pytest.raises(StrettoError, match="staggered"):
        ShortQueue(gathered=gathered, longest=longest)
