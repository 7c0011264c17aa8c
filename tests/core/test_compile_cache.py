"""Damage to the compile cache costs time once. What somebody else may have written is never run."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.core import compile_cache
from stretto.core.compile_cache import DamagedFile, read_file, throw_away_damaged, user_folder, write_file
from tests.core.test_compiled import House

NOBODY = 65534  # a user that is not this one
FUNCTIONS = 3  # that the little package has
MORE = """
@compiled
def other_1(value):
    return value + 1

@compiled
def other_2(value):
    return value + 2
"""
ASK = """
from stretto import caller
functions = [caller.outer, caller.other_1, caller.other_2]
results = [function(10) for function in functions]
print(*results, sum(sum(f.stats.cache_hits.values()) for f in functions))
"""
RESULTS = (40, 11, 12)


class Marking:
    """Unpickling one makes a folder, by which a test sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


def is_empty(path: Path, others: list[Path]) -> None:
    path.write_bytes(b"")


def is_cut_off(path: Path, others: list[Path]) -> None:
    os.truncate(path, path.stat().st_size // 2)


def is_random(path: Path, others: list[Path]) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def has_a_flipped_bit(path: Path, others: list[Path]) -> None:
    data = bytearray(path.read_bytes())
    data[-len(data) // 3] ^= 1
    path.write_bytes(data)


def is_that_of_another_function(path: Path, others: list[Path]) -> None:
    """The next one's, as it was when all were sound."""
    shutil.copyfile(others[(others.index(path) + 1) % len(others)].with_suffix(".sound"), path)


def is_a_directory(path: Path, others: list[Path]) -> None:
    path.unlink()
    path.mkdir()
    (path / "something").write_text("in it")


def may_not_be_read(path: Path, others: list[Path]) -> None:
    """Root may read everything, but takes nothing from others."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    else:
        path.chmod(0)


def is_another_pickle(path: Path, others: list[Path]) -> None:
    path.write_bytes(pickle.dumps(Marking(path.parent.parent / "executed")))


def is_a_pipe(path: Path, others: list[Path]) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE = [
    is_empty,
    is_cut_off,
    is_random,
    has_a_flipped_bit,
    is_that_of_another_function,
    is_a_directory,
    may_not_be_read,
    is_another_pickle,
    is_a_pipe,
]


def damage(folder: Path, *kinds: Callable[[Path, list[Path]], None]) -> int:
    """All files of a cache, by one kind after the other; how many there are."""
    files = sorted(folder.iterdir())
    copies = [path.with_suffix(".sound") for path in files]
    for path, copy in zip(files, copies, strict=True):
        shutil.copy(path, copy)
    for number, path in enumerate(files):
        kinds[number % len(kinds)](path, files)
    for copy in copies:
        copy.unlink()
    return len(files)


class Asked:
    """What the little package gave, how much of it came from the cache, and what was said on the way."""

    def __init__(self, house: House, cache: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(house.folder), "STRETTO_CACHE_DIR": str(cache)}
        done = subprocess.run(
            [sys.executable, "-c", ASK], cwd=house.folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        *results, self.hits = (int(word) for word in done.stdout.split())
        assert tuple(results) == RESULTS
        self.said = done.stderr.splitlines()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    house = House(tmp_path_factory.mktemp("built") / "house")
    with (house.package / "caller.py").open("a") as file:
        file.write(MORE)
    return house


@pytest.fixture(scope="module")
def warmed(house: House, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("warmed")
    asked = Asked(house, cache)
    assert asked.hits == 0 and not asked.said
    assert len(list((cache / "compiled").iterdir())) == FUNCTIONS
    return cache


@pytest.fixture
def cache(warmed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(warmed, tmp_path / "cache"))


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_cache_is_made_anew_and_told_once(
    kind: Callable[[Path, list[Path]], None], house: House, cache: Path
) -> None:
    damage(cache / "compiled", kind)
    first = Asked(house, cache)
    assert first.hits == 0
    assert len(first.said) == 1 and f"{FUNCTIONS} of {FUNCTIONS} files of the compile cache" in first.said[0]
    assert not (cache / "executed").exists()
    second = Asked(house, cache)
    assert second.hits == FUNCTIONS and not second.said


def test_one_damaged_file_costs_only_its_own_function(house: House, cache: Path) -> None:
    is_empty(sorted((cache / "compiled").iterdir())[0], [])
    asked = Asked(house, cache)
    assert asked.hits == FUNCTIONS - 1
    assert len(asked.said) == 1 and f"1 of {FUNCTIONS} files" in asked.said[0]


@pytest.mark.parametrize("mode", [0o775, 0o1757])
def test_a_folder_that_others_may_write_to_is_neither_read_nor_written(house: House, cache: Path, mode: int) -> None:
    folder = cache / "compiled"
    os.unlink(sorted(folder.iterdir())[0])
    folder.chmod(mode)
    before = sorted(folder.iterdir())
    asked = Asked(house, cache)
    assert asked.hits == 0
    assert len(asked.said) == 1 and "other users may write to it" in asked.said[0]
    assert sorted(folder.iterdir()) == before
    folder.chmod(0o700)
    asked = Asked(house, cache)
    assert asked.hits == FUNCTIONS - 1 and not asked.said


def test_a_file_that_others_may_write_to_is_not_run(house: House, cache: Path) -> None:
    for path in (cache / "compiled").iterdir():
        path.chmod(0o666)
    asked = Asked(house, cache)
    assert asked.hits == 0 and len(asked.said) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_of_another_user_is_not_used(house: House, cache: Path) -> None:
    os.chown(cache / "compiled", NOBODY, NOBODY)
    asked = Asked(house, cache)
    assert asked.hits == 0
    assert len(asked.said) == 1 and "other users may write to it" in asked.said[0]


def test_what_is_written_is_for_this_user_alone_whatever_the_umask(house: House, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Asked(house, tmp_path / "cache")
    finally:
        os.umask(before)
    asked = Asked(house, tmp_path / "cache")
    assert asked.hits == FUNCTIONS and not asked.said


def test_every_kind_of_damage_is_seen_in_every_file_of_a_real_cache(tmp_path: Path) -> None:
    """Nothing is compiled here. The files are those that this very run of the tests uses."""
    if not user_folder().is_dir():
        pytest.skip("nothing is compiled yet: run `stretto warm`")
    for kind in DAMAGE:
        folder = Path(shutil.copytree(user_folder(), tmp_path / kind.__name__ / "compiled"))
        for path in folder.iterdir():
            if path.suffix != compile_cache.SUFFIX:  # of an earlier version of Stretto
                path.unlink()
        count = damage(folder, kind)
        for path in folder.iterdir():
            with pytest.raises(DamagedFile):
                read_file(path)
        assert count
        throw_away_damaged(folder)
        assert not list(folder.iterdir())
        assert not (folder.parent / "executed").exists()
        shutil.rmtree(folder)


def test_a_file_is_what_was_written_to_it(tmp_path: Path) -> None:
    path = tmp_path / f"some{compile_cache.SUFFIX}"
    assert read_file(path) is None
    for content in (b"", b"abc", os.urandom(100_000)):
        write_file(path, content)
        assert read_file(path) == content
    assert list(tmp_path.iterdir()) == [path]
