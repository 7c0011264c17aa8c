"""The demo's load, made to fit the machine: bursts that only the fastest variant can carry, over a load that the most
accurate one can.

What the two carry is measured through the server, from socket to socket, so that a slow processor, a busy host and a
slow interpreter all count. Fixed rates would show nothing on a fast machine, where one variant answers everything, and
nothing on a slow one, where none does.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np

from stretto.client import AsyncClient, Expired, Infeasible, Overloaded
from stretto.client.tensors import Array

ROWS = 8  # images of a request
LOW, HIGH = 0.75, 0.85  # of what the most accurate variant carries, outside bursts; of what the fastest does, in them
PERIOD_S, SHARE = 2.5, 0.08  # of the bursts, and the part of the time that they take
ASKING = 8  # requests under way while it is measured
WARM_UP_S, MEASURE_S = 0.2, 0.8
PATIENCE_MS = 2_000.0  # of those requests; what is measured is throughput


@dataclass(frozen=True)
class BurstyLoad:
    """Images a second outside and in a burst, and the part of every period that the burst takes."""

    low: float
    high: float
    period_s: float = PERIOD_S
    share: float = SHARE

    @property
    def kind(self) -> str:
        """As `stretto load --kind` takes it, in requests a second."""
        return f"burst:{self.low / ROWS:g}:{self.high / ROWS:g}:{self.period_s:g}:{self.share:g}"

    def __str__(self) -> str:
        return f"bursts of {self.high:,.0f} images/s over {self.low:,.0f}"


def bursty_load(carried_by_fastest: float, carried_by_best: float) -> BurstyLoad:
    """For a server whose fastest and most accurate variants carry so many images a second."""
    return BurstyLoad(_two_digits(LOW * carried_by_best), _two_digits(HIGH * carried_by_fastest))


def carried(url: str, application: str, inputs: Array, version: str) -> float:
    """Images a second that one variant answers when it is never without work."""
    asyncio.run(_answered(url, application, inputs, version, WARM_UP_S))
    return asyncio.run(_answered(url, application, inputs, version, MEASURE_S))


async def _answered(url: str, application: str, inputs: Array, version: str, seconds: float) -> float:
    images = np.ascontiguousarray(inputs[:ROWS])
    answered = 0
    start = time.monotonic()

    async def ask(client: AsyncClient) -> None:
        nonlocal answered
        while time.monotonic() < start + seconds:
            try:
                await client.infer(application, images, version=version, deadline_ms=PATIENCE_MS)
            except (Overloaded, Infeasible, Expired):
                await asyncio.sleep(0.01)
            else:
                answered += len(images)

    async with AsyncClient(url) as client:
        await asyncio.gather(*(ask(client) for _ in range(ASKING)))
    return answered / (time.monotonic() - start)


def _two_digits(rate: float) -> float:
    """So that the noise of what was measured shows in no table."""
    return float(f"{rate:.2g}")
