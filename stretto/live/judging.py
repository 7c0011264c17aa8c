"""The judge beside the serving: verdicts are made in a process of low priority, under the conditions that are measured.

What was measured is kept by the twin, which the engine tells of requests and batches as they come. While a verdict is
in force, its load is judged anew when the conditions have drifted from those that it was judged under, as often as a
small share of a core allows (`thrift`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.core.advice import FleetNeeds, JudgedFleet
from stretto.core.client import Client
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.evidence import Said
from stretto.core.plain import to_plain
from stretto.core.plan import Delays
from stretto.core.telemetry import Telemetry
from stretto.core.verdict import Verdict
from stretto.live.aside import Aside
from stretto.live.thrift import SAVED_S, Rates, Thrift, weighed

log = logging.getLogger("stretto.live")

WAIT_S = 1.0  # until there is more to go by
CHECK_S = 10.0  # between two looks whether the conditions have drifted
SAVE_S = 10.0  # from a verdict to its being kept for the next start, with all that come meanwhile
MOST_CASES = 32  # that wait; the oldest gives way
MOST_KNOWN = 256  # loads whose conditions are remembered


class Twin(Protocol):
    """What is told of requests and batches, and knows a judge. stretto.twin has one."""

    def arrived(self, now_ns: int, application: str, rows: int, slack_ns: int, client: int, priority: int) -> None: ...

    def arrived_many(
        self, now_ns: int, application: str, slacks_ns: NDArray[np.int64], priorities: NDArray[np.int64]
    ) -> None: ...

    def classified(self, application: str, query_class: int) -> None:
        """What evidence takes a query for; -1: nothing."""
        ...

    def knows(self, said: Mapping[str, Said]) -> None:
        """What evidence says of labelled samples, by application; what it said before is forgotten."""
        ...

    def ran(self, deployment: Deployment, variant: int, kind: str, batch: int, took_ns: int) -> None: ...

    def handed_over(self, took_ns: int) -> None: ...

    def ended(self, overrun_ns: int) -> None: ...

    def clients(self, now_ns: int, seen: Sequence[Client]) -> None:
        """All clients as a planner saw them, with their rates and networks."""
        ...

    def serves(self, deployment: Deployment) -> None: ...

    def case(self, deployment: Deployment, telemetry: Telemetry, delays: Delays) -> Case: ...

    def cheapest(
        self, deployment: Deployment, case: Any, needs: FleetNeeds, judged: Callable[[Any, Rates], Verdict]
    ) -> JudgedFleet:
        """The cheapest fleet whose plan promises what is needed; `judged` has a case judged and waits for that.
        StrettoError where there is none.
        """
        ...


class Conditions(Protocol):
    """The few figures that tell cases apart."""

    def changed_to(self, now: Any) -> str:
        """Why what was judged under these does not hold any more; nothing where it does."""
        ...


class Case(Protocol):
    """All that was measured. `judged` goes to another process."""

    def judged(self, rates: Rates) -> Verdict: ...

    @property
    def is_enough(self) -> bool:
        """Whether so much was seen that a verdict would hold for a while."""
        ...

    def conditions(self) -> Conditions: ...


class Memory(Protocol):
    """Verdicts from before the start, and those of this run for the next one. stretto.twin has one."""

    def known(self, deployment: Deployment) -> Sequence[Verdict]: ...

    def standing(self, deployment: Deployment, rates: Rates, case: Any) -> Verdict | None:
        """One from before the start that still holds under the case's conditions; each is given once."""
        ...

    def keep(self, deployment: Deployment, verdict: Verdict, case: Any) -> None: ...

    def forget(self, verdict: Verdict) -> None: ...

    def save(self) -> None:
        """Writes a file, if anything is new."""
        ...


class Judging:
    """A planner's JudgePort. `known`, `ask`, `collect`, `follows` and `broken` may be called from any thread; the rest
    runs on the loop.

    `measured` gives the deployment that is served, its telemetry and the delays as they are now. Where it does not
    judge, what is known from before is all there is.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        twin: Twin,
        measured: Callable[[], tuple[Deployment, Telemetry, Delays]],
        memory: Memory | None = None,
        *,
        judges: bool = True,
        has_spare_core: Callable[[], bool] = lambda: True,
    ):
        self.twin = twin
        self._judges = judges
        self._memory = memory
        self._save: asyncio.TimerHandle | None = None
        self.made = 0
        self._loop, self._measured = loop, measured
        self._aside = Aside(loop, MOST_CASES, has_spare_core)
        self._lock = threading.Lock()
        self._done: list[tuple[Deployment, Verdict]] = []
        self._collected: list[Verdict] = []  # for the journal
        self._conditions: dict[Rates, tuple[Deployment, Conditions]] = {}  # that verdicts are for
        self._open: set[Rates] = set()  # that are being judged, or wait for it
        self._followed: Rates = ()  # of the verdict in force
        self._thrift = Thrift()
        self._wait: asyncio.TimerHandle | None = None
        self._check: asyncio.TimerHandle | None = None
        self._is_failing = self._is_closed = False
        self._fleet: Future[Verdict] | None = None  # the one that is being judged

    @property
    def waiting(self) -> int:
        return self._aside.waiting

    def known(self, deployment: Deployment) -> Sequence[Verdict]:
        verdicts = () if self._memory is None else self._memory.known(deployment)
        with self._lock:
            self._collected += verdicts
        return verdicts

    def ask(self, deployment: Deployment, rates: Rates) -> None:
        if self._judges:
            self._loop.call_soon_threadsafe(self._judge, deployment, rates)

    def collect(self, deployment: Deployment) -> Sequence[Verdict]:
        with self._lock:
            verdicts = [verdict for judged, verdict in self._done if judged is deployment]
            self._done.clear()
            self._collected += verdicts
        return verdicts

    def follows(self, rates: Rates) -> None:
        self._followed = rates

    def broken(self, verdict: Verdict, late: float) -> None:
        log.warning(
            "%s promised %.2f%% without an answer on time at %s queries/s, and had %.2f%%: it is judged anew",
            verdict.candidate,
            100 * verdict.promise.late,
            _told(verdict.rates),
            100 * late,
        )
        if self._memory is not None:
            self._memory.forget(verdict)

    def collected(self) -> list[Any]:
        """Of what was collected since the last call, for the journal."""
        with self._lock:
            collected, self._collected = self._collected, []
        return [to_plain(verdict) for verdict in collected]

    def forget(self) -> None:
        """Another deployment is served."""
        self._conditions.clear()
        self._thrift.clear()
        self._followed = ()
        self._aside.forget()
        self.twin.serves(self._measured()[0])

    async def cheapest(self, needs: FleetNeeds) -> JudgedFleet | None:
        """The cheapest fleet for what is measured now; None where too little is. It takes a while: verdicts that
        planners ask for meanwhile come first. StrettoError where there is none.
        """
        deployment, telemetry, delays = self._measured()
        case = self.twin.case(deployment, telemetry, delays)
        if self._is_closed or not case.is_enough:
            return None
        return await asyncio.to_thread(self.twin.cheapest, deployment, case, needs, self._fleet_judged)

    def _fleet_judged(self, case: Case, rates: Rates) -> Verdict:
        """Called from a thread, which waits."""
        future: Future[Verdict] = Future()
        self._loop.call_soon_threadsafe(self._order_fleet, case, rates, future)
        try:
            return future.result()
        except CancelledError:
            raise StrettoError("what is served has changed, or is not served any more") from None

    def _order_fleet(self, case: Case, rates: Rates, future: Future[Verdict]) -> None:
        def done(came: Any) -> None:
            if came is None or future.cancelled():
                future.cancel()
            elif isinstance(came, Exception):
                future.set_exception(came)
            else:
                verdict, _ = came
                future.set_result(verdict)

        self._fleet = future
        if self._is_closed:
            future.cancel()
        self._aside.order(partial(weighed, partial(case.judged, rates)), done)  # not billed to what comes after it

    def close(self) -> None:
        self._is_closed = True
        if self._fleet is not None:
            self._fleet.cancel()
        for timer in (self._check, self._save, self._wait):
            if timer is not None:
                timer.cancel()
        if self._memory is not None:
            self._memory.save()
        self._aside.close()

    def _judge(self, deployment: Deployment, rates: Rates, is_for_drift: bool = False) -> None:
        """One load waits until there is enough to go by, the last; planners ask again for the others."""
        served, telemetry, delays = self._measured()
        if served is not deployment or rates in self._open or self._is_closed:
            return
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None
        case = self.twin.case(deployment, telemetry, delays)
        if not case.is_enough:
            self._wait = self._loop.call_later(WAIT_S, self._judge, deployment, rates, is_for_drift)
            return
        standing = None if self._memory is None else self._memory.standing(deployment, rates, case)
        if standing is not None:
            self._deliver(deployment, rates, case, standing)
        else:
            self._open.add(rates)
            work = partial(weighed, partial(case.judged, rates))
            self._aside.order(work, partial(self._judged, deployment, rates, case, is_for_drift))
        if self._check is None:
            self._check = self._loop.call_later(CHECK_S, self._look)

    def _judged(self, deployment: Deployment, rates: Rates, case: Case, is_for_drift: bool, done: Any) -> None:
        """`done` is the verdict with its processor time, or what went wrong; None: it was not begun."""
        self._open.discard(rates)
        if isinstance(done, Exception):
            if not self._is_failing:
                log.warning("candidates could not be judged (%s); the plan in force stays", done)
            self._is_failing = True
            if is_for_drift:
                self._thrift.took(rates, SAVED_S)
        elif done is not None:
            verdict, cpu_s = done
            self._is_failing = False
            if is_for_drift:
                self._thrift.took(rates, cpu_s)
            self.made += 1
            log.info("judged for %s queries/s: %s", _told(rates), verdict.candidate)
            self._deliver(deployment, rates, case, verdict)
            if self._memory is not None:
                self._memory.keep(deployment, verdict, case)
                self._save = self._save or self._loop.call_later(SAVE_S, self._save_now)

    def _deliver(self, deployment: Deployment, rates: Rates, case: Case, verdict: Verdict) -> None:
        self._conditions.pop(rates, None)
        self._conditions[rates] = (deployment, case.conditions())
        if len(self._conditions) > MOST_KNOWN:
            oldest = next(iter(self._conditions))
            del self._conditions[oldest]
            self._thrift.forget(oldest)
        with self._lock:
            self._done.append((deployment, verdict))

    def _save_now(self) -> None:
        self._save = None
        if self._memory is not None:
            self._loop.run_in_executor(None, self._memory.save)

    def _look(self) -> None:
        """Whether the load in force should be judged anew."""
        self._check = self._loop.call_later(CHECK_S, self._look)
        rates = self._followed
        known, (deployment, telemetry, delays) = self._conditions.get(rates), self._measured()
        if known is None or known[0] is not deployment:
            return
        self._thrift.passed(rates, CHECK_S)
        if self._aside.waiting or self._thrift.left_s(rates) <= 0:
            return
        if change := known[1].changed_to(self.twin.case(deployment, telemetry, delays).conditions()):
            log.info("judged anew for %s queries/s: %s", _told(rates), change)
            self._judge(deployment, rates, is_for_drift=True)


def _told(rates: Rates) -> str:
    return ", ".join(f"{rate:.4g}" for rate in rates)
