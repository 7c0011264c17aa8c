"""The best of any output with several numbers along its last axis, with labels or without."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.api.answers import classified
from stretto.api.errors import ApiError
from stretto.api.inputs import checked_outputs
from stretto.api.messages import WantedOutput
from stretto.repository.application import ApplicationFiles
from stretto.repository.read import read_repository
from tests.api.serving import Running, images, json_body, repository_of, values_of


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        (np.array([[0.25, 0.5, 0.25]], np.float32), [b"0.500000:1", b"0.250000:0"]),
        (np.array([[3, 0, 255]], np.uint8), [b"255:2", b"3:0"]),
        (np.array([[-128, 127, -128]], np.int8), [b"127:1", b"-128:0"]),
        (np.array([[2**53 + 1, 2**53, 0]], np.int64), [b"9007199254740993:0", b"9007199254740992:1"]),
        (np.array([[False, True, True]]), [b"1:1", b"1:2"]),
        (np.array([[np.nan, 1.0, -np.inf]]), [b"1.000000:1", b"-inf:2"]),
    ],
)
def test_the_best_of_every_type(array: np.ndarray, texts: list[bytes]) -> None:
    assert classified(array, 2, ()).tolist() == [texts]


def test_axes_before_the_last_stay_and_labels_are_told() -> None:
    array = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    found = classified(array, 1, ("a", "b", "c"))
    assert found.shape == (2, 2, 1)
    assert found[1, 1, 0] == b"11.000000:2:c"


@pytest.fixture(scope="module")
def fashion(repository: Path) -> ApplicationFiles:
    return next(files for files in read_repository(str(repository)).applications if files.name == "fashion")


@pytest.mark.parametrize(
    ("shape", "rows", "count", "is_taken"),
    [
        ((10,), 1, 3, True),
        ((4, 10), 32, 3, True),
        ((), 1, 1, False),
        ((1,), 1, 1, False),
        ((10,), 1, -1, False),
        ((1_000_000,), 1, 5, True),
        ((1_000_000,), 2, 5, False),
        ((1_000_000,), 1, 2**31, False),
    ],
)
def test_what_can_be_classified(fashion: ApplicationFiles, shape: Any, rows: int, count: int, is_taken: bool) -> None:
    files = replace(fashion, output=replace(fashion.output, shape=shape))
    wanted = [WantedOutput(fashion.output.name, count)]
    if is_taken:
        assert checked_outputs(files, wanted, rows) is wanted[0]
    else:
        with pytest.raises(ApiError):
            checked_outputs(files, wanted, rows)


def test_an_output_of_values_without_labels(tmp_path: Path) -> None:
    repository = repository_of(tmp_path, "mnist")
    (repository / "mnist" / "labels.txt").unlink()
    shutil.rmtree(repository / "mnist" / "evidence")
    app = repository / "mnist" / "app.toml"
    app.write_text(app.read_text().replace("[output]", '[output]\nkind = "values"\nshape = [10]'))
    with Running(repository, only=("mnist/linear", "mnist/mlp")) as running:
        path = "/v2/models/mnist/versions/linear/infer"
        values = values_of(running.ask("POST", path, json_body(images())))[0]
        wanted = [{"name": "probabilities", "parameters": {"classification": 2}}]
        reply = running.ask("POST", path, json_body(images(), outputs=wanted))
        score, index = reply.content["outputs"][0]["data"][0].split(":")
        assert int(index) == values.argmax()
        assert float(score) == pytest.approx(values.max(), abs=1e-4)
