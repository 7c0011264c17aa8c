"""Transition probabilities when all queued queries are taken (section 4.4, equations 1 to 3).

A worker gets every K-th arrival. At a decision its phase r is the number of arrivals since its own last one; given
(n, T_j) the phase is r with a chance in proportion to PF((n − 1)K + r, SLO − T_j): interval A of figure 4. What follows
depends on the phase and the latency l only. Let F(t, n') be the chance that the worker's first arrival comes later than
t after the decision and that n' come within l. The sum of equation 2 over intervals B, C and D is F at the begin of C
less F at its end, because increments are independent. So one F per latency serves all states.

Departure: a first arrival that is already late at the next decision leads to slack zero. The printed interval lengths
leave it to equation 3, which would take it for a full queue.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.planners.parts.laws import probabilities
from stretto.planners.ramsis.states import Rows, Space
from stretto.planners.ramsis.streams import Stream

LEAST = 1e-12  # transitions less likely than this are left out, and the row is scaled to sum to one
NEGLIGIBLE = 1e-17


@dataclass(frozen=True, eq=False)
class Chunk:
    """Transitions of some rows: `counts[i]` entries of `target` and `probability` belong to row `rows[i]`."""

    rows: NDArray[np.int64]
    counts: NDArray[np.int64]
    target: NDArray[np.int32]
    probability: NDArray[np.float64]
    empty: NDArray[np.float64]  # chance that the queue is empty afterwards; it is part of the entry for (1, SLO)


def phase_weights(stream: Stream, space: Space) -> NDArray[np.float64]:
    """[n − 1, j, r]: the chance of phase r in state (n, T_j), interval A of equation 2."""
    slo_ns = space.slack_ns[-1]
    counts = np.arange(space.max_queue * stream.phases).reshape(space.max_queue, 1, stream.phases)
    logs = stream.law.log_probability(counts, stream.mean(slo_ns - space.slack_ns)[None, :, None])
    # Relative to the likeliest phase, so that states out of reach have a distribution too.
    peak = logs.max(axis=2, keepdims=True)
    weights = np.exp(logs - np.where(np.isfinite(peak), peak, 0.0))
    weights[~np.isfinite(peak[:, :, 0])] = np.eye(stream.phases)[0]
    weights /= weights.sum(axis=2, keepdims=True)
    return np.ascontiguousarray(weights)


def count_windows(stream: Stream, longest: int, times_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """[time, c, n']: the chance that a worker at phase c gets n' queries in a time; the last n' means more than N."""
    phases = stream.phases
    chance = probabilities(stream.law, (longest + 1) * phases, stream.mean(times_ns))
    below = np.concatenate([np.zeros((len(times_ns), phases + 1)), np.cumsum(chance, axis=1)], axis=1)
    # below[:, phases + k] = P(count < k)
    edges = phases + np.arange(longest + 2)[None, :] * phases - np.arange(phases)[:, None]
    at_edge = np.minimum(below[:, edges], 1.0)
    windows = np.empty((len(times_ns), phases, longest + 2))
    windows[:, :, :-1] = np.diff(at_edge, axis=2)
    windows[:, :, -1] = 1.0 - at_edge[:, :, -1]
    np.maximum(windows, 0.0, out=windows)
    return windows


def whole_batches(stream: Stream, space: Space, rows: Rows, chosen: NDArray[np.int64]) -> list[Chunk]:
    """Transitions of the `chosen` rows, all of which take every queued query."""
    slo_ns = space.slack_ns[-1]
    latencies = np.unique(rows.latency_ns[chosen])
    times = np.unique(np.concatenate([slo_ns - space.slack_ns, latencies]))
    windows = count_windows(stream, space.max_queue, times)
    likely = windows > NEGLIGIBLE
    low = likely.argmax(axis=2)
    high = np.where(likely.any(axis=2), windows.shape[2] - likely[:, :, ::-1].argmax(axis=2), low)
    weights = phase_weights(stream, space)
    chunks = []
    for latency in latencies:
        of_latency = chosen[rows.latency_ns[chosen] == latency]
        first_cell = max(0, int(np.searchsorted(space.slack_ns, slo_ns - latency, side="right")) - 1)
        cells = np.arange(first_cell, max(first_cell + 1, space.slacks - 1))
        # Cell i is reached when the first arrival comes from edge i on, and before edge i + 1.
        edges = np.maximum(latency - slo_ns + space.slack_ns[cells], 0)
        edges[0] = 0
        reach = _first_arrival(
            probabilities(stream.law, stream.phases, stream.mean(edges)),
            np.searchsorted(times, latency - edges),
            windows,
            low,
            high,
        )
        counts, target, chance, empty = _mixed(
            weights[rows.queued[of_latency] - 1, rows.slack[of_latency]], reach, cells, space.slacks, space.full, LEAST
        )
        chunks.append(Chunk(of_latency, counts, target, chance, empty))
    return chunks


@compiled
def _first_arrival(
    chance: NDArray[np.float64],
    rest: NDArray[np.int64],
    windows: NDArray[np.float64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> NDArray[np.float64]:
    """F[edge, r, n']: fewer than K − r arrivals before the edge, and n' for the worker by the end of the batch."""
    edges, phases = chance.shape
    reach = np.zeros((edges, phases, windows.shape[2]))
    for edge in range(edges):
        time = rest[edge]
        for k in range(phases):
            p = chance[edge, k]
            if p < 1e-17:
                continue
            for r in range(phases - k):
                c = r + k
                for n in range(low[time, c], high[time, c]):
                    reach[edge, r, n] += p * windows[time, c, n]
    return reach


@compiled
def _mixed(
    weights: NDArray[np.float64],
    reach: NDArray[np.float64],
    cells: NDArray[np.int64],
    slacks: int,
    full: int,
    least: float,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """The rows of one latency: F mixed by each row's phases, then its differences. `cells` lead to their slack."""
    count = len(weights)
    edges, phases, columns = reach.shape
    longest = columns - 2
    counts = np.zeros(count, dtype=np.int64)
    empty = np.zeros(count)
    target = np.empty(count * (edges * longest + 2), dtype=np.int32)
    chance = np.empty(len(target))
    mixed = np.empty((edges + 1, columns))
    used = 0
    for row in range(count):
        mixed[:] = 0.0
        for r in range(phases):
            w = weights[row, r]
            if w > 1e-16:
                for edge in range(edges):
                    for n in range(columns):
                        mixed[edge, n] += w * reach[edge, r, n]
        begin = used
        total = 0.0
        for n in range(1, longest + 1):
            if mixed[0, n] < least:
                continue
            for edge in range(edges):
                p = mixed[edge, n] - mixed[edge + 1, n]
                if p > least:
                    target[used] = (n - 1) * slacks + cells[edge]
                    chance[used] = p
                    total += p
                    used += 1
        for state, p in ((slacks - 1, mixed[0, 0]), (full, mixed[0, longest + 1])):
            if p > least:
                target[used] = state
                chance[used] = p
                total += p
                used += 1
        for k in range(begin, used):
            chance[k] /= total
        empty[row] = mixed[0, 0] / total if mixed[0, 0] > least else 0.0
        counts[row] = used - begin
    return counts, target[:used].copy(), chance[:used].copy(), empty
