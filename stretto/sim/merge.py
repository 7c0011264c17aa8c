"""Many streams into one: arrival times in order, each with the number of its stream; of equal times the lowest first.

Both ways work in bounded memory and give the same result whatever the block size: `marked` deals the arrivals of one
process out at random, `merged` runs every stream by itself and merges them with a heap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.core.profile import NS_PER_S
from stretto.sim.choice import AliasTables
from stretto.sim.processes import Process, generator

BLOCK = 32_768  # arrivals made at once: fits a core's own cache
SMALLEST_BLOCK = 64
POOL = 2**22  # arrivals that wait in all streams together

Numbered = Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]  # times and stream numbers

_NONE = -1


def marked(
    process: Process, shares: NDArray[np.float64], time_seed: SeedSequence, mark_seed: SeedSequence, end_ns: int
) -> Numbered:
    """One stream per share, each an independent thinning of `process`; right only where the process splits."""
    tables = AliasTables.of([(range(len(shares)), shares)])
    random = generator(mark_seed)
    uniforms = np.empty(BLOCK)
    for times in process.blocks(time_seed, _block_size(process, end_ns, BLOCK), end_ns):
        over = bool(times[-1] >= end_ns)
        within = times[: np.searchsorted(times, end_ns)] if over else times
        random.random(out=uniforms[: len(within)])
        yield within, tables.pick_from_first(uniforms[: len(within)])
        if over:
            return


def merged(processes: Sequence[Process], seeds: Sequence[SeedSequence], end_ns: int) -> Numbered:
    """Each process runs by itself from its own seed."""
    if not processes:
        return
    room = max(SMALLEST_BLOCK, min(BLOCK, POOL // len(processes)))
    sources = [
        process.blocks(seed, _block_size(process, end_ns, room), end_ns)
        for process, seed in zip(processes, seeds, strict=True)
    ]
    waiting = np.empty((len(sources), room), dtype=np.int64)
    size = np.empty(len(sources), dtype=np.int64)
    head = np.zeros(len(sources), dtype=np.int64)

    def refill(stream: int) -> None:
        block = next(sources[stream])
        waiting[stream, : len(block)] = block
        size[stream] = len(block)
        head[stream] = 0

    for stream in range(len(sources)):
        refill(stream)
    heap = np.argsort(waiting[:, 0], kind="stable")  # a sorted array is a heap
    key = waiting[heap, 0]
    while True:
        times = np.empty(BLOCK, dtype=np.int64)
        streams = np.empty(BLOCK, dtype=np.int64)
        filled = 0
        while filled < BLOCK:
            filled, empty = _merge(waiting, size, head, heap, key, end_ns, times, streams, filled)
            if empty == _NONE:
                break
            refill(empty)
        if filled:
            yield times[:filled], streams[:filled]
        if filled < BLOCK:
            return


def _block_size(process: Process, end_ns: int, most: int) -> int:
    """About what the whole run needs, where that is little."""
    seconds = end_ns / NS_PER_S
    return int(min(most, process.mean_rate(seconds) * seconds * 1.1 + SMALLEST_BLOCK // 2))


@compiled
def _merge(
    waiting: Any, size: Any, head: Any, heap: Any, key: Any, end_ns: int, times: Any, streams: Any, filled: int
) -> tuple[int, int]:
    """Moves the earliest arrivals out until `times` is full, a stream has run dry (returned), or the end is reached.

    The key of the top may be old (its arrival was moved out, or its stream refilled); every other key is its stream's
    next arrival. A dry stream is refilled by the caller, who then calls again.
    """
    while True:
        stream = heap[0]
        if head[stream] == size[stream]:
            return filled, stream
        time = waiting[stream, head[stream]]
        at = 0
        while True:
            child = 2 * at + 1
            if child >= len(heap):
                break
            right = child + 1
            if right < len(heap) and (
                key[right] < key[child] or (key[right] == key[child] and heap[right] < heap[child])
            ):
                child = right
            if key[child] > time or (key[child] == time and heap[child] > stream):
                break
            key[at] = key[child]
            heap[at] = heap[child]
            at = child
        key[at] = time
        heap[at] = stream
        if key[0] >= end_ns or filled == len(times):
            return filled, -1
        times[filled] = key[0]
        streams[filled] = heap[0]
        head[heap[0]] += 1
        filled += 1
