"""When requests are due, and what is refused before any is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stretto.client.load import LoadSpec
from stretto.client.load.arrivals import arrival_times_ns
from stretto.client.load.spec import MAX_REQUESTS
from stretto.core.errors import StrettoError


def times(**options: Any) -> Any:
    return arrival_times_ns(LoadSpec("a", **{"inputs": np.zeros((2, 3)), **options})) / 1e9


@pytest.mark.parametrize(
    ("kind", "variation"), [("uniform", 0.0), ("poisson", 1.0), ("gamma:0.25", 2.0), ("gamma:16", 0.25)]
)
def test_kinds_differ_in_how_gaps_vary(kind: str, variation: float) -> None:
    moments = times(kind=kind, rate=1000, seconds=20, seed=3)
    assert len(moments) == pytest.approx(20_000, rel=0.05) and moments[-1] < 20 and moments[0] >= 0
    gaps = np.diff(moments)
    assert (gaps >= 0).all() and gaps.std() / gaps.mean() == pytest.approx(variation, abs=0.12)


def test_bursts_go_from_low_to_high() -> None:
    moments = times(kind="burst:100:900:10:0.2", seconds=20)
    into = moments % 10
    assert (into >= 8).sum() / 4 == pytest.approx(900, rel=0.1) and (into < 8).sum() / 16 == pytest.approx(100, rel=0.1)
    assert len(times(kind="burst:100:900:10:0.2", rate=26, seconds=20)) == pytest.approx(520, rel=0.2)


def test_moments_may_be_given() -> None:
    assert times(times_ns=np.array([0, 5, 5, 2_000_000_000]), seconds=1).tolist() == [0, 5e-9, 5e-9]
    for wrong in ([5, 3], [-1, 3], [[1]]):
        with pytest.raises(StrettoError, match="must rise"):
            times(times_ns=np.array(wrong))


def test_the_same_seed_gives_the_same_moments() -> None:
    first, again, other = (times(rate=100, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


@pytest.mark.parametrize(
    "options",
    [
        {},
        *({"rate": rate} for rate in (0, -1, float("nan"), float("inf"), 1e9)),
        *({"rate": 1, "seconds": seconds} for seconds in (0, -3, float("nan"), 1e9)),
        {"rate": 1e5, "seconds": 2 * MAX_REQUESTS / 1e5},
        {"rate": 1e-3, "seconds": 1, "kind": "uniform", "seed": 2},
        *({"rate": 1, "rows": rows} for rows in (0, 10**6)),
        *({"rate": 1, "connections": count} for count in (0, 10**6)),
        *({"rate": 1, "deadline_ms": value} for value in (0, -1, 1e9)),
        {"rate": 1, "min_accuracy": 2},
        {"rate": 1, "seed": -1},
        {"rate": 1, "inputs": np.zeros((0, 3))},
        {"rate": 1, "inputs": np.float32(1)},
        {"rate": 1, "labels": np.arange(3)},
        *(
            {"rate": 1, "kind": kind}
            for kind in ("", "poison", "gamma", "gamma:x", "gamma:0", "gamma:inf", "uniform:3")
        ),
        *(
            {"kind": f"burst:{rest}"}
            for rest in ("", "1:2", "1:2:3:x", "5:2:10:0.5", "1:2:0:0.5", "1:2:9:1", "1:1e9:9:0.1")
        ),
    ],
)
def test_loads_that_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(StrettoError):
        times(**options)
