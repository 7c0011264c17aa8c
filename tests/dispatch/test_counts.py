"""What a dispatcher shows of itself to those who do not drive it: copies, so that nobody changes it by looking."""

from __future__ import annotations

from stretto.core.plan import Eager
from stretto.dispatch.dispatcher import Dispatcher
from tests.dispatch.small import FAR, deployed, driver, lane, planned


def test_what_is_shown_is_what_is_counted_and_cannot_be_changed_from_outside() -> None:
    made = driver(lane(release=Eager(2)))
    for _ in range(5):
        made.at(3).query(500)
    shown = made.dispatcher
    assert (shown.now_ns, shown.running, shown.waiting_count, shown.has_decisions) == (3, 1, 4, False)
    made.at(15).finish(0)
    submitted, outcomes = shown.counts()
    assert submitted.tolist() == [5] and outcomes.sum() == 1 and shown.busy_ns().tolist() == [12]
    submitted[:], outcomes[:] = 0, 0
    shown.busy_ns()[:] = 0
    shown.latency_ratio()[:] = 9.0
    assert shown.counts()[0].tolist() == [5] and shown.busy_ns().tolist() == [12]
    assert shown.latency_ratio().tolist() == [[1.0]]
    undelivered = Dispatcher(deployed(), planned(lane()))
    undelivered.submit(0, 0, FAR)
    assert undelivered.has_decisions and undelivered.decisions() and not undelivered.has_decisions
