"""Everything that can be wrong with a repository: its file, its line, and what to do about it."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.core.errors import StrettoError
from stretto.repository import application, files
from stretto.repository import read as reading
from stretto.repository.files import Place
from stretto.repository.onnx_header import read_onnx_header
from stretto.repository.problems import RepositoryError
from stretto.repository.read import inspect_repository, read_repository
from stretto.repository.sample import SampleFile, load_sample
from tests.repository.build import APP, Built, build, write_model


def refused(built: Built) -> str:
    """The one thing that is wrong, with the folder's own path taken off."""
    with pytest.raises(RepositoryError) as caught:
        read_repository(built.root)
    assert len(caught.value.problems) == 1, str(caught.value)
    return str(caught.value).removeprefix(f"{built.root}/").removeprefix("rows/")


def changed(old: str, new: str) -> str:
    assert APP.count(old) == 1
    return APP.replace(old, new)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (changed("slo_ms = 50", "slo_ms = 0"), "app.toml:1: slo_ms is 0; it must be above 0"),
        (changed("slo_ms = 50", "slo_ms = nan"), "app.toml:1: slo_ms is nan; it must be above 0"),
        (changed("slo_ms = 50", 'slo_ms = "50"'), 'app.toml:1: slo_ms is "50"; give a number'),
        (changed("slo_ms = 50", ""), "app.toml:1: the top level needs slo_ms"),
        (
            changed("slo_ms = 50", "slo_ms = 50\nslow = 1"),
            'app.toml:2: unknown key "slow" in the top level; did you mean',
        ),
        (changed("slo_ms = 50", "slo_ms = 50\nlabels = []"), "app.toml:2: labels belongs in [output], not here"),
        (APP + "slo_ms = 5\n", "app.toml:10: slo_ms belongs in the top, before the first [header], not here"),
        (changed('"step"', '"steep"'), 'app.toml:2: penalty is "steep"; did you mean step?'),
        ('name = "cols"\n' + APP, 'app.toml:1: name is "cols", but the folder is rows; rename one'),
        (changed("[1, 4]", "[1, 0]"), "app.toml:6: shape holds 0; sizes are whole numbers from 1"),
        (changed("[1, 4]", "[1, -1]"), "app.toml:6: shape holds -1; sizes are"),
        (changed("[1, 4]", "[1,\n 4.0]"), "app.toml:7: shape holds 4.0; sizes are whole numbers"),
        (changed("[1, 4]", "[true, 4]"), "app.toml:6: shape holds true; sizes are"),
        (changed("[1, 4]", "4"), "app.toml:6: shape is 4; give a list of at most 8 sizes, without the batch"),
        (changed("[1, 4]", "[1,1,1,1,1,1,1,1,1]"), "app.toml:6: shape is a list; give a list of at most 8"),
        (changed("[1, 4]", "[100000, 100000]"), "app.toml:6: shape makes 10000000000 numbers; at most"),
        (changed("shape = [1, 4]", ""), "app.toml:5: [input] needs shape, without the batch"),
        (changed("[input]\nshape = [1, 4]", ""), "app.toml:1: there is no [input]; add one"),
        ("input = 3\n" + changed("[input]\nshape = [1, 4]", ""), "app.toml:1: input is 3; it must be a table"),
        (changed("[1, 4]", '[1, 4]\ndtype = "float"'), 'app.toml:7: dtype is "float"; did you mean float'),
        (changed("[1, 4]", '[1, 4]\nname = "a\\u0007"'), "app.toml:7: name must be printable"),
        (APP + 'kind = "probs"\n', 'app.toml:10: kind is "probs"; there are probabilities, logits, scores, values'),
        (APP + 'kind = "values"\n', 'app.toml:10: kind is "values", which has no classes, but there are labels'),
        (APP + "tolerance = 1\n", 'app.toml:10: tolerance is for kind = "values"; of probabilities the largest wins'),
        (APP + "shape = []\n", "app.toml:10: kind probabilities has one number per class; give their count"),
        (APP + 'labels = ["a"]\n', "app.toml:10: labels are here and in labels.txt; keep one of them"),
        (APP + 'labels_file = "names.txt"\n', 'app.toml:10: labels_file is "names.txt", which is not there'),
        (APP + 'labels_file = "../labels.txt"\n', 'app.toml:10: labels_file is "../labels.txt"; give a path inside'),
        (APP + 'labels_file = "/etc/passwd"\n', 'app.toml:10: labels_file is "/etc/passwd"; give a path inside'),
        (APP + 'labels_file = "."\n', 'app.toml:10: labels_file is "."; give a path inside'),
        (APP + "shape = [4]\n", "labels.txt:3: 3 labels for 4 classes ([output] shape [4]); correct one of them"),
        (APP + "[limits]\nmax_batch = 5000\n", "app.toml:11: max_batch is 5000; it must be from 1 to 4096"),
        (APP + "[limits]\nmax_elements = 3\n", "app.toml:11: max_elements is 3, but one input has 4; raise it"),
        (APP + "[limits]\nmin_value = 2\nmax_value = 1\n", "app.toml:12: max_value is 1, below min_value"),
        (APP + "[limits]\nmax_bach = 2\n", 'app.toml:11: unknown key "max_bach" in [limits]; did you mean max_batch?'),
        (APP + '[sample]\nfile = "few.npz"\n', "app.toml:10: there is no "),
        (APP + "[more]\nx = 1\n", 'app.toml:10: unknown key "more" in the top level'),
        (APP + "x = ?\n", "app.toml:10: not valid TOML: "),
        ("a = " + "[" * 100_000, "app.toml:1: lists or tables are nested too deeply"),
    ],
)
def test_mistakes_in_app_toml(built: Built, text: str, says: str) -> None:
    built.write_app(text)
    _, problems = inspect_repository(built.root)
    in_head = [problem for problem in problems.errors if not str(problem).startswith(f"{built.app}/variants")]
    assert [str(problem).removeprefix(f"{built.app}/")[: len(says)] for problem in in_head] == [says]


def test_labels_in_place_of_the_wrong_length(built: Built) -> None:
    (built.app / "labels.txt").unlink()
    built.write_app(APP + 'shape = [3]\nlabels = ["a",\n"b"]\n')
    assert refused(built) == "app.toml:11: 2 labels for 3 classes ([output] shape [3]); correct one of them"
    built.write_app(APP + 'labels = ["a",\n"b", "\\u0000"]\n')
    assert refused(built) == "app.toml:11: label 3 holds a control character; write plain text"
    built.write_app(APP + 'labels = ["a"]\nlabels_file = "x.txt"\n')
    assert refused(built).startswith("app.toml:11: labels and labels_file both give labels")
    built.write_app(APP)
    assert refused(built).startswith("app.toml:8: [output] needs shape, without the batch, as [10]; or labels")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "labels.txt:1: holds no label; write one a line"),
        (b"a\n\nb\n", "labels.txt:2: this label is empty; give every class a name"),
        (b"a\nb\x1b[0m\nc\n", "labels.txt:2: this label holds a control character"),
        (b"a\nb\n\xff\n", "labels.txt:3: not UTF-8 text (byte 4)"),
        (b"a\n" + b"b" * 1001 + b"\nc", "labels.txt:2: this label is longer than 1000 characters"),
        (b"a\n" * 100_001, "labels.txt:100001: holds 100001 labels; at most 100000 are taken"),
        (b"a" * 1_000_001, "labels.txt: holds 1000001 bytes; at most 1000000 are taken"),
    ],
    ids=range(7),
)
def test_mistakes_in_labels(built: Built, content: bytes, says: str) -> None:
    (built.app / "labels.txt").write_bytes(content)
    assert refused(built).startswith(says)


FAST = "variants/fast"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('backend = "torch"\nformat = "x"\ncode = "a:b"', 'variant.toml:2: format is "x"; there are exported'),
        ("enabled = 1", "variant.toml:1: enabled is 1; give true or false"),
        ('backend = "onx"', 'variant.toml:1: backend is "onx"; did you mean onnx?'),
        ('file = "../good/model.onnx"', 'variant.toml:1: file is "../good/model.onnx"; give a path inside this folder'),
        ('file = "model.pt"', "variant.toml:1: file must end in .onnx for onnx; pickles are not read"),
        ('file = "other.onnx"', "variant.toml:1: there is no "),
        ('backend = "torch"\nfile = "model.pkl"', "variant.toml:2: file must end in .pt2 for exported; pickles"),
        ('code = "a:b"', "variant.toml:1: code does not go with the other choices made in the top level; leave it out"),
        ("accuracy = 0.5", "variant.toml:1: say where the accuracy comes from: accuracy_source"),
        ("max_batch = 0", "variant.toml:1: max_batch is 0; it must be from 1 to 4096"),
        ("memory_mb = -1", "variant.toml:1: memory_mb is -1; it must be from 0"),
        ("max_bach = 1", 'variant.toml:1: unknown key "max_bach" in the top level; did you mean max_batch?'),
        (
            "input_shape = [1, 3]",
            "model.onnx: has input input of 1×4, but 1×3 is declared; correct [input] of app.toml",
        ),
    ],
)
def test_mistakes_in_variant_toml(built: Built, text: str, says: str) -> None:
    (built.variant("fast") / "variant.toml").write_text(text)
    assert refused(built).startswith(f"{FAST}/{says}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('backend = "callable"', "variant.toml:1: the top level needs code"),
        ('backend = "callable"\ncode = "os.system"', 'variant.toml:2: code must be "module:function"'),
        ('backend = "callable"\ncode = "a:b"\nfile = "x.onnx"', "variant.toml:3: file does not go with"),
    ],
)
def test_mistakes_in_a_callable(built: Built, text: str, says: str) -> None:
    (built.variant("fast") / "variant.toml").write_text(text)
    assert refused(built).startswith(f"{FAST}/{says}")


def test_accuracy_must_be_known_and_say_where_from(built: Built) -> None:
    (built.variant("fast") / "metrics.json").unlink()
    repository, problems = inspect_repository(built.root)
    assert problems.found == [] and not repository.application("rows").variant("fast").has_accuracy
    deployment, (warning,) = repository.deployment(1)
    assert [variant.name for variant in deployment.variants] == ["good"]
    assert warning == (
        f"{built.variant('fast')}: its accuracy is not known, so it is left out; state it in variant.toml, or "
        f"run: stretto profile {built.root} --data FILE.npz"
    )
    (built.variant("good") / "metrics.json").unlink()
    with pytest.raises(StrettoError, match=r"no variant with a profile has an accuracy; state it in variant\.toml"):
        read_repository(built.root).deployment(1)
    built.metrics("good", accuracy=0.9)
    (built.variant("fast") / "variant.toml").write_text("accuracy = 0.5")
    assert refused(built).startswith(f"{FAST}/variant.toml:1: say where the accuracy comes from: accuracy_source")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"accuracy": 1.5}', "metrics.json:1: accuracy is 1.5; it must be from 0 to 1"),
        ('{\n"accuracy": "high"}', 'metrics.json:2: accuracy is "high"; give a number from 0 to 1'),
        ('{"recall": [1]}', "metrics.json:1: the top level needs accuracy"),
        ('{"accuracy": 1,\n"recall": [1, 0.5]}', "metrics.json:2: recall has 2 classes, but the application has 3"),
        ('{"accuracy": 1,\n"confusion": [[1, 2], [3]]}', "metrics.json:2: the rows of confusion differ in length"),
        ('{"accuracy": 1,\n"confusion": [[1, 2]]}', "metrics.json:2: confusion has 1 rows of 2; it must be square"),
        ('{"accuracy": 1,\n"confusion": [[0.5]]}', "metrics.json:2: confusion counts answers; give whole numbers"),
        ('{"accuracy": 1,\n\n"test_samples": 0}', "metrics.json:3: test_samples is 0: an accuracy needs samples"),
        ('{"accuracy": 1,}', "metrics.json:1: not valid JSON: "),
        ('{"accuracy": 1,\n"model_sha256": "12"}', "metrics.json:2: model_sha256 must be 64 hexadecimal digits"),
        ("[]", "metrics.json:1: must hold one JSON object"),
    ],
)
def test_mistakes_in_metrics(built: Built, content: str, says: str) -> None:
    (built.variant("fast") / "metrics.json").write_text(content)
    assert refused(built).startswith(f"{FAST}/{says}")


def test_a_missing_model(built: Built) -> None:
    (built.variant("fast") / "model.onnx").unlink()
    assert (
        refused(built) == f"{FAST}: there is no model; put it there as model.onnx, or name it in variant.toml: file = …"
    )


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda content: content[:-20], "is no ONNX model, or is cut off or damaged; copy or export it again"),
        (lambda content: b"", "is empty; copy the model again"),
        (lambda content: b"PK\x03\x04 something else", "is no ONNX model"),
        (lambda content: b"\x08\x07", "is no ONNX model; export it again"),
        (lambda content: b"version https://git-lfs.github.com/spec/v1\noid", "is a pointer of Git LFS, not the model"),
    ],
)
def test_a_corrupt_model(built: Built, spoil: Callable[[bytes], bytes], says: str) -> None:
    model = built.variant("fast") / "model.onnx"
    model.write_bytes(spoil(model.read_bytes()))
    assert refused(built).startswith(f"{FAST}/model.onnx: {says}")


def test_a_missing_file_of_external_data(built: Built) -> None:
    model = built.variant("fast") / "model.onnx"
    model.unlink()
    write_model(model, external="weights.data")
    assert (built.variant("fast") / "weights.data").exists()
    assert read_onnx_header(model).external == ("weights.data",)

    def digest() -> str:
        return read_repository(built.root).applications[0].variant("fast").model_sha256()

    before, weights = digest(), built.variant("fast") / "weights.data"
    weights.write_bytes(weights.read_bytes()[::-1])
    assert digest() != before, "other weights are another model"
    weights.unlink()
    says = "model.onnx: keeps its weights in weights.data, which is not there; copy that file too"
    assert refused(built) == f"{FAST}/{says}"
    (built.variant("fast") / "weights.data").symlink_to("/etc/hostname")
    assert refused(built).startswith(f"{FAST}/weights.data: leads outside the repository by a symbolic link")


def test_external_data_outside_the_folder(built: Built) -> None:
    onnx = pytest.importorskip("onnx")
    model = built.variant("fast") / "model.onnx"
    write_model(model, external="weights.data")
    proto = onnx.load(str(model), load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../good/model.onnx"
    onnx.save(proto, str(model))
    assert refused(built).startswith(f"{FAST}/model.onnx: keeps weights in a file outside its folder")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"shape": (1, 5)}, "has input input of 1×5, but 1×4 is declared; correct [input] of app.toml, or, for this"),
        ({"classes": 4}, "has output probabilities of 4, but 3 is declared; correct [output] of app.toml"),
        ({"input_name": "x"}, "has no input input; it has x. Correct name in [input] of app.toml"),
        ({"output_name": "y"}, "has no output probabilities; it has y. Correct name in [output]"),
        ({"batch": 1}, "takes batches of exactly 1; export it with a dynamic batch axis, or write max_batch = 1"),
        ({"batch": 4}, "takes batches of exactly 4; export it with a dynamic batch axis"),
    ],
)
def test_a_model_that_is_not_what_is_declared(built: Built, model: dict[str, object], says: str) -> None:
    write_model(built.variant("fast") / "model.onnx", **model)  # type: ignore[arg-type]
    assert refused(built).startswith(f"{FAST}/model.onnx: {says}")


def test_a_model_for_single_queries_is_taken_as_such(built: Built) -> None:
    write_model(built.variant("fast") / "model.onnx", batch=1)
    (built.variant("fast") / "variant.toml").write_text("max_batch = 1")
    assert read_repository(built.root).application("rows").variant("fast").max_batch == 1


def test_a_wrong_type_of_tensor(built: Built) -> None:
    built.write_app(changed("[1, 4]", '[1, 4]\ndtype = "uint8"'))
    _, problems = inspect_repository(built.root)
    assert [str(problem).removeprefix(f"{built.app}/") for problem in problems.errors] == [
        f"variants/{name}/model.onnx: has input input of float32, but uint8 is declared; correct [input] of app.toml"
        for name in ("fast", "good")
    ]


def test_folders_that_are_missing_or_empty(built: Built, tmp_path: Path) -> None:
    with pytest.raises(StrettoError, match="there is no such folder"):
        read_repository(tmp_path / "none")
    with pytest.raises(StrettoError, match="is a file; name the folder"):
        read_repository(built.app / "app.toml")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StrettoError, match=r"holds no application; add NAME/app.toml"):
        read_repository(tmp_path / "empty")
    (built.app / "variants").rename(built.root / "elsewhere")
    assert refused(built).endswith("rows: there is no variants folder; add variants/NAME/model.onnx")
    (built.app / "variants").mkdir()
    assert refused(built) == "variants: holds no variant; add variants/NAME/model.onnx"
    (built.app / "app.toml").unlink()
    _, problems = inspect_repository(built.root)
    assert str(problems.errors[0]) == f"{built.app}/app.toml: there is no such file"


@pytest.mark.parametrize("name", ["-fast", "fa st", "fäst", "x" * 129, "a\nb"])
def test_names_are_restricted(built: Built, name: str) -> None:
    built.variant("fast").rename(built.variant(name))
    assert "must start with a letter or digit and hold at most 128" in refused(built)
    built.variant(name).rename(built.variant("fast"))
    built.app.rename(built.root / name)
    _, problems = inspect_repository(built.root)
    assert "must start with a letter or digit" in str(problems.errors[0])


def test_a_name_that_is_no_text(built: Built) -> None:
    os.rename(built.variant("fast"), os.fsencode(built.app) + b"/variants/\xff")
    refused(built).encode()


@pytest.mark.parametrize("what", ["rows", "rows/app.toml", "rows/labels.txt", "rows/variants", "rows/variants/fast"])
def test_links_that_lead_outside_are_refused(built: Built, tmp_path: Path, what: str) -> None:
    (built.root / what).rename(tmp_path / "outside")
    (built.root / what).symlink_to(tmp_path / "outside")
    _, problems = inspect_repository(built.root)
    label = f"{built.root}/{what}"
    assert any(str(each).startswith(f"{label}: leads outside the repository") for each in problems.errors)


@pytest.mark.parametrize("what", ["model.onnx", "metrics.json", "profiles", "variant.toml"])
def test_files_of_a_variant_that_lead_outside_are_refused(built: Built, tmp_path: Path, what: str) -> None:
    path = built.variant("fast") / what
    if path.exists():
        path.rename(tmp_path / what)
    else:
        (tmp_path / what).write_text("")
    path.symlink_to(tmp_path / what)
    assert refused(built).startswith(f"{FAST}/{what}: leads outside the repository by a symbolic link")


def test_links_that_lead_nowhere_or_in_circles(built: Built) -> None:
    built.variant("lost").symlink_to("nowhere")
    assert refused(built) == "variants/lost: this symbolic link leads nowhere"
    built.variant("lost").unlink()
    built.variant("lost").symlink_to("lost")
    assert refused(built).startswith("variants/lost: ")
    built.variant("lost").unlink()
    (built.root / "gone").symlink_to("nothing")
    (gone,) = read_repository(built.root).unreadable  # the others are not concerned
    assert (gone.name, gone.reason) == ("gone", "this symbolic link leads nowhere")


def test_what_is_no_plain_file_is_not_read(built: Built) -> None:
    (built.variant("fast") / "metrics.json").unlink()
    os.mkfifo(built.variant("fast") / "metrics.json")
    assert refused(built) == f"{FAST}/metrics.json: is no plain file"
    (built.variant("fast") / "metrics.json").unlink()
    (built.variant("fast") / "metrics.json").mkdir()
    assert refused(built) == f"{FAST}/metrics.json: is a folder, but a file must stand here"


def test_sizes_are_bounded(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RepositoryError, match=r"fast/model.onnx: holds \d+ bytes; at most 10 are taken"):
        read_repository(built.root, max_model_bytes=10)
    built.write_app(APP + "#" * files.MAX_TOML_BYTES)
    _, problems = inspect_repository(built.root)
    assert "app.toml: holds" in str(problems.errors[0])
    built.write_app()
    monkeypatch.setattr(application, "MAX_VARIANTS", 1)
    assert refused(built) == "variants: holds 2 variants; at most 1 are taken"
    monkeypatch.undo()
    monkeypatch.setattr(reading, "MAX_APPLICATIONS", 0)
    with pytest.raises(StrettoError, match="holds 1 applications; at most 0"):
        read_repository(built.root)
    monkeypatch.setattr(files, "MAX_ENTRIES", 0)
    with pytest.raises(StrettoError, match="holds more than 0 files"):
        read_repository(built.root)


def test_many_mistakes_are_told_at_once(built: Built) -> None:
    built.write_app(changed("slo_ms = 50", "slo_ms = -1\nfirst = 1\nsecond = 2").replace('"step"', "3"))
    (built.variant("fast") / "variant.toml").write_text("max_batch = 0\nmemory_mb = -1\nodd = 1\n")
    (built.variant("good") / "model.onnx").unlink()
    with pytest.raises(RepositoryError) as caught:
        read_repository(built.root)
    assert len(caught.value.problems) == 8
    assert str(caught.value).endswith(f"and 3 more; stretto check {built.root} shows them all")
    assert [problem.line for problem in caught.value.problems] == [1, 4, 2, 3, 1, 2, 3, None]


def test_mistakes_in_a_sample(built: Built) -> None:
    path = built.app / "sample.npz"
    inputs, labels = np.zeros((2, 1, 4), np.float32), np.array([0, 1])

    def says(**arrays: np.ndarray) -> str:
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return refused(built).removeprefix("sample.npz: ")

    assert says(inputs=inputs) == "has no array labels; it must hold inputs and labels"
    assert says(inputs=inputs[:, :, :3], labels=labels).startswith("inputs are 2×1×3, but 2 labels and an input of 1×4")
    assert says(inputs=inputs[:0], labels=labels[:0]).startswith("holds no query; put a few labelled ones in")
    assert says(inputs=inputs, labels=labels.astype(float)).startswith("must hold numbers as inputs and one whole")
    assert says(inputs=inputs, labels=np.array([{}, []], dtype=object)).startswith("is no sound .npz file of numbers")
    path.write_bytes(path.read_bytes()[:100])
    assert refused(built).startswith("sample.npz: is no sound .npz file")
    with zipfile.ZipFile(path, "w") as archive:  # a header that promises more than is there
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 4), }"
        archive.writestr("inputs.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    assert refused(built).startswith("sample.npz: is no sound .npz file")
    np.savez(path, inputs=inputs, labels=np.array([0, 3]))
    with pytest.raises(StrettoError, match="has labels from 0 to 3, but there are 3 classes, from 0"):
        read_repository(built.root).application("rows").sample()


def test_a_sample_of_numbers_that_an_application_of_bytes_cannot_take(tmp_path: Path) -> None:
    """As the zoo's, which is divided by 255, where only [input] was changed."""
    place = Place(tmp_path, tmp_path / "sample.npz", "sample.npz")
    np.savez(place.path, inputs=np.array([[0, 100]], np.uint8), labels=np.array([0]))
    assert load_sample(SampleFile(place), None, "uint8", (2,), 1).inputs.tolist() == [[0, 100]]
    with pytest.raises(StrettoError, match=r"no uint8 when they are divided by 255, as .sample. of app.toml says"):
        load_sample(SampleFile(place, 255.0), None, "uint8", (2,), 1)


def test_a_sample_may_hold_the_queries_at_another_size(built: Built) -> None:
    write_model(built.variant("fast") / "model.onnx", (1, 2))
    built.metrics("fast", accuracy=0.7, input_shape=[1, 2])
    labels = np.array([0, 1])
    np.savez(built.app / "sample.npz", inputs=np.zeros((2, 1, 4)), labels=labels)
    rows = read_repository(built.root).application("rows")
    with pytest.raises(StrettoError, match="inputs are 2×1×4, but 2×1×2 are needed; add an array inputs_fast"):
        rows.sample(rows.variant("fast"))
    np.savez(built.app / "sample.npz", inputs=np.zeros((2, 1, 4)), inputs_fast=np.ones((2, 1, 2)), labels=labels)
    assert rows.sample(rows.variant("fast")).inputs.shape == (2, 1, 2)
    assert rows.sample(rows.variant("good")).inputs.shape == (2, 1, 4)
    (built.app / "sample.npz").unlink()
    with pytest.raises(StrettoError, match=r"has no sample; put one there as sample.npz"):
        read_repository(built.root).application("rows").sample()


LINES = [*APP.splitlines(), "[limits]", "max_batch = 3", "min_value = 1", "[sample]", 'labels = ["a", "b", "c"]']
VALUES = st.sampled_from(
    ["0", "-1", "1e400", "nan", "true", '""', '"x"', "[]", "[1, 4]", "[[1]]", "{}", "{a = 1}", "1979-05-27", '"../x"']
)
PIECES = st.one_of(
    st.sampled_from(LINES),
    st.builds(lambda line, value: f"{line.partition('=')[0]}= {value}", st.sampled_from(LINES), VALUES),
    st.text(max_size=12),
)


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("fuzz") / "models")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES, max_size=12))
def test_no_app_toml_makes_a_traceback(spoiled: Built, pieces: list[str]) -> None:
    (spoiled.app / "app.toml").write_bytes("\n".join(pieces).encode("utf-8", "surrogatepass"))
    _, problems = inspect_repository(spoiled.root)
    for problem in problems.errors:
        assert problem.message and problem.file is not None
    try:
        read_repository(spoiled.root)
    except StrettoError as error:
        assert problems.errors and str(error)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_model_file_makes_a_traceback(spoiled: Built, data: st.DataObject) -> None:
    whole = (spoiled.variant("good") / "model.onnx").read_bytes()
    content = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for place in data.draw(st.lists(st.integers(0, max(0, len(content) - 1)), max_size=4)):
        if content:
            content[place] = data.draw(st.integers(0, 255))
    path = spoiled.root / "spoiled.onnx"
    path.write_bytes(content)
    try:
        header = read_onnx_header(path)
    except StrettoError as error:
        assert "ONNX" in str(error) or "parts" in str(error)
    else:
        assert header.outputs


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(
        st.one_of(st.none(), st.floats(), st.text(max_size=3), st.integers()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["accuracy", "recall", "confusion", "input_shape"]), inner),
        ),
        max_leaves=12,
    )
)
def test_no_metrics_make_a_traceback(spoiled: Built, content: object) -> None:
    path = spoiled.variant("good") / "metrics.json"
    path.write_text(json.dumps(content))
    inspect_repository(spoiled.root)
