"""How the settings that a policy has not seen are counted: strictly above, and above both in the same setting."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("edge_rl_settings")


def row(learned: float, single: float, stationary: float, served: float, judged: float) -> dict[str, float]:
    others = {"leave_it": 9.0, "served leave_it": judged, "served joint": judged, "served judged": judged}
    return {"learned": learned, "SQ": single, "SA": stationary, "served edge_rl": served} | others


def test_a_setting_counts_where_the_policy_is_above_both(settings: Any) -> None:
    rows = [row(3, 2, 2, 5, 4), row(3, 3, 2, 4, 4), row(3, 2, 4, 3, 4), row(3, 1, 1, 3, 4)]
    bench = settings.Benchmark("test")
    settings.claims(bench, rows)
    assert [claim["ours"] for claim in bench.claims] == [3, 3, 2] and not any(claim["met"] for claim in bench.claims)
    assert settings.above(rows) == {
        "SQ": 3,
        "SA": 3,
        "leave_it": 0,
        "served leave_it": 1,
        "served joint": 1,
        "served judged": 1,
    }
