"""Queries of several image sizes: in one batch, in threads and in worker processes, with real models."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.backends.adapt import Adapter
from stretto.backends.model import BackendError
from stretto.core.outcome import Outcome
from stretto.core.resize import resized
from stretto.live.arena import SLOTS, Arena, fill, runs_of, slot_bytes
from stretto.live.executors import executor_factory
from stretto.live.frames import key_in, run_as_text, runs_in, spec_as_text, spec_from_text
from stretto.live.shelf import Shelf, gather
from stretto.repository.read import read_repository
from stretto.repository.sized_accuracy import accuracy_by_size
from tests.live.real import asked, of_zoo, sample, serving, within

NAME = "fashion_resolution"
SIZES = (8, 12, 16, 20, 24, 28)
LIMIT_S = 120.0


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_one_batch_holds_several_sizes(kind: str) -> None:
    """Each query gets the answer that it gets alone, and they did run together."""
    what = of_zoo(NAME)
    images = sample(NAME, 8)
    sent = [resized(images[place : place + 1 + place % 2], size, size) for place, size in enumerate((*SIZES, 8))]

    async def work() -> None:
        async with serving(what, executor_factory(kind)) as engine:
            for variant in ("px08", "px16", "px24"):
                alone = [await asked(engine, rows, NAME, pinned=variant) for rows in sent]
                first = asked(engine, sent[0], NAME, pinned=variant)  # holds the worker while the others come
                waiting = [asked(engine, rows, NAME, pinned=variant) for rows in sent]
                assert (await first).outcome is Outcome.ON_TIME
                together = [await request for request in waiting]
                assert max(request.batch for request in together) >= 4  # of one size there are three at most
                for one, other in zip(alone, together, strict=True):
                    assert other.outcome is Outcome.ON_TIME, other.problem
                    np.testing.assert_allclose(other.answers, one.answers, rtol=1e-4, atol=1e-5)

    within(LIMIT_S, work)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_answers_are_those_of_the_resized_image(kind: str) -> None:
    what = of_zoo(NAME)
    images = sample(NAME, 4)

    async def work() -> None:
        async with serving(what, executor_factory(kind)) as engine:
            for size in SIZES:
                sent = resized(images, size, size)
                by_worker = await asked(engine, sent, NAME, pinned="px20")
                by_hand = await asked(engine, resized(sent, 20, 20), NAME, pinned="px20")
                np.testing.assert_allclose(by_worker.answers, by_hand.answers, rtol=1e-4, atol=1e-5)

    within(LIMIT_S, work)


def test_a_small_image_is_worth_less_and_demands_know_it() -> None:
    what = of_zoo(NAME)
    files = read_repository(f"zoo:{NAME}").applications[0]
    worth = accuracy_by_size(files, files.variant("px24"))
    images = sample(NAME, 1)

    async def work() -> None:
        async with serving(what) as engine:
            small = await asked(engine, resized(images, 8, 8), NAME, pinned="px24")
            whole = await asked(engine, images, NAME, pinned="px24")
            assert small.accuracy_sum == worth[8, 8] < worth[28, 28] == whole.accuracy_sum
            best = await asked(engine, resized(images, 8, 8), NAME, min_accuracy=0.9)
            assert best.variants == ["px08"]

    within(LIMIT_S, work)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), min_size=1, max_size=12), st.integers(0, 1))
def test_shared_memory_brings_every_row_back(parts: list[tuple[int, int]], slot: int) -> None:
    spec = replace(of_zoo(NAME).specs[0], max_batch=36)
    random = np.random.default_rng(1)
    rows = [random.random((count, 1, SIZES[shape], SIZES[shape])).astype(np.float32) for count, shape in parts]
    arena = Arena.made(slot_bytes((spec,)))
    try:
        runs = runs_of(rows, spec)
        assert all(one[1] != other[1] for one, other in pairwise(runs))
        fill(arena.parts(slot, spec, runs), rows)
        heard_text = run_as_text("a/b@1", runs)
        key, heard = key_in(heard_text), runs_in(heard_text)
        assert (key, heard) == ("a/b@1", runs)
        back = [row for part in arena.parts(slot, spec, heard) for row in part]
        answers = arena.answers(slot, spec, spec.max_batch)
        answers[...] = 7  # does not lie on the queries
        for found, given_row in zip(back, (row for part in rows for row in part), strict=True):
            np.testing.assert_array_equal(found, given_row)
        del back, answers, found
    finally:
        arena.close()


def test_there_is_room_for_the_largest() -> None:
    spec = of_zoo(NAME).specs[0]
    assert spec.input_bytes == 4 * 28 * 28
    assert len(spec.input_shapes) == 6
    assert slot_bytes((spec,)) >= spec.max_batch * spec.input_bytes
    assert SLOTS == 2


def test_one_size_needs_no_runs() -> None:
    spec = of_zoo("fashion").specs[0]
    assert spec.input_shapes == ()
    assert runs_of([np.zeros((2, 1, 28, 28), np.float32)], spec) == []
    assert (key_in(run_as_text("a/b@1")), runs_in(run_as_text("a/b@1"))) == ("a/b@1", [])


def test_a_spec_crosses_the_socket() -> None:
    for spec in (*of_zoo(NAME).specs, *of_zoo("fashion").specs):
        assert spec_from_text(spec_as_text(spec)) == spec


def test_models_are_loaded_anew_where_other_sizes_are_allowed() -> None:
    keys = {spec.key for spec in of_zoo(NAME).specs}
    assert all("+" in key for key in keys)


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(SIZES)), min_size=1, max_size=10))
def test_gathered_in_order(parts: list[tuple[int, int]]) -> None:
    random = np.random.default_rng(2)
    rows = [random.random((count, 1, size, size)).astype(np.float32) for count, size in parts]
    adapter = Adapter(tuple((1, size, size) for size in SIZES), (1, 16, 16))
    into = np.zeros((sum(map(len, rows)), 1, 16, 16), np.float32)
    gather(rows, adapter, into)
    np.testing.assert_allclose(into, np.concatenate([resized(part, 16, 16) for part in rows]), atol=1e-6)


def test_a_shape_that_cannot_be_adapted_is_told_when_the_model_is_loaded() -> None:
    spec = of_zoo(NAME).specs[0]
    with pytest.raises(BackendError, match="only images are made larger or smaller"):
        Shelf().load(replace(spec, input_shapes=((3, 28, 28), (1, 28, 28))))
