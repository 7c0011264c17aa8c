"""What `stretto profile` measures of an application of several image sizes."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.adapt import Adapter
from stretto.backends.load import load_model
from stretto.backends.of_variant import model_source
from stretto.profiling.accuracy import DataError, checked
from stretto.profiling.frames import frame_bytes
from stretto.profiling.session import Request, _sent, open_session
from stretto.profiling.sizes import accuracy_at_sizes
from stretto.profiling.variant import latency_of
from stretto.repository.read import read_repository, zoo_folder

NAME = "fashion_resolution"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(zoo_folder() / NAME, folder / NAME)
    return folder


def test_resizing_is_part_of_the_latency() -> None:
    """With an adapter, every run resizes: queries go through it, all of them, at every batch size."""
    application = read_repository(f"zoo:{NAME}").applications[0]
    variant = application.variant("px08")
    assert _sent(application, variant) == (1, 28, 28)
    seen: list[int] = []

    class Noted(Adapter):
        def __call__(self, rows: np.ndarray) -> np.ndarray:
            assert rows.shape[1:] == (1, 28, 28)
            seen.append(len(rows))
            return super().__call__(rows)

    model = load_model(model_source(application, variant))
    try:
        sample = {"input": application.sample().inputs}
        adapter = Noted(((1, 28, 28),), (1, 8, 8))
        found = latency_of(model, sample, (1, 4), budget_s=0.2, adapter=adapter)
    finally:
        model.unload()
    runs = sum(point.runs for point in found.batches.values())
    assert {1, 4} <= set(seen) and len(seen) >= runs > 0


def test_an_application_of_one_size_is_measured_as_before() -> None:
    application = read_repository("zoo:fashion").applications[0]
    assert all(_sent(application, variant) is None for variant in application.variants)
    assert all(frame_bytes(application, variant) == 0 for variant in application.variants)


def test_frames_grow_with_the_size() -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'stretto[images]'")
    application = read_repository(f"zoo:{NAME}").applications[0]
    measured = [frame_bytes(application, variant) for variant in application.variants]
    assert measured == sorted(measured) and 100 < measured[0] < 200 < measured[-1] < 600
    for variant, size in zip(application.variants, measured, strict=True):
        assert {profile.frame_bytes for profile in variant.profiles} == {size}, "python -m training.sizes"


def test_the_profile_and_the_metrics_hold_it(root: Path, tmp_path: Path) -> None:
    with np.load(zoo_folder() / NAME / "sample.npz") as stored:
        arrays = {name: stored[name][:50] for name in stored.files}
    np.savez(tmp_path / "test.npz", **arrays)
    request = Request(batches=(1,), budget_s=0.1, data=tmp_path / "test.npz", kind="cpu-test")
    session = open_session(str(root / NAME), request, names=("px12",))
    found = session.measure(0)
    assert found.evaluation is not None
    assert set(found.evaluation.by_size) == set(session.repository.applications[0].input.sizes)
    again = read_repository(root / NAME).applications[0].variant("px12")
    assert again.metrics is not None
    assert again.metrics.accuracy_by_size == pytest.approx(dict(found.evaluation.by_size))
    assert again.metrics.accuracy_by_size[12, 12] == pytest.approx(found.evaluation.accuracy)
    profile = again.profile_on("cpu-test")
    assert profile is not None and profile.frame_bytes > 100


def test_data_of_another_size_is_refused() -> None:
    application = read_repository(f"zoo:{NAME}").applications[0]
    variant = application.variant("px08")
    model = load_model(model_source(application, variant))
    data = checked(np.zeros((2, 1, 8, 8), np.float32), np.zeros(2, np.int64))
    try:
        with pytest.raises(DataError, match="they must be 1×28×28, as clients send them"):
            accuracy_at_sizes(model, application, variant, data)
    finally:
        model.unload()
