"""Sizes and encodings in app.toml: what is read, what is refused and where, and what reaches the deployment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.repository import images, repository
from stretto.repository.problems import RepositoryError
from stretto.repository.profiles import file_sha256, read_profile, write_profile
from stretto.repository.read import inspect_repository, read_repository
from stretto.repository.sized_accuracy import accuracy_by_size
from stretto.repository.tensors import InputTensor
from tests.repository.build import KIND, stored, write_model

APP = """\
slo_ms = 50

[input]
shape = [1, 8, 8]
{more}

[output]
name = "probabilities"
labels = ["a", "b", "c"]
"""
ACCURACY = {"small": 0.7, "large": 0.9}


def build(root: Path, more: str, shape: str = "[1, 8, 8]") -> Path:
    """An application with variants of 4 × 4 and 8 × 8."""
    folder = root / "models" / "shirts"
    folder.mkdir(parents=True)
    (folder / "app.toml").write_text(APP.format(more=more).replace("[1, 8, 8]", shape))
    for name, edge in (("small", 4), ("large", 8)):
        variant = folder / "variants" / name
        write_model(variant / "model.onnx", (1, edge, edge))
        digest = file_sha256(variant / "model.onnx")
        content = {"accuracy": ACCURACY[name], "input_shape": [1, edge, edge], "model_sha256": digest}
        (variant / "metrics.json").write_text(json.dumps(content))
        (variant / "profiles").mkdir()
        write_profile(variant / "profiles" / f"{KIND}.json", stored("0" * 64))
    return folder.parent


def takes(root: Path, more: str) -> InputTensor:
    return read_repository(build(root, more)).applications[0].input


def refused(root: Path, more: str, shape: str = "[1, 8, 8]") -> str:
    with pytest.raises(RepositoryError) as caught:
        read_repository(build(root, more, shape))
    return str(caught.value.problems[0]).partition("shirts/")[2]


def test_one_size_and_raw_unless_said_otherwise(tmp_path: Path) -> None:
    found = takes(tmp_path, "")
    assert (found.sizes, found.encodings, found.divide_by, found.frame_bytes) == ((), ("raw",), None, ())
    assert found.shapes == ((1, 8, 8),) and found.largest == (1, 8, 8)


def test_sizes_and_encodings(tmp_path: Path) -> None:
    found = takes(tmp_path, 'sizes = [4, [4, 16], 8]\nencodings = ["raw", "jpeg"]\nframe_bytes = [1, 2, 3]')
    assert found.sizes == ((4, 4), (4, 16), (8, 8))
    assert found.shapes == ((1, 4, 4), (1, 4, 16), (1, 8, 8))
    assert (found.encodings, found.divide_by, found.frame_bytes) == (("raw", "jpeg"), 255.0, (1, 2, 3))
    assert found.elements == 64
    assert found.shape_for((1, 4, 4)) == (1, 4, 4)
    assert found.shape_for((1, 4, 5)) == (1, 4, 16)
    assert found.shape_for((1, 5, 5)) == (1, 8, 8)
    assert found.shape_for((1, 9, 9)) in ((1, 8, 8), (1, 4, 16))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("sizes = 8", "app.toml:5: sizes is 8; give a list of 1 to 64"),
        ("sizes = []", "app.toml:5: sizes is a list; give a list of 1 to 64"),
        (f"sizes = [{','.join(['8'] * 65)}]", "app.toml:5: sizes is a list; give a list of 1 to 64"),
        ("sizes = [8,\n  0]", "app.toml:6: sizes holds 0; edges are whole numbers from 1 to 4096"),
        ("sizes = [8,\n\n 8.5]", "app.toml:7: sizes holds 8.5; edges are"),
        ("sizes = [8, true]", "app.toml:5: sizes holds true; edges are"),
        ("sizes = [8, 4097]", "app.toml:5: sizes holds 4097; edges are"),
        ("sizes = [8, [4, 4, 4]]", "app.toml:5: sizes holds a list that is not [height, width]"),
        ("sizes = [8, [8, 8]]", "app.toml:5: sizes holds 8x8 twice"),
        ("sizes = [4]", "app.toml:5: sizes does not hold 8x8, the size of shape; add it"),
        ("sizes = [8]", "variants/small: takes [1, 4, 4], a size that clients may not send; add it to sizes"),
        ('encodings = ["raw", "jpg"]', 'app.toml:5: encodings holds "jpg"; did you mean jpeg?'),
        ('encodings = ["png"]', 'app.toml:5: encodings must hold "raw"'),
        ('encodings = ["raw", "raw"]', 'app.toml:5: encodings holds "raw" twice'),
        ("encodings = 3", "app.toml:5: encodings is 3; give a list of texts"),
        ("divide_by = 0", "app.toml:5: divide_by is 0; it must be from 1e-30 to 1e+30"),
        ('dtype = "int8"\ndivide_by = 2', "app.toml:6: divide_by is for images of bytes, which int8 cannot hold"),
        ('dtype = "bool"\nencodings = ["raw", "png"]', "app.toml:6: encoded images hold bytes, which bool cannot"),
        ("frame_bytes = [1, 2]", "app.toml:5: frame_bytes has 2 numbers for 1 sizes; give one each"),
        ("sizes = [4, 8]\nframe_bytes = [0, 2]", "app.toml:6: frame_bytes is 0; it must be from 1"),
        ("[limits]\nsizes = [8]", "app.toml:6: sizes belongs in [input], not here"),
    ],
)
def test_what_is_wrong_and_where(tmp_path: Path, more: str, says: str) -> None:
    assert refused(tmp_path, more).startswith(says)


def test_only_images_have_sizes_and_encodings(tmp_path: Path) -> None:
    says = refused(tmp_path / "1", "sizes = [8]", "[64]")
    assert says.startswith("app.toml:5: sizes are of images, whose shape ends in height and width, not [64]")
    says = refused(tmp_path / "2", 'encodings = ["raw", "png"]', "[2, 8, 8]")
    assert says.startswith("app.toml:5: encoded images have shape [height, width], [1, height, width] or [3,")


def test_frame_bytes_reach_the_deployment(tmp_path: Path) -> None:
    """As app.toml says, else as measured, else those of raw numbers."""

    def frames(root: Path) -> dict[str, int]:
        deployment, _ = read_repository(root).deployment(1, kind=KIND)
        return {variant.name: variant.frame_bytes for variant in deployment.variants}

    root = build(tmp_path / "raw", "sizes = [4, 8]")
    assert frames(root) == {"small": 4 * 16, "large": 4 * 64}
    path = root / "shirts" / "variants" / "small" / "profiles" / f"{KIND}.json"
    write_profile(path, replace(read_profile(path), frame_bytes=99))
    assert read_profile(path).frame_bytes == 99
    assert frames(root) == {"small": 99, "large": 4 * 64}
    said = build(tmp_path / "said", "sizes = [4, 8]\nframe_bytes = [7, 8]")
    assert frames(said) == {"small": 7, "large": 8}
    one = build(tmp_path / "one", "")
    assert frames(one) == {"small": 4 * 64, "large": 4 * 64}  # a client cannot send less


def test_input_sizes_reach_the_deployment(tmp_path: Path) -> None:
    deployment, _ = read_repository(build(tmp_path, "sizes = [4, 8]")).deployment(1, kind=KIND)
    assert {variant.name: variant.input_size for variant in deployment.variants} == {
        "small": (1, 4, 4),
        "large": (1, 8, 8),
    }


def test_accuracy_by_size_is_the_rule_until_it_is_measured(tmp_path: Path) -> None:
    root = build(tmp_path, "sizes = [2, 4, 6, 8]")
    application = read_repository(root).applications[0]
    assert accuracy_by_size(application, application.variant("large")) == {
        (2, 2): 0.7,
        (4, 4): 0.7,
        (6, 6): 0.7,
        (8, 8): 0.9,
    }
    assert set(accuracy_by_size(application, application.variant("small")).values()) == {0.7}
    path = root / "shirts" / "variants" / "large" / "metrics.json"
    content = json.loads(path.read_text()) | {"accuracy_by_size": {"4x4": 0.3, "8x8": 0.89}}
    path.write_text(json.dumps(content))
    application = read_repository(root).applications[0]
    assert accuracy_by_size(application, application.variant("large")) == {
        (2, 2): 0.7,
        (4, 4): 0.3,
        (6, 6): 0.7,
        (8, 8): 0.89,
    }
    deployment, _ = read_repository(root).deployment(1, kind=KIND)
    small, large = sorted(deployment.variants, key=lambda variant: variant.accuracy)
    assert large.accuracy_of(small) == 0.3 and small.accuracy_of(large) == 0.7  # planners see it


@pytest.mark.parametrize(
    ("by_size", "says"),
    [({"4": 0.3}, "is no size; write HEIGHTxWIDTH"), ({"4x4": 2}, "it must be from 0 to 1"), ([], "must be a table")],
)
def test_accuracy_by_size_that_makes_no_sense(tmp_path: Path, by_size: object, says: str) -> None:
    root = build(tmp_path, "sizes = [4, 8]")
    path = root / "shirts" / "variants" / "large" / "metrics.json"
    path.write_text(json.dumps({"accuracy": 0.9, "input_shape": [1, 8, 8], "accuracy_by_size": by_size}))
    with pytest.raises(RepositoryError, match=says):
        read_repository(root)


def test_without_pillow_there_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = build(tmp_path, 'sizes = [4, 8]\nencodings = ["raw", "png", "jpeg"]')
    found, problems = inspect_repository(root)
    assert not problems.errors
    monkeypatch.setattr(repository, "can_decode", lambda: False)
    texts = [str(doubt) for doubt in found.doubts(KIND)]
    assert any(
        "png and jpeg cannot be read here, so only raw images are taken; run: pip install" in text for text in texts
    )
    monkeypatch.setattr(repository, "can_decode", lambda: True)
    assert not any("cannot be read here" in str(doubt) for doubt in found.doubts(KIND))


def test_encoded_frames_of_unknown_size_are_a_warning(tmp_path: Path) -> None:
    def said(name: str, more: str) -> list[str]:
        root = build(tmp_path / name, more)
        found, _ = inspect_repository(root)
        return [str(doubt) for doubt in found.doubts(KIND) if "frame_bytes" in str(doubt)]

    (text,) = said("unknown", 'sizes = [4, 8]\nencodings = ["raw", "jpeg"]')
    assert "a frame as jpeg were not measured for" in text and "small" in text and "large" in text
    assert "add a sample, and run: stretto profile" in text
    assert not said("stated", 'sizes = [4, 8]\nencodings = ["raw", "jpeg"]\nframe_bytes = [7, 8]')
    assert not said("raw", "sizes = [4, 8]")
    root = tmp_path / "unknown" / "models"
    for name in ("small", "large"):
        path = root / "shirts" / "variants" / name / "profiles" / f"{KIND}.json"
        write_profile(path, replace(read_profile(path), frame_bytes=99))
        doubts = [str(doubt) for doubt in inspect_repository(root)[0].doubts(KIND) if "frame_bytes" in str(doubt)]
        assert [("measured for large" in text) for text in doubts] == ([True] if name == "small" else [])


def test_the_names_are_those_of_requests() -> None:
    assert images.ENCODINGS == ("raw", "jpeg", "png")
    assert images.sizes_text(((8, 8), (12, 16))) == "8x8,12x16"
