"""The scheduler's benchmark drives the engine by hand, so that it must follow every change of it."""

from __future__ import annotations

import asyncio
import gc
import importlib
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "benchmarks"


def test_what_comes_as_messages_is_answered_on_time_under_a_clock_that_is_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    script = importlib.import_module("cluster_scheduler")
    seconds = script.WARM_S + 0.1
    options = {"workers": 8, "planner": "symphony_batch_aware"}
    thresholds = gc.get_threshold()
    try:
        found = asyncio.run(script.at_no_time(1000.0, seconds, script.TURN_S, **options))
    finally:  # it sets the collector as a server does
        gc.unfreeze()
        gc.set_threshold(*thresholds)
    assert found["bad_rate"] == 0.0 and found["queries_a_core_second"] > 0
