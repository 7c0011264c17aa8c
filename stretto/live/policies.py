"""Policies made beside the serving: a planner asks for one that it misses, and goes on with what it has."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stretto.live.aside import Aside
from stretto.planners.parts.task import Task
from stretto.planners.ports import MadePolicy, MakePolicy

log = logging.getLogger("stretto.live")


class PolicyMaker:
    """A planner's PolicyPort. `ask` and `collect` may be called from any thread; everything else runs on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, has_spare_core: Callable[[], bool] = lambda: True):
        self.made = 0
        self._loop = loop
        self._aside = Aside(loop, has_spare_core=has_spare_core)
        self._lock = threading.Lock()
        self._done: list[MadePolicy] = []  # not yet collected
        self._collected: list[MadePolicy] = []  # for the journal
        self._is_closed = self._is_failing = False

    @property
    def waiting(self) -> int:
        """Policies that were asked for and are not there yet."""
        return self._aside.waiting

    def ask(self, task: Task, options: Any, load: float, make: MakePolicy) -> None:
        """The planner asks for each load once."""
        if not self._is_closed:
            deliver = partial(self._deliver, task, options, load)
            self._loop.call_soon_threadsafe(self._aside.order, partial(make, task, options, load), deliver)

    def collect(self) -> Sequence[MadePolicy]:
        with self._lock:
            done, self._done = self._done, []
            self._collected += done
        return done

    def collected(self) -> list[list[Any]]:
        """Of what was collected since the last call, for the journal."""
        with self._lock:
            collected, self._collected = self._collected, []
        return [made.named() for made in collected]

    def forget(self) -> None:
        """What was asked for belongs to a deployment that is no longer served; it may be asked for again."""
        self._aside.forget()

    def close(self) -> None:
        self._is_closed = True
        self._aside.close()

    def _deliver(self, task: Task, options: Any, load: float, policy: Any) -> None:
        if isinstance(policy, Exception):  # whatever it is, others are made after it
            if not self._is_failing:
                log.warning("a policy for %s could not be made (%s); others serve", task.application, policy)
            self._is_failing, policy = True, None
        elif policy is not None:
            self.made += 1
            self._is_failing = False
        with self._lock:
            self._done.append(MadePolicy(task, load, policy, options))
