"""Batch sizes that are made ready ahead on a GPU; every other batch runs padded to the next of them.

1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, …: powers of two and what lies halfway. A batch that just misses a rung is
padded by less than a third of what runs, and by a seventh on average.
"""

from __future__ import annotations

from bisect import bisect_left

WASTE = 1 / 3  # of a padded batch, at most


def rungs(largest: int) -> tuple[int, ...]:
    """Up to `largest`, which is one of them."""
    ladder = [1]
    while ladder[-1] < largest:
        last = ladder[-1]
        is_power = last & (last - 1) == 0
        ladder.append(last + max(1, last // 2 if is_power else last // 3))
    return (*(rung for rung in ladder if rung < largest), largest)


def rung_of(batch: int, ladder: tuple[int, ...]) -> int:
    """The smallest that holds the batch; 0 where none does."""
    place = bisect_left(ladder, batch)
    return ladder[place] if place < len(ladder) else 0
