"""What the lanes hold, as planners see it; and plans that differ in their weights alone."""

from __future__ import annotations

from stretto.core.plan import Eager, Order, Plan, RouteRule
from stretto.dispatch.dispatcher import Dispatcher
from tests.dispatch.small import deployed, lane, planned


def two_lanes(second: float, capacity: int = 10, batch: int = 2) -> Plan:
    rules = {"order": Order.FIRST_COME, "release": Eager(batch), "capacity": capacity}
    lanes = tuple(lane(f"l{worker}", (worker,), **rules) for worker in range(2))
    return planned(*lanes, rule=RouteRule.WEIGHTED, weights=(1.0 - second, second))


def test_lengths_arrivals_and_what_runs() -> None:
    dispatcher = Dispatcher(deployed(crew=2), two_lanes(1.0))
    for now_ns in (5, 6, 7, 8):
        dispatcher.submit(now_ns, 0, 1000)
    lines = dispatcher.lines(3)
    assert lines.length.tolist() == [0, 4] and lines.running.tolist() == [0, 1]
    assert lines.started_ns.tolist() == [-1, 5]
    assert lines.arrival_ns.tolist() == [[-1, -1, -1], [5, 6, 7]]
    dispatcher.finished(17, 1)  # the next two run together
    lines = dispatcher.lines(4)
    assert lines.length.tolist() == [0, 3] and lines.running.tolist() == [0, 2]
    assert lines.started_ns.tolist() == [-1, 17] and lines.arrival_ns[1].tolist() == [6, 7, 8, -1]


def test_what_runs_is_still_its_lane_s_after_a_new_plan() -> None:
    dispatcher = Dispatcher(deployed(crew=2), two_lanes(1.0))
    dispatcher.submit(5, 0, 1000)
    dispatcher.adopt(6, two_lanes(1.0, capacity=4))
    assert dispatcher.lines(1).running.tolist() == [0, 1]


def test_other_weights_alone_reroute_and_anything_else_is_adopted() -> None:
    called = []

    class Watched(Dispatcher):
        def adopt(self, now_ns: int, plan: Plan) -> None:
            called.append("adopt")
            super().adopt(now_ns, plan)

        def reroute(self, now_ns: int, routes) -> None:  # type: ignore[no-untyped-def]
            called.append("reroute")
            super().reroute(now_ns, routes)

    dispatcher = Watched(deployed(crew=2), two_lanes(1.0))
    for now_ns, plan in enumerate((two_lanes(0.0), two_lanes(0.0, batch=4), two_lanes(0.5, batch=4))):
        dispatcher.follow(now_ns, plan)
        assert dispatcher.plan is plan
    assert called == ["reroute", "adopt", "reroute"]
