"""Workers: which one takes a lane's batch, and what each holds in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.cpython.unsafe.numbers import trailing_zeros

from stretto.core.plan import WorkerChoice
from stretto.dispatch.compiled import compiled
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
def suits(s: Any, lane: Any, worker: int, must_hold: bool) -> bool:
    """Whether the lane's candidate is released for this kind of worker (and its variant in the worker's memory)."""
    position = kind_entry(s, lane, workers(s)[worker].kind)
    if position == NONE or not lane_kinds(s)[position].released:
        return False
    return not must_hold or resident(s)[worker * s.variants + lane_kinds(s)[position].variant].loaded != 0


@compiled
def preferred_idle(s: Any, lane: Any, must_hold: bool) -> int:
    """PREFERENCE: the first idle worker in the lane's own order."""
    order = int64s(s.lane_workers_at, s.lane_workers_count)
    for position in range(lane.worker_first, lane.worker_first + lane.worker_count):
        worker = order[position]
        if is_idle(s, worker) and suits(s, lane, worker, must_hold):
            return worker
    return NONE


@compiled
def scanned_idle(s: Any, lane_index: int, must_hold: bool) -> int:
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
            if suits(s, lane, worker, must_hold):
                if lane.worker_choice == WorkerChoice.LOWEST_INDEX:
                    return worker
                if workers(s)[worker].free_ns < since:
                    chosen = worker
                    since = workers(s)[worker].free_ns
    return chosen


@compiled
def find_idle(s: Any, lane_index: int) -> int:
    """An idle worker for the lane's released candidate: one that holds the variant, else one that may load it."""
    lane = lanes(s)[lane_index]
    for must_hold in (True, False):
        if must_hold or lane.may_load:
            if lane.worker_choice == WorkerChoice.PREFERENCE:
                worker = preferred_idle(s, lane, must_hold)
            else:
                worker = scanned_idle(s, lane_index, must_hold)
            if worker != NONE:
                return worker
    return NONE


@compiled
def find_early(s: Any, lane_index: int) -> tuple[int, int]:
    """The busy worker that is free first, and when it may be given its next batch: delay or look-ahead before that."""
    lane = lanes(s)[lane_index]
    if lane.control_ns + lane.data_ns + lane.ahead_ns == 0:
        return NONE, NEVER
    order = int64s(s.lane_workers_at, s.lane_workers_count)
    chosen = NONE
    chosen_ns = NEVER
    for position in range(lane.worker_first, lane.worker_first + lane.worker_count):
        worker = workers(s)[order[position]]
        if worker.alive and worker.depth < IN_FLIGHT and worker.free_ns < chosen_ns:
            entry = kind_entry(s, lane, worker.kind)
            if lane_kinds(s)[entry].released and (
                lane.may_load or resident(s)[order[position] * s.variants + lane_kinds(s)[entry].variant].loaded
            ):
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
def make_room(s: Any, worker_index: int, variant: int) -> bool:
    """Unload what was used longest ago until the variant fits, with room to run; false if it never will."""
    worker = workers(s)[worker_index]
    row = rows(s)[variant * s.kinds + worker.kind]
    need = row.memory_bytes + row.dynamic_bytes
    can_go = 0
    for other in range(s.variants):
        if resident(s)[worker_index * s.variants + other].loaded and not in_use(s, worker_index, other):
            can_go += rows(s)[other * s.kinds + worker.kind].memory_bytes
    if worker.used_bytes - can_go + need > worker.memory_bytes:
        return False
    while worker.used_bytes + need > worker.memory_bytes:
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
    worker = workers(s)[worker_index]
    resident(s)[worker_index * s.variants + variant].loaded = 0
    worker.used_bytes -= rows(s)[variant * s.kinds + worker.kind].memory_bytes
    decide(s, DecisionKind.UNLOAD.value, worker_index, variant)


@compiled
def load(s: Any, worker_index: int, variant: int, now_ns: int) -> None:
    """After make_room. The caller accounts for the time."""
    worker = workers(s)[worker_index]
    entry = resident(s)[worker_index * s.variants + variant]
    entry.loaded = 1
    entry.used_ns = now_ns
    worker.used_bytes += rows(s)[variant * s.kinds + worker.kind].memory_bytes
    if entry.wanted and worker.loads_wanted > 0:
        worker.loads_wanted -= 1
    decision = decide(s, DecisionKind.LOAD.value, worker_index, variant)
    decision.start_ns = max(now_ns, worker.free_ns)
    decision.expected_ns = decision.start_ns + rows(s)[variant * s.kinds + worker.kind].load_ns
