"""Libraries in files: what comes back, and files that are damaged, of another version, or name what they must not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.core.errors import StrettoError
from stretto.twin.library import MOST_VERDICTS
from stretto.twin.library_file import MAX_BYTES, as_plain, library_of, load_library, save_library
from tests.twin.libraries import ALONE, library

Change = Callable[[Any], object]


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    file, again = tmp_path / "plans.json", tmp_path / "again.json"
    made = library(100.0, 250.5, figures={"rows of app": 1.5}, candidate=ALONE)
    save_library(file, made)
    read = load_library(file)
    assert (read.scope, read.judgements, read.conditions) == (made.scope, made.judgements, made.conditions)
    assert read.name == "plans.json"
    save_library(again, read)
    assert file.read_bytes() == again.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.json", "plans.json"]
    assert len(file.read_text().splitlines()) < 20, "a line each"


def test_what_cannot_be_written_or_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(StrettoError, match=r"^plans.json: cannot be written \("):
        save_library(tmp_path / "none" / "plans.json", library(100.0))
    with pytest.raises(StrettoError, match=r"^plans.json: cannot be read \("):
        load_library(tmp_path / "plans.json")
    with pytest.raises(StrettoError, match=r"cannot be read \("):
        load_library(tmp_path)


def first(data: Any) -> Any:
    return data["judged"][0]


DAMAGES: list[Change] = [
    lambda data: data.pop("format"),
    lambda data: data.update(format="stretto setting"),
    lambda data: data.update(workers={}),
    lambda data: data.update(workers={"default": 0}),
    lambda data: data.update(workers={"default": True}),
    lambda data: data.update(workers={"default": 2**70}),
    lambda data: data.update(memory_bytes={"elsewhere": 1}),
    lambda data: data.update(quantile="p42"),
    lambda data: data.update(conditions=["many"]),
    lambda data: data.update(conditions="x" * 10_000),
    lambda data: data.update(conditions="\x1b[31m"),
    lambda data: data.update(applications=[]),
    lambda data: data.update(applications=data["applications"] * 2),
    lambda data: data.update(judged=data["judged"] * (MOST_VERDICTS + 1)),
    lambda data: data.update(judged={}),
    lambda data: data["applications"][0].update(slo_ms=-1),
    lambda data: data["applications"][0]["variants"]["fast"].update(accuracy=1.5),
    lambda data: first(data).pop("runner_up"),
    lambda data: first(data)["rates"].update(app=float("nan")),
    lambda data: first(data)["rates"].update(app=float("inf")),
    lambda data: first(data)["rates"].update(app="100"),
    lambda data: first(data)["rates"].update(more=1.0),
    lambda data: first(data)["promise"].update(correct=1.2),
    lambda data: first(data)["promise"].update(late=-0.1),
    lambda data: first(data)["figures"].update(rows=0.0),
    lambda data: first(data).update(tried=1.5),
    lambda data: first(data).update(ahead=1e300),
    lambda data: first(data).update(stressed=-1e9),
    lambda data: first(data)["candidate"]["options"].update(margin=0.95),
    lambda data: first(data)["candidate"]["options"].update(margin="a"),
    lambda data: first(data)["candidate"].update(variants={"app": "none"}),
    lambda data: first(data)["candidate"].update(variants={"other": "fast"}),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused_with_what_to_do(damage: Change) -> None:
    data = as_plain(library(100.0))
    assert library_of(json.dumps(data), "plans.json").judgements
    damage(data)
    with pytest.raises(StrettoError, match=r"^plans.json: not a file of judged plans, or damaged; judge anew with str"):
        library_of(json.dumps(data), "plans.json")


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "7", "{", "[" * 100_000, '{"format": "stretto judged plans"}', "\0"]
)
def test_what_is_no_library_at_all_is_refused(text: str) -> None:
    with pytest.raises(StrettoError, match=r"^plans.json: not a file of judged plans"):
        library_of(text, "plans.json")


def test_a_file_names_only_planners_and_options_that_the_judge_would_try() -> None:
    for planner in ("os:system", "judged", "clipper", "no_such"):
        data = as_plain(library(100.0))
        first(data)["candidate"]["planner"] = planner
        with pytest.raises(StrettoError, match=f"planner '{planner}' is none that is judged here; judge anew"):
            library_of(json.dumps(data), "plans.json")
    data = as_plain(library(100.0))
    first(data)["candidate"]["options"]["trust"] = 1.0
    with pytest.raises(StrettoError, match="planner priced has other options here; judge anew"):
        library_of(json.dumps(data), "plans.json")


def test_other_versions_and_large_files_are_refused(tmp_path: Path) -> None:
    data = as_plain(library(100.0)) | {"version": 2}
    with pytest.raises(StrettoError, match=r"^plans.json: judged by another version of Stretto; judge anew"):
        library_of(json.dumps(data), "plans.json")
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(StrettoError, match=r"^large.json: too large"):
        load_library(large)
