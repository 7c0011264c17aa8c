"""docs/repository.md: its examples are read as they stand, and no key is missing."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from stretto.repository.application import KEYS
from stretto.repository.profiles import read_profile
from stretto.repository.read import read_repository
from stretto.repository.variant import BACKEND_KEYS, PLAIN_KEYS
from tests.repository.build import write_model

TEXT = (Path(__file__).parents[2] / "docs" / "repository.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_example_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "fashion"
    write_model(folder / "variants" / "linear" / "model.onnx", (1, 28, 28), classes=10)
    (folder / "app.toml").write_text(block("toml"))
    (folder / "labels.txt").write_text("\n".join(f"class {number}" for number in range(10)))
    np.savez(folder / "sample.npz", inputs=np.full((3, 1, 28, 28), 255, np.uint8), labels=np.arange(3))
    application = read_repository(tmp_path).application("fashion")
    assert application.sample().inputs.max() == 1.0
    assert application.limits.max_batch == 32


def test_the_profile_is_read(tmp_path: Path) -> None:
    kind = re.search(r'"kind": "(.*)"', block("json"))
    assert kind is not None
    path = tmp_path / f"{kind.group(1)}.json"
    path.write_text(block("json"))
    assert read_profile(path).latency_profile().max_batch == 8


def test_every_key_is_described() -> None:
    for key in {key for keys in KEYS.values() for key in keys} - set(KEYS) | {*PLAIN_KEYS, *BACKEND_KEYS}:
        assert re.search(rf"^\| .*`{key}`.* \|", TEXT, re.MULTILINE), key
    for part in KEYS:
        assert not part or f"### `[{part}]`" in TEXT
