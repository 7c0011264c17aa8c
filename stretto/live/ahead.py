"""A worker process that starts before it is known what it will hold.

To import PyTorch and what reads exported programs takes seconds, in which the server itself starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stretto.live.executor import Listener
from stretto.live.processes import ProcessExecutor, StartedProcess
from stretto.live.worker_process import AHEAD


class WorkerAhead:
    """Of the first worker that is asked for; close it at the end, for nobody may have asked."""

    def __init__(self) -> None:
        self._started: StartedProcess | None = StartedProcess.made((AHEAD,))

    def executor(
        self, worker: int, loop: asyncio.AbstractEventLoop, listener: Listener, arguments: Sequence[str] = ()
    ) -> ProcessExecutor:
        started = None
        if not arguments:
            started, self._started = self._started, None
        return ProcessExecutor(worker, loop, listener, arguments, started)

    def close(self) -> None:
        if self._started is not None:
            self._started.end()
            self._started = None
