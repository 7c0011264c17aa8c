"""One timer per lane, all of them always in a heap; `s.wake_ns` is the earliest."""

from __future__ import annotations

from typing import Any

from stretto.core.compiled import compiled
from stretto.dispatch.heap import move_key
from stretto.dispatch.records import int64s


@compiled
def set_timer(s: Any, lane: int, at_ns: int) -> None:
    """Ring for `lane` at `at_ns`; NEVER silences it."""
    heap = int64s(s.heap_at, s.heap_count)
    key = int64s(s.heap_key_at, s.heap_count)
    if key[lane] != at_ns:
        move_key(heap, int64s(s.heap_place_at, s.heap_count), key, lane, at_ns)
        s.wake_ns = key[heap[0]]


@compiled
def timer_of(s: Any, lane: int) -> int:
    """When the lane's timer rings."""
    return int64s(s.heap_key_at, s.heap_count)[lane]


@compiled
def first_timer(s: Any) -> int:
    """The lane whose timer rings next."""
    return int64s(s.heap_at, s.heap_count)[0]
