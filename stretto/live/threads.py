"""A worker that is a thread of the server. ONNX Runtime and PyTorch leave Python's lock while they compute."""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from stretto.backends.callable import reason_of
from stretto.core.errors import StrettoError
from stretto.live.executor import Job, Listener, Loading
from stretto.live.rows import Inputs, as_arrays
from stretto.live.shelf import ModelSpec, Shelf, failed

log = logging.getLogger("stretto.live")


class ThreadExecutor:
    """Its commands are callables in a queue; None ends it. Started once: a lost worker gets a new executor."""

    is_awaited, is_here = False, True

    def __init__(self, worker: int, loop: asyncio.AbstractEventLoop, listener: Listener):
        self._worker = worker
        self._loop = loop
        self._listener = listener
        self._shelf = Shelf()
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"stretto-worker-{worker}", daemon=True)
        self._is_lost = False
        self._loading: dict[int, Loading] = {}  # written by the threads that load, each its own
        self._orders = itertools.count()

    def start(self, specs: Sequence[ModelSpec]) -> None:
        self._commands.put(lambda: self._begin(specs))
        self._thread.start()

    def run(self, job: Job) -> None:
        parts = job.parts
        self._commands.put(lambda: self._run(job, parts))

    def load(self, spec: ModelSpec, alone: bool) -> None:
        self._commands.put(lambda: self._load(spec, alone))

    def prepare(self, specs: Sequence[ModelSpec], done: Callable[[dict[str, str]], None]) -> None:
        """In a thread of its own, so that batches go on meanwhile; begun in its turn, after models that are to go."""

        def begin() -> None:
            unloads = {spec.key: self._shelf.unloads(spec.key) for spec in specs}
            name = f"stretto-load-{self._worker}"
            threading.Thread(target=hold, args=(unloads,), name=name, daemon=True).start()

        def hold(unloads: Mapping[str, int]) -> None:
            self._tell(done, self._hold(specs, unloads))

        self._commands.put(begin)

    def unload(self, key: str) -> None:
        self._commands.put(lambda: self._shelf.unload(key))

    def loading(self) -> Sequence[Loading]:
        return sorted(self._loading.copy().values(), key=lambda loading: loading.number)

    def memory_bytes(self) -> int:
        """All threads share the server's."""
        return 0

    def growth(self) -> Mapping[str, int]:
        return {}

    def kill(self) -> None:
        """A thread cannot be ended from outside: it is left to itself, and what it still says is not heard."""
        if not self._is_lost:
            self._is_lost = True
            self._commands.put(None)
            self._loop.call_soon(self._listener.worker_lost, self._worker, "it did not answer in time")

    async def stop(self, patience_s: float = 10.0) -> None:
        self._commands.put(None)
        if self._thread.is_alive() and not self._is_lost:
            await asyncio.to_thread(self._thread.join, patience_s)

    def _work(self) -> None:
        while (command := self._commands.get()) is not None:
            command()
            del command  # the rows of a batch are not kept until the next one comes
        self._shelf.clear()

    def _begin(self, specs: Sequence[ModelSpec]) -> None:
        self._tell(self._listener.worker_ready, self._worker, self._hold(specs))

    def _run(self, job: Job, parts: Sequence[Inputs]) -> None:
        started_ns = time.monotonic_ns()
        try:
            report = self._shelf.run(job.key, as_arrays(parts))
        except Exception as error:  # whatever a model's own code raises must not end the worker
            log.debug("a batch of %s failed", job.key, exc_info=True)
            report = failed(job.count, reason_of(error))
        report.started_ns, report.ended_ns = started_ns, time.monotonic_ns()
        self._tell(self._listener.job_ended, job, report)

    def _load(self, spec: ModelSpec, alone: bool) -> None:
        problem = self._hold((spec,)).get(spec.key)
        if alone or problem is not None:
            self._tell(self._listener.load_ended, self._worker, spec.key, problem, alone)

    def _hold(self, specs: Sequence[ModelSpec], unloads: Mapping[str, int] | None = None) -> dict[str, str]:
        """Loads them; those that cannot be, with the reason. Beside the work, with what the shelf said before that."""
        broken: dict[str, str] = {}
        for spec in specs:
            number = next(self._orders)
            self._loading[number] = Loading(number, spec.key, unloads is not None)
            try:
                self._shelf.load(spec, None if unloads is None else unloads[spec.key])
            except StrettoError as error:
                broken[spec.key] = str(error)
            except Exception as error:
                log.debug("%s cannot be loaded", spec.key, exc_info=True)
                broken[spec.key] = f"it cannot be loaded ({reason_of(error)})"
            finally:
                del self._loading[number]
        return broken

    def _tell(self, call: Callable[..., None], *values: object) -> None:
        try:
            self._loop.call_soon_threadsafe(self._heard, call, values)
        except RuntimeError:  # the loop is closed; nobody listens any more
            log.debug("worker %d spoke after the end", self._worker)

    def _heard(self, call: Callable[..., None], values: tuple[object, ...]) -> None:
        """On the loop's thread, where it is known for sure whether this worker was given up."""
        if not self._is_lost:
            call(*values)
