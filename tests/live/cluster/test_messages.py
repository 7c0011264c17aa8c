"""What workers say and are told, read back as it was written; and everything else is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core.errors import StrettoError
from stretto.live.cluster.agent import Pending, _with_gaps
from stretto.live.cluster.messages import ANSWERS, NUMBER, RUN, TENSORS, Batch, counted, head, numbered
from stretto.live.cluster.roster import Hello
from stretto.live.cluster.tensors import Brought
from stretto.live.fleet import WorkerSpec
from stretto.live.shelf import NO_TENSORS, Report

TOLD = {"name": "a", "device": "cuda:3", "threads": 2, "kind": "gpu-x", "endpoint": "tcp://h:1", "holds": ["k"]}


@given(
    number=st.integers(0, 2**64 - 1),
    wait_ns=st.integers(0, 2**62),
    key=st.text(st.characters(codec="utf-8"), max_size=50),
    parts=st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 2**32 - 1), st.integers(0, 99)), min_size=1),
)
def test_a_batch_is_read_as_it_was_written(
    number: int, wait_ns: int, key: str, parts: list[tuple[int, int, int]]
) -> None:
    batch = Batch(number, wait_ns, key, parts)
    assert Batch.read(memoryview(batch.encoded())) == batch


@given(st.binary(max_size=200))
def test_nonsense_is_refused_and_nothing_worse(content: bytes) -> None:
    for read in (
        Batch.read,
        lambda payload: head(RUN, payload),
        lambda payload: counted(TENSORS, payload),
        lambda payload: counted(ANSWERS, payload),
        lambda payload: numbered(NUMBER, payload),
    ):
        try:
            read(memoryview(content))  # type: ignore[operator]
        except StrettoError:
            continue


def test_a_batch_without_rows_is_nonsense() -> None:
    for parts in ([(1, 0, 0)], []):
        with pytest.raises(StrettoError):
            Batch.read(memoryview(Batch(1, 1, "k", parts).encoded()))


def test_rows_come_joined_or_one_by_one() -> None:
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(4, dtype=np.float32).reshape(1, 4)
    frames = [first.tobytes(), second.tobytes()]
    for given_frames in (frames, [b"".join(frames)]):
        found = Brought(b"", (2, 0, 1), given_frames, 0.0).arrays("float32", [(3,), (3,), (4,)])
        assert found[1] is None
        np.testing.assert_array_equal(found[0], first)
        np.testing.assert_array_equal(found[2], second)


def test_rows_of_one_shape() -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    for frames in ([values.tobytes()], [values[:1].tobytes(), values[1:].tobytes()]):
        found = Brought(b"", (0, 1, 3, 0), frames, 0.0).arrays("float32", [(3,)] * 4)
        assert found[0] is None and found[3] is None
        np.testing.assert_array_equal(found[1], values[:1])
        np.testing.assert_array_equal(found[2], values[1:])
    assert Brought(b"", (0, 0), [b""], 0.0).arrays("float32", [(3,), (3,)]) == [None, None]
    assert Brought(b"", (), [b""], 0.0).arrays("float32", []) == []


@pytest.mark.parametrize(
    ("rows", "frames", "shapes"),
    [
        ((2,), [bytes(20)], [(3,)]),
        ((2, 1), [bytes(40)], [(3,), (3,)]),
        ((0, 0), [bytes(12)], [(3,), (3,)]),
        ((2, 1), [bytes(24)], [(3,), (3,)]),
        ((2, 1), [bytes(24), bytes(13)], [(3,), (3,)]),
        ((2, 1), [bytes(25), bytes(12)], [(3,), (3,)]),
        ((2,), [], [(3,)]),
        ((2,), [bytes(24)], [(3,), (3,)]),
    ],
)
def test_rows_that_are_not_what_was_announced(rows: tuple[int, ...], frames: list[bytes], shapes: list) -> None:
    with pytest.raises(StrettoError):
        Brought(b"", rows, frames, 0.0).arrays("float32", shapes)


def test_a_batch_goes_on_without_rows_that_did_not_come() -> None:
    pending = Pending(Batch(1, 1, "k", [(5, 2, 0), (6, 1, 0), (5, 1, 0)]), None, set())
    pending.arrays = {0: np.zeros((2, 1)), 2: np.zeros((1, 1))}
    report = _with_gaps(pending, Report(np.array([[1.0], [2.0], [3.0]]), {1: "no"}, 5, 9))
    assert report.failures == {1: "no", 2: NO_TENSORS} and (report.started_ns, report.ended_ns) == (5, 9)
    assert report.answers is not None and report.answers[[0, 3], 0].tolist() == [1.0, 3.0]
    nothing = _with_gaps(pending, Report(None, dict.fromkeys(range(3), "no")))
    assert nothing.answers is None and nothing.failures == {0: "no", 1: "no", 2: NO_TENSORS, 3: "no"}


@pytest.mark.parametrize(
    ("place", "fits"),
    [
        (WorkerSpec("cuda", 4, 2), True),
        (WorkerSpec("cuda:0", 1, 2, "gpu-x"), True),
        (WorkerSpec("cuda:0", 1, 2, "gpu-y"), False),
        (WorkerSpec("cuda:0", 1, 1), False),
        (WorkerSpec("cpu", 1, 2), False),
    ],
)
def test_which_places_a_worker_can_take(place: WorkerSpec, fits: bool) -> None:
    assert Hello.read(TOLD).fits(place) is fits


@pytest.mark.parametrize("change", [{"threads": "x"}, {"threads": None}, {"holds": 5}, {"name": ...}])
def test_a_hello_that_is_none(change: dict[str, object]) -> None:
    told = {name: value for name, value in (TOLD | change).items() if value is not ...}
    with pytest.raises(StrettoError):
        Hello.read(told)
