"""What a benchmark calls served is made by the function that serves, or is a server."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SERVING = ("served_session", "started_server", "fleet_row")


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("*.py")), ids=lambda path: path.stem)
def test_what_is_called_served_is(path: Path) -> None:
    """The shared queue was called so when it was a bare planner, without doors and with a period of its own."""
    text = path.read_text(encoding="utf-8")
    assert "as served" not in text or any(name in text for name in SERVING)
