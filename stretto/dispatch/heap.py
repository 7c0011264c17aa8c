"""A binary heap over a fixed set of items, each with a key and a known place, so that moving one is a few swaps."""

from __future__ import annotations

from typing import Any

from stretto.dispatch.compiled import compiled


@compiled
def move_key(heap: Any, place: Any, key: Any, item: int, new_key: int) -> None:
    """Give `item` a new key; heap[0] is the item with the smallest."""
    before = key[item]
    key[item] = new_key
    at = place[item]
    count = len(heap)
    if new_key < before:
        while at > 0:
            parent = (at - 1) >> 1
            other = heap[parent]
            if key[other] <= new_key:
                break
            heap[at] = other
            place[other] = at
            at = parent
    else:
        while True:
            child = 2 * at + 1
            if child >= count:
                break
            if child + 1 < count and key[heap[child + 1]] < key[heap[child]]:
                child += 1
            other = heap[child]
            if key[other] >= new_key:
                break
            heap[at] = other
            place[other] = at
            at = child
    heap[at] = item
    place[item] = at
