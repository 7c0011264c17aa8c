"""The ladder of batch sizes, models that are padded to it, and profiles that are a staircase."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.backends.load import load_model
from stretto.backends.model import Array, BackendError, Batch, BatchFailure, TensorSpec
from stretto.backends.padded import Padded, padded
from stretto.backends.rungs import WASTE, rung_of, rungs
from stretto.backends.source import ModelSource
from stretto.core.profile import LatencyProfile, Quantile
from tests.backends.onnx_models import lookup


def test_the_ladder() -> None:
    assert rungs(64) == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
    assert rungs(1) == (1,) and rungs(5) == (1, 2, 3, 4, 5)
    assert rung_of(5, rungs(64)) == 6 and rung_of(64, rungs(64)) == 64 and rung_of(65, rungs(64)) == 0


@given(st.integers(1, 4096), st.integers(1, 4096))
def test_padding_wastes_at_most_what_is_stated(first: int, second: int) -> None:
    batch, largest = sorted((first, second))
    rung = rung_of(batch, rungs(largest))
    assert batch <= rung <= largest and 1 - batch / rung <= WASTE


class Counting:
    """A real little model in numpy, which tells the sizes that it ran."""

    fixed_batch = None
    memory_bytes = 0

    def __init__(self) -> None:
        self.inputs = (TensorSpec("x", "float32", (3,)),)
        self.outputs = (TensorSpec("sum", "float32", ()),)
        self.ran: list[int] = []
        self._room = np.zeros((64, 3), np.float32)

    def prepare(self, batches: object) -> None:
        self.prepared = tuple(batches)  # type: ignore[call-overload]

    def buffers(self, batch: int) -> dict[str, Array]:
        return {"x": self._room[:batch]}

    def run(self, inputs: Batch) -> dict[str, Array]:
        self.ran.append(len(inputs["x"]))
        return {"sum": inputs["x"].sum(1)}

    def unload(self) -> None: ...


def test_batches_run_padded_and_answers_are_their_own() -> None:
    inside = Counting()
    model = Padded(inside)
    model.prepare((20, 1))
    assert inside.prepared == rungs(20)
    for count in (1, 5, 20):
        rows = np.random.default_rng(count).random((count, 3), np.float32)
        np.testing.assert_allclose(model.run({"x": rows})["sum"], rows.sum(1), rtol=1e-6)
    assert inside.ran == [1, 6, 20]
    held = model.buffers(7)
    held["x"][...] = 2
    assert model.run(held)["sum"].tolist() == [6.0] * 7 and inside.ran[-1] == 8
    with pytest.raises(BackendError, match="must have shape"):
        model.run({"x": np.zeros((2, 4), np.float32)})


def test_a_bad_query_does_not_stay_behind_the_next_batch(tmp_path: Path) -> None:
    model = Padded(load_model(ModelSource(file=lookup(tmp_path / "lookup.onnx", rows=50))))
    model.prepare((8,))
    with pytest.raises(BatchFailure, match="idx=99"):
        model.run({"number": np.array([0, 1, 2, 3, 4, 99])})
    assert model.run({"number": np.arange(5)})["row"][:, 0].tolist() == [0, 2, 4, 6, 8]


def test_only_models_on_a_gpu_are_padded() -> None:
    model = Counting()
    assert padded(model, "cpu") is model
    assert isinstance(padded(model, "cuda:0"), Padded)


def test_a_profile_of_rungs_is_a_staircase() -> None:
    points = {batch: {"mean": float(batch), "p95": 2.0 * batch} for batch in (1, 2, 4, 8)}
    stairs = LatencyProfile.measured(points, padded=True)
    assert [stairs.latency_ns(batch, Quantile.MEAN) // 1_000_000 for batch in range(1, 9)] == [1, 2, 4, 4, 8, 8, 8, 8]
    assert stairs.largest_batch_within(9e6, Quantile.P95) == 4, "a whole rung fits, or none of it"
    cut = LatencyProfile.measured(points, 5, padded=True)
    assert cut.max_batch == 5 and cut.latency_ns(5, Quantile.MEAN) == 8_000_000, "it still runs as the next rung"
