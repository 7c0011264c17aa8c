"""The published table 2 is typed in soundly, and columns are held against it from both sides."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stretto.training.evaluate import Figures

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("edge_rl_table2")


def test_published_columns_add_up(table: Any) -> None:
    """Each phase brings half of the queries, and a violation is refused or late."""
    for rows in table.PUBLISHED.values():
        for row in rows.values():
            for column in (0, 1):
                assert (row.bursty[column] + row.normal[column]) / 2 == pytest.approx(row.overall[column], abs=0.03)
            for _, violations, refused, late, _ in (row.bursty, row.normal):
                if refused is not None:
                    assert refused + late == pytest.approx(violations, abs=0.002)


def test_better_than_published_is_off_as_worse_is(table: Any) -> None:
    def figures(goodput: float, heavy: float) -> Figures:
        return Figures(goodput / 100, 0.01, 0.0, 0.01, heavy / 100, 1000)

    columns = (78.0, 1.5, 0.5, 0.9, 20.0)
    assert table.compare(figures(78.5, 24.0), columns) == (5, [])
    for goodput in (77.0, 79.0):
        assert table.compare(figures(goodput, 20.0), columns) == (5, [f"goodput {goodput:g} (78)"])
    assert table.compare(figures(78.0, 50.0), (*columns[:4], None)) == (4, [])
