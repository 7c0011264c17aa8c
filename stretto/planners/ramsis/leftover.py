"""Transition probabilities when some queued queries stay behind: variable batches, and heads that are dropped.

The paper says only that they follow similar reasoning. After b of n queries were taken the next head is the one that
arrived b·K arrivals after the present head. Given that k came within interval A, it came within x of its begin with the
chance P(N(x) ≥ b·K | N(T_A) = k) = Σ_{i ≥ bK} PF(i, x)·PF(k − i, T_A − x) / PF(k, T_A). Given k it is independent of
what comes during the batch, which adds (r + N(l)) div K queries. The chance is tabulated on an even grid of x and
interpolated; where k is out of reach the head is put where it is expected, at bK/(k + 1) of T_A.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.planners.parts.laws import largest_count, probabilities
from stretto.planners.ramsis.states import Rows, Space
from stretto.planners.ramsis.streams import Stream
from stretto.planners.ramsis.transitions import Chunk, count_windows, phase_weights

GRID = 100  # steps of x across the SLO
LEAST = 1e-10
OUT_OF_REACH = 1e-13


def partial_batches(stream: Stream, space: Space, rows: Rows, chosen: NDArray[np.int64]) -> list[Chunk]:
    """Transitions of the `chosen` rows, all of which leave some queries behind."""
    if not len(chosen):
        return []
    slo_ns = int(space.slack_ns[-1])
    latencies = np.unique(rows.latency_ns[chosen])
    windows = count_windows(stream, space.max_queue, latencies)
    weights = phase_weights(stream, space)
    counted = largest_count(stream.law, float(stream.mean(np.array([slo_ns]))[0])) + 1
    step_ns = slo_ns / GRID
    grid: NDArray[np.float64] = (step_ns * np.arange(GRID + 1)).astype(np.float64)
    before = probabilities(stream.law, counted, stream.mean(grid))
    chunks = []
    for slack in range(space.slacks):
        of_slack = chosen[rows.slack[chosen] == slack]
        if not len(of_slack):
            continue
        span_ns = slo_ns - int(space.slack_ns[slack])
        offsets = np.minimum(grid, span_ns)
        inside = int(np.searchsorted(grid, span_ns, side="left"))
        total = probabilities(stream.law, counted, stream.mean(np.array([span_ns])))[0]
        reachable = np.flatnonzero(total > OUT_OF_REACH)
        lowest, highest = int(reachable[0]), int(reachable[-1]) + 1
        after = probabilities(stream.law, counted, stream.mean(span_ns - offsets))
        come = _come_by(before, after, inside, lowest, highest, stream.phases, int(rows.batch[of_slack].max()))
        # The head's slack is T_j and the next one's T_j + x. After l it is in cell j' or above from x = T_j' + l − T_j.
        moved = rows.latency_ns[of_slack] - space.slack_ns[slack]
        counts, target, chance, empty = _left(
            come,
            lowest,
            span_ns / step_ns,
            weights[:, slack],
            windows,
            np.searchsorted(latencies, rows.latency_ns[of_slack]),
            rows.queued[of_slack],
            rows.batch[of_slack],
            moved / step_ns,
            space.slack_ns / step_ns,
            space.full,
            LEAST,
        )
        chunks.append(Chunk(of_slack, counts, target, chance, empty))
    return chunks


@compiled
def _come_by(
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    inside: int,
    lowest: int,
    highest: int,
    phases: int,
    largest: int,
) -> NDArray[np.float64]:
    """[k − lowest, b, x]: the chance that b·K of the k arrivals of interval A came within x. One from `inside` on."""
    points = before.shape[0]
    come = np.ones((highest - lowest, largest + 1, points))
    for x in range(inside):
        first = 0
        while first < before.shape[1] - 1 and before[x, first] < 1e-18:
            first += 1
        last = before.shape[1] - 1
        while last > first and before[x, last] < 1e-18:
            last -= 1
        for k in range(lowest, highest):
            row = come[k - lowest]
            for b in range(largest + 1):
                row[b, x] = 0.0
            total = 0.0
            for i in range(min(last, k), first - 1, -1):
                total += before[x, i] * after[x, k - i]
                if i % phases == 0 and i // phases <= largest:
                    row[i // phases, x] = total
            # Below `first` nothing is added; above `last` nothing had come.
            for b in range(min(largest, (first - 1) // phases), -1, -1):
                row[b, x] = total
            if total > 0.0:
                for b in range(largest + 1):
                    row[b, x] /= total
    return come


@compiled
def _left(
    come: NDArray[np.float64],
    lowest: int,
    span: float,
    weights: NDArray[np.float64],
    windows: NDArray[np.float64],
    window: NDArray[np.int64],
    queued: NDArray[np.int64],
    batch: NDArray[np.int64],
    moved: NDArray[np.float64],
    slack: NDArray[np.float64],
    full: int,
    least: float,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """The rows of one slack. Times are in steps of the grid of x."""
    count, phases, slacks = len(queued), weights.shape[1], len(slack)
    longest = windows.shape[2] - 2
    points = come.shape[2]
    counts = np.zeros(count, dtype=np.int64)
    target = np.empty(4096, dtype=np.int32)
    chance = np.empty(4096)
    mass = np.zeros((longest + 2, slacks))
    used = 0
    for row in range(count):
        if used + (longest + 1) * slacks > len(target):
            room = 2 * len(target) + (longest + 1) * slacks
            wider, longer = np.empty(room, dtype=np.int32), np.empty(room)
            wider[:used], longer[:used] = target[:used], chance[:used]
            target, chance = wider, longer
        stay = queued[row] - batch[row]
        mass[:] = 0.0
        # Cells with an edge below zero cannot be entered from above, those with one beyond the span not at all.
        bottom = 0
        while bottom + 1 < slacks and slack[bottom + 1] + moved[row] <= 0.0:
            bottom += 1
        for r in range(phases):
            w = weights[queued[row] - 1, r]
            if w < 1e-12:
                continue
            k = (queued[row] - 1) * phases + r
            known = lowest <= k < lowest + come.shape[0]
            expected = span * (batch[row] * phases) / (k + 1.0)
            passed = 0.0
            for cell in range(bottom, slacks):
                reached = 1.0
                if cell + 1 < slacks:
                    x = slack[cell + 1] + moved[row]
                    if x < span:
                        if known:
                            i = int(x)
                            here = come[k - lowest, batch[row], i]
                            there = come[k - lowest, batch[row], min(i + 1, points - 1)]
                            reached = here + (x - i) * (there - here)
                        else:
                            reached = 1.0 if x > expected else 0.0
                p = w * (reached - passed)
                if p > 0.0:
                    for more in range(longest + 2):
                        q = windows[window[row], r, more]
                        if q > 1e-15:
                            mass[min(stay + more, longest + 1), cell] += p * q
                passed = reached
                if reached >= 1.0:
                    break
        begin = used
        total = 0.0
        for n in range(stay, longest + 1):
            for cell in range(slacks):
                if mass[n, cell] > least:
                    target[used] = (n - 1) * slacks + cell
                    chance[used] = mass[n, cell]
                    total += chance[used]
                    used += 1
        beyond = mass[longest + 1].sum()
        if beyond > least:
            target[used] = full
            chance[used] = beyond
            total += beyond
            used += 1
        for k in range(begin, used):
            chance[k] /= total
        counts[row] = used - begin
    return counts, target[:used].copy(), chance[:used].copy(), np.zeros(count)
