"""Stages are closed after each test: whatever is left must have its end by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stretto.core.plan import Plan
from stretto.live.generation import Served
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
