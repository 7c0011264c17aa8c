"""Results of frames, made up: two clients, forty frames, all kinds of outcomes."""

from __future__ import annotations

import numpy as np

from stretto.client.frame_stats import FrameOutcome
from stretto.client.network.link import Link
from stretto.client.network.result import OUTCOMES, FrameResult
from stretto.core.bandwidth import in_steps

FRAMES = 20  # of each client
S = 1_000_000_000


def made_up(sizes: str = "told", missed: int = 3) -> FrameResult:
    """A frame each 100 ms. The first client's link halves after a second and its size with it; the other's stays."""
    links = (Link(in_steps([100_000.0, 50_000.0])), Link(in_steps([80_000.0, 80_000.0])))
    client = np.tile([0, 1], FRAMES).astype(np.int16)
    made_ns = np.repeat(np.arange(FRAMES), 2).astype(np.int64) * S // 10
    is_first = client == 0
    outcome = np.full(2 * FRAMES, OUTCOMES.index(FrameOutcome.ON_TIME), np.uint8)
    outcome[:missed] = [
        OUTCOMES.index(each) for each in (FrameOutcome.LATE, FrameOutcome.REFUSED, FrameOutcome.TOO_MANY)
    ][:missed]
    is_answer = outcome <= OUTCOMES.index(FrameOutcome.LATE)
    edge = np.where(is_first & (made_ns >= 1.5 * S), 8, 24).astype(np.int32)
    edge[outcome == OUTCOMES.index(FrameOutcome.TOO_MANY)] = -1
    correct = np.where(is_answer, 1, -1).astype(np.int8)
    correct[-1] = 0
    bandwidth = np.where(edge > 0, 60_000.0, np.nan)
    return FrameResult(
        "cameras",
        S // 10,
        2.0,
        sizes,
        links,
        ("walking", "standing"),
        ("px08", "px24"),
        {"overloaded": 1},
        True,
        client,
        made_ns,
        np.where(outcome == OUTCOMES.index(FrameOutcome.LATE), S // 5, S // 20).astype(np.int64),
        outcome,
        edge,
        np.where(edge > 0, 1000, 0).astype(np.int64),
        bandwidth,
        np.where(edge > 0, 80_000.0, np.nan),
        np.where(is_answer, (edge == 24).astype(np.int16), -1).astype(np.int16),
        correct,
    )
