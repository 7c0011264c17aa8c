"""Compiled code and its cache: what is found by content, what is compiled anew, and what is never written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.core.compile_cache import PACKAGE, source_stamp

CALLER = """
from stretto.core.compiled import compiled
from stretto.called import inner

@compiled
def outer(value):
    return inner(value, 1) + inner(value, 2)
"""
CALLED = """
from stretto.core.compiled import compiled
from stretto.number import NUMBER

@compiled
def inner(value, factor):
    return value * factor + NUMBER
"""
ASK = """
from stretto.caller import outer
from stretto.called import inner
result = outer(10)
hits, misses = (sum(counts.values()) for counts in outer.stats[1:])
print(result, hits, misses, len(inner.part.overloads))
"""


class House:
    """A small package with the real decorator, in a folder of its own, run by a Python of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder / "stretto"
        (self.package / "core").mkdir(parents=True)
        for name in ("__init__.py", "core/__init__.py", "core/compiled.py", "core/compile_cache.py", "core/pure.py"):
            shutil.copy(PACKAGE / name, self.package / name)
        self.write("caller.py", CALLER)
        self.write("called.py", CALLED)
        self.write("number.py", "NUMBER = 5\n")
        self.write("stranger.py", "")

    def write(self, name: str, text: str) -> None:
        (self.package / name).write_text(text)

    def ask(self, cache: Path, **environment: str) -> tuple[int, ...]:
        """(outer(10), loaded from the cache, compiled, versions of inner that were compiled)."""
        said = subprocess.run(
            [sys.executable, "-c", ASK],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder), "STRETTO_CACHE_DIR": str(cache), **environment},
            capture_output=True,
            text=True,
        )
        assert said.returncode == 0, said.stderr
        return tuple(int(word) for word in said.stdout.split())


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path / "house")


def test_what_is_called_is_compiled_once_whatever_the_constant(house: House, tmp_path: Path) -> None:
    assert house.ask(tmp_path / "cache") == (40, 0, 1, 1)


def test_a_changed_function_or_constant_of_another_file_is_never_run_from_an_old_cache(
    house: House, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    house.ask(cache)
    house.write("stranger.py", "# what nobody imports\n")
    assert house.ask(cache) == (40, 1, 0, 0)
    house.write("number.py", "NUMBER = 6\n")
    assert house.ask(cache) == (42, 0, 1, 1)
    house.write("called.py", CALLED.replace("value * factor", "value - factor"))
    assert house.ask(cache) == (29, 0, 1, 1)


def test_shipped_code_is_used_wherever_it_lies_and_nothing_is_written(house: House, tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert house.ask(made, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")[1:3] == (0, 1)
    moved = House(tmp_path / "elsewhere")
    shipped = moved.package / "_compiled"
    shutil.copytree(made / "compiled", shipped)
    before = {path: path.stat().st_mtime_ns for path in shipped.iterdir()}
    shipped.chmod(0o555)
    assert moved.ask(tmp_path / "empty") == (40, 1, 0, 0)
    assert not (tmp_path / "empty").exists()
    assert {path: path.stat().st_mtime_ns for path in shipped.iterdir()} == before
    moved.write("number.py", "NUMBER = 7\n")  # what was shipped is for other sources
    assert moved.ask(tmp_path / "empty") == (44, 0, 1, 1)
    assert {path: path.stat().st_mtime_ns for path in shipped.iterdir()} == before


def test_code_of_this_processor_goes_before_code_of_any(house: House, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    house.ask(cache, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert house.ask(cache) == (40, 1, 0, 0)  # a folder from `stretto warm --any-processor`
    files = len(list((cache / "compiled").iterdir()))
    assert house.ask(tmp_path / "other") == (40, 0, 1, 1)
    assert len(list((tmp_path / "other" / "compiled").iterdir())) == files


def test_a_cache_that_cannot_be_written_only_costs_time(house: House, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    assert house.ask(in_the_way) == (40, 0, 1, 1)


def test_only_the_last_versions_of_a_function_are_kept(house: House, tmp_path: Path) -> None:
    for number in range(6):
        house.write("number.py", f"NUMBER = {number}\n")
        house.ask(tmp_path / "cache")
    assert len(list((tmp_path / "cache" / "compiled").iterdir())) == 4


def test_a_stamp_follows_imports_of_every_form(tmp_path: Path) -> None:
    package = tmp_path / "stretto"
    (package / "sub").mkdir(parents=True)
    main = package / "main.py"
    main.write_text(
        "from stretto.sub import (\n    first,\n    second as other,\n)\n"
        "def late():\n    import stretto.third\nfrom stretto import fourth\n"
    )
    others = [package / "sub" / "first.py", package / "sub" / "second.py", package / "third.py", package / "fourth.py"]
    for path in others:
        path.write_text("")

    def stamp() -> str:
        source_stamp.cache_clear()
        return source_stamp(main, package)

    for path in others:
        before = stamp()
        path.write_text("X = 1\n")
        assert stamp() != before, path.name
