"""What a client is told: the size of its lane's variant, or the most accurate one that its network leaves time for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.application import Application, Variant
from stretto.core.check import check_plan
from stretto.core.client import Client, Network, Told
from stretto.core.deployment import Deployment
from stretto.core.plan import Fixed, Lane, MostAccurate, Plan, Route, RouteRule, Worklist
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers
from stretto.planning.telling import places, told_by_slot

SIZES = (14, 20, 28)
SLO_NS = 100 * NS_PER_MS


def rung(place: int, size: int) -> Variant:
    profile = LatencyProfile.linear(1.0, 4.0 * (place + 1), 8)  # 5, 9 and 13 ms for one query
    return Variant(
        f"px{size}", 0.6 + 0.1 * place, (profile,), input_size=(size, size), frame_bytes=10_000 * (place + 1)
    )


LADDER = Deployment((Application("a", SLO_NS, tuple(rung(*each) for each in enumerate(SIZES))),), workers(2))
ANY = Plan((Lane("all", (0, 1), MostAccurate((2, 1, 0))),), (Route(RouteRule.BY_APPLICATION, (0,)),))
BY_CLIENT = Plan(
    (Lane("low", (0,), Fixed(0)), Lane("high", (1,), Fixed(2)), Lane("nobody", (0,), Fixed(0), capacity=0)),
    (Route(RouteRule.BY_CLIENT, (0, 1, 2), targets=(1, 0, 1, 2)),),
)


def client(slot: int = 0, bytes_per_s: float | None = None, **given: object) -> Client:
    network = Network(bytes_per_s, given.pop("delay_ns", None))  # type: ignore[arg-type]
    return Client(slot, f"client {slot}", 0, network, application="a", **given)  # type: ignore[arg-type]


def told_by(plan: Plan, *clients: Client) -> dict[int, Told]:
    return told_by_slot(plan, View(LADDER, clients=lambda: clients))


def test_a_mapped_client_is_told_the_size_of_its_lanes_variant() -> None:
    check_plan(BY_CLIENT, LADDER)
    sizes = told_by(BY_CLIENT, *(client(slot, 1e3) for slot in (0, 1, 2, 7)))
    assert [sizes[slot].variant for slot in (0, 1, 2)] == ["px28", "px14", "px28"]
    assert sizes[7] == Told("px14", (14, 14))  # the plan has not seen it: the first lane takes it


def test_one_that_is_mapped_nowhere_is_told_a_size_but_no_variant() -> None:
    assert told_by(BY_CLIENT, client(3)) == {3: Told("", (14, 14))}


def test_a_lane_is_shared_where_others_are_mapped_to_it() -> None:
    placed = places(BY_CLIENT, LADDER, [client(slot) for slot in range(4)], View(LADDER).latency_ratio)
    assert [(placed[slot].lane, placed[slot].is_shared) for slot in range(4)] == [
        *((1, True), (0, False), (1, True), (2, False))
    ]


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({}, 28),  # nothing is known of its network
        ({"bytes_per_s": 1e6}, 28),  # 30 ms and 2·13 ms
        ({"bytes_per_s": 350e3}, 20),  # 86 ms and 26 ms are too much; 57 ms and 18 ms are not
        ({"bytes_per_s": 350e3, "delay_ns": 30 * NS_PER_MS}, 14),
        ({"bytes_per_s": 1e6, "frame_ratio": 3.0}, 20),  # its frames are larger than others'
        ({"bytes_per_s": 1e6, "slo_ns": 50 * NS_PER_MS}, 20),  # its own SLO
        ({"bytes_per_s": 1e6, "rate": 60.0}, 14),  # 20 kB 60 times a second are more than it has
        ({"bytes_per_s": 10e3}, 14),  # nothing fits: the smallest
    ],
)
def test_another_plan_tells_the_most_accurate_size_that_leaves_time(given: dict[str, float], size: int) -> None:
    assert told_by(ANY, client(0, **given))[0].input_size == (size, size)  # type: ignore[arg-type]


def test_slow_workers_leave_less_to_the_network() -> None:
    view = View(LADDER, latency_ratio=View(LADDER).latency_ratio * 3, clients=lambda: (client(0, 1e6),))
    assert told_by_slot(ANY, view)[0].input_size == (20, 20)


def test_who_calls_what_is_not_served_or_waits_for_a_worklist_is_told_nothing() -> None:
    gone = Client(0, "gone", 0, application="b")
    assert told_by(ANY, gone) == {}
    waits = Plan((Lane("all", (0, 1), Worklist()),), (Route(RouteRule.BY_APPLICATION, (0,)),))
    assert told_by(waits, client(0)) == {}


@settings(max_examples=100, deadline=None)
@given(st.floats(1e3, 1e9), st.integers(0, 200), st.floats(1, 100), st.floats(0.1, 4))
def test_what_is_told_fits_or_is_the_smallest(bytes_per_s: float, delay_ms: int, rate: float, ratio: float) -> None:
    asker = client(0, bytes_per_s, delay_ns=delay_ms * NS_PER_MS, rate=rate, frame_ratio=ratio)
    name = told_by(ANY, asker)[0].variant

    def fits(variant: Variant) -> bool:
        sending_s = variant.frame_bytes * ratio / bytes_per_s
        latency_ns = variant.profiles[0].table_ns[LADDER.quantile, 1]
        return sending_s * rate <= 1 and delay_ms * NS_PER_MS + sending_s * 1e9 + 2 * latency_ns <= SLO_NS

    fitting = [variant.name for variant in LADDER.variants if fits(variant)]  # by rising accuracy
    assert name == (fitting[-1] if fitting else "px14")
