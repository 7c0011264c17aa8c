"""The event loop's lag: measured by beats, told to planners as what queries lose."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from stretto.live import lag as lag_module
from stretto.live.lag import BEAT_NS, NOTICED_NS, LoopLag, lost

MS = 1_000_000


@pytest.mark.parametrize(
    "late_ms", [[0] * 100, [0] * 60 + [600], [50, 0, 0, 200, 0, 0, 0, 0, 30], [2_000], [4] * 50, [20] * 50]
)
def test_what_queries_lose(late_ms: list[int]) -> None:
    """Against queries that come at every tenth of a millisecond."""
    late_ns = np.array(late_ms, np.int64) * MS
    waits: list[np.ndarray] = []
    for late in late_ns:
        waits.append(np.zeros(BEAT_NS // (MS // 10)))
        waits.append(np.arange(0, late, MS // 10) if late > NOTICED_NS else np.zeros(late // (MS // 10)))
    expected = float(np.quantile(np.concatenate(waits), 1 - lag_module.LOW))
    assert lost(late_ns) == pytest.approx(expected, abs=NOTICED_NS / 4)


def test_a_loop_that_is_held_is_noticed() -> None:
    async def scenario() -> None:
        lag = LoopLag()
        lag.start()
        await asyncio.sleep(0.05)
        assert lag.tell_ns() == lag.told_ns == 0 or max(lag.seen.counts[10:]) > 0  # a busy machine may hold it itself
        time.sleep(0.3)  # what nobody should do
        now_ns = time.monotonic_ns()
        assert lag.may_have_waited(now_ns) and lag.most_ns(now_ns) >= 290 * MS
        await asyncio.sleep(0.03)  # the beat comes, and still what is read now may have waited
        now_ns = time.monotonic_ns()
        assert lag.may_have_waited(now_ns) and lag.most_ns(now_ns) >= 200 * MS
        assert lag.tell_ns() == 0 or lag.seen.sum > 1_000 * MS  # once is no reason to plan otherwise
        assert lag.seen.sum >= 280 * MS
        lag.stop()

    asyncio.run(scenario())


def come_late(lag: LoopLag, late_ns: list[int]) -> None:
    """So many beats, each so late."""
    lag._loop = asyncio.new_event_loop()  # which is to wait for the next one
    for each in late_ns:
        lag._due_ns = time.monotonic_ns() - each
        lag._beats()
    lag.stop()
    lag._loop.close()


def test_what_is_told_goes_down_in_steps() -> None:
    """A plan changes only when the lag really did."""
    lag = LoopLag()
    come_late(lag, [100 * MS, 0, 0] * 100)
    told_ns = lag.tell_ns()
    assert told_ns > 50 * MS
    come_late(lag, [0] * 50)
    assert lag.tell_ns() == told_ns
    come_late(lag, [0] * 1_000)
    assert lag.tell_ns() == 0
