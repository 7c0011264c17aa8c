"""Building evidence, choosing k, storing it, and opening it again."""

from __future__ import annotations

import json
import logging
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.core.evidence import jeffreys, posterior_mean
from stretto.evidence import load as loading
from stretto.evidence.build import Built, Named, build_evidence, measured_again, split, with_k
from stretto.evidence.error import AtK, Errors, halves, measure_errors
from stretto.evidence.load import load_evidence, open_evidence
from stretto.evidence.model import NO_VOTE, tallied
from stretto.evidence.scores import score_matrix
from stretto.repository.application import ApplicationFiles
from stretto.repository.evidence import EvidenceSettings
from stretto.repository.read import inspect_repository, read_repository
from stretto.repository.sample import Sample
from stretto.repository.stored_evidence import write_description, write_evidence
from tests.evidence.data import CENTRES, clouds, with_metrics
from tests.repository.build import APP

pytest.importorskip("faiss", reason="neighbours are searched with Faiss, the extra called evidence")
RAW = EvidenceSettings(features="raw", dimensions=None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_metrics(tmp_path / "models").app


def read(folder: Path) -> ApplicationFiles:
    return read_repository(folder).applications[0]


def made(folder: Path, settings: EvidenceSettings = RAW, rows: int = 300) -> Built:
    return build_evidence(read(folder), Named("train.npz", clouds(rows)), settings=settings)


def stored(folder: Path, settings: EvidenceSettings = RAW, rows: int = 300) -> Built:
    built = made(folder, settings, rows)
    write_evidence(folder, built.stored, built.content)
    return built


def brute_force_counts(data: Sample, inputs: np.ndarray, k: int) -> np.ndarray:
    distances = np.square(inputs.reshape(len(inputs), 1, -1) - data.inputs.reshape(1, len(data), -1)).sum(axis=2)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :k]
    return np.stack([np.bincount(data.labels[row], minlength=3) for row in nearest])


def test_counts_are_the_labels_of_the_nearest(folder: Path) -> None:
    """Numbers that bytes hold exactly, so that brute force over the very same data must agree."""
    random = np.random.default_rng(1)
    inputs = random.integers(0, 256, (200, 1, 4)).astype(np.float32)
    inputs[0], inputs[1] = 0, 255
    data = Sample(inputs, random.integers(0, 3, 200))
    back = Sample(random.integers(0, 256, (20, 1, 4)).astype(np.float32), random.integers(0, 3, 20))
    built = build_evidence(read(folder), Named("a", data), Named("b", back), settings=replace(RAW, index="flat", k=5))
    queries = random.uniform(0, 256, (50, 1, 4)).astype(np.float32)
    np.testing.assert_array_equal(built.evidence.counts(queries), brute_force_counts(data, queries, 5))
    np.testing.assert_allclose(
        built.evidence.posterior(queries), posterior_mean(brute_force_counts(data, queries, 5), jeffreys(3))
    )
    assert built.evidence.counts(queries).dtype == np.int64


def test_a_round_trip_gives_the_same_evidence(folder: Path) -> None:
    built = stored(folder)
    opened = load_evidence(read(folder))
    assert opened is not None
    queries = clouds(60, seed=5).inputs
    np.testing.assert_array_equal(opened.posterior(queries), built.evidence.posterior(queries))
    np.testing.assert_array_equal(opened.answer(queries), built.evidence.answer(queries))
    assert (opened.k, opened.accuracy) == (built.stored.k, pytest.approx(built.evidence.accuracy, abs=1e-6))
    assert read(folder).stored_evidence == replace(
        built.stored,
        tried=tuple(
            replace(
                one,
                accuracy=round(one.accuracy, 6),
                error=round(one.error, 6),
                recall=tuple(round(value, 6) for value in one.recall),
            )
            for one in built.stored.tried
        ),
    )


def test_the_same_data_give_the_same_files(folder: Path) -> None:
    first, second = made(folder), made(folder)
    assert (first.stored, first.content) == (second.stored, second.content)


@pytest.mark.parametrize(
    "settings",
    [
        RAW,
        EvidenceSettings(dimensions=2),
        EvidenceSettings(features="layer", variant="good", layer="logits", dimensions=None),
        EvidenceSettings(features="layer", variant="good", layer="logits", dimensions=2),
        replace(RAW, index="hnsw"),
        replace(RAW, index="ivf"),
    ],
    ids=["raw", "projection", "layer", "projected layer", "hnsw", "ivf"],
)
def test_all_features_and_indexes_know_clouds_apart(folder: Path, settings: EvidenceSettings) -> None:
    stored(folder, settings)
    opened = open_evidence(read(folder))
    test = clouds(300, seed=9)
    right = float((opened.answer(test.inputs) == test.labels).mean())
    assert right > 0.9 and opened.accuracy == pytest.approx(right, abs=0.1)
    assert len(opened.recall) == 3 and all(value > 0.7 for value in opened.recall)


def test_what_it_is_profiled_at_is_measured_on_data_outside_the_index(folder: Path) -> None:
    """Labels without any sense: an index that held the test data would be right about them with k = 1."""
    random = np.random.default_rng(2)
    data = Sample(random.standard_normal((900, 1, 4)).astype(np.float32), random.integers(0, 3, 900))
    built = build_evidence(read(folder), Named("noise", data), settings=replace(RAW, k=1))
    assert built.stored.vectors == 810 and built.stored.held_out.queries == 90 and built.stored.data.queries == 900
    assert built.evidence.accuracy < 0.6


def test_k_is_chosen_by_the_error_on_the_held_out_part(folder: Path) -> None:
    application = read(folder)
    back, data = clouds(200, seed=3, spread=2.0), clouds(600, seed=4, spread=2.0)
    built = build_evidence(application, Named("a", data), Named("b", back), settings=RAW)
    _, scores, _ = score_matrix(application)
    errors = measure_errors(built.evidence.witness, back, [one.k for one in built.stored.tried], jeffreys(3), scores)
    assert built.stored.k == errors.best_k
    assert [one.error for one in built.stored.tried] == [at.error for at in errors.by_k.values()]
    by_hand = posterior_mean(tallied(built.evidence.witness.votes(back.inputs, 5), 3), jeffreys(3)) @ scores.T
    assert errors.by_k[5].error == pytest.approx(np.abs(by_hand - scores.T[back.labels]).mean())


def test_of_hardly_different_errors_the_smallest_k_is_taken() -> None:
    by_k = {1: AtK(0.2, 1), 5: AtK(0.104, 1), 10: AtK(0.1, 1), 20: AtK(0.101, 1)}
    assert Errors(10, None, by_k).best_k == 5
    assert Errors(10, None, by_k | {5: AtK(0.106, 1)}).best_k == 10


def test_without_recall_k_is_chosen_by_the_classes_themselves(tmp_path: Path) -> None:
    built = with_metrics(tmp_path / "models")
    for name in ("fast", "good"):
        built.metrics(name, accuracy=0.8)
    assert made(built.app).stored.k > 1


def test_accuracy_is_of_the_test_data_where_there_are_some(folder: Path) -> None:
    wrong = clouds(90, seed=6)
    test = Sample(wrong.inputs, (wrong.labels + 1) % 3)
    built = build_evidence(read(folder), Named("a", clouds(300)), None, Named("test", test), RAW)
    assert built.evidence.accuracy < 0.2 and built.stored.measured_on.name == "test"


@pytest.mark.parametrize(
    ("data", "settings", "says"),
    [
        (clouds(1), RAW, "1 labelled queries are too few"),
        (clouds(40), replace(RAW, k=41), "k is 41, but there are only 36"),
        (Sample(np.full((40, 1, 4), np.inf, np.float32), np.zeros(40, np.int64)), RAW, "not all finite"),
        (clouds(40), EvidenceSettings(model="variant", variant="fast"), "needs no building"),
    ],
)
def test_what_cannot_be_built(folder: Path, data: Sample, settings: EvidenceSettings, says: str) -> None:
    with pytest.raises(StrettoError, match=says):
        build_evidence(read(folder), Named("data", data), settings=settings)


def test_equal_inputs_are_stored_too(folder: Path) -> None:
    data = Sample(np.ones((40, 1, 4), np.float32), np.arange(40) % 3)
    built = build_evidence(read(folder), Named("data", data), settings=RAW)
    assert np.isfinite(built.evidence.posterior(np.ones((1, 1, 4), np.float32))).all()


def test_split_keeps_every_query_once() -> None:
    sample = clouds(100)
    kept, back = split(sample, 0.1, 0)
    assert (len(kept), len(back)) == (90, 10)
    both = np.concatenate([kept.inputs, back.inputs]).reshape(100, 4)
    assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, sample.inputs.reshape(100, 4).tolist()))
    first, second = halves(clouds(9))
    assert (len(first), len(second)) == (5, 4)


def test_a_variant_s_decision_is_evidence_too(folder: Path) -> None:
    (folder / "app.toml").write_text(APP + '[evidence]\nmodel = "variant"\nvariant = "fast"\n')
    application = read(folder)
    opened = load_evidence(application)
    assert opened is not None and opened.accuracy == 0.7 == application.evidence_accuracy
    assert opened.recall == (0.9, 0.7, 0.5)
    queries = clouds(150).inputs  # more than one batch
    counts = opened.counts(queries)
    assert counts.shape == (150, 3) and (counts.sum(axis=1) == 1).all()
    alone = np.concatenate([opened.answer(queries[number : number + 1]) for number in range(20)])
    np.testing.assert_array_equal(opened.answer(queries)[:20], alone)
    (folder / "app.toml").write_text(APP + '[evidence]\nmodel = "variant"\nvariant = "fast"\nk = 4\n')
    np.testing.assert_array_equal(open_evidence(read(folder)).counts(queries), 4 * counts)


def test_the_prior_and_k_of_app_toml_hold_without_building_again(folder: Path) -> None:
    stored(folder)
    (folder / "app.toml").write_text(
        APP + '[evidence]\nk = 1\nprior = "strong"\nfrequencies = [8, 1, 1]\nwindow_queries = 20\n'
    )
    opened = open_evidence(read(folder))
    np.testing.assert_allclose(opened.posterior(CENTRES[1:2].reshape(1, 1, 4)), [[16 / 21, 3 / 21, 2 / 21]])
    (folder / "app.toml").write_text(APP + "[evidence]\nk = 7\n")
    assert read(folder).evidence_accuracy is None
    with pytest.raises(StrettoError, match="k is 7, but its evidence was measured with 1, 3, 5, 10"):
        open_evidence(read(folder))


def test_several_threads_get_the_same(folder: Path) -> None:
    stored(folder)
    opened = open_evidence(read(folder))
    queries = clouds(200, seed=8).inputs
    expected = opened.posterior(queries)
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(opened.posterior(queries))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    for one in found:
        np.testing.assert_array_equal(one, expected)


@pytest.mark.parametrize("inputs", [np.zeros((2, 1, 5)), np.zeros((1, 4)), np.zeros((0, 1, 4)), np.array("a"), [["x"]]])
def test_queries_of_another_shape_are_refused(folder: Path, inputs: object) -> None:
    with pytest.raises(StrettoError, match="takes queries of 1×4"):
        made(folder).evidence.posterior(inputs)  # type: ignore[arg-type]


def test_a_query_that_is_no_number_gets_a_distribution(folder: Path) -> None:
    theta = made(folder).evidence.posterior(np.full((1, 1, 4), np.nan, np.float32))
    assert theta.sum() == pytest.approx(1) and (theta > 0).all()


def test_tallies_leave_out_what_is_no_vote() -> None:
    votes = np.array([[0, 2, 2], [NO_VOTE, 1, NO_VOTE], [NO_VOTE] * 3])
    assert tallied(votes, 3).tolist() == [[1, 0, 2], [0, 1, 0], [0, 0, 0]]


def test_without_evidence_one_warning_says_so(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="stretto.evidence"):
        assert load_evidence(read(folder)) is None
    (record,) = caplog.records
    assert "application rows goes without evidence of classes: it has no evidence; build it with:" in record.message


def test_without_faiss_one_warning_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored(folder)
    monkeypatch.setitem(sys.modules, "faiss", None)
    with caplog.at_level(logging.WARNING, logger="stretto.evidence"):
        assert load_evidence(read(folder)) is None
    (record,) = caplog.records
    assert "pip install 'stretto[evidence]'" in record.message


def test_another_model_behind_the_layer_is_noticed(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored(folder, EvidenceSettings(features="layer", variant="good", layer="logits", dimensions=None))
    (folder / "variants/good/model.onnx").write_bytes((folder / "variants/fast/model.onnx").read_bytes())
    with caplog.at_level(logging.WARNING, logger="stretto.evidence"):
        assert load_evidence(read(folder)) is None
    assert "variant good changed since its evidence was built" in caplog.text


def test_evidence_of_bytes_is_not_for_floats_nor_the_other_way(folder: Path) -> None:
    stored(folder)
    application = read(folder)
    as_bytes = replace(application, input=replace(application.input, dtype="uint8", divide_by=255.0))
    assert open_evidence(application).answer(clouds(3).inputs).shape == (3,)
    with pytest.raises(StrettoError, match="was built of floats, but clients send bytes; build it again"):
        open_evidence(as_bytes)
    data = clouds(300)
    pixels = Sample((40 * data.inputs).clip(0, 255).astype(np.uint8), data.labels)
    built = build_evidence(as_bytes, Named("train.npz", pixels), settings=RAW)
    assert built.stored.of_bytes
    write_evidence(folder, built.stored, built.content)
    with pytest.raises(StrettoError, match="was built of bytes, but clients send numbers; build it again"):
        open_evidence(read(folder))


def test_a_deployment_knows_the_accuracy_of_the_evidence(folder: Path) -> None:
    kind = "cpu-x86-64-test-core-9-4c"
    assert read_repository(folder).deployment(1, kind=kind)[0].applications[0].evidence_accuracy is None
    built = stored(folder)
    found = read_repository(folder).deployment(1, kind=kind)[0].applications[0].evidence_accuracy
    assert found == pytest.approx(built.evidence.accuracy, abs=1e-6)


def test_another_k_of_those_tried(folder: Path) -> None:
    built = made(folder)
    assert with_k(built.stored, 3).k == 3
    with pytest.raises(StrettoError, match="not tried"):
        with_k(built.stored, 4)


def test_scores_by_class(folder: Path) -> None:
    application = read(folder)
    names, scores, overall = score_matrix(application)
    assert names == ("fast", "good") and overall.tolist() == [0.7, 0.9]
    np.testing.assert_allclose(scores, [[0.9, 0.7, 0.5], [0.8, 0.95, 0.95]])
    names, scores, overall = score_matrix(application, "f1")  # only one of them has a confusion matrix
    assert names == ("fast",)
    np.testing.assert_allclose(scores, [[18 / 24, 14 / 18, 10 / 18]])
    assert overall[0] == pytest.approx(np.mean(scores))
    assert score_matrix(application, "quadratic")[0] == ()
    with pytest.raises(StrettoError, match="no score 'auc'"):
        score_matrix(application, "auc")


def test_files_that_were_exchanged_are_not_believed(folder: Path) -> None:
    built = stored(folder)
    other = made(folder, RAW, rows=330)
    assert other.stored.vectors == 297
    write_evidence(folder, other.stored, other.content)
    description = json.loads((folder / "evidence/evidence.json").read_text())
    same_size = build_evidence(read(folder), Named("x", clouds(330, seed=77)), settings=RAW)
    write_evidence(folder, same_size.stored, same_size.content)
    (folder / "evidence/evidence.json").write_text(json.dumps(description))
    assert read(folder).stored_evidence is not None  # shapes are right, so only loading can tell
    with pytest.raises(StrettoError, match=r"vectors\.npz: is not the file that evidence\.json belongs to"):
        open_evidence(read(folder))
    assert loading.load_evidence(read(folder)) is None
    assert built.stored.vectors == 270


def test_a_changed_prior_is_not_believed_to_be_right_as_often_as_the_old_one(folder: Path) -> None:
    """Believed 79% and right 38%: the accuracy of evidence was measured with the prior that it was built with."""
    test = clouds(200, seed=5, spread=2.0)
    before = stored(folder).stored
    measured = before.at(before.k)
    assert measured is not None and read(folder).evidence_accuracy == measured.accuracy
    for prior, is_like in (("[0.7, 0.7, 0.7]", True), ("[90, 1, 1]", False)):
        (folder / "app.toml").write_text(APP + f"[evidence]\nprior = {prior}\n")
        assert (read(folder).evidence_accuracy == measured.accuracy) == is_like, "only what changes answers matters"
    skewed = read(folder)
    assert skewed.evidence_accuracy is None and skewed.has_evidence
    assert any("another prior" in str(problem) for problem in inspect_repository(folder)[1].warnings)
    evidence = open_evidence(skewed)
    assert evidence.accuracy is None and evidence.recall == ()
    again = measured_again(skewed, evidence, test)
    write_description(folder, again)
    counts = brute_force_counts(clouds(300), test.inputs, again.k)
    right = (counts + np.array([90, 1, 1])).argmax(axis=1) == test.labels
    assert read(folder).evidence_accuracy == pytest.approx(right.mean(), abs=0.02) and right.mean() < 0.6


def test_an_application_may_forbid_answers_from_evidence(folder: Path) -> None:
    stored(folder)
    (folder / "app.toml").write_text(APP + "[evidence]\nanswers = false\n")
    application = read(folder)
    assert application.evidence_accuracy is None and application.has_evidence
    evidence = open_evidence(application)
    assert evidence.accuracy is not None and evidence.posterior(clouds(2).inputs).shape == (2, 3), "it tells classes"


def test_a_decision_may_be_outweighed_by_a_prior(folder: Path) -> None:
    for k, prior, is_known in ((1, "[0.9, 0.5, 0.5]", True), (1, "[2, 0.5, 0.5]", False), (3, "[2, 0.5, 0.5]", True)):
        said = f'[evidence]\nmodel = "variant"\nvariant = "good"\nk = {k}\nprior = {prior}\n'
        (folder / "app.toml").write_text(APP + said)
        assert (read(folder).evidence_accuracy is not None) == is_known, (k, prior)
