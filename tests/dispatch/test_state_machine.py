"""The dispatcher under random plans and random orders of events; the driver's own books must agree after every step.

CI walks the same paths every time. To look further by hand: STRETTO_FUZZ=5000 pytest tests/dispatch -k machine
"""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stretto.core.outcome import Outcome
from tests.dispatch import promises
from tests.dispatch.books import Stage
from tests.dispatch.driver import Driver
from tests.dispatch.plans import deployments, larger, plans, route_among

EXAMPLES = int(os.environ.get("STRETTO_FUZZ", "60"))

pauses = st.integers(0, 25)


class DispatcherMachine(RuleBasedStateMachine):
    """Steps of a driver's life. Time moves only forward, sometimes past the moment at which it was asked to call."""

    driver: Driver

    @initialize(data=st.data(), correction=st.sampled_from([0.0, 0.0, 0.2]))
    def open(self, data: st.DataObject, correction: float) -> None:
        deployment = data.draw(deployments())
        self.driver = Driver(deployment, data.draw(plans(deployment, [])), correction=correction)

    @rule(
        pause=pauses,
        application=st.integers(0, 1),
        slack=st.integers(-5, 120),
        client=st.integers(-1, 3),
        query_class=st.integers(-1, 3),
        priority=st.integers(0, 3),
        demand=st.sampled_from([-1, -1, 0, 1]),
        copies=st.sampled_from([1, 1, 1, 2, 5]),
        together=st.booleans(),
    )
    def submit(
        self,
        pause: int,
        application: int,
        slack: int,
        client: int,
        query_class: int,
        priority: int,
        demand: int,
        copies: int,
        together: bool,
    ) -> None:
        self.driver.now_ns += pause
        number = application % len(self.driver.deployment.applications)
        deadline = self.driver.now_ns + slack
        wish = {"client": client, "query_class": query_class, "priority": priority, "demand": demand}
        for _ in range(1 if together else copies):
            self.driver.submit_together(copies if together else 1, number, deadline, **wish)

    @rule(pause=pauses)
    def advance(self, pause: int) -> None:
        self.driver.now_ns += pause
        self.driver.advance()

    @rule()
    @precondition(lambda self: self.driver.dispatcher.wake_at_ns() is not None)
    def wake(self) -> None:
        at_ns = self.driver.dispatcher.wake_at_ns()
        assert at_ns is not None
        self.driver.now_ns = at_ns
        self.driver.advance()

    @rule(pause=pauses, pick=st.integers(0, 3), ok=st.sampled_from([True, True, True, False]), punctual=st.booleans())
    @precondition(lambda self: any(crew.jobs for crew in self.driver.crew))
    def finish(self, pause: int, pick: int, ok: bool, punctual: bool) -> None:
        busy = [number for number, crew in enumerate(self.driver.crew) if crew.jobs]
        worker = busy[pick % len(busy)]
        job = self.driver.crew[worker].jobs[0]
        at_ns = job.expected_ns if punctual else job.start_ns + pause
        self.driver.now_ns = max(self.driver.now_ns, at_ns)
        self.driver.finish(worker, ok)

    @rule(pause=pauses, pick=st.integers(0, 3), ok=st.sampled_from([True, True, True, False]), punctual=st.booleans())
    @precondition(lambda self: any(crew.arriving for crew in self.driver.crew))
    def load_ended(self, pause: int, pick: int, ok: bool, punctual: bool) -> None:
        loading = [number for number, crew in enumerate(self.driver.crew) if crew.arriving]
        worker = loading[pick % len(loading)]
        load = self.driver.crew[worker].arriving
        assert load is not None
        at_ns = load.expected_ns if punctual else load.start_ns + pause
        self.driver.now_ns = max(self.driver.now_ns, at_ns)
        self.driver.load_ended(worker, ok)

    @rule(
        pause=pauses,
        pick=st.integers(0, 10_000),
        early=st.booleans(),
        reason=st.sampled_from([Outcome.DROPPED_CANCELLED, Outcome.FAILED]),
    )
    @precondition(lambda self: self.driver.book)
    def cancel(self, pause: int, pick: int, early: bool, reason: Outcome) -> None:
        self.driver.now_ns += pause
        tickets = [t for t, entry in self.driver.book.items() if not early or entry.stage is not Stage.ENDED]
        if tickets:
            self.driver.cancel(tickets[pick % len(tickets)], reason)

    @rule(pause=pauses, pick=st.integers(0, 10_000), query_class=st.integers(-1, 3))
    @precondition(lambda self: self.driver.book)
    def classify(self, pause: int, pick: int, query_class: int) -> None:
        self.driver.now_ns += pause
        tickets = list(self.driver.book)
        self.driver.classify(tickets[pick % len(tickets)], query_class)

    @rule(pause=pauses, data=st.data())
    def adopt(self, pause: int, data: st.DataObject) -> None:
        self.driver.now_ns += pause
        waiting = [(t, e.application) for t, e in self.driver.book.items() if e.stage is Stage.WAITING]
        self.driver.adopt(data.draw(plans(self.driver.deployment, waiting)))

    @rule(pause=pauses, data=st.data())
    def reroute(self, pause: int, data: st.DataObject) -> None:
        self.driver.now_ns += pause
        routes = self.driver.plan.routes
        drawn = [data.draw(route_among([*route.lanes])) for route in routes]
        self.driver.reroute(*(replace(new, demands=old.demands) for old, new in zip(routes, drawn, strict=True)))

    @rule(pause=pauses, data=st.data())
    @precondition(lambda self: len(self.driver.crew) < 6)
    def enlarge(self, pause: int, data: st.DataObject) -> None:
        self.driver.now_ns += pause
        self.driver.enlarge(deployment=data.draw(larger(self.driver.deployment)))

    @rule(pause=pauses, pick=st.integers(0, 3))
    def leave(self, pause: int, pick: int) -> None:
        self.driver.now_ns += pause
        self.driver.leave(pick % len(self.driver.crew))

    @rule(pause=pauses, pick=st.integers(0, 3))
    def retire(self, pause: int, pick: int) -> None:
        self.driver.now_ns += pause
        self.driver.retire(pick % len(self.driver.crew))

    @rule(pause=pauses, pick=st.integers(0, 5))
    def join(self, pause: int, pick: int) -> None:
        self.driver.now_ns += pause
        self.driver.join(pick % len(self.driver.crew))

    @invariant()
    def slots_are_those_in_use(self) -> None:
        if hasattr(self, "driver"):
            promises.slots_are_those_in_use(self.driver)

    def teardown(self) -> None:
        """Whatever happened: what runs comes to an end, and the same events once more give the same decisions."""
        if hasattr(self, "driver"):
            self.driver.drain()
            self.driver.replay()


TestDispatcher = DispatcherMachine.TestCase
TestDispatcher.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    derandomize="STRETTO_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
