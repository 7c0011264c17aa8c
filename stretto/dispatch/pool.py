"""Workers: which one takes a lane's batch, and what each holds in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.compiled import compiled, trailing_zeros
from stretto.core.plan import Missing, WorkerChoice
from stretto.dispatch.ledger import decide
from stretto.dispatch.queue import NONE
from stretto.dispatch.records import (
    IN_FLIGHT,
    NEVER,
    DecisionKind,
    as_int64,
    batches,
    int64s,
    lane_kinds,
    lanes,
    resident,
    rows,
    uint64s,
    workers,
)
from stretto.dispatch.release import delay_ns
from stretto.dispatch.select import stand_in

OVERDUE_NS = 10_000_000  # a batch that ends so much later than expected is overdue


@compiled
def set_idle(s: Any, worker: int, idle: bool) -> None:
    bits = uint64s(s.idle_at, s.idle_count)
    bit = np.uint64(1) << np.uint64(worker & 63)
    if idle:
        bits[worker >> 6] |= bit
    else:
        bits[worker >> 6] &= ~bit


@compiled
def is_idle(s: Any, worker: int) -> bool:
    word = uint64s(s.idle_at, s.idle_count)[worker >> 6]
    return (word >> np.uint64(worker & 63)) & np.uint64(1) != np.uint64(0)


@compiled
def kind_entry(s: Any, lane: Any, kind: int) -> int:
    """Where the lane keeps its candidate for a kind of worker, or -1."""
    for position in range(lane.kind_first, lane.kind_first + lane.kind_count):
        if lane_kinds(s)[position].kind == kind:
            return position
    return NONE


@compiled
def holds(s: Any, worker: int, variant: int) -> bool:
    return resident(s)[worker * s.variants + variant].loaded != 0


@compiled
def could_hold(s: Any, lane: Any, worker: int, variant: int) -> bool:
    """Whether the variant is in the worker's memory, or may be brought there; one on its way is waited for."""
    if holds(s, worker, variant):
        return True
    return lane.missing != Missing.WAIT and not arrives(s, worker, variant) and has_room(s, worker, variant)


@compiled
def arrives(s: Any, worker: int, variant: int) -> bool:
    """Whether the variant is being loaded beside the worker's work."""
    return workers(s)[worker].arriving == variant


@compiled
def suits(s: Any, lane: Any, worker: int, must_hold: bool, must_fit: bool) -> bool:
    """Whether the lane's candidate is released for this kind of worker, and the worker has (or can get) its variant.

    A candidate that does not fit is one whose head would be too late on this kind, or is to be given up.
    """
    position = kind_entry(s, lane, workers(s)[worker].kind)
    if position == NONE:
        return False
    entry = lane_kinds(s)[position]
    if not entry.released or (must_fit and entry.size <= 0):
        return False
    variant = stand_in(s, lane, worker, entry.variant)
    return holds(s, worker, variant) if must_hold else could_hold(s, lane, worker, variant)


@compiled
def preferred_idle(s: Any, lane: Any, must_hold: bool, must_fit: bool) -> int:
    """PREFERENCE: the first idle worker in the lane's own order."""
    order = int64s(s.lane_workers_at, s.lane_workers_count)
    for position in range(lane.worker_first, lane.worker_first + lane.worker_count):
        worker = order[position]
        if is_idle(s, worker) and suits(s, lane, worker, must_hold, must_fit):
            return worker
    return NONE


@compiled
def scanned_idle(s: Any, lane_index: int, must_hold: bool, must_fit: bool) -> int:
    """LOWEST_INDEX: the first idle worker; EARLIEST_FREE: the one that has been idle longest."""
    lane = lanes(s)[lane_index]
    idle = uint64s(s.idle_at, s.idle_count)
    members = uint64s(s.members_at, s.members_count)
    chosen = NONE
    since = NEVER
    for word in range(s.member_words):
        bits = idle[word] & members[lane_index * s.member_words + word]
        while bits != np.uint64(0):
            worker = word * 64 + as_int64(trailing_zeros(bits))
            bits &= bits - np.uint64(1)
            if suits(s, lane, worker, must_hold, must_fit):
                if lane.worker_choice == WorkerChoice.LOWEST_INDEX:
                    return worker
                if workers(s)[worker].free_ns < since:
                    chosen = worker
                    since = workers(s)[worker].free_ns
    return chosen


@compiled
def find_idle(s: Any, lane_index: int) -> int:
    """An idle worker for the lane's released candidate: one that holds the variant, else one that may load it.

    Last, one for which the head is too late: there it is dropped, unless a better worker is worth waiting for.
    """
    lane = lanes(s)[lane_index]
    for attempt in range(3):  # not over a tuple, whose index might be out of range: no rule raises an exception
        must_hold, must_fit = attempt == 0, attempt < 2
        if lane.worker_choice == WorkerChoice.PREFERENCE:
            worker = preferred_idle(s, lane, must_hold, must_fit)
        else:
            worker = scanned_idle(s, lane_index, must_hold, must_fit)
        if worker != NONE:
            return worker
    return NONE


@compiled
def has_idle(s: Any, lane_index: int) -> bool:
    """Whether any of the lane's workers is idle."""
    idle = uint64s(s.idle_at, s.idle_count)
    members = uint64s(s.members_at, s.members_count)
    for word in range(s.member_words):
        if idle[word] & members[lane_index * s.member_words + word] != np.uint64(0):
            return True
    return False


@compiled
def is_told_early(lane: Any) -> bool:
    """Whether a busy worker may be given the lane's next batch before it is free."""
    return lane.control_ns + lane.data_ns + lane.ahead_ns > 0


@compiled
def find_early(s: Any, lane_index: int) -> tuple[int, int]:
    """The busy worker that is free first, and when it may be given its next batch: before that by delay or look-ahead,
    and by what a timer may be late.
    """
    lane = lanes(s)[lane_index]
    if not is_told_early(lane):
        return NONE, NEVER
    order = int64s(s.lane_workers_at, s.lane_workers_count)
    chosen = NONE
    chosen_ns = NEVER
    for position in range(lane.worker_first, lane.worker_first + lane.worker_count):
        worker = workers(s)[order[position]]
        is_overdue = worker.free_ns + OVERDUE_NS < s.now_ns  # it may hang; what it was given ahead could not be dropped
        if worker.alive and 0 < worker.depth < IN_FLIGHT and worker.free_ns < chosen_ns and not is_overdue:
            entry = lane_kinds(s)[kind_entry(s, lane, worker.kind)]
            variant = stand_in(s, lane, order[position], entry.variant)
            if entry.released and could_hold(s, lane, order[position], variant):
                chosen = order[position]
                chosen_ns = worker.free_ns
    if chosen == NONE:
        return NONE, NEVER
    size = lane_kinds(s)[kind_entry(s, lane, workers(s)[chosen].kind)].size
    return chosen, chosen_ns - max(delay_ns(lane, size), lane.ahead_ns)


@compiled
def in_use(s: Any, worker_index: int, variant: int) -> bool:
    """Whether a batch in flight on the worker needs the variant."""
    worker = workers(s)[worker_index]
    for ahead in range(worker.depth):
        if batches(s)[worker_index * IN_FLIGHT + ((worker.front + ahead) & 1)].variant == variant:
            return True
    return False


@compiled
def bytes_with(s: Any, worker_index: int, variant: int, only_in_use: bool) -> int:
    """What the variant and those in memory (or those that batches need) take, with room for the hungriest to run."""
    worker = workers(s)[worker_index]
    row = rows(s)[variant * s.kinds + worker.kind]
    held = row.memory_bytes
    peak = row.dynamic_bytes
    for other in range(s.variants):
        is_here = holds(s, worker_index, other) and (not only_in_use or in_use(s, worker_index, other))
        if other != variant and (is_here or worker.arriving == other):
            row = rows(s)[other * s.kinds + worker.kind]
            held += row.memory_bytes
            peak = max(peak, row.dynamic_bytes)
    return held + peak


@compiled
def has_room(s: Any, worker_index: int, variant: int) -> bool:
    """Whether the variant would fit if everything that no batch needs were unloaded."""
    return bytes_with(s, worker_index, variant, True) <= workers(s)[worker_index].memory_bytes


@compiled
def make_room(s: Any, worker_index: int, variant: int) -> bool:
    """Unload what was used longest ago until the variant fits and can run; false, nothing done, if it never will."""
    if not has_room(s, worker_index, variant):
        return False
    while bytes_with(s, worker_index, variant, False) > workers(s)[worker_index].memory_bytes:
        oldest = NONE
        for other in range(s.variants):
            entry = resident(s)[worker_index * s.variants + other]
            if entry.loaded and not in_use(s, worker_index, other):
                if oldest == NONE:
                    oldest = other
                else:
                    best = resident(s)[worker_index * s.variants + oldest]
                    # What the placement does not ask for goes first, then what was used longest ago.
                    if entry.wanted < best.wanted or (entry.wanted == best.wanted and entry.used_ns < best.used_ns):
                        oldest = other
        unload(s, worker_index, oldest)
    return True


@compiled
def unload(s: Any, worker_index: int, variant: int) -> None:
    resident(s)[worker_index * s.variants + variant].loaded = 0
    decide(s, DecisionKind.UNLOAD.value, worker_index, variant)


@compiled
def load(s: Any, worker_index: int, variant: int, alone: bool, now_ns: int) -> None:
    """After make_room. The caller accounts for the time, and says whether a batch waits for it."""
    worker = workers(s)[worker_index]
    entry = resident(s)[worker_index * s.variants + variant]
    entry.loaded = 1
    entry.used_ns = now_ns
    if entry.wanted and worker.loads_wanted > 0:
        worker.loads_wanted -= 1
    decision = decide(s, DecisionKind.LOAD.value, worker_index, variant)
    decision.alone = alone
    decision.start_ns = max(now_ns, worker.free_ns)
    decision.expected_ns = decision.start_ns + rows(s)[variant * s.kinds + worker.kind].load_ns
