"""Many queries at once are as many one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Deferred, Eager, Fixed, Lane, Late, Plan, by_application
from stretto.core.profile import LatencyProfile
from stretto.core.worker import workers
from stretto.dispatch.dispatcher import Dispatcher

MS = 1_000_000


def made(plan: Plan | None = None, slots: int = 4) -> Dispatcher:
    """Two applications on two workers; the second takes five queries and refuses what is beyond."""
    profile = LatencyProfile.linear(1.0, 1.0, 4)
    applications = tuple(Application(name, 100 * MS, (Variant("v", 0.5, (profile,)),)) for name in "ab")
    lanes = (
        Lane("a", (0, 1), Fixed(0), release=Deferred(), late=Late.DROP_WHEN_INFEASIBLE),
        Lane("b", (0, 1), Fixed(1), release=Eager(), late=Late.DROP_WHEN_INFEASIBLE, capacity=5),
    )
    deployment = Deployment(applications, workers(2))
    return Dispatcher(deployment, plan or by_application(lanes), slots=slots)


def test_the_same_tickets_and_decisions_as_one_by_one() -> None:
    rng = np.random.default_rng(3)
    one, many = made(), made()
    for turn in range(20):
        now_ns = turn * 7 * MS
        count = int(rng.integers(1, 30))
        applications = rng.integers(0, 2, count)
        deadlines_ns = now_ns + rng.integers(-1, 60, count) * MS  # some can never be made
        priorities = rng.integers(0, 3, count)
        tickets = many.submit_many(now_ns, applications, deadlines_ns, priorities)
        expected = [
            one.submit(now_ns, int(application), int(deadline_ns), priority=int(priority), more=True)
            for application, deadline_ns, priority in zip(applications, deadlines_ns, priorities, strict=True)
        ]
        assert tickets.tolist() == expected
        for dispatcher in (one, many):
            dispatcher.advance(now_ns)
        assert many.decisions() == one.decisions()
        assert many.wake_at_ns() == one.wake_at_ns()
        for worker in range(2):
            for dispatcher in (one, many):
                dispatcher.finished(now_ns + 5 * MS, worker)
        assert many.decisions() == one.decisions()
    assert [each.tolist() for each in many.counts()] == [each.tolist() for each in one.counts()]
    assert many.counts()[1].sum() > 50


def test_an_application_that_is_not_there_is_refused_and_nothing_is_taken() -> None:
    dispatcher = made()
    numbers = np.array([0, 2])
    with pytest.raises(StrettoError, match="0 … 1"):
        dispatcher.submit_many(0, numbers, numbers + MS, numbers * 0)
    assert dispatcher.counts()[0].sum() == 0
    assert len(dispatcher.submit_many(0, numbers[:0], numbers[:0], numbers[:0])) == 0
