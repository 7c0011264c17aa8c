"""Calls every event of the dispatcher once, so that what Numba compiles at the first call does not wait for a query."""

from __future__ import annotations

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Fixed, Lane, Late, by_application
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.dispatch.dispatcher import Dispatcher


def rehearse() -> None:
    """Takes about a minute where nothing is compiled yet, else about a second."""
    profile = LatencyProfile.linear(1.0, 1.0, 8)
    deployment = Deployment((Application("a", 100 * NS_PER_MS, (Variant("v", 0.5, (profile,)),)),), workers(1))
    lane = Lane("a", (0,), Fixed(0), release=Eager(), late=Late.DROP_WHEN_INFEASIBLE)
    dispatcher = Dispatcher(deployment, by_application((lane,)), correction=0.01)
    far_ns = 1_000 * NS_PER_MS
    dispatcher.submit(1, 0, far_ns)
    waiting = dispatcher.submit(2, 0, far_ns)
    dispatcher.decisions()
    dispatcher.cancel(3, waiting)
    dispatcher.finished(4, 0, True, 1)
    dispatcher.worker_left(5, 0)
    dispatcher.worker_joined(6, 0)
    dispatcher.adopt(7, by_application((lane,)))
    dispatcher.advance(8)
    dispatcher.telemetry(9)
    dispatcher.wake_at_ns()
