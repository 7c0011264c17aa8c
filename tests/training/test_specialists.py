"""Specialists and networks of one sensor: what they are trained with, and that the export keeps what they read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.extras
torch = pytest.importorskip("torch")

from training.networks import Scaled, fold, of_sensor, plain  # noqa: E402
from training.tasks import WINDOW, Activity, Change  # noqa: E402

LENGTH, KINDS = WINDOW + 20, 7


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """One series of each exercise by each of the ten subjects."""
    labels, subjects = (grid.ravel() for grid in np.meshgrid(np.arange(KINDS), np.arange(1, 11)))
    values = np.random.default_rng(1).normal(size=(len(labels) * LENGTH, 6)).astype(np.float32)
    file = tmp_path / "activity.npz"
    np.savez(file, values=values, lengths=np.full(len(labels), LENGTH), labels=labels, subjects=subjects)
    return file


def test_a_specialist_learns_from_its_own_classes_and_is_tested_with_all(recordings: Path) -> None:
    whole = Activity(recordings, Change(), "cpu", (8, 9), (7, 10))
    task = Activity(recordings, Change(), "cpu", (8, 9), (7, 10), only=(3, 4))
    assert set(task.labels.tolist()) == {3, 4} and set(whole.labels.tolist()) == set(range(KINDS))
    assert len(task.starts) == len(task.labels) == len(whole.labels) * 2 // KINDS
    _, drawn = task.draw(task.order()[:50])
    assert set(drawn.tolist()) == {3, 4}
    for split in ("validation", "test"):
        assert set(getattr(task, split)[1].tolist()) == set(range(KINDS))


@pytest.mark.parametrize("sensor", [(0, 3), (3, 6)])
def test_the_scale_of_a_sensor_is_folded_into_its_own_channels(sensor: tuple[int, int]) -> None:
    torch.manual_seed(2)
    network = of_sensor(*sensor, plain(3, (4,), (2,), KINDS, size=5, dimensions=1))
    scaled = Scaled(network, torch.tensor([1.0, 2.0, 3.0, 40.0, 50.0, 60.0]).view(1, 6, 1)).eval()
    inputs = torch.randn(5, 6, WINDOW)
    with torch.no_grad():
        torch.testing.assert_close(fold(scaled)(inputs), scaled(inputs), atol=1e-4, rtol=1e-4)
        other = inputs.clone()
        other[:, [channel for channel in range(6) if not sensor[0] <= channel < sensor[1]]] = 9.0
        torch.testing.assert_close(scaled(other), scaled(inputs))
