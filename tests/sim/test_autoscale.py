"""Fleets that are scaled in simulation: workers join after their delay, leave gracefully, and no query is lost."""

from __future__ import annotations

import itertools

import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import Worker, workers
from stretto.planners.nexus import Nexus
from stretto.planners.symphony import Symphony
from stretto.planning.autoscale_options import AutoscaleOptions, Bounds
from stretto.sim.arrivals import Client, Clients, Load
from stretto.sim.autoscale import Autoscaling, accuracy_floor, with_slots
from stretto.sim.bounds import fluid_accuracy, fluid_fleet, fluid_goodput
from stretto.sim.processes import Poisson
from stretto.sim.results import Result
from stretto.sim.simulator import simulate
from stretto.sim.traces import RateTrace

PROFILE = LatencyProfile.linear(1, 5, 32)
ONE = (Application("app", 60 * NS_PER_MS, (Variant("only", 1.0, (PROFILE,)),)),)
OPTIONS = AutoscaleOptions({"default": Bounds(2, 30, 3.6)}, period_s=2.0, start_s=1.0)
EACH = fluid_goodput(Deployment(ONE, workers(1)), [1.0])  # queries/s of a worker, at most


def stepped(load: tuple[float, float], **more: object) -> Result:
    """So many workers' load, and another after 10 of 20 seconds."""
    rates = [each * EACH for each in load]
    source = Clients((Client("app", RateTrace((0.0, 10.0), tuple(rates), "hold")),))  # type: ignore[arg-type]
    deployment, begin = with_slots(Deployment(ONE, workers(5)), OPTIONS)
    given = {"planner": Symphony(batch_aware=True), "seed": 1} | more
    planner = given.pop("planner")
    return simulate(
        deployment,
        planner,
        source,
        seconds=20,
        autoscaling=Autoscaling(OPTIONS, begin),
        **given,  # type: ignore[arg-type]
    )


def test_workers_come_when_they_are_needed_and_after_their_delay() -> None:
    result = stepped((4.0, 12.0))
    fleet = result.fleet
    assert fleet is not None
    more = [(second, count) for second, _, count in fleet.changes if second > 10]
    assert 12 <= more[-1][1] <= 16 and all(second % 2 == 1 for second, _ in more)  # a second after a period's end
    assert more == sorted(more)
    ordered = next(advice for advice in fleet.advice if advice.now_ns == 12 * 10**9)
    assert ordered.starting["default"] > 0 and ordered.present["default"] == fleet.changes[0][2]
    assert fleet.advice[-1].bad_rate < 0.01
    assert len(fleet.advice) == 9  # one a period


def test_they_leave_when_they_are_not_and_no_query_is_lost() -> None:
    result = stepped((4.5, 1.2))
    fleet = result.fleet
    assert fleet is not None and fleet.changes[-1][2] == 2
    summary = result.summary
    assert summary.unfinished == 0 and summary.outcomes["failed"] == 0
    assert sum(summary.outcomes.values()) == summary.submitted
    assert summary.bad_rate < 0.002


@pytest.mark.parametrize("planner", [Symphony(), Nexus()])
def test_no_query_is_lost_under_other_plans(planner: object) -> None:
    """Nexus gives each worker lanes of its own: what waits there must go elsewhere."""
    summary = stepped((4.5, 1.5), planner=planner, replan_s=1.0).summary
    assert summary.unfinished == 0 and summary.outcomes["failed"] == 0 and summary.on_time_rate > 0.9


def test_what_it_costs_and_how_busy_it_is() -> None:
    result = stepped((4.0, 4.0))
    fleet = result.fleet
    assert fleet is not None
    counts = [*fleet.changes, (20.0, "default", 0)]
    seconds = sum(count * (after - second) for (second, _, count), (after, _, _) in itertools.pairwise(counts))
    assert fleet.worker_seconds == {"default": pytest.approx(seconds)}
    assert fleet.cost == pytest.approx(seconds * 3.6 / 3600)
    busy = sum(result.summary.worker_busy) * 20
    assert result.summary.worker_use == pytest.approx(busy / seconds)


def test_the_same_seed_gives_the_same_fleet() -> None:
    first, second = (stepped((3.0, 9.0)) for _ in range(2))
    assert first.fleet == second.fleet and first.summary == second.summary


def test_a_fleet_that_never_changes_decides_as_one_that_is_not_scaled() -> None:
    """Slots that are empty, and an autoscaler that looks on, change nothing."""
    fixed = AutoscaleOptions({"default": Bounds(5, 5)}, period_s=2.0)
    load = Load(Poisson(), 4 * EACH)
    scaled = simulate(
        Deployment(ONE, workers(5)),
        Symphony(),
        load,
        seconds=5,
        record=True,
        autoscaling=Autoscaling(fixed, {"default": 5}),
    )
    plain = simulate(Deployment(ONE, workers(5)), Symphony(), load, seconds=5, record=True)
    assert scaled.queries is not None and plain.queries is not None
    assert scaled.queries.tobytes() == plain.queries.tobytes()


def test_slots_for_all_that_may_come() -> None:
    fleet = (*workers(2, "a"), Worker("b-0", "b", 77, ("app/only",)))
    profiles = tuple(LatencyProfile.linear(1, 5, kind=kind) for kind in "ab")
    deployment = Deployment((Application("app", 10**8, (Variant("only", 1.0, profiles),)),), fleet)
    options = AutoscaleOptions({"a": Bounds(3, 4), "b": Bounds(0, 3)})
    larger, begin = with_slots(deployment, options)
    assert begin == {"a": 3, "b": 1} and larger.workers[:3] == fleet
    assert [worker.kind for worker in larger.workers] == ["a", "a", "b", "a", "a", "b", "b"]
    assert {worker.memory_bytes for worker in larger.workers if worker.kind == "b"} == {77}
    with pytest.raises(StrettoError, match="no worker of kind c"):
        with_slots(deployment, AutoscaleOptions({"c": Bounds(1, 2)}))


# -- the fluid fleet -------------------------------------------------------------------------------------------------


def unequal() -> Deployment:
    """A fast and an accurate variant on two kinds, of which one is four times as fast."""
    variants = tuple(
        Variant(
            name,
            accuracy,
            (LatencyProfile.linear(a, b, 16, kind="small"), LatencyProfile.linear(a / 4, b / 4, 16, kind="big")),
        )
        for name, accuracy, a, b in (("fast", 0.7, 1, 2), ("accurate", 0.9, 4, 8))
    )
    return Deployment((Application("app", 200 * NS_PER_MS, variants),), (*workers(1, "small"), *workers(1, "big")))


@pytest.mark.parametrize("accuracy", [0.0, 0.75, 0.85])
@pytest.mark.parametrize("price", [2.0, 8.0])
def test_the_fluid_fleet_is_the_cheapest_that_the_fluid_bound_knows(accuracy: float, price: float) -> None:
    deployment, costs = unequal(), {"small": 1.0, "big": price}
    found = fluid_fleet(deployment, (20_000.0,), costs, accuracy=accuracy)
    assert found is not None
    kind = "big" if price < 4 else "small"
    assert found.workers[kind] > 0 and found.workers["big" if kind == "small" else "small"] == pytest.approx(0)
    assert found.cost == pytest.approx(costs[kind] * found.workers[kind])
    enough = -(-found.workers[kind] // 1)
    for count, holds in ((int(enough), True), (int(enough) - 1, False)):
        bound = fluid_accuracy(Deployment(deployment.applications, workers(count, kind)), (20_000.0,))
        assert (bound.correct_share >= max(accuracy, 0.7) - 1e-9) is holds or (
            accuracy == 0.0 and bound.answered_share < 1
        )


def test_numbers_that_are_held() -> None:
    deployment, costs = unequal(), {"small": 1.0, "big": 2.0}
    free = fluid_fleet(deployment, (20_000.0,), costs)
    held = fluid_fleet(deployment, (20_000.0,), costs, held={"big": 0})
    assert free is not None and held is not None
    assert held.workers["big"] == 0 and held.workers["small"] == pytest.approx(4 * free.workers["big"], rel=0.01)
    assert held.cost > free.cost
    assert fluid_fleet(deployment, (20_000.0,), costs, accuracy=0.95) is None
    dear = {"small": 1.0, "big": 8.0}
    few = fluid_fleet(deployment, (20_000.0,), dear, most=10)
    many = fluid_fleet(deployment, (20_000.0,), dear)
    assert few is not None and many is not None
    assert sum(few.workers.values()) <= 10 + 1e-6 < sum(many.workers.values()) and few.cost > many.cost
    assert fluid_fleet(deployment, (20_000.0,), dear, most=2) is None


def test_a_floor_of_accuracy() -> None:
    deployment = unequal()
    floor = accuracy_floor(deployment, 0.9, {"small": 1.0})
    low, high = floor((500.0,)), floor((5000.0,))
    assert low["big"] == high["big"] == 1.0  # it has no price, and stays
    assert 0 <= low["small"] < high["small"]
    assert accuracy_floor(deployment, 0.95, {"small": 1.0})((500.0,)) == {}  # nothing can; deadlines alone decide
