"""Computes evidence beside the serving: in a thread of its own, as soon as a query came.

A query never waits for it. What comes back before the query is decided tells its class to the dispatcher and its
posterior to planners; what comes later is forgotten. Where evidence fails, or queries come faster than it, they go
without.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stretto.backends.model import Array
from stretto.core.resize import resized
from stretto.live.face.remote import RemoteQuery
from stretto.live.requests import Request
from stretto.live.rows import as_array
from stretto.repository.tensors import InputTensor

log = logging.getLogger("stretto.live")

MAX_WAITING_ROWS = 4_096
MAX_BATCH_ROWS = 64
SAMPLE_NS = 50_000_000

Told = Callable[[Sequence[Request | RemoteQuery]], None]


class Evidence(Protocol):
    """What stretto.evidence loads."""

    @property
    def takes(self) -> InputTensor:
        """What it was built for; images of other sizes are made that size."""

    def posterior(self, inputs: Array) -> NDArray[np.float64]: ...


class Witness:
    """`on_posteriors` is called on the loop with requests whose queries have their θ now."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_posteriors: Told):
        self.skipped = 0  # queries that went without, because too many came at once
        self.seen = 0
        self._loop = loop
        self._on_posteriors = on_posteriors
        self._evidence: Mapping[str, Evidence] = {}
        self._waiting: deque[Request | RemoteQuery] = deque()
        self._rows = 0
        self._is_busy = False
        self._failing: set[str] = set()
        self._sampled_ns = -SAMPLE_NS
        self._thread = ThreadPoolExecutor(1, "stretto-evidence")

    def use(self, evidence: Mapping[str, Evidence]) -> None:
        """By application, from now on."""
        self._evidence = dict(evidence)
        self._failing.clear()
        self._waiting = deque(request for request in self._waiting if request.application in self._evidence)
        self._rows = sum(request.rows for request in self._waiting)

    def may_sample(self, now_ns: int) -> bool:
        """True some times a second: classes of some queries tell how frequent classes are, while no plan heeds them."""
        if now_ns - self._sampled_ns < SAMPLE_NS:
            return False
        self._sampled_ns = now_ns
        return True

    def ask(self, request: Request | RemoteQuery) -> None:
        """On the loop, when a request came."""
        if request.application not in self._evidence or request.pinned or request.min_accuracy > 0:
            return
        if self._rows + request.rows > MAX_WAITING_ROWS:
            self.skipped += request.rows
            return
        self._waiting.append(request)
        self._rows += request.rows
        if not self._is_busy:
            self._next()

    def close(self) -> None:
        self._waiting.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> None:
        """The oldest requests of one application go to the thread; those that ended meanwhile are passed over."""
        batch: list[Request | RemoteQuery] = []
        rows = 0
        while self._waiting and rows < MAX_BATCH_ROWS:
            request = self._waiting[0]
            if batch and request.application != batch[0].application:
                break
            self._waiting.popleft()
            self._rows -= request.rows
            if request.outcome is None:
                batch.append(request)
                rows += request.rows
        self._is_busy = bool(batch)
        if batch:
            evidence = self._evidence.get(batch[0].application)
            future = self._thread.submit(_posterior, evidence, [as_array(request.inputs) for request in batch])
            future.add_done_callback(lambda done: self._call(batch, done))

    def _call(self, batch: list[Request | RemoteQuery], done: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._done, batch, done)

    def _done(self, batch: list[Request | RemoteQuery], done: object) -> None:
        name = batch[0].application
        try:
            theta: NDArray[np.float64] = done.result()  # type: ignore[attr-defined]
        except Exception as error:  # whatever it is, the queries are answered without
            if name not in self._failing:
                log.warning("evidence for %s failed (%s); its queries go without", name, type(error).__name__)
            self._failing.add(name)
        else:
            first = 0
            for request in batch:
                for query in request.queries:
                    query.theta = tuple(theta[first + query.row].tolist())
                first += request.rows
            self.seen += first
            try:
                self._on_posteriors(batch)
            except Exception:  # evidence goes on, whatever became of these
                log.exception("evidence for %s could not be told", name)
        self._next()


def _posterior(evidence: Evidence | None, inputs: Sequence[Array]) -> NDArray[np.float64]:
    """In the thread."""
    assert evidence is not None
    shape = evidence.takes.shape
    alike = [rows if rows.shape[1:] == shape else resized(rows, *shape[-2:]) for rows in inputs]
    theta = evidence.posterior(alike[0] if len(alike) == 1 else np.concatenate(alike))
    if len(theta) != sum(map(len, inputs)) or not np.isfinite(theta).all():
        raise ValueError("evidence is one posterior for each query")
    return theta


def class_of(theta: Sequence[float]) -> int:
    """The likeliest class, as `likeliest` has it for many."""
    return max(range(len(theta)), key=theta.__getitem__)
