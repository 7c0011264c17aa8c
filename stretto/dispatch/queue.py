"""Ordered queues inside the query slots: skip lists, so that a lane can hold any mix of keys.

Appending the largest key and taking the smallest, which is nearly all that happens when deadlines come in order, touch
one or two links; a key in the middle, or a withdrawal, costs O(log n). Every lane has an ORDER list; a lane that is
not ordered by deadline but must watch its earliest one (to notice infeasible queries, or to start as late as it allows)
has a DEADLINE list as well. Equal keys stand in the order of submission.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.core.compiled import compiled
from stretto.core.plan import Late, Order, ReleaseRule
from stretto.dispatch.records import LEVELS, NEVER, int64s, lanes, queries

ORDER = 0
DEADLINE = 1
LISTS = 2
NONE = -1
SHORT = 32  # a lane that holds no more needs no links but those to the next


@compiled
def height_of(sequence: int) -> int:
    """1 + the number of times a fair four-sided die shows zero, drawn from the query's number."""
    mixed = np.uint64(sequence) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    height = 1
    while height < LEVELS and (mixed & np.uint64(3)) == np.uint64(0):
        height += 1
        mixed >>= np.uint64(2)
    return height


@compiled
def key_of(s: Any, which: int, slot: int) -> int:
    query = queries(s)[slot]
    return query.key if which == ORDER else query.deadline_ns


@compiled
def stands_before(s: Any, which: int, slot: int, key: int, sequence: int) -> bool:
    """Whether the query in `slot` comes before one with this key and sequence."""
    slot_key = key_of(s, which, slot)
    return slot_key < key or (slot_key == key and queries(s)[slot].sequence < sequence)


@compiled
def insert(s: Any, lane: int, which: int, slot: int) -> None:
    links = int64s(s.links_at, s.links_count)
    ends = int64s(s.ends_at, s.ends_count)
    head = (lane * LISTS + which) * 2 * LEVELS
    tail = head + LEVELS
    query = queries(s)[slot]
    key = key_of(s, which, slot)
    links_of_slot = (slot * LISTS + which) * LEVELS
    last = ends[tail]
    if last == NONE or stands_before(s, which, last, key, query.sequence):
        for level in range(query.height):
            links[links_of_slot + level] = NONE
            behind = ends[tail + level]
            if behind == NONE:
                ends[head + level] = slot
            else:
                links[(behind * LISTS + which) * LEVELS + level] = slot
            ends[tail + level] = slot
        return
    before = NONE
    for level in range(LEVELS - 1, -1, -1):
        after = ends[head + level] if before == NONE else links[(before * LISTS + which) * LEVELS + level]
        while after != NONE and stands_before(s, which, after, key, query.sequence):
            before = after
            after = links[(before * LISTS + which) * LEVELS + level]
        if level < query.height:
            links[links_of_slot + level] = after
            if before == NONE:
                ends[head + level] = slot
            else:
                links[(before * LISTS + which) * LEVELS + level] = slot
            if after == NONE:
                ends[tail + level] = slot


@compiled
def remove(s: Any, lane: int, which: int, slot: int) -> None:
    links = int64s(s.links_at, s.links_count)
    ends = int64s(s.ends_at, s.ends_count)
    head = (lane * LISTS + which) * 2 * LEVELS
    tail = head + LEVELS
    links_of_slot = (slot * LISTS + which) * LEVELS
    query = queries(s)[slot]
    if ends[head] == slot:
        for level in range(query.height):
            after = links[links_of_slot + level]
            ends[head + level] = after
            if after == NONE:
                ends[tail + level] = NONE
        return
    key = key_of(s, which, slot)
    before = NONE
    for level in range(LEVELS - 1, -1, -1):
        after = ends[head + level] if before == NONE else links[(before * LISTS + which) * LEVELS + level]
        while after != NONE and after != slot and stands_before(s, which, after, key, query.sequence):
            before = after
            after = links[(before * LISTS + which) * LEVELS + level]
        if after == slot:
            beyond = links[links_of_slot + level]
            if before == NONE:
                ends[head + level] = beyond
            else:
                links[(before * LISTS + which) * LEVELS + level] = beyond
            if beyond == NONE:
                ends[tail + level] = before


@compiled
def first_in(s: Any, lane: int, which: int) -> int:
    """The slot at the head of the list, or -1."""
    return int64s(s.ends_at, s.ends_count)[(lane * LISTS + which) * 2 * LEVELS]


@compiled
def next_in(s: Any, which: int, slot: int) -> int:
    return int64s(s.links_at, s.links_count)[(slot * LISTS + which) * LEVELS]


@compiled
def collect_waiting(state: Any, slots: Any) -> None:
    """The slots of all queries in lanes, lane by lane, into `slots`, which has room for just those."""
    s = state[0]
    place = 0
    for lane in range(s.lanes_count):
        slot = first_in(s, lane, ORDER)
        while slot != NONE:
            slots[place] = slot
            place += 1
            slot = next_in(s, ORDER, slot)


@compiled
def has_deadline_list(lane: Any) -> bool:
    return lane.order != Order.EARLIEST_DEADLINE and (
        lane.late == Late.DROP_WHEN_INFEASIBLE or lane.release == ReleaseRule.DEFERRED
    )


@compiled
def enqueue(s: Any, lane_index: int, slot: int) -> None:
    """Put a query into a lane, at the place its key gives."""
    lane = lanes(s)[lane_index]
    query = queries(s)[slot]
    query.lane = lane_index
    query.height = 1 if lane.capacity <= SHORT else height_of(query.sequence)
    if lane.order == Order.EARLIEST_DEADLINE:
        query.key = query.deadline_ns
    elif lane.order == Order.PRIORITY:
        query.key = -query.priority
    else:
        query.key = query.sequence
    insert(s, lane_index, ORDER, slot)
    if has_deadline_list(lane):
        insert(s, lane_index, DEADLINE, slot)
    if lane.length == 0:
        lane.filled_ns = s.now_ns
    lane.length += 1
    lane.head_ns = min(lane.head_ns, query.deadline_ns) if has_deadline_list(lane) else front_deadline(s, lane_index)
    s.waiting += 1


@compiled
def dequeue(s: Any, lane_index: int, slot: int) -> None:
    """Take a query out of its lane, wherever it stands."""
    lane = lanes(s)[lane_index]
    remove(s, lane_index, ORDER, slot)
    if has_deadline_list(lane):
        remove(s, lane_index, DEADLINE, slot)
    lane.length -= 1
    lane.head_ns = front_deadline(s, lane_index)
    s.waiting -= 1


@compiled
def front_deadline(s: Any, lane_index: int) -> int:
    """The deadline that the lane must watch: its earliest where it has a list of them, else its head's."""
    lane = lanes(s)[lane_index]
    slot = first_in(s, lane_index, DEADLINE if has_deadline_list(lane) else ORDER)
    return NEVER if slot == NONE else queries(s)[slot].deadline_ns
