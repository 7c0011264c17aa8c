"""A binary heap over a fixed set of items, each with a key and a known place, so that moving one is a few swaps."""

from __future__ import annotations

from typing import Any

from stretto.core.compiled import compiled


@compiled
def goes_first(key: Any, item: int, other: int) -> bool:
    return bool(key[item] < key[other] or (key[item] == key[other] and item < other))


@compiled
def move_key(heap: Any, place: Any, key: Any, item: int, new_key: int) -> None:
    """Give `item` a new key; heap[0] is the item with the smallest, of equals the lowest number."""
    before = key[item]
    key[item] = new_key
    at = place[item]
    count = len(heap)
    if new_key < before:
        while at > 0:
            parent = (at - 1) >> 1
            other = heap[parent]
            if not goes_first(key, item, other):
                break
            heap[at] = other
            place[other] = at
            at = parent
    else:
        while True:
            child = 2 * at + 1
            if child >= count:
                break
            if child + 1 < count and goes_first(key, heap[child + 1], heap[child]):
                child += 1
            other = heap[child]
            if not goes_first(key, other, item):
                break
            heap[at] = other
            place[other] = at
            at = child
    heap[at] = item
    place[item] = at
