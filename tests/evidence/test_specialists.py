"""The zoo's specialists: what their files say of them, and what evidence makes of them (SneakPeek, equation 9)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.load import load_model
from stretto.backends.of_variant import model_source
from stretto.cli.run import run_scenario
from stretto.cli.scenario.read import read_scenario
from stretto.evidence.load import open_evidence
from stretto.repository.application import ApplicationFiles
from stretto.repository.read import read_repository

pytest.importorskip("faiss", reason="neighbours are searched with Faiss, the extra called evidence")
NAME = "activity_specialists"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "specialists.toml"
KNOWS = {"raising": (1, 2), "turning": (3, 4), "pulling": (0, 5, 6)}
SENSORS = {"acceleration": slice(0, 3), "rotation": slice(3, 6), "both": slice(0, 6)}


@pytest.fixture(scope="module")
def files() -> ApplicationFiles:
    return read_repository(f"zoo:{NAME}").application(NAME)


def answers(files: ApplicationFiles, variant: str, inputs: np.ndarray) -> np.ndarray:
    model = load_model(model_source(files, files.variant(variant)))
    batches = np.array_split(inputs, -(-len(inputs) // 32))
    found = [model.run({"input": np.ascontiguousarray(batch)})["probabilities"].argmax(1) for batch in batches]
    model.unload()
    return np.concatenate(found)


def test_a_specialist_knows_its_own_classes_and_no_others(files: ApplicationFiles) -> None:
    assert set(KNOWS) | set(SENSORS) == {variant.name for variant in files.variants}
    for name, known in KNOWS.items():
        metrics = files.variant(name).metrics
        assert metrics is not None
        of_known = [value for label, value in enumerate(metrics.recall) if label in known]
        assert min(of_known) > 0.7 and sum(metrics.recall) == pytest.approx(sum(of_known), abs=0.05)
        tested = np.array(metrics.confusion)
        assert metrics.accuracy == pytest.approx(np.trace(tested) / tested.sum(), abs=1e-6)


@pytest.mark.parametrize("name", SENSORS)
def test_a_variant_of_one_sensor_does_not_read_the_other(files: ApplicationFiles, name: str) -> None:
    inputs = files.sample().inputs[:64].astype(np.float32)
    for sensor in (slice(0, 3), slice(3, 6)):
        disturbed = inputs.copy()
        disturbed[:, sensor] = 0.3
        reads_it = sensor.start >= SENSORS[name].start and sensor.stop <= SENSORS[name].stop
        assert np.array_equal(answers(files, name, disturbed), answers(files, name, inputs)) is not reads_it


def test_evidence_makes_cheap_specialists_as_good_as_the_network_that_reads_both_sensors(
    files: ApplicationFiles,
) -> None:
    """Each query goes to the cheap variant with the largest θ·recall: evidence is often wrong about the class, but not
    about who knows it.
    """
    sample = files.sample()
    inputs, cheap = sample.inputs.astype(np.float32), [each for each in files.variants if each.name != "both"]
    theta = open_evidence(files).posterior(inputs)
    recall = np.array([variant.metrics.recall for variant in cheap if variant.metrics is not None])
    right = np.array([answers(files, variant.name, inputs) == sample.labels for variant in cheap])
    places = np.arange(len(inputs))
    chosen = (theta @ recall.T).argmax(1)
    by_evidence = right[chosen, places].mean()
    alone = right.mean(axis=1).max()
    both = (answers(files, "both", inputs) == sample.labels).mean()
    assert by_evidence > both - 0.01 and by_evidence > alone + 0.05
    assert (theta.argmax(1) == sample.labels).mean() < 0.85, "the class itself is not known well"


def test_the_example_shows_what_evidence_earns() -> None:
    scenario = replace(read_scenario(EXAMPLE), seconds=10.0)
    assert scenario.planner.options == {"data_aware": True}
    runs = {name: run_scenario(scenario.with_planner(name)).summary for name in ("sneakpeek", "priced", "grouped")}
    assert all(run.on_time_rate > 0.97 for run in runs.values())
    for name in ("sneakpeek", "priced"):
        assert runs[name].correct_on_time > runs["grouped"].correct_on_time + 0.03
