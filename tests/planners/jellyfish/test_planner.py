"""From a View to a Plan: clients to lanes, what nobody sends, unequal workers, several applications, little memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.client import Client, Network
from stretto.core.conditions import Conditions
from stretto.core.deployment import Deployment
from stretto.core.plan import Delays, Eager, Fixed, Late, Order, Plan, RouteRule
from stretto.core.profile import NS_PER_MS, NS_PER_S, LatencyProfile, Quantile
from stretto.core.view import View
from stretto.core.worker import UNLIMITED_MEMORY, Worker, workers
from stretto.planners.jellyfish.demand import ALONE, coarse_step, ladder_of
from stretto.planners.jellyfish.planner import Jellyfish
from stretto.planning.completion import complete
from stretto.planning.floors import Crew

SIZES = (128, 224, 320, 416)
SLO_MS = 100.0


def variants(kinds: dict[str, float] | None = None, memory_bytes: int = 0) -> tuple[Variant, ...]:
    """Four sizes: 10, 14, 20 and 28 ms for one query, and 3 to 12 ms for each further one."""
    return tuple(
        Variant(
            f"size-{size}",
            0.4 + 0.1 * place,
            tuple(
                LatencyProfile.linear(times * (3 + 3 * place), times * (7 + 1.5 * place**2), 8, kind)
                for kind, times in (kinds or {"default": 1.0}).items()
            ),
            memory_bytes=memory_bytes,
            load_ns=150 * NS_PER_MS,
            input_size=(size, size, 3),
            frame_bytes=size * size // 2,
        )
        for place, size in enumerate(SIZES)
    )


def deployed(count: int = 2, **rest: int) -> Deployment:
    crew = tuple(Worker(f"w{number}", **rest) for number in range(count))
    models = variants(memory_bytes=1 if rest else 0)
    return Deployment((Application("detect", int(SLO_MS * NS_PER_MS), models),), crew, Quantile.P99)


def client(slot: int, rate: float = 15.0, mbit_per_s: float | None = 20.0, slo_ms: float | None = None) -> Client:
    network = Network(None if mbit_per_s is None else mbit_per_s * 1e6 / 8, 0)
    slo_ns = None if slo_ms is None else int(slo_ms * NS_PER_MS)
    return Client(slot, f"c{slot}", 0, network, application="detect", rate=rate, slo_ns=slo_ns)


def seen(deployment: Deployment, *clients: Client, others: float = 0.0, **rest: object) -> View:
    rates = np.array([sum(one.rate for one in clients) + others])
    return View(deployment, rates=rates, clients=lambda: clients, **rest)  # type: ignore[arg-type]


def lane_of(plan: Plan, slot: int) -> int:
    route = plan.routes[0]
    return route.lanes[route.targets[slot]]


def variant_of(plan: Plan, slot: int) -> int:
    select = plan.lanes[lane_of(plan, slot)].select
    assert isinstance(select, Fixed)
    return select.variant


def test_a_count_that_wavers_takes_nobody_s_place() -> None:
    """Clients that just fit are counted with one too many now and then; one of them used to be refused for that. A rate
    that did rise counts at once.
    """
    deployment, planner = deployed(1), Jellyfish()
    capacity = max(
        batch * NS_PER_S / profile.latency_ns(batch, Quantile.P99)
        for batch in range(1, 9)
        if 2 * (profile := deployment.variants[0].profiles[0]).latency_ns(batch, Quantile.P99) <= 85 * NS_PER_MS
    )
    rate = float(int(capacity / 4))
    full = [client(slot, rate, 40.0) for slot in range(4)]
    refusing = len(planner(seen(deployment, *full)).lanes) - 1
    for step in range(12):
        counted = [replace(one, rate=rate + (-1.0 if step % 2 else 1.0)) for one in full]
        plan = planner(seen(deployment, *counted))
        assert all(lane_of(plan, slot) != refusing for slot in range(4)), step
    risen = [replace(one, rate=2 * rate) for one in full]
    plan = planner(seen(deployment, *risen))
    assert any(lane_of(plan, slot) == refusing for slot in range(4))


def test_lanes_are_jellyfish_s() -> None:
    deployment = deployed()
    plan = Jellyfish()(seen(deployment, client(0), client(1)))
    check_plan(plan, deployment)
    assert plan.routes[0].rule is RouteRule.BY_CLIENT and plan.placement is None and plan.prefetch is None
    *lanes, refusing = plan.lanes
    assert [lane.workers for lane in lanes] == [(0,), (1,)]
    for lane in lanes:
        assert lane.order is Order.FIRST_COME and lane.late is Late.DROP_WHEN_DISPATCHED
        assert isinstance(lane.select, Fixed) and isinstance(lane.release, Eager)
    assert refusing.capacity == 0


def test_a_better_network_gets_a_larger_variant() -> None:
    plan = Jellyfish()(seen(deployed(), client(0, mbit_per_s=100.0), client(1, mbit_per_s=4.0)))
    assert variant_of(plan, 0) > variant_of(plan, 1)


def test_delays_take_time_away() -> None:
    view = seen(deployed(1), client(0, mbit_per_s=100.0))
    slow = replace(view, delays=Delays(control_ns=30 * NS_PER_MS))
    assert variant_of(Jellyfish(filling=False)(slow), 0) < variant_of(Jellyfish(filling=False)(view), 0)


def test_measured_latency_counts() -> None:
    deployment = deployed(1)
    view = seen(deployment, client(0, mbit_per_s=100.0))
    slow = replace(view, latency_ratio=np.full((4, 1), 2.0), is_measured=np.ones((4, 1), np.bool_))
    assert variant_of(Jellyfish(filling=False)(slow), 0) < variant_of(Jellyfish(filling=False)(view), 0)


def test_a_client_that_has_no_place_is_refused_and_may_be_rescued() -> None:
    """40 ms are left: twice 20.0 for the smallest in batches of one would do, but the network takes 25 ms."""
    hurried = client(1, mbit_per_s=2.6, slo_ms=44.0)
    view = seen(deployed(1), client(0), hurried)
    plan = Jellyfish()(view)
    assert plan.lanes[lane_of(plan, 1)].capacity == 0
    assert plan.lanes[lane_of(plan, 0)].capacity > 0
    kept = Jellyfish(rescue=True)(seen(deployed(1), hurried))
    assert kept.lanes[lane_of(kept, 1)].capacity > 0
    quick = client(0, mbit_per_s=100.0, slo_ms=25.0)  # on the smallest, one by one, where the other is in time as well
    shared = Jellyfish(rescue=True)(seen(deployed(1), quick, hurried))
    assert [shared.lanes[lane_of(shared, slot)].capacity > 0 for slot in range(2)] == [True, True]


def test_what_a_client_says_does_not_count() -> None:
    """A rate of nonsense cannot stop the others from being planned."""
    plan = Jellyfish()(seen(deployed(), client(0), replace(client(1), rate=float("inf")), others=0.0))
    assert plan.lanes[lane_of(plan, 0)].capacity > 0


def test_without_any_network_known_rates_alone_are_planned_for() -> None:
    deployment = deployed()
    plan = Jellyfish()(seen(deployment, client(0, mbit_per_s=None), client(1, mbit_per_s=None)))
    check_plan(plan, deployment)
    assert plan.lanes[lane_of(plan, 0)].capacity > 0


def test_an_unknown_network_is_taken_to_be_as_the_middle_of_those_known() -> None:
    known = [client(slot, mbit_per_s=rate) for slot, rate in enumerate((4.0, 20.0, 100.0))]
    unknown, middling = (seen(deployed(4), *known, client(3, mbit_per_s=rate)) for rate in (None, 20.0))
    assert Jellyfish()(unknown) == Jellyfish()(middling)


@pytest.mark.parametrize("liar", [Network(1000.0, 0), Network(2.5e6, 60 * NS_PER_S)])
def test_what_is_said_of_a_network_that_nobody_can_serve_tells_nothing_of_others(liar: Network) -> None:
    """An unknown network used to count as the worst known: one client that said 1000 bytes/s, or a round trip of a
    minute, left those of whom nothing is known without a place.
    """
    unknown = replace(client(0), network=Network())
    plan = Jellyfish()(seen(deployed(), unknown, replace(client(1), network=liar)))
    assert plan.lanes[lane_of(plan, 1)].capacity == 0
    assert variant_of(plan, 0) == variant_of(Jellyfish()(seen(deployed(), unknown)), 0)


@pytest.mark.parametrize("count", [2, 6])
@pytest.mark.parametrize("hopeless", [{"mbit_per_s": 0.008}, {"slo_ms": 1.0}])
def test_a_client_that_nothing_can_serve_is_refused_and_changes_nothing_for_others(
    count: int, hopeless: dict[str, float]
) -> None:
    others = [client(slot, 10.0, 9.0 + 5 * slot) for slot in range(count)]
    deployment = deployed()
    without = Jellyfish()(seen(deployment, *others))
    plan = Jellyfish()(seen(deployment, *others, client(count, 5.0, **hopeless)))
    check_plan(plan, deployment)
    assert plan.lanes == without.lanes and plan.routes[0].weights == without.routes[0].weights
    assert [lane_of(plan, slot) for slot in range(count)] == [lane_of(without, slot) for slot in range(count)]
    assert plan.lanes[lane_of(plan, count)].capacity == 0


def test_where_nobody_can_be_served_all_are_refused() -> None:
    deployment = deployed()
    plan = Jellyfish()(seen(deployment, client(0, slo_ms=1.0), client(1, slo_ms=1.0)))
    check_plan(plan, deployment)
    assert [plan.lanes[lane_of(plan, slot)].capacity for slot in range(2)] == [0, 0]
    assert variant_of(plan, 0) == 0


def test_queries_of_nobody_are_dealt_to_where_they_were_planned() -> None:
    deployment = deployed(4)
    plan = Jellyfish()(seen(deployment, others=150.0))
    check_plan(plan, deployment)
    route = plan.routes[0]
    assert len(route.weights) == 5 and route.weights[-1] == 0.0
    assert sum(weight > 0 for weight in route.weights) > 1, "one worker could not answer them all"
    alone = Jellyfish()(seen(deployment, client(0), client(1)))
    assert alone.routes[0].weights == ()


def test_an_error_of_counting_is_nobody() -> None:
    plan = Jellyfish()(seen(deployed(), client(0, rate=30.0), others=1.0))
    assert plan.routes[0].weights == ()


def test_a_surplus_of_lambda_that_wavers_is_nobody_and_one_that_stays_is_somebody() -> None:
    """λ is counted over half a second and a client over one: of one client's 25/s it makes 24.6 and 26.7 by turns. Each
    time the difference used to be somebody who shares the client's worker, for half a second.
    """
    deployment, planner = deployed(), Jellyfish()
    alone = variant_of(planner(seen(deployment, client(0, 25.0))), 0)
    for step in range(12):
        plan = planner(seen(deployment, client(0, 25.0), others=1.7 if step % 2 else -0.4))
        assert plan.routes[0].weights == () and variant_of(plan, 0) == alone, step
    plans = [planner(seen(deployment, client(0, 25.0), others=2.9)) for _ in range(6)]
    assert plans[-1].routes[0].weights != ()
    at_once = Jellyfish()
    at_once(seen(deployment, client(0, 25.0)))
    assert at_once(seen(deployment, client(0, 25.0), others=20.0)).routes[0].weights != ()


def test_a_client_that_fell_silent_has_no_place_of_its_own() -> None:
    silent = replace(client(0, rate=25.0), seen_ns=0)
    active = replace(client(1), seen_ns=10 * NS_PER_S)
    plan = Jellyfish()(seen(deployed(1), silent, active, now_ns=10 * NS_PER_S))
    assert plan.routes[0].targets[0] == 0


def test_the_same_view_gives_the_very_same_plan() -> None:
    planner, deployment = Jellyfish(), deployed(3)
    clients = [client(slot, rate, bandwidth) for slot, rate, bandwidth in ((0, 10, 9.0), (1, 25, 30.0), (2, 15, 50.0))]
    first = planner(seen(deployment, *clients))
    again = planner(seen(deployment, *clients, plan=first))
    assert planner(seen(deployment, *clients, plan=again)) is again


def test_clients_stay_where_nothing_is_gained() -> None:
    """Rates that move a little change no lane, no variant and no client's target."""
    planner, deployment = Jellyfish(), deployed(2)
    clients = [client(slot, 10.0, bandwidth) for slot, bandwidth in enumerate((9.0, 12.0, 30.0, 50.0))]
    first = planner(seen(deployment, *clients))
    moved = [replace(one, rate=9.7) for one in clients]
    again = planner(seen(deployment, *moved, plan=first))
    assert [variant_of(first, slot) for slot in range(4)] == [variant_of(again, slot) for slot in range(4)]
    assert [lane_of(first, slot) for slot in range(4)] == [lane_of(again, slot) for slot in range(4)]


def test_unequal_workers() -> None:
    models = variants({"fast": 1.0, "slow": 2.5})
    crew = workers(1, "fast") + workers(1, "slow")
    deployment = Deployment((Application("detect", int(SLO_MS * NS_PER_MS), models),), crew, Quantile.P99)
    plan = Jellyfish()(seen(deployment, *(client(slot, 15.0, 50.0) for slot in range(4))))
    check_plan(plan, deployment)
    fast, slow = (lane.select.variant for lane in plan.lanes[:2])  # type: ignore[union-attr]
    assert fast > slow


def test_a_worker_that_left_has_no_lane() -> None:
    deployment = deployed(3)
    plan = Jellyfish()(seen(deployment, client(0), alive=np.array([True, False, True])))
    assert {worker for lane in plan.lanes for worker in lane.workers} == {0, 2}


def test_several_applications_share_workers_by_demand() -> None:
    models = variants()
    applications = tuple(Application(name, int(SLO_MS * NS_PER_MS), models) for name in ("detect", "other"))
    deployment = Deployment(applications, workers(6), Quantile.P99)
    plan = Jellyfish()(View(deployment, rates=np.array([200.0, 40.0])))
    check_plan(plan, deployment)
    counts = [len(route.lanes) - 1 for route in plan.routes]
    assert counts[0] > counts[1] >= 1 and sum(counts) == 6


def test_neighbours_are_prefetched_where_memory_is_short() -> None:
    deployment = deployed(2, memory_bytes=2)
    plan = Jellyfish()(seen(deployment, client(0), client(1)))
    check_plan(plan, deployment)
    assert plan.placement is not None and plan.prefetch is not None
    for lane, held, near in zip(plan.lanes, plan.placement, plan.prefetch, strict=False):
        assert held == (lane.select.variant,)  # type: ignore[union-attr]
        assert len(near) == 1 and abs(near[0] - held[0]) == 1
    three = Jellyfish(resident=3)(seen(deployed(2), client(0)))
    assert three.prefetch is not None and [len(near) for near in three.prefetch] == [2, 2]
    assert Jellyfish()(seen(deployed(2, memory_bytes=UNLIMITED_MEMORY), client(0))).prefetch is None


def test_dominated_variants_are_left_out_and_tails_are_made_rising() -> None:
    def one(name: str, accuracy: float, first_ms: float, size: int) -> Variant:
        return Variant(name, accuracy, (LatencyProfile.linear(1.0, first_ms, 4),), frame_bytes=size)

    models = (one("small", 0.5, 20.0, 10), one("large", 0.7, 15.0, 40), one("worse", 0.4, 25.0, 50))
    deployment = Deployment((Application("detect", NS_PER_S, models),), workers(1), Quantile.P99)
    ladder = ladder_of(View(deployment), 0, (0,), Quantile.P99)
    assert ladder.variants == (0, 1), "larger frames, less accuracy and more time is of no use"
    assert ladder.latency_ns[0, 1].tolist() == ladder.latency_ns[0, 0].tolist()


@pytest.mark.parametrize(("throughput", "pairs", "step"), [(185.0, 16, 0.1), (185.0, 384, 2.5), (185.0, 2560, 5.0)])
def test_rates_are_told_apart_as_finely_as_time_allows(throughput: float, pairs: int, step: float) -> None:
    assert coarse_step(throughput, pairs) == pytest.approx(step)


def middle_of_known(clients: Sequence[Client], *waits: float) -> float:
    """Bytes/s, of those that leave time for the smallest variant and a wait; of several waits, whichever gives most.
    Clients of these tests have no delay.
    """
    smallest = variants()[0]
    latency_ns = smallest.profiles[0].latency_ns(1, Quantile.P99)
    left_ns = [
        (rate, (one.slo_ns or 0) - smallest.frame_bytes / rate * NS_PER_S)
        for one in clients
        if (rate := one.network.bytes_per_s)
    ]
    able = [[rate for rate, left in left_ns if left >= (1 + wait) * latency_ns] for wait in waits]
    return max(float(np.median(rates)) if rates else math.inf for rates in able)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 80.0), st.one_of(st.none(), st.floats(0.5, 80.0)), st.floats(5.0, 300.0)), max_size=12
    ),
    st.integers(1, 4),
    st.floats(0.0, 300.0),
    st.booleans(),
)
def test_every_plan_can_be_followed_and_keeps_its_constraints(
    drawn: list[tuple[float, float | None, float]], count: int, others: float, filling: bool
) -> None:
    """(5) and (6) hold for every client that is not refused, reckoned from the plan alone: as published, and as it is
    served by default. There a lane's batch may grow beyond the one that was planned, which is found again here, and
    where every client may have a worker of its own, it leaves time for a quarter of a batch before its own.
    """
    deployment = deployed(count)
    clients = [client(slot, *values) for slot, values in enumerate(drawn)]
    plan = Jellyfish(filling=filling)(seen(deployment, *clients, others=others))
    check_plan(plan, deployment)
    placed = sum(plan.lanes[lane_of(plan, one.slot)].capacity > 0 for one in clients)
    wait = ALONE if filling and placed <= count else 1.0
    unknown = middle_of_known(clients, wait, 1.0)
    for number, lane in enumerate(plan.lanes[:-1]):
        assert isinstance(lane.select, Fixed)
        variant = deployment.variants[lane.select.variant]
        mapped = [one for one in clients if lane_of(plan, one.slot) == number]
        if not mapped:
            continue
        left_ns = min(
            (one.slo_ns or 0) - variant.frame_bytes / (one.network.bytes_per_s or unknown) * NS_PER_S for one in mapped
        )
        profile = variant.profiles[0]
        batch = profile.largest_batch_within((left_ns + 1) / (1 + wait), Quantile.P99)
        assert batch >= (1 if filling else lane.release.max_batch), "(5)"
        batch = batch if filling else lane.release.max_batch
        throughput = batch * NS_PER_S / profile.latency_ns(batch, Quantile.P99)
        assert sum(one.rate for one in mapped) <= throughput * (1 + 1e-9), "(6)"


def test_filling_lets_batches_grow_and_uses_idle_workers() -> None:
    """Where batches may grow, the completed plan has floors, so that an old queue becomes young again."""
    view = seen(deployed(), *(client(slot, mbit_per_s=100.0) for slot in range(4)))
    filled, published = Jellyfish()(view), Jellyfish(filling=False)(view)
    served = complete(filled, view.deployment, Conditions(), crew=Crew(view.present, (1.0,)))
    assert all(lane.release.max_batch == 8 and lane.release.floor_rates for lane in served.lanes[:-1])
    assert max(lane.release.max_batch for lane in published.lanes[:-1]) < 8
    assert sorted(np.bincount([lane_of(filled, slot) for slot in range(4)])) == [2, 2]


@pytest.mark.parametrize("filling", [True, False])
def test_capacity_holds_with_the_batch_that_is_run_where_throughput_falls_with_the_batch(filling: bool) -> None:
    """Batches of 4 bring 100/s through, of 8 only 40/s: clients of 90/s need those of 4."""
    table_ms = [0, 12, 20, 30, 40, 70, 110, 150, 200]
    profile = LatencyProfile(np.array([table_ms] * 4, np.int64) * NS_PER_MS)
    model = Variant("size-128", 0.5, (profile,), input_size=(128, 128, 3), frame_bytes=10_000)
    deployment = Deployment((Application("detect", 900 * NS_PER_MS, (model,)),), workers(1), Quantile.P99)
    for count, fitting in ((6, {4}), (2, {4, 5, 6, 7, 8})):  # 90/s, and 30/s
        view = seen(deployment, *(client(slot, mbit_per_s=80.0) for slot in range(count)))
        batch = Jellyfish(filling=filling)(view).lanes[0].release.max_batch
        assert batch in fitting and batch * 1e3 / table_ms[batch] >= 15.0 * count


def test_a_client_with_a_worker_of_its_own_gets_a_larger_variant() -> None:
    """Nobody waits where there are as many workers as clients."""
    view = seen(deployed(), client(0, mbit_per_s=40.0, slo_ms=80.0), client(1, mbit_per_s=40.0, slo_ms=80.0))
    filled, published = Jellyfish()(view), Jellyfish(filling=False)(view)
    assert lane_of(filled, 0) != lane_of(filled, 1)
    assert all(variant_of(filled, slot) > variant_of(published, slot) for slot in range(2))


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("share", [1.0, 0.7, 0.4])
def test_who_is_planned_for_has_time_left_when_its_bandwidth_falls_as_it_is_wont_to(count: int, share: float) -> None:
    """At `steady_share` of its bandwidth a frame still finds time for a batch of one and a quarter of one before it;
    alone on its worker, and where two share one. The variant above, if there is one, would break that or (5) or (6).
    """
    known = [
        replace(one, network=replace(one.network, steady_share=share))
        for one in (client(slot, rate=5.0, mbit_per_s=20.0) for slot in range(count))
    ]
    plan = Jellyfish()(seen(deployed(1), *known))

    def is_allowed(number: int) -> bool:
        variant, wait = variants()[number], 0.25 if count == 1 else 1.0
        run_ms = variant.profiles[0].latency_ns(1, Quantile.P99) / NS_PER_MS
        sending_ms = variant.frame_bytes / 20e6 * 8e3
        return (1 + wait) * run_ms + sending_ms <= SLO_MS and 1.25 * run_ms + sending_ms / share <= SLO_MS

    chosen = variant_of(plan, 0)
    assert is_allowed(chosen)
    assert chosen == len(variants()) - 1 or not is_allowed(chosen + 1)


def test_a_network_that_varies_without_bounds_takes_nobody_s_place() -> None:
    """Margins choose between sizes. Who has no place misses every frame, whoever varies some."""
    wild = [replace(one, network=replace(one.network, steady_share=1e-3)) for one in (client(0), client(1), client(2))]
    plan = Jellyfish()(seen(deployed(1), *wild))
    assert [plan.lanes[lane_of(plan, slot)].capacity > 0 for slot in range(3)] == [True] * 3
    assert {variant_of(plan, slot) for slot in range(3)} == {0}


def test_what_a_count_has_too_many_by_chance_makes_nobody_wait() -> None:
    """λ of 17 beside a client of 15 is an error of counting; of 30 it is somebody else, who may be before it."""
    alone, miscounted, shared = (
        seen(deployed(1), client(0, mbit_per_s=40.0, slo_ms=80.0), others=others) for others in (0.0, 2.0, 15.0)
    )
    of_view = [variant_of(Jellyfish()(view), 0) for view in (alone, miscounted, shared)]
    assert of_view[0] == of_view[1] > of_view[2]


def test_a_size_that_the_network_cannot_carry_is_not_planned() -> None:
    """At 60 frames a second 20 Mbit/s carry 40 kB each; the largest variant's frame would be in time alone."""
    quick = client(0, rate=60.0, mbit_per_s=20.0, slo_ms=400.0)
    chosen = variants()[variant_of(Jellyfish()(seen(deployed(4), quick)), 0)]
    assert chosen.frame_bytes * 60 <= 0.95 * 20e6 / 8 < variants()[-1].frame_bytes * 60


def test_a_worker_steps_up_through_what_it_holds_and_down_at_once() -> None:
    deployment = deployed(1)
    slow, fast = (seen(deployment, client(0, mbit_per_s=rate)) for rate in (2.0, 200.0))
    planner = Jellyfish(resident=2)
    low = planner(slow)
    up = planner(replace(fast, plan=low))
    assert variant_of(up, 0) == variant_of(low, 0) + 1 < variant_of(Jellyfish()(fast), 0)
    top = planner(replace(fast, plan=planner(replace(fast, plan=up))))
    assert variant_of(planner(replace(slow, plan=top)), 0) == variant_of(low, 0)


def test_a_worker_runs_what_is_in_memory_by_now_in_place_of_what_is_on_its_way() -> None:
    """Up and down; what is smaller answers in time, too."""
    deployment = deployed(1)
    slow, fast = (seen(deployment, client(0, mbit_per_s=rate)) for rate in (5.0, 200.0))
    planner = Jellyfish(resident=3)
    low, wanted = (variant_of(Jellyfish()(view), 0) for view in (slow, fast))
    assert (low, wanted) == (1, 3)

    def after(view: View, plan: Plan, *in_memory: int) -> int:
        holds = np.zeros((1, len(deployment.variants)), bool)
        holds[0, list(in_memory)] = True
        return variant_of(planner(replace(view, plan=plan, holds=holds)), 0)

    at_first = planner(slow)
    assert after(fast, at_first, low) == low, "nothing larger has come yet"
    assert after(fast, at_first, low, low + 1) == low + 1
    above = Jellyfish()(fast)
    assert after(slow, above, wanted, low, low - 1) == low
    assert after(slow, above, wanted, low + 1, low - 1) == low - 1
    assert after(slow, above, wanted, low + 1) == low, "what must be loaded is better than what is late"
