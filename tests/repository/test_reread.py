"""A repository that is read again and again: as if it were read anew each time, whatever happened to its files."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.core.errors import StrettoError
from stretto.repository import reread
from stretto.repository.read import read_repository
from stretto.repository.reread import Reader
from tests.repository.build import Built, build


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Built:
    monkeypatch.setattr(reread, "SETTLED_NS", 0)
    built = build(tmp_path / "models")
    shutil.copytree(built.app, built.root / "other")
    return built


def test_only_what_changed_is_read_anew(built: Built) -> None:
    reader = Reader(built.root)
    first = reader.read()
    assert first == read_repository(built.root)
    again = reader.read()
    assert [a is b for a, b in zip(first.applications, again.applications, strict=True)] == [True, True]
    (built.app / "app.toml").write_text((built.app / "app.toml").read_text().replace("slo_ms = 50", "slo_ms = 60"))
    changed = reader.read()
    kept = {each.name: each is before for each, before in zip(changed.applications, first.applications, strict=True)}
    assert kept == {"other": True, "rows": False}
    assert changed == read_repository(built.root) and changed.application("rows").slo_ms == 60


def test_a_change_of_the_same_length_whose_time_is_set_back_is_seen(built: Built) -> None:
    reader, file = Reader(built.root), built.app / "app.toml"
    assert reader.read().application("rows").slo_ms == 50
    before = file.stat()
    file.write_text(file.read_text().replace("slo_ms = 50", "slo_ms = 60"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert reader.read().application("rows").slo_ms == 60


def test_what_changed_just_now_is_not_trusted(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second change in the same tick of the system's clock would not show."""
    monkeypatch.setattr(reread, "SETTLED_NS", 3600 * 10**9)
    reader = Reader(built.root)
    first, second = reader.read(), reader.read()
    assert not any(a is b for a, b in zip(first.applications, second.applications, strict=True)) and first == second


def test_what_a_link_leads_to_is_read_every_time(built: Built) -> None:
    shared = built.root / ".shared"
    (built.app / "app.toml").rename(shared)
    (built.app / "app.toml").symlink_to(shared)
    reader = Reader(built.root)
    assert reader.read().application("rows").slo_ms == 50
    shared.write_text(shared.read_text().replace("slo_ms = 50", "slo_ms = 60"))
    assert reader.read().application("rows").slo_ms == 60


def test_applications_that_come_go_and_break(built: Built) -> None:
    reader = Reader(built.root)
    sound = reader.read()
    shutil.copytree(built.app, built.root / "third")
    assert [each.name for each in reader.read().applications] == ["other", "rows", "third"]
    (built.root / "third" / "app.toml").write_text("slo_ms = -1\n")
    for _ in range(2):  # what is wrong is told every time
        found = reader.read()
        assert [each.name for each in found.applications] == ["other", "rows"]
        assert [(each.name, "slo_ms" in each.reason) for each in found.unreadable] == [("third", True)]
        with pytest.raises(StrettoError, match="slo_ms"):
            found.application("third")
    kept = reader.read((*sound.applications, replace(sound.applications[0], name="third")))
    assert [each.name for each in kept.applications] == ["other", "rows", "third"] and kept.unreadable
    shutil.rmtree(built.root / "third")
    assert reader.read() == sound
