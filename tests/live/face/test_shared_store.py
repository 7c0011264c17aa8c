"""Where tensors of a front end lie: parts of one shape are used again, and never by two requests at once."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.live.face import shared_store
from stretto.live.face.memory import ALIGNMENT, FrontMemory
from stretto.live.face.shared_store import SharedStore
from stretto.live.requests import Request
from stretto.repository.application import ApplicationFiles
from stretto.repository.read import read_repository

MEMORY = 1 << 17


@cache
def described() -> tuple[ApplicationFiles, ...]:
    """Two applications, and the first one as it is described anew: with shorter rows and longer answers."""
    files = {each.name: each for each in read_repository("zoo").applications}
    first = files["fashion"]
    anew = replace(first, input=replace(first.input, shape=(3,)), output=replace(first.output, shape=(99,)))
    return first, files["mnist"], anew


def asked(files: ApplicationFiles, rows: int, value: float) -> Request:
    return Request(files.name, np.full((rows, *files.input.shape), value, np.float32), 10**9, lambda ended: None)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=60),
    st.randoms(use_true_random=False),
    st.integers(1, 3),
)
def test_requests_have_their_own_parts_and_all_is_free_again(
    steps: list[tuple[int, int]], random: object, most_shapes: int
) -> None:
    """Requests of so many rows by one of three descriptions, each with values of its own; 3 ends one, whichever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_store, "MOST_SHAPES", most_shapes)
        patch.setattr(shared_store, "SPARE_BYTES", 20_000)
        store, held = SharedStore(FrontMemory.made(MEMORY)), dict[int, tuple[Request, int, int]]()
        for number, (which, rows) in enumerate(steps):
            if which == 3:
                if held:
                    ended = random.choice(list(held))  # type: ignore[attr-defined]
                    store.drop(ended)
                    store.drop(ended)  # the second time says nothing
                    del held[ended]
                continue
            files = described()[which]
            request = asked(files, rows, number)
            inputs = request.inputs
            place = store.put(number, request, files)
            if place is None:
                assert store.free < MEMORY, "there is room for one"
                continue
            assert request.inputs is not inputs and place % ALIGNMENT == 0
            answers = store.answers(number, request, files)
            assert answers is not None and answers.shape == (rows, *files.output.shape)
            behind = -(-request.inputs.nbytes // ALIGNMENT) * ALIGNMENT
            held[number] = request, place, place + behind + answers.nbytes
            store._memory.array(place + behind, answers.dtype, answers.shape)[...] = -number  # by a worker
        spans = sorted((start, end) for _, start, end in held.values())
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert all(start >= 0 and end <= MEMORY for start, end in spans)
        for number, (request, _, _) in held.items():
            assert (np.asarray(request.inputs) == number).all()
            assert (store.answers(number, request, described()[0]) == -number).all()
            store.drop(number)
        assert store.free == MEMORY and not store._parts


def test_a_part_is_used_again_and_what_was_answered_stays() -> None:
    files = described()[0]
    store = SharedStore(FrontMemory.made(MEMORY))
    first, second = asked(files, 1, 1.0), asked(files, 1, 2.0)
    place = store.put(0, first, files)
    answers = store.answers(0, first, files)
    store.drop(0)
    assert answers is not None
    answers[...] = 5.0
    assert store.put(1, second, files) == place
    again = store.answers(1, second, files)
    assert again is not None and not again.any() and (answers == 5.0).all(), "an answer is its request's own"


def test_what_waits_for_requests_of_one_shape_is_room_for_another() -> None:
    small, large = described()[0], described()[1]
    store = SharedStore(FrontMemory.made(MEMORY))
    numbers = itertools.count()
    held = list(itertools.takewhile(lambda n: store.put(n, asked(small, 1, 0.0), small) is not None, numbers))
    assert len(held) > 10
    assert store.put(next(numbers), asked(large, 20, 0.0), large) is None
    for number in held:
        store.drop(number)
    assert store.free == MEMORY
    assert store.put(next(numbers), asked(large, 20, 0.0), large) is not None
