"""Calls every event of the dispatcher once, so that what Numba compiles at the first call does not wait for a query."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numba.core.event import Listener, install_listener
from numpy.typing import NDArray

from stretto.core.application import Application, Variant
from stretto.core.compiled import CompiledFunction, Part
from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Fixed, Lane, Late, Plan, Route, RouteRule, by_application
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.dispatch.dispatcher import Dispatcher
from stretto.live.meters import Meters

ENTRIES = 5  # what Python calls: submit_many, report, move_in, read_rates, read_lines
PARTS_PER_ENTRY = 15  # so many parts are typed and lowered in the time in which an entry is optimised

Progress = Callable[[float], None]


def rehearse(progress: Progress | None = None, has_fronts: bool = False) -> None:
    """Takes about twenty seconds where nothing is compiled yet, else about one. `has_fronts`: queries come from front
    ends, too.

    `progress` is told which share of the compiling is done, from 0 to 1, as it goes on.
    """
    listening = nullcontext() if progress is None else install_listener("numba:compile", _Compiling(progress))
    with listening:
        dispatcher = _call_every_event()
        some = np.zeros(2, np.int64)
        tickets = dispatcher.submit_many(10, some, some + 10**9, some)
        Meters().queries("a", (0,), (0,), 0, 0, 0)
        if has_fronts:
            _follow_a_batch(tickets)
    if progress is not None:
        progress(1.0)


def _call_every_event() -> Dispatcher:
    profile = LatencyProfile.linear(1.0, 1.0, 8)
    deployment = Deployment((Application("a", 100 * NS_PER_MS, (Variant("v", 0.5, (profile,)),)),), workers(1))
    lane = Lane("a", (0,), Fixed(0), release=Eager(), late=Late.DROP_WHEN_INFEASIBLE)
    dispatcher = Dispatcher(deployment, by_application((lane,)), correction=0.01)
    far_ns = 1_000 * NS_PER_MS
    dispatcher.submit(1, 0, far_ns)
    waiting = dispatcher.submit(2, 0, far_ns)
    dispatcher.decisions()
    dispatcher.classified(3, waiting, 0)
    dispatcher.cancel(3, waiting)
    dispatcher.finished(4, 0, True, 1)
    dispatcher.worker_leaving(4, 0)
    dispatcher.worker_left(5, 0)
    dispatcher.worker_joined(6, 0)
    lanes = (lane, replace(lane, name="b"))
    weighted = Route(RouteRule.WEIGHTED, (0, 1), (0.5, 0.5))
    dispatcher.adopt(7, Plan(lanes, (weighted,)))
    dispatcher.reroute(8, (weighted,))
    dispatcher.advance(8)
    dispatcher.telemetry(9)
    dispatcher.lines(1)
    dispatcher.wake_at_ns()
    return dispatcher


def _follow_a_batch(tickets: NDArray[np.int64]) -> None:
    """Of a front end's queries, from the message that they come in to their end."""
    from stretto.live.face.batch import are_rows, enter_rows, place_rows, read_submitted, write_answers
    from stretto.live.face.columns import COLUMNS, Queries
    from stretto.live.face.messages import SUBMIT, packed, unpacked
    from stretto.live.frames import PLACE

    queries, rows, answers = Queries(), np.zeros(2, COLUMNS), np.zeros((2, 64), np.uint8)
    numbers, limits = np.zeros(1, np.int64), np.zeros(5, np.int64)
    records = unpacked(SUBMIT, packed(SUBMIT, [(number, *[0] * (len(SUBMIT.names or ()) - 1)) for number in (1, 2)]))[1]
    given = numbers, np.zeros((1, 1), np.int64), numbers, limits, rows, np.zeros((3, 2), np.int64)
    read_submitted(records, np.ones(2, bool), *given)
    enter_rows(queries.table, tickets, rows, 0)
    are_rows(queries.table, tickets)
    place_rows(queries.table, tickets, 0, np.zeros(2, PLACE))
    queries.end(tickets, 0, 0, 0, Meters().many("a"), 0.0)
    write_answers(answers[0], rows, np.zeros(1, np.int64), answers)


class _Compiling(Listener):
    """Counts the functions of the dispatcher as they are compiled."""

    def __init__(self, progress: Progress):
        self._progress = progress
        modules = [module for name, module in sys.modules.copy().items() if name.startswith("stretto.dispatch.")]
        values = [value for module in modules for value in vars(module).values()]
        functions = {id(value) for value in values if isinstance(value, CompiledFunction)}
        self._whole = len(functions) + ENTRIES * PARTS_PER_ENTRY
        self._done = 0

    def on_start(self, event: Any) -> None:
        """Only what is done counts."""

    def on_end(self, event: Any) -> None:
        function = event.data["dispatcher"]
        if isinstance(function, Part | CompiledFunction):  # and not one of Numba's own
            self._done += 1 if isinstance(function, Part) else PARTS_PER_ENTRY
            self._progress(min(self._done / self._whole, 1.0))
