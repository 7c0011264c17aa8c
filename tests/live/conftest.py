"""Stages are closed after each test: whatever is left must have its end by then. And nothing rests on idle cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stretto.core.plan import Plan
from stretto.live import aside, pace, repairs
from stretto.live.generation import Served
from tests.live.beside import take_turns
from tests.live.scripted import Stage, plan_for

Staging = Callable[..., Stage]


@pytest.fixture
def stage() -> Iterator[Staging]:
    """stage(served, plan): an engine with scripted workers."""
    made: list[Stage] = []

    def begin(served: Served, plan: Plan | None = None, **more: Any) -> Stage:
        made.append(Stage(served, plan or plan_for(served), **more))
        return made[-1]

    yield begin
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def patient_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long trials take, a service begins with all that passes them."""
    monkeypatch.setattr(repairs, "GRACE_S", 60.0)
    monkeypatch.setattr(repairs, "FIRST_GRACE_S", 60.0)


@pytest.fixture
def work_beside_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judges and makers of policies need not step back: what they do is tested, and not when."""
    monkeypatch.setattr(aside, "_step_back", take_turns)
    monkeypatch.setattr(aside, "_lower", lambda process: None)
    monkeypatch.setattr(pace, "LEAST_SHARE", 1.0)
    monkeypatch.setattr(pace, "OWED_SHARE", 1.0)
