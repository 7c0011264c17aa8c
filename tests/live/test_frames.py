"""Frames between the server and a worker process."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.backends.model import TensorSpec
from stretto.backends.source import ModelSource
from stretto.core.errors import StrettoError
from stretto.live.arena import ALIGNMENT, Arena, slot_bytes
from stretto.live.frames import (
    HEAD,
    MAX_FRAME,
    Frame,
    FrameReader,
    failures_as_text,
    failures_in,
    spec_as_text,
    spec_from_text,
)
from stretto.live.shelf import ModelSpec

whole = st.integers(-(2**63), 2**63 - 1)
frames = st.builds(Frame, st.integers(0, 255), whole, whole, whole, st.binary(max_size=200))
words = st.text(min_size=1, max_size=12)
shapes = st.lists(st.integers(1, 9), max_size=3).map(tuple)
dtypes = st.sampled_from(["float32", "float64", "int64", "uint8"])
tensors = st.builds(TensorSpec, words, dtypes, st.lists(st.none() | st.integers(1, 9), max_size=3).map(tuple))
sources = st.builds(
    ModelSource,
    st.sampled_from(["onnx", "callable"]),
    st.none() | st.just(Path("/models/a b/ü.onnx")),
    st.none() | st.just("module:function"),
    st.integers(1, 1024),
    st.sampled_from(["cpu", "cuda:1"]),
    inputs=st.lists(tensors, max_size=2).map(tuple),
    outputs=st.lists(tensors, max_size=2).map(tuple),
    folder=st.none() | st.just(Path("/models/a b")),
)
specs = st.builds(ModelSpec, words, sources, words, dtypes, shapes, words, dtypes, shapes, st.integers(1, 4096))


@given(sent=st.lists(frames, max_size=8), cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_frames_come_as_they_were_sent_however_they_are_cut(sent: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(frame.encoded() for frame in sent)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    reader = FrameReader()
    heard = [frame for start, end in pairwise(edges) for frame in reader.feed(stream[start:end])]
    assert heard == sent


@given(length=st.integers(0, 2**32 - 1), rest=st.binary(min_size=HEAD.size, max_size=80))
def test_nonsense_lengths_are_refused_or_waited_for(length: int, rest: bytes) -> None:
    stream = struct.pack("<I", length) + rest
    reader = FrameReader()
    if HEAD.size <= length <= MAX_FRAME:
        heard = list(reader.feed(stream[:length]))
        assert len(heard) == (len(stream) >= length)
    else:
        with pytest.raises(StrettoError, match="nonsense"):
            list(reader.feed(stream))


@given(spec=specs)
def test_models_are_described_whole(spec: ModelSpec) -> None:
    assert spec_from_text(spec_as_text(spec)) == spec


@given(failures=st.dictionaries(st.integers(0, 4096), st.text(max_size=40)))
def test_failures_come_by_position(failures: dict[int, str]) -> None:
    assert failures_in(failures_as_text(failures)) == failures


@pytest.mark.parametrize("text", [b"[]", b"{", b"\xff", b'{"a": "b"}', b"7"])
def test_failures_that_are_nonsense(text: bytes) -> None:
    with pytest.raises(StrettoError, match="nonsense"):
        failures_in(text)


@given(several=st.lists(specs.filter(lambda spec: spec.max_batch <= 16), min_size=1, max_size=3))
def test_shared_memory_has_room_for_every_batch_and_its_answers(several: list[ModelSpec]) -> None:
    arena = Arena.made(slot_bytes(several))
    try:
        for number, spec in enumerate(several):
            for slot in (0, 1):
                taken, given = arena.inputs(slot, spec, spec.max_batch), arena.answers(slot, spec, spec.max_batch)
                taken[...], given[...] = 1, 2
                assert (taken == 1).all() and (given == 2).all(), "a batch and its answers overlap"
                assert taken.ctypes.data % ALIGNMENT == given.ctypes.data % ALIGNMENT == 0
                del taken, given
            first, second = arena.answers(0, spec, spec.max_batch), arena.inputs(1, spec, spec.max_batch)
            first[...], second[...] = 3, 4
            assert (first == 3).all(), number
            del first, second
    finally:
        arena.close()
