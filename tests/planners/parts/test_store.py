"""Files of policies: they come back as they were, and are refused where they do not fit."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.planners.parts.laws import Gamma
from stretto.planners.parts.library import Library, make_library
from stretto.planners.parts.store import load_libraries, matching, save_libraries
from stretto.planners.parts.task import Task
from stretto.planners.ramsis.options import Options
from stretto.planners.ramsis.policy import make_policy
from tests.planners.parts.tasks import small_task

OPTIONS = Options(slack_steps=20)


@pytest.fixture(scope="module")
def library() -> Library:
    return make_library(small_task(), OPTIONS, make_policy, 20.0, 100.0, largest_gap=0.05)


def test_there_and_back(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "policies.npz"
    save_libraries(path, [library])
    found = matching(load_libraries(path), small_task(), OPTIONS)
    assert found.complete_to == library.complete_to == 100.0
    for ours, theirs in zip(library.policies, found.policies, strict=True):
        assert (ours.load, ours.expectation) == (theirs.load, theirs.expectation)
        assert (ours.variant == theirs.variant).all()
        assert (ours.batch == theirs.batch).all()
        assert (ours.slack_ns == theirs.slack_ns).all()
    assert path.stat().st_size < 10_000


def slower() -> Task:
    task = small_task()
    latency = task.latency_ns.copy()
    latency[2, 3] += 1
    return replace(task, latency_ns=latency)


@pytest.mark.parametrize(
    ("task", "options", "sentence"),
    [
        (small_task(slo_ms=50), OPTIONS, "for SLO 60 ms, not 50 ms"),
        (small_task(4), OPTIONS, "for workers 3, not 4"),
        (small_task().only([0, 2]), OPTIONS, "for variants fast, middle, slow, not fast, slow"),
        (slower(), OPTIONS, "for other latencies or accuracies"),
        (replace(small_task(), accuracy=np.array([0.6, 0.7, 0.91])), OPTIONS, "for other latencies or accuracies"),
        (small_task(), Options(slack_steps=30), "for slack steps 20, not 30"),
        (small_task(), Options(slack_steps=20, law=Gamma(0.5)), "for arrivals poisson, not gamma:0.5"),
        (replace(small_task(), application="other"), OPTIONS, "for application app, not other"),
    ],
)
def test_policies_for_something_else_are_refused(
    library: Library, tmp_path: Path, task: Task, options: Options, sentence: str
) -> None:
    path = tmp_path / "policies.npz"
    save_libraries(path, [library])
    with pytest.raises(StrettoError, match=f"^policies.npz: these policies are {sentence}.*; make them anew$"):
        matching(load_libraries(path), task, options)


def test_several_in_one_file(library: Library, tmp_path: Path) -> None:
    other = replace(library, task=replace(library.task, application="other"))
    path = tmp_path / "policies.npz"
    save_libraries(path, [library, other])
    for one in (library, other):
        assert matching(load_libraries(path), one.task, OPTIONS).task is one.task


def test_what_is_no_file_of_policies_is_refused(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "policies.npz"
    with pytest.raises(StrettoError, match="cannot be read"):
        load_libraries(path)
    for content in (b"", b"nonsense", b"PK\x03\x04"):
        path.write_bytes(content)
        with pytest.raises(StrettoError, match=r"not a file of policies|cannot be read"):
            load_libraries(path)
    np.savez(path, head=np.zeros(3))
    with pytest.raises(StrettoError, match="not a file of policies"):
        load_libraries(path)
    np.savez(path, head=np.array([{"an": "object"}], dtype=object))
    with pytest.raises(StrettoError, match="not a file of policies"):
        load_libraries(path)
    with pytest.raises(StrettoError, match="no policies"):
        save_libraries(path, [Library(library.task, OPTIONS)])


def test_a_variant_that_does_not_exist_is_refused(library: Library, tmp_path: Path) -> None:
    """A damaged table would have the dispatcher run whatever it points at."""
    path, broken = tmp_path / "policies.npz", tmp_path / "broken.npz"
    save_libraries(path, [library])
    with np.load(path) as arrays:
        content = dict(arrays)
    for name, value in (("0.variant", 7), ("0.batch", 0), ("0.load", -1.0)):
        damaged = {key: array.copy() for key, array in content.items()}
        damaged[name].flat[-1] = value
        np.savez(broken, **damaged)
        with pytest.raises(StrettoError, match="damaged"):
            load_libraries(broken)


def test_another_version_says_so(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "policies.npz"
    save_libraries(path, [library])
    with np.load(path) as arrays:
        content = dict(arrays)
    head = json.loads(content["head"].tobytes())
    content["head"] = np.frombuffer(json.dumps(head | {"format": 99}).encode(), dtype=np.uint8)
    np.savez(path, **content)
    with pytest.raises(StrettoError, match="another version"):
        load_libraries(path)
    assert zipfile.is_zipfile(path)


def test_damaged_files_are_refused_in_words(library: Library, tmp_path: Path) -> None:
    """Regression: a flipped byte ended in errors of zlib, tokenize or memory."""
    path, bad = tmp_path / "policies.npz", tmp_path / "damaged.npz"
    save_libraries(path, [library])
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        bad.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            load_libraries(bad)
        except StrettoError as error:
            assert str(error).startswith("damaged.npz: ")
    bad.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StrettoError, match=r"damaged\.npz: "):
        load_libraries(bad)


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("0.load", lambda array: array * np.nan),
        ("0.load", lambda array: -array[::-1]),
        ("0.load", lambda array: array * 1e300),
        ("0.expectation", lambda array: array + np.inf),
        ("0.variant", lambda array: array.astype(np.float64)),
        ("0.slack_ns", lambda array: array.astype(np.complex128)),
        ("0.slack_ns", lambda array: array * 10**12),
    ],
)
def test_numbers_that_are_none_are_refused(library: Library, tmp_path: Path, what: str, change: object) -> None:
    path = tmp_path / "policies.npz"
    save_libraries(path, [library])
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays[what] = change(arrays[what])  # type: ignore[operator]
    np.savez_compressed(path, **arrays)
    with pytest.raises(StrettoError, match=r"policies\.npz: .*damaged"):
        load_libraries(path)
