"""[evidence] in app.toml and what is stored beside it: read with bounds, refused with file, line and remedy."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.core.errors import StrettoError
from stretto.repository.application import ApplicationFiles
from stretto.repository.problems import RepositoryError
from stretto.repository.read import inspect_repository, read_repository
from stretto.repository.stored_evidence import (
    Origin,
    StoredEvidence,
    Tried,
    Vectors,
    load_vectors,
    packed,
    write_evidence,
)
from tests.repository.build import APP, Built, build

DIGEST = "0" * 64
COUNT = 6


def vectors(classes: int = 3) -> Vectors:
    stored = np.arange(COUNT * 2, dtype=np.uint8).reshape(COUNT, 2)
    labels = (np.arange(COUNT) % classes).astype(np.uint8)
    return Vectors(stored, labels, np.zeros(2, np.float32), np.zeros(4, np.float32), np.eye(2, 4, dtype=np.float32))


def write(folder: Path, held: Vectors | None = None, **changes: Any) -> None:
    """Evidence as it would be built, with changes to evidence.json."""
    content = packed(held or vectors())
    origin = Origin("train.npz", DIGEST, COUNT)
    stored = StoredEvidence(
        *(3, (1, 4), "flat", 1, (Tried(1, 0.9, (0.8, 0.9, 1.0), 0.1),), COUNT, 2, 0.5),
        *(hashlib.sha256(content).hexdigest(), origin, origin, origin),
    )
    write_evidence(folder, stored, content)
    path = folder / "evidence" / "evidence.json"
    description = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in description.items() if value is not ...}, indent=1))


def refused(built: Built) -> str:
    with pytest.raises(RepositoryError) as caught:
        read_repository(built.root)
    assert len(caught.value.problems) == 1, str(caught.value)
    return str(caught.value).removeprefix(f"{built.root}/rows/")


def read(built: Built) -> ApplicationFiles:
    return read_repository(built.root).applications[0]


def test_what_is_stored_is_read(built: Built) -> None:
    write(built.app)
    application = read(built)
    stored = application.stored_evidence
    assert stored is not None and stored.tried[0].recall == (0.8, 0.9, 1.0) and stored.projected
    assert application.evidence_accuracy == 0.9
    held = load_vectors(application.place, stored)
    np.testing.assert_array_equal(held.stored, vectors().stored)
    np.testing.assert_array_equal(held.components, np.eye(2, 4))


def test_without_any_nothing_is_missed(built: Built) -> None:
    application = read(built)
    assert application.stored_evidence is None and application.evidence_accuracy is None
    assert application.evidence_settings.alpha(3) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("k = 0", "app.toml:11: k is 0; it must be from 1 to 1000"),
        ("kk = 3", 'app.toml:11: unknown key "kk" in [evidence]'),
        ('model = "neighbors"', 'app.toml:11: model is "neighbors"; did you mean neighbours?'),
        ('model = "variant"', "app.toml:11: say which variant"),
        ('model = "variant"\nvariant = "fats"', 'app.toml:12: variant is "fats"; did you mean fast?'),
        ('model = "variant"\nvariant = "fast"\nindex = "flat"', "app.toml:13: index does not go with model"),
        ('variant = "fast"', "app.toml:11: variant goes with model"),
        ('features = "layer"\nvariant = "fast"', "app.toml:11: features = "),
        ('layer = "logits"', "app.toml:11: features = "),
        ('features = "layer"\nlayer = "logits"', "app.toml:11: say which variant"),
        ('features = "raw"\ndimensions = 4', "app.toml:12: raw features"),
        ("dimensions = 0", "app.toml:11: dimensions is 0; it must be from 1"),
        ('index = "lsh"', 'app.toml:11: index is "lsh"; there are flat, hnsw, ivf'),
        ('prior = "strnog"', 'app.toml:11: prior is "strnog"; did you mean strong?'),
        ("prior = [1, 2]", "app.toml:11: prior has 2 numbers for 3 classes; give one for each"),
        ("prior = [1, 2, 0]", "app.toml:11: prior: every number of a prior is above 0"),
        ("prior = [1, 2, -1]", "app.toml:11: prior is -1; it must be from 0"),
        ("prior = [1, 2, nan]", "app.toml:11: prior is nan; it must be from 0"),
        ("prior = [1, 2, 3]\nfrequencies = [1, 1, 1]", "app.toml:12: frequencies goes with prior = "),
        ('prior = "weak"', 'app.toml:11: frequencies goes with prior = "weak" or "strong"; add it'),
        ("frequencies = [1, 1, 1]", "app.toml:11: frequencies goes with prior = "),
        ('prior = "strong"\nfrequencies = [1, 1, 1]', 'app.toml:11: window_queries goes with prior = "strong"; add it'),
        (
            'prior = "strong"\nfrequencies = [1, 1, 1]\nwindow_queries = 0',
            "app.toml:13: window_queries is 0; it must be above 0",
        ),
        ('data = "../train.npz"', 'app.toml:11: data is "../train.npz"; give a path inside this folder'),
    ],
)
def test_mistakes_in_the_table(built: Built, text: str, says: str) -> None:
    built.write_app(APP + "[evidence]\n" + text + "\n")
    assert refused(built)[: len(says)] == says


def test_priors(built: Built) -> None:
    for text, alpha in (
        ("prior = [1, 2, 3]", (1, 2, 3)),
        ('prior = "weak"\nfrequencies = [2, 1, 1]', (0.5, 0.25, 0.25)),
        ('prior = "strong"\nfrequencies = [2, 1, 1]\nwindow_queries = 12', (6, 3, 3)),
    ):
        built.write_app(APP + "[evidence]\n" + text + "\n")
        assert read(built).evidence_settings.alpha(3) == alpha


def test_evidence_of_answers_without_classes_is_refused(built: Built) -> None:
    (built.app / "labels.txt").unlink()
    built.write_app(APP + 'kind = "values"\nshape = [3]\n[evidence]\nk = 3\n')
    assert refused(built).startswith("app.toml:12: evidence is about classes")


def test_a_variant_that_takes_another_size_cannot_be_asked(built: Built) -> None:
    built.add("wide", shape=(1, 8))
    built.metrics("wide", accuracy=0.5, input_shape=[1, 8])
    built.write_app(APP + '[evidence]\nmodel = "variant"\nvariant = "wide"\n')
    assert refused(built).startswith("app.toml:12: variant wide takes another input size than clients send")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 2}, "version is 2; this Stretto reads version 1"),
        ({"classes": 4}, "was built for 4 classes, but the application has 3"),
        ({"input_shape": [4]}, "was built for inputs of 4, but clients send 1×4"),
        ({"index": "pickle"}, 'index is "pickle"; there are'),
        ({"k": 0}, "k is 0; it must be from 1 to 1000"),
        ({"k": 2}, "k is 2, which is not among those tried"),
        ({"tried": []}, "tried has 0 entries"),
        ({"tried": [{"k": 1, "accuracy": 1.5, "recall": [1, 1, 1], "error": 0}]}, "accuracy is 1.5; it must be from 0"),
        ({"tried": [{"k": 1, "accuracy": 1, "recall": [1, 1], "error": 0}]}, "recall has 2 numbers for 3 classes"),
        ({"tried": [{"k": 1, "accuracy": 1, "recall": [1, 1, 1], "error": 0}] * 2}, "tried has one k twice"),
        ({"vectors": 10**9}, "vectors is 1000000000; it must be from 1"),
        ({"vectors": 10**7, "dimensions": 1000}, "holds 10000000000 numbers; at most"),
        ({"scale": 0}, "scale is 0; it must be above 0"),
        ({"scale": float("nan")}, "scale is nan; it must be above 0"),
        ({"vectors_sha256": "../../etc"}, "vectors_sha256 is no SHA-256 digest"),
        ({"data": 3}, "data is 3; it must be a table"),
        ({"data": ...}, "the top level needs data"),
        ({"more": 1}, 'unknown key "more" in the top level'),
        ({"layer": "relu"}, "the top level needs variant"),
    ],
)
def test_mistakes_in_the_description(built: Built, changes: dict[str, Any], says: str) -> None:
    write(built.app, **changes)
    found = refused(built)
    assert found.startswith("evidence/evidence.json:") and says in found
    assert found.endswith("; build it again with stretto profile, or remove the folder evidence")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vectors": 7}, "has an array vectors of 6×2 uint8"),
        ({"dimensions": 3}, "has an array vectors of 6×2 uint8"),
        ({"projected": False}, "takes inputs of 2 numbers, but one has 4"),
    ],
)
def test_arrays_that_do_not_fit_the_description(built: Built, changes: dict[str, Any], says: str) -> None:
    write(built.app, **changes)
    found = refused(built)
    assert found.startswith("evidence/vectors.npz: ") and says in found


@pytest.mark.parametrize("content", [b"", b"no zip file", b"PK\x03\x04" + bytes(100)])
def test_files_of_anything(built: Built, content: bytes) -> None:
    write(built.app)
    (built.app / "evidence" / "vectors.npz").write_bytes(content)
    assert refused(built).startswith("evidence/vectors.npz: is no sound .npz file of numbers")


def test_pickles_are_not_read(built: Built) -> None:
    write(built.app)
    path = built.app / "evidence" / "vectors.npz"
    np.savez(path, vectors=np.array([{"a": 1}], dtype=object), labels=np.zeros(1, np.uint8), low=np.zeros(1))
    assert refused(built).startswith("evidence/vectors.npz: is no sound .npz file of numbers")


def test_half_of_it_is_refused(built: Built) -> None:
    write(built.app)
    (built.app / "evidence" / "vectors.npz").unlink()
    assert refused(built).startswith("evidence/vectors.npz: there is no such file")
    write(built.app)
    (built.app / "evidence" / "evidence.json").unlink()
    assert refused(built).startswith("evidence/evidence.json: there is no such file")


def test_links_that_lead_out_are_refused(built: Built, tmp_path: Path) -> None:
    write(built.app)
    path = built.app / "evidence" / "vectors.npz"
    (tmp_path / "elsewhere.npz").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere.npz")
    assert "leads outside the repository" in refused(built)


def test_contents_are_held_to_bounds_when_loaded(built: Built) -> None:
    plain = vectors()
    endless = Vectors(plain.stored, plain.labels, np.array([0, np.inf], np.float32), plain.mean, plain.components)
    for held, says in (
        (vectors(classes=5), "has labels from 0 to 4 for 3 classes"),
        (endless, "holds numbers that are not finite"),
    ):
        write(built.app, held)
        application = read(built)
        assert application.stored_evidence is not None
        with pytest.raises(StrettoError, match=says):
            load_vectors(application.place, application.stored_evidence)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_bytes_make_it_fall_over(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of either file changed at will: read, or refused with a sentence; never anything else."""
    folder = tmp_path / "models"
    built = Built(folder) if folder.exists() else build(folder)
    write(built.app)
    name = data.draw(st.sampled_from(["evidence.json", "vectors.npz"]))
    path = built.app / "evidence" / name
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    repository, problems = inspect_repository(built.root)
    (application,) = repository.applications
    assert application.stored_evidence is not None or problems.errors
    if application.stored_evidence is not None and not problems.errors:
        try:
            load_vectors(application.place, application.stored_evidence)
        except StrettoError as error:
            assert "vectors.npz" in str(error)
