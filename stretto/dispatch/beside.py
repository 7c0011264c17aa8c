"""Loads beside the work: what a plan with a prefetch wants in memory comes there while the worker goes on serving.

One variant at a time on each worker: what the placement asks for first, then what is prefetched, soonest first. Room is
made by what neither asks for and no batch needs, longest unused first. For what is placed, prefetched variants give way
too, the last first, and in the end the one that ran last, which until then answers in its place.
"""

from __future__ import annotations

from typing import Any

from stretto.core.compiled import compiled
from stretto.dispatch.ledger import decide
from stretto.dispatch.pool import bytes_with, in_use, unload
from stretto.dispatch.queue import NONE
from stretto.dispatch.records import DecisionKind, resident, rows, workers

STAYS = 0  # how readily a variant gives way
GIVES_WAY_LAST, GIVES_WAY_LATER, GIVES_WAY = 1, 2, 3


@compiled
def next_wanted(s: Any, worker_index: int) -> int:
    """The variant to load next, or -1."""
    chosen = NONE
    for variant in range(s.variants):
        entry = resident(s)[worker_index * s.variants + variant]
        if entry.loaded or entry.arriving:
            continue
        if entry.wanted:
            return variant
        is_sooner = chosen == NONE or entry.rank < resident(s)[worker_index * s.variants + chosen].rank
        if entry.rank > 0 and is_sooner:
            chosen = variant
    return chosen


@compiled
def last_used(s: Any, worker_index: int) -> int:
    """The variant in memory that ran last, or -1 where none did."""
    chosen = NONE
    used_ns = -1
    for variant in range(s.variants):
        entry = resident(s)[worker_index * s.variants + variant]
        if entry.loaded and entry.used_ns > used_ns:
            chosen = variant
            used_ns = entry.used_ns
    return chosen


@compiled
def readiness(s: Any, worker_index: int, variant: int, is_placed: bool, last: int) -> int:
    """How readily a variant in memory gives way to one that is placed, or only prefetched."""
    entry = resident(s)[worker_index * s.variants + variant]
    if not entry.loaded or entry.wanted or in_use(s, worker_index, variant):
        return STAYS
    if variant == last:
        return GIVES_WAY_LAST if is_placed else STAYS
    if entry.rank > 0:
        return GIVES_WAY_LATER if is_placed else STAYS
    return GIVES_WAY


@compiled
def fits_beside(s: Any, worker_index: int, variant: int, is_placed: bool, last: int) -> bool:
    """Whether there would be room if everything gave way that may."""
    worker = workers(s)[worker_index]
    row = rows(s)[variant * s.kinds + worker.kind]
    held, peak = row.memory_bytes, row.dynamic_bytes
    for other in range(s.variants):
        is_here = resident(s)[worker_index * s.variants + other].loaded != 0
        if is_here and readiness(s, worker_index, other, is_placed, last) == STAYS:
            row = rows(s)[other * s.kinds + worker.kind]
            held += row.memory_bytes
            peak = max(peak, row.dynamic_bytes)
    return held + peak <= worker.memory_bytes


@compiled
def give_way(s: Any, worker_index: int, is_placed: bool, last: int) -> None:
    """Unload the one that does so most readily: longest unused, or prefetched last."""
    chosen = NONE
    best = STAYS
    for other in range(s.variants):
        ready = readiness(s, worker_index, other, is_placed, last)
        if ready == STAYS or ready < best:
            continue
        entry = resident(s)[worker_index * s.variants + other]
        if ready > best:
            chosen, best = other, ready
            continue
        rival = resident(s)[worker_index * s.variants + chosen]
        if entry.rank > rival.rank or (entry.rank == rival.rank and entry.used_ns < rival.used_ns):
            chosen = other
    unload(s, worker_index, chosen)


@compiled
def load_beside(s: Any, worker_index: int, now_ns: int) -> None:
    """Begin the next load that the plan wants here, if none is under way and there is room."""
    worker = workers(s)[worker_index]
    if s.beside == 0 or not worker.alive or worker.arriving != NONE:
        return
    variant = next_wanted(s, worker_index)
    if variant == NONE:
        return
    entry = resident(s)[worker_index * s.variants + variant]
    is_placed = entry.wanted != 0
    last = last_used(s, worker_index)
    if not fits_beside(s, worker_index, variant, is_placed, last):
        return  # it is tried again when a batch has ended
    while bytes_with(s, worker_index, variant, False) > worker.memory_bytes:
        give_way(s, worker_index, is_placed, last)
    entry.arriving = 1
    worker.arriving = variant
    decision = decide(s, DecisionKind.LOAD.value, worker_index, variant)
    decision.alone = False
    decision.beside = True
    decision.start_ns = now_ns
    decision.expected_ns = now_ns + rows(s)[variant * s.kinds + worker.kind].load_ns


@compiled
def arrived(s: Any, worker_index: int, variant: int, ok: bool) -> bool:
    """A load beside the work ended; false where it was not waited for. One that failed is not tried again."""
    worker = workers(s)[worker_index]
    entry = resident(s)[worker_index * s.variants + variant]
    if worker.arriving != variant:
        return False
    worker.arriving = NONE
    entry.arriving = 0
    if ok:
        entry.loaded = 1
        if entry.wanted and worker.loads_wanted > 0:
            worker.loads_wanted -= 1
    else:
        entry.wanted = 0
        entry.rank = 0
    return True


@compiled
def forget_arriving(s: Any, worker_index: int) -> None:
    """The worker is lost, and with it what was on its way."""
    worker = workers(s)[worker_index]
    if worker.arriving != NONE:
        resident(s)[worker_index * s.variants + worker.arriving].arriving = 0
        worker.arriving = NONE
