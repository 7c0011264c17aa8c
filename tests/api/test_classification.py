"""The best of any output with several numbers along its last axis, with labels or without."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.api import answers
from stretto.api.answers import answer, best_first, classified
from stretto.api.errors import ApiError
from stretto.api.http.encode import encode_response
from stretto.api.inputs import CLASSIFIED_NUMBERS, CLASSIFIED_STRINGS, checked_outputs
from stretto.api.messages import WantedOutput
from stretto.core.outcome import Outcome
from stretto.live.requests import Request
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


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.bool_, np.uint8, np.int16, np.int64])
@pytest.mark.parametrize("has_others", [False, True], ids=["numbers", "with NaN and infinities"])
def test_the_best_are_those_of_a_whole_sort(dtype: type, has_others: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many equal scores, of which the first go first; what is no number comes last."""
    monkeypatch.setattr(answers, "SORTED_AT_ONCE", 0)
    random = np.random.default_rng(5)
    for columns in (2, 3, 10, 60):
        rows = random.integers(0, 6, (20, columns)).astype(dtype)
        if has_others and rows.dtype.kind == "f":
            for value in (np.nan, np.inf, -np.inf):
                rows[random.random(rows.shape) < 0.2] = value
        for count in {1, 2, columns // 2, columns}:
            found = best_first(rows, count).tolist()
            for row, places in zip(rows.tolist(), found, strict=True):

                def rank(place: int, row: list[Any] = row) -> tuple[bool, float, int]:
                    return (True, 0, place) if math.isnan(row[place]) else (False, -row[place], place)

                assert places == sorted(range(columns), key=rank)[:count]


def seconds(work: Callable[[], Any]) -> float:
    """Processor time of this thread, the least of some tries."""
    tries = []
    for _ in range(5):
        began = time.thread_time()
        work()
        tries.append(time.thread_time() - began)
    return min(tries)


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ((1, CLASSIFIED_NUMBERS), 5),
        ((1, CLASSIFIED_NUMBERS), CLASSIFIED_STRINGS),
        ((CLASSIFIED_NUMBERS // 1000, 1000), CLASSIFIED_STRINGS // (CLASSIFIED_NUMBERS // 1000)),
        ((CLASSIFIED_STRINGS, 2), 1),
        ((CLASSIFIED_STRINGS // 10, 10), 10),
    ],
)
@pytest.mark.parametrize("kind", ["spread", "mostly equal"])
def test_the_dearest_classification_is_cheaper_than_the_numbers_themselves(
    fashion: ApplicationFiles, shape: tuple[int, int], count: int, kind: str
) -> None:
    """Answers are put into words on the event loop: ten such requests a second made others wait for 0.18 s."""
    numbers = np.random.default_rng(2).random(shape).astype(np.float32)
    if kind == "mostly equal":
        numbers[numbers < 0.99] = 0.0

    def answered(answers: np.ndarray, wanted: WantedOutput) -> Callable[[], Any]:
        entered = Request("fashion", answers, 10**9, lambda _: None)
        entered.answers, entered.outcome, entered.variants = answers, Outcome.ON_TIME, ["v"]
        files = replace(fashion, labels=tuple(map(str, range(answers.shape[1]))))
        return lambda: encode_response(answer(entered, files, "", wanted))

    files = replace(fashion, output=replace(fashion.output, shape=(shape[1],)))
    wanted = checked_outputs(files, [WantedOutput(fashion.output.name, count)], shape[0])
    at_most = np.random.default_rng(3).random((1, CLASSIFIED_NUMBERS)).astype(np.float32)
    as_numbers = answered(at_most, WantedOutput(fashion.output.name))
    assert seconds(answered(numbers, wanted)) < seconds(as_numbers)


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
