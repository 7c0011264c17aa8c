"""What tests of one executor listen and wait with."""

from __future__ import annotations

import asyncio
import time
from typing import Any


class Told:
    """What one executor said."""

    def __init__(self) -> None:
        self.ready: dict[str, str] | None = None
        self.ended: list[Any] = []
        self.lost: list[str] = []

    def worker_ready(self, worker: int, broken: dict[str, str]) -> None:
        self.ready = broken

    def job_ended(self, job: Any, report: Any) -> None:
        self.ended.append((job, report))

    def load_ended(self, *told: Any) -> None: ...

    def worker_leaving(self, worker: int) -> None: ...

    def worker_lost(self, worker: int, reason: str, loss: str = "") -> None:
        self.lost.append(reason)


async def until(what: Any, limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)
