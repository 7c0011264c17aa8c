"""A program that just asks starts fast: nothing heavy comes with the client."""

from __future__ import annotations

import subprocess
import sys

LIGHT = """
import sys
import stretto.client
heavy = {"numba", "scipy", "onnxruntime", "torch", "matplotlib", "rich", "typer", "stretto.sim", "stretto.api"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
import stretto.client.load
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
WITHOUT_ORJSON = """
import sys
sys.modules["orjson"] = None
from stretto.client.json_text import json_value
assert json_value(memoryview(b'{"a":[1,2.5]}')) == {"a": [1, 2.5]}
for bad in (b"[" * 100_000, b"{", b"\\xff"):
    try:
        json_value(bad)
    except ValueError:
        continue
    raise AssertionError(bad[:10])
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_nothing_heavy_is_imported() -> None:
    run(LIGHT)


def test_orjson_may_be_missing() -> None:
    run(WITHOUT_ORJSON)
