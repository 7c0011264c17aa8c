"""Rate traces: what a file says is what arrives, second by second, and a wrong file is named with its line."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.random import SeedSequence
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.sim import traces
from stretto.sim.traces import Interpolation, RateTrace


def counts_by_second(trace: RateTrace, seconds: int, seed: int = 1) -> NDArray[np.int64]:
    counts = np.zeros(seconds, dtype=np.int64)
    for block in trace.blocks(SeedSequence(seed), 10_000, seconds * 10**9):
        within = block[block < seconds * 10**9]
        counts += np.bincount(within // 10**9, minlength=seconds)
        if len(within) < len(block):
            return counts
    raise AssertionError("a trace never ends")


def written(folder: Path, text: str) -> Path:
    path = folder / "rates.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("header", ["second,queries_per_second", "second,rate", "\ufeffsecond, rate"])
def test_reads_a_file(tmp_path: Path, header: str) -> None:
    trace = RateTrace.read(written(tmp_path, f"{header}\n0,100\n10,300\n\n20,200.5\n"), "hold", scale=2.0)
    assert trace.seconds.tolist() == [0, 10, 20]
    assert trace.rates.tolist() == [100, 300, 200.5]
    assert trace.mean_rate() == pytest.approx(2 * 600.5 / 3)


@pytest.mark.parametrize("interpolation", ["linear", "hold"])
def test_rates_per_second_are_those_of_the_trace(interpolation: Interpolation) -> None:
    rates = np.array([2000.0, 8000.0, 0.0, 0.0, 5000.0])
    trace = RateTrace(np.arange(5.0), rates, interpolation)
    expected = rates if interpolation == "hold" else (rates + np.roll(rates, -1)) / 2
    counts = counts_by_second(trace, 200).reshape(40, 5)  # wraps 39 times
    assert counts.sum(axis=0) / 40 == pytest.approx(expected, rel=0.01)
    variance = counts.var(axis=0, ddof=1)
    assert variance[expected > 0] == pytest.approx(expected[expected > 0], rel=0.6)  # Poisson in each second
    assert trace.mean_rate() == pytest.approx(3000.0)
    assert trace.mean_rate(2.0) == pytest.approx(expected[:2].mean())
    assert trace.mean_rate(7.0) == pytest.approx((expected.sum() + expected[:2].sum()) / 7)


def test_linear_rates_rise_inside_a_piece() -> None:
    trace = RateTrace(np.array([0.0, 10.0]), np.array([0.0, 10_000.0]), "linear")
    counts = counts_by_second(trace, 20)
    up = 1000 * np.arange(10) + 500
    assert counts == pytest.approx(np.concatenate((up, up[::-1])), rel=0.1, abs=60)


def test_a_trace_begins_at_its_first_second() -> None:
    late = RateTrace(np.array([100.0, 101.0]), np.array([10.0, 90.0]), "hold")
    early = RateTrace(np.array([0.0, 1.0]), np.array([10.0, 90.0]), "hold")
    assert np.array_equal(counts_by_second(late, 10), counts_by_second(early, 10))


def test_a_single_rate_is_constant() -> None:
    for interpolation in ("linear", "hold"):
        trace = RateTrace(np.array([5.0]), np.array([400.0]), interpolation)
        assert trace.mean_rate(0.7) == pytest.approx(400)
        assert counts_by_second(trace, 100).mean() == pytest.approx(400, rel=0.02)


def test_scale_and_at_rate_keep_the_shape() -> None:
    trace = RateTrace(np.arange(3.0), np.array([1.0, 5.0, 3.0]), "hold", scale=10.0)
    assert trace.mean_rate() == pytest.approx(30.0)
    faster = trace.at_rate(9000.0)
    assert faster.mean_rate() == pytest.approx(9000.0)
    assert faster.mean_rate(1.0) == pytest.approx(3000.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "rates.csv: the file has nothing in it"),
        ("second,rate\n", "rates.csv: the file has no rows below its header"),
        ("0,100\n1,100\n", "rates.csv, line 1: the header must be"),
        ("second,rate\n0,100\n5,100\n5,100\n", "rates.csv, line 4: second 5 does not come after"),
        ("second,rate\n0,100\n\n5,-1\n", "rates.csv, line 4: rate is '-1'"),
        ("second,rate\n0,nan\n", "rates.csv, line 2: rate is 'nan'"),
        ("second,rate\n0,1e99\n", "rates.csv, line 2: rate is '1e99'"),
        ("second,rate\nzero,1\n", "rates.csv, line 2: second is 'zero'"),
        ("second,rate\n0,1,2\n", "rates.csv, line 2: 3 cells where the header has 2"),
        ("second,rate\n0,0\n1,0\n", "rates.csv: every rate is zero"),
        ('second,rate\n0,"1\n', "rates.csv: after line 1, the file is not a CSV table"),
    ],
)
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(StrettoError) as error:
        RateTrace.read(written(tmp_path, text))
    assert str(error.value).startswith(says)
    assert str(tmp_path) not in str(error.value)


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StrettoError, match=r"none.csv: the file cannot be read"):
        RateTrace.read(tmp_path / "none.csv")
    with pytest.raises(StrettoError, match="cannot be read"):
        RateTrace.read(tmp_path)
    (tmp_path / "bytes.csv").write_bytes(b"second,rate\n0,\xff\xfe\n")
    with pytest.raises(StrettoError, match="not UTF-8"):
        RateTrace.read(tmp_path / "bytes.csv")
    monkeypatch.setattr(traces, "MAX_ROWS", 2)
    with pytest.raises(StrettoError, match="line 4: a file may have at most 2 rows"):
        RateTrace.read(written(tmp_path, "second,rate\n0,1\n1,1\n2,1\n"))


@pytest.mark.parametrize(
    ("seconds", "rates", "interpolation", "scale", "says"),
    [
        ([0.0, 0.0], [1.0, 1.0], "hold", 1.0, "must rise"),
        ([-1.0], [1.0], "hold", 1.0, "must rise"),
        ([0.0], [1.0, 2.0], "hold", 1.0, "one rate per second"),
        ([], [], "hold", 1.0, "one rate per second"),
        ([0.0], [math.nan], "hold", 1.0, "between 0 and"),
        ([0.0], [0.0], "hold", 1.0, "not all zero"),
        ([0.0], [1.0], "cubic", 1.0, "use 'linear' or 'hold'"),
        ([0.0], [1.0], "hold", -1.0, "scale"),
        ([0.0], [1.0], "hold", 1e30, "scaled"),
        ([[0.0]], [[1.0]], "hold", 1.0, "one list"),
        (["x"], [1.0], "hold", 1.0, "must be numbers"),
    ],
)
def test_bad_traces_are_refused(seconds: object, rates: object, interpolation: str, scale: float, says: str) -> None:
    with pytest.raises(StrettoError, match=says):
        RateTrace(seconds, rates, interpolation, scale)  # type: ignore[arg-type]
