"""The memory of a front end: who has which part of it, and that nobody reads or writes beside it."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core.errors import StrettoError
from stretto.live.face.memory import ALIGNMENT, FrontMemory, Room, aligned
from stretto.live.rows import Lying

SIZE = 64 * ALIGNMENT


@given(st.lists(st.one_of(st.integers(1, 12 * ALIGNMENT), st.just(0)), max_size=80), st.randoms(use_true_random=False))
def test_parts_do_not_overlap_and_all_is_free_again(sizes: list[int], random: object) -> None:
    """A size is taken; 0 gives one of those back, whichever."""
    room, taken = Room(SIZE), []
    for size in sizes:
        if size:
            start = room.take(size)
            if start >= 0:
                taken.append((start, size))
        elif taken:
            room.give(*taken.pop(random.randrange(len(taken))))  # type: ignore[attr-defined]
        spans = sorted((start, start + aligned(size)) for start, size in taken)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert all(start >= 0 and end <= SIZE for start, end in spans)
        assert room.free == SIZE - sum(end - start for start, end in spans)
    for start, size in taken:
        room.give(start, size)
    assert room.take(SIZE) == 0  # holes that touch are one
    assert room.take(1) == -1


def test_what_is_not_inside_is_refused() -> None:
    memory = FrontMemory.made(SIZE)
    memory.array(SIZE - 8, "float64", (1,))[:] = 1.0
    for place, dtype, shape in (
        (SIZE, "uint8", (1,)),
        (-8, "float64", (1,)),
        (4, "float64", (1,)),
        (0, "u1", (1 << 62,)),
    ):
        with pytest.raises(StrettoError, match="memory that it does not have"):
            memory.array(place, dtype, shape)


def test_both_sides_see_the_same_and_neither_can_cut_it_short() -> None:
    ours = FrontMemory.made(SIZE)
    theirs = FrontMemory(os.dup(ours.descriptor), SIZE)
    ours.array(64, "float32", (2, 3))[...] = np.arange(6).reshape(2, 3)
    lying = Lying(0, 1, 0, (2, 3), "float32", 0, theirs, 64)
    np.testing.assert_array_equal(lying[1:2].array(), [[3, 4, 5]])
    with pytest.raises(PermissionError):
        os.ftruncate(theirs.descriptor, 0)


def test_it_goes_with_the_last_that_looks_at_it() -> None:
    memory = FrontMemory.made(SIZE)
    descriptor, array = memory.descriptor, memory.array(0, "uint8", (4,))
    del memory
    with pytest.raises(OSError):
        os.fstat(descriptor)
    array[:] = 7  # the batch that still runs
    assert array.sum() == 28
