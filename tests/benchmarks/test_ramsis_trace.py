"""How the benchmark counts the workers that RAMSIS saves, and its points over a rival."""

from __future__ import annotations

import pytest

from benchmarks.ramsis_ground import TEXT
from benchmarks.ramsis_trace import Key, Seen, gains, saved

WORKERS = (20, 30, 40)
RIVAL = "model_switching"


def seen(ours: tuple[Seen, ...], theirs: tuple[Seen, ...]) -> dict[Key, Seen]:
    """The same at each of the task's SLOs."""
    return {
        ("drawn", "text", slo_ms, count, system): runs[place]
        for slo_ms in TEXT.slos_ms
        for system, runs in (("ramsis", ours), (RIVAL, theirs))
        for place, count in enumerate(WORKERS)
    }


OURS = (Seen(0.74, 0.2, 0.6), Seen(0.76, 0.001, 0.76), Seen(0.78, 0.001, 0.78))
THEIRS = (Seen(0.70, 0.3, 0.5), Seen(0.74, 0.002, 0.74), Seen(0.76, 0.002, 0.76))


def test_the_fewest_workers_that_are_as_accurate_and_in_time() -> None:
    """Twenty workers of RAMSIS are accurate enough for the rival's thirty, but a fifth of their answers is late."""
    per_slo = [(30, 30), (40, 30)]
    wanted = [(slo_ms, count, fewer) for slo_ms in TEXT.slos_ms for count, fewer in per_slo]
    assert saved(seen(OURS, THEIRS), TEXT, RIVAL, WORKERS) == wanted
    better = (Seen(0.79, 0.2, 0.6), *THEIRS[1:])  # what is late counts for neither
    assert (100.0, 20, 20) not in saved(seen(OURS, better), TEXT, RIVAL, WORKERS)


def test_a_gain_counts_where_both_are_in_time() -> None:
    points = [("drawn", "text", 100.0, count, "") for count in WORKERS]
    assert gains(seen(OURS, THEIRS), points, RIVAL, 0.05) == pytest.approx([2.0, 2.0])
    assert gains(seen(OURS, THEIRS), points, RIVAL, 2.0) == pytest.approx([4.0, 2.0, 2.0])
