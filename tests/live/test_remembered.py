"""Models that passed once are known at the next start: the very same ones, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stretto.backends.source import ModelSource
from stretto.live import remembered
from stretto.live.remembered import Remembered
from stretto.live.shelf import ModelSpec
from tests.backends.onnx_models import linear
from tests.live.real import code


def spec_of(source: ModelSource) -> ModelSpec:
    return ModelSpec("app/v@1", source, "x", "float32", (2,), "y", "float32", (2,), 8)


def test_the_same_content_is_known_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache"
    (tmp_path / "a.onnx").write_bytes(b"one")
    (tmp_path / "b.onnx").write_bytes(b"one")
    (tmp_path / "c.onnx").write_bytes(b"two")
    first, copy, other = (
        spec_of(ModelSource(file=tmp_path / f"{name}.onnx", folder=tmp_path / name)) for name in "abc"
    )
    made = Remembered(folder)
    assert not made.has(first)
    made.add(first)
    later = Remembered(folder)
    assert later.has(first) and later.has(copy) and not later.has(other)
    assert not later.has(replace(first, source=replace(first.source, threads=2))) and not later.has(
        replace(first, max_batch=9)
    )
    assert not later.has(spec_of(ModelSource(file=tmp_path / "gone.onnx")))
    with monkeypatch.context() as patch:
        patch.setattr(remembered, "_libraries", lambda: ["another onnxruntime"])
        assert not later.has(first)
    later.discard(copy)
    assert not made.has(first)


def test_a_model_with_other_weights_beside_it_is_not_known(tmp_path: Path) -> None:
    """New weights used to be served without a trial."""
    file = linear(tmp_path / "model.onnx", external="weights.bin")
    made = Remembered(tmp_path / "cache")
    made.add(spec_of(ModelSource(file=file)))
    assert made.has(spec_of(ModelSource(file=file)))
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes()[::-1])
    assert not made.has(spec_of(ModelSource(file=file)))


def test_code_is_never_taken_to_be_known(tmp_path: Path) -> None:
    made = Remembered(tmp_path)
    made.add(spec_of(code("double")))
    assert not made.has(spec_of(code("double"))) and list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "a.onnx").write_bytes(b"one")
    made, spec = Remembered(tmp_path / "file" / "below"), spec_of(ModelSource(file=tmp_path / "a.onnx"))
    made.add(spec)
    assert not made.has(spec)
    made.discard(spec)


def test_the_oldest_give_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST", 3)
    made = Remembered(tmp_path / "cache")
    for number in range(6):
        (tmp_path / f"{number}.onnx").write_text(str(number))
        made.add(spec_of(ModelSource(file=tmp_path / f"{number}.onnx")))
    assert len(list((tmp_path / "cache").iterdir())) == 3
