"""A failing batch names the query at fault, found with few further runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stretto.backends.callable import CallableModel
from stretto.backends.failure import run_batch
from stretto.backends.load import load_model
from stretto.backends.model import BackendError, BatchFailure, TensorSpec
from stretto.backends.padded import Padded
from stretto.backends.source import ModelSource
from tests.backends.onnx_models import lookup

TAKES = (TensorSpec("x", "float32", (1,)),)


class Picky:
    """Fails on negative numbers, and counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        self.calls += 1
        if (batch < 0).any():
            raise ValueError("a number below zero")
        return batch


def numbers(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array(values, np.float32).reshape(-1, 1)}


@pytest.mark.parametrize("culprit", range(8))
def test_one_bad_query_is_found_wherever_it_stands(culprit: int) -> None:
    picky = Picky()
    values = np.ones(8)
    values[culprit] = -1
    with pytest.raises(BatchFailure, match=f"a number below zero.*query {culprit} of the batch") as caught:
        run_batch(CallableModel(picky, TAKES), numbers(*values))
    assert caught.value.position == culprit
    assert picky.calls <= 1 + 2 * 3


def test_of_several_bad_queries_the_first_is_named() -> None:
    with pytest.raises(BatchFailure) as caught:
        run_batch(CallableModel(Picky(), TAKES), numbers(1, 1, 1, -1, 1, -1, 1))
    assert caught.value.position == 3


def test_a_batch_of_one_is_at_fault_itself() -> None:
    picky = Picky()
    with pytest.raises(BatchFailure) as caught:
        run_batch(CallableModel(picky, TAKES), numbers(-1))
    assert caught.value.position == 0 and picky.calls == 1


def test_nobody_is_blamed_where_each_half_passes() -> None:
    def small_only(batch: np.ndarray) -> np.ndarray:
        if len(batch) > 4:
            raise MemoryError("too large")
        return batch

    with pytest.raises(BatchFailure, match="MemoryError: too large") as caught:
        run_batch(CallableModel(small_only, TAKES), numbers(*range(8)))
    assert caught.value.position is None


def test_what_does_not_fit_is_no_failure_of_a_query() -> None:
    picky = Picky()
    with pytest.raises(BackendError, match="must have shape"):
        run_batch(CallableModel(picky, TAKES), {"x": np.zeros((2, 3), np.float32)})
    assert picky.calls == 0


def test_a_real_model_blames_the_query_too(tmp_path: Path) -> None:
    model = load_model(ModelSource(file=lookup(tmp_path / "lookup.onnx")))
    with pytest.raises(BatchFailure, match=r"idx=77 .*query 5 of the batch"):
        run_batch(model, {"number": np.array([0, 1, 2, 3, 4, 77, 0, 1])})
    assert len(run_batch(model, {"number": np.arange(5)})["row"]) == 5


@pytest.mark.parametrize("culprit", range(7))
def test_a_padded_model_blames_it_where_the_batch_lies_in_its_own_buffers(tmp_path: Path, culprit: int) -> None:
    """Rows of a half that ran were copied over those that were still to be looked at."""
    model = Padded(load_model(ModelSource(file=lookup(tmp_path / "lookup.onnx", rows=50))))
    model.prepare((8,))
    batch = model.buffers(7)
    batch["number"][:] = np.arange(7)
    batch["number"][culprit] = 99
    with pytest.raises(BatchFailure, match="idx=99") as caught:
        run_batch(model, batch)
    assert caught.value.position == culprit
