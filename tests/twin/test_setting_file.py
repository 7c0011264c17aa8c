"""Settings in files: the same again, the same bytes, and nothing else is taken for one."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.twin.recent import MOST_NAMES
from stretto.twin.setting import Setting
from stretto.twin.setting_file import is_setting_file, load_setting, save_setting
from tests.twin.made import whole_setting


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "setting.npz"
    save_setting(path, whole_setting())
    return path


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and np.array_equal(one, other))
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, name), getattr(other, name)) for name in one.__dataclass_fields__)
    return bool(one == other)


def test_a_round_trip_gives_the_same(saved: Path, tmp_path: Path) -> None:
    assert is_setting_file(saved)
    again = load_setting(saved)
    assert same(whole_setting(), again)
    save_setting(tmp_path / "again.npz", again)
    assert (tmp_path / "again.npz").read_bytes() == saved.read_bytes()
    assert saved.stat().st_size < 300_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.npz", "setting.npz"]
    save_setting(tmp_path / "empty.npz", Setting({}))
    assert same(load_setting(tmp_path / "empty.npz"), Setting({}))


def test_a_setting_of_before_ladders_were_kept_goes_by_name(saved: Path) -> None:
    assert whole_setting().ladder("a") == ("quick", "v", "slow") and whole_setting().ladder("c") == ()
    old = load_setting(with_head(saved, lambda head: head.pop("ladders")))
    assert old.ladders == {} and old.ladder("a") == ("v",)


def test_a_setting_of_before_evidence_was_kept_has_none(saved: Path) -> None:
    assert load_setting(with_head(saved, lambda head: head.pop("evidence"))).evidence == {}


def test_evidence_that_is_none_is_refused(saved: Path) -> None:
    for made_up in (["a", "b"], ["a/../b"], [3], {"a": 1, "b": 2}):
        with pytest.raises(StrettoError, match="setting"):
            load_setting(with_head(saved, lambda head, made_up=made_up: head.update(evidence=made_up)))


def test_samples_of_before_they_were_weighed_stand_for_one_each(saved: Path) -> None:
    old = load_setting(with_arrays(saved, lambda arrays: arrays.pop("evidence.0.weights")))
    assert (old.evidence["a"].weights == 1).all()
    for made_up in (np.ones(3), np.ones(40, np.int64), np.zeros(40), np.ones((40, 1))):
        with pytest.raises(StrettoError, match="setting"):
            load_setting(
                with_arrays(saved, lambda arrays, made_up=made_up: arrays.update({"evidence.0.weights": made_up}))
            )


def test_a_file_that_is_cut_short_or_changed_is_refused(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    damaged = tmp_path / "damaged.npz"
    for length in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:length])
        with pytest.raises(StrettoError, match=r"damaged\.npz: not a setting, or damaged"):
            load_setting(damaged)
    for place in range(40, len(whole), len(whole) // 60):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            changed = load_setting(damaged)
        except StrettoError as error:
            assert str(error).startswith("damaged.npz: ")
        else:
            assert same(whole_setting(), changed)  # a byte that says nothing, as a date
    with pytest.raises(StrettoError, match=r"none\.npz: cannot be read"):
        load_setting(tmp_path / "none.npz")
    assert not is_setting_file(tmp_path / "none.npz")


def with_arrays(path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    with np.load(path) as stored:
        arrays = dict(stored)
    change(arrays)
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return path


def with_head(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    def changed(arrays: dict[str, Any]) -> None:
        head = json.loads(arrays["head"].tobytes())
        change(head)
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)

    return with_arrays(path, changed)


@pytest.mark.parametrize(
    "change",
    [
        lambda head: head["applications"][0].update(rate=-1),
        lambda head: head["applications"][0].update(rate=float("nan")),
        lambda head: head["applications"][0].update(span_ns=1),
        lambda head: head["applications"][0].update(span_ns="long"),
        lambda head: head["applications"][0].update(name="no/such name"),
        lambda head: head["applications"][0].update(class_shares=[0.9, 0.9]),
        lambda head: head["applications"][0].update(dispersion=[1]),
        lambda head: head["applications"].append({}),
        lambda head: head.update(version=2),
        lambda head: head.update(format="other"),
        lambda head: head["residuals"][0].__setitem__(2, 99),
        lambda head: head["residuals"][0].__setitem__(3, 10**9),
        lambda head: head["residuals"].pop(),
        lambda head: head["present"].update(default=-1),
        lambda head: head["delays"].update(more=1),
        lambda head: head["networks"].update({"3": [-1.0]}),
        lambda head: head.pop("delays"),
        lambda head: head["ladders"].update(a=["quick", "no/such name"]),
        lambda head: head["ladders"].update({"no/such name": []}),
        lambda head: head["ladders"].update(a=[f"v{number}" for number in range(MOST_NAMES + 1)]),
        lambda head: head["ladders"].update(a=[7]),
        lambda head: head.update(ladders=[]),
    ],
)
def test_a_head_that_says_nonsense_is_refused(saved: Path, change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(StrettoError, match=r"^setting\.npz: "):
        load_setting(with_head(saved, change))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("0.offset_ns", np.arange(5)[::-1]),
        ("0.rows", np.zeros(3, np.int32)),
        ("0.slack_ns", np.full((2, 2), 1)),
        ("ratios", np.array([np.nan] * 251)),
        ("handoff_ns", np.zeros(100)),
        ("overrun_ns", np.zeros(10**6, np.int64)),
    ],
)
def test_arrays_that_do_not_go_together_are_refused(saved: Path, name: str, value: Any) -> None:
    with pytest.raises(StrettoError, match=r"^setting\.npz: "):
        load_setting(with_arrays(saved, lambda arrays: arrays.update({name: value})))


def test_pickles_and_headers_that_ask_for_too_much_are_refused(saved: Path, tmp_path: Path) -> None:
    held = np.array([{"a": 1}], dtype=object)
    with (tmp_path / "pickled.npz").open("wb") as file:
        np.savez(file, head=held)
    with pytest.raises(StrettoError, match="not a setting, or damaged"):
        load_setting(tmp_path / "pickled.npz")
    huge = tmp_path / "huge.npz"
    with zipfile.ZipFile(huge, "w") as archive, archive.open("head.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<i8", "fortran_order": False, "shape": (10**13,)})
    with pytest.raises(StrettoError, match="not a setting, or damaged"):
        load_setting(huge)
    with huge.open("wb") as file:
        np.savez_compressed(file, head=np.zeros(300 << 20, np.uint8))
    with pytest.raises(StrettoError, match="too large for a setting"):
        load_setting(huge)


def test_what_was_there_stays_where_the_new_file_cannot_be_written(saved: Path, tmp_path: Path) -> None:
    before = saved.read_bytes()
    broken = whole_setting()
    object.__setattr__(broken, "present", {"default": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        save_setting(saved, broken)
    assert saved.read_bytes() == before
    with pytest.raises(StrettoError, match="cannot be written"):
        save_setting(tmp_path / "no" / "folder.npz", whole_setting())
