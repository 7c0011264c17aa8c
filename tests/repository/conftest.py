"""The machine that the tests run on is always the same, whatever it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stretto.repository import machine
from tests.repository.build import HERE, Built, build


@pytest.fixture(autouse=True)
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "this_machine", lambda accelerator=None: replace(HERE, accelerator=accelerator))
    monkeypatch.setattr(machine, "accelerators", lambda: ())


@pytest.fixture
def built(tmp_path: Path) -> Built:
    """A sound repository, to be spoiled."""
    return build(tmp_path / "models")
