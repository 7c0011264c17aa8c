"""What requests leave behind in the C library's heap goes back to the system."""

from __future__ import annotations

import asyncio
import sys

import pytest

from stretto.api import heap
from stretto.api.budget import Budget
from stretto.api.heap import tidy
from stretto.backends.resident import resident_bytes
from tests.api.apart import run_apart

LEFT = """
from stretto.api.heap import give_back, keep_heap
from stretto.backends.resident import resident_bytes

keep_heap()
before = resident_bytes()
parts = [bytes(16_000) for _ in range(10_000)]
kept = parts[::100]  # somebody is still there
del parts
crowded = resident_bytes() - before
give_back()
assert crowded > 100e6, "a heap gives back by itself only what lies at its end"
print(resident_bytes() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_free_memory_between_what_is_in_use_goes_back() -> None:
    assert run_apart(LEFT) < 50e6


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_it_is_given_back_when_the_crowd_is_gone() -> None:
    """Not before: what is free while much is in flight will be wanted again."""

    async def work() -> None:
        budget = Budget(100_000_000)
        budget.used = budget.limit // 2
        tidying = asyncio.create_task(tidy(budget, 0.001))
        await asyncio.sleep(0)  # what is there by now stays
        parts = [bytes(16_000) for _ in range(10_000)]
        kept = parts[::100]
        del parts
        await asyncio.sleep(0.05)
        crowded = resident_bytes()
        budget.used = 0
        while resident_bytes() > crowded - 100e6:
            await asyncio.sleep(0.001)
        tidying.cancel()
        assert len(kept) == 100

    asyncio.run(asyncio.wait_for(work(), 20))


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_what_a_start_left_is_not_looked_for_while_requests_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: with the first look all of the heap was gone through, and whoever wanted memory waited for it."""
    trims: list[int] = []
    monkeypatch.setattr(heap, "give_back", lambda: trims.append(1))

    async def work() -> None:
        parts = [bytes(16_000) for _ in range(10_000)]
        kept = parts[::100]
        del parts
        tidying = asyncio.create_task(tidy(Budget(100_000_000), 0.001))
        await asyncio.sleep(0.05)
        assert len(kept) == 100 and not trims
        more = [bytes(16_000) for _ in range(20_000)]
        while not trims:
            await asyncio.sleep(0.001)
        tidying.cancel()
        assert len(more) == 20_000

    asyncio.run(asyncio.wait_for(work(), 20))
