"""`stretto warm`: after it a server compiles nothing. Compiling is done once, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stretto.cli.main import app
from tests.core.test_compile_cache import DAMAGE, damage

pytestmark = pytest.mark.xdist_group("warm")  # all compiled functions are made once for them

# Warms the cache while it watches, then types what only the simulator calls, and counts the versions of each function.
WARM = """
import json, sys
from pathlib import Path
from stretto.cli import warm as command
from contextlib import contextmanager
told = []

@contextmanager
def bar(title):
    yield told.append

command.progress_bar = bar
command.warm(Path(sys.argv[1]), any_processor=True)
import numba, numpy as np
from stretto.core.compiled import CompiledFunction
from stretto.dispatch.records import STATE
from stretto.sim.loop import SIMULATION, run_until

serving = {name: module for name, module in sys.modules.items() if name.startswith("stretto.")}
functions = {f.__module__ + "." + f.__name__: f for m in serving.values() for f in vars(m).values()
             if isinstance(f, CompiledFunction)}
needed = {name: len(f.overloads) + len(f.part.overloads) for name, f in functions.items()}
arrays = (numba.typeof(np.zeros(1, SIMULATION)), numba.typeof(np.zeros(1, STATE)))
run_until.part.compile((*arrays, numba.int64))
both = {name: [len(f.overloads), len(f.part.overloads)] for name, f in functions.items()}
print("REPORT" + json.dumps({"told": told, "needed": needed, "both": both}))
"""
SERVE = """
from numba.core.event import install_recorder
from stretto.api.bounds import rehearse_bounds
from stretto.live.rehearsal import rehearse

with install_recorder("numba:compile") as compiled:
    rehearse()
    rehearse_bounds()
print(len(compiled.buffer))
"""


def run_python(program: str, *arguments: str, **environment: str) -> str:
    return both_streams(program, *arguments, **environment)[0]


def both_streams(program: str, *arguments: str, **environment: str) -> tuple[str, str]:
    said = subprocess.run(
        [sys.executable, "-c", program, *arguments], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    return said.stdout, said.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("image") / "cache"


@pytest.fixture(scope="module")
def warmed(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run_python(WARM, str(folder)).split("REPORT")[1])
    return report


def test_it_says_how_far_it_is(warmed: dict[str, Any]) -> None:
    told = warmed["told"]
    assert told == sorted(told) and told[-1] == 1.0
    assert 0 < told[0] < 0.02 and len(told) > 100
    assert max(b - a for a, b in pairwise(told)) < 0.2


def test_all_of_the_dispatcher_is_compiled_and_nothing_of_the_simulator(warmed: dict[str, Any]) -> None:
    needed = warmed["needed"]
    dispatcher = {name: count for name, count in needed.items() if name.startswith("stretto.dispatch.")}
    assert len(dispatcher) > 100 and all(dispatcher.values()), [name for name, count in dispatcher.items() if not count]
    assert not [name for name, count in needed.items() if name.startswith("stretto.sim.") and count]


def test_no_function_is_compiled_twice_for_the_server_and_the_simulator(warmed: dict[str, Any]) -> None:
    assert not {name: counts for name, counts in warmed["both"].items() if max(counts) > 1}


def test_a_server_compiles_nothing_after_it_and_writes_nothing(warmed: dict[str, Any], folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    assert run_python(SERVE, STRETTO_CACHE_DIR=str(folder)) == "0\n"
    assert sorted(folder.rglob("*")) == before


def test_a_damaged_cache_is_said_once_and_made_anew(warmed: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    """All files of all that serving needs, each damaged in another way than the one before it."""
    cache = tmp_path / "cache"
    shutil.copytree(folder, cache)
    count = damage(cache / "compiled", *DAMAGE)
    assert count > len(DAMAGE)
    compiled, said = both_streams(SERVE, STRETTO_CACHE_DIR=str(cache))
    assert int(compiled) > 100
    assert len(said.splitlines()) == 1 and f"{count} of {count} files of the compile cache" in said
    assert not (cache / "executed").exists()
    assert both_streams(SERVE, STRETTO_CACHE_DIR=str(cache)) == ("0\n", "")


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = CliRunner().invoke(app, ["warm", "--out", str(tmp_path / "file" / "cache")])
    assert said.exit_code == 2
    assert "cannot be made" in said.output
