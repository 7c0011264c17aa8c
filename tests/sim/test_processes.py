"""The laws of the arrival processes: rates, burstiness, correlation, and times that do not depend on the blocks."""

from __future__ import annotations

import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import SeedSequence
from numpy.typing import NDArray
from scipy import stats

from stretto.core.errors import StrettoError
from stretto.sim.choice import AliasTables, shares_of
from stretto.sim.markovian import MarkovianArrivals
from stretto.sim.processes import Gamma, Poisson, Process, RateCycle, TwoLevel, Uniform
from stretto.sim.traces import RateTrace

D0 = np.array([[-11.0, 1.0, 0.0], [0.5, -60.5, 10.0], [3.0, 2.0, -5.0]])
D1 = np.array([[10.0, 0.0, 0.0], [0.0, 40.0, 10.0], [0.0, 0.0, 0.0]])

PROCESSES = [
    Uniform(700.0),
    Poisson(700.0),
    Gamma(0.05, 700.0),
    Gamma(3.0, 700.0),
    MarkovianArrivals(D0, D1).at_rate(700.0),
    TwoLevel(0.0, 900.0, 0.3, 0.7),
    RateTrace(np.array([0.0, 0.5, 2.0]), np.array([0.0, 900.0, 500.0]), "linear"),
    RateTrace(np.array([0.0, 0.5, 2.0]), np.array([0.0, 900.0, 500.0]), "hold"),
]


def times_of(process: Process, seconds: float, seed: int = 1, size: int = 4096) -> NDArray[np.int64]:
    """All arrivals of one stream before `seconds`."""
    end_ns = round(seconds * 1e9)
    found = []
    for block in process.blocks(SeedSequence(seed), size, end_ns):
        found.append(block)
        if block[-1] >= end_ns:
            break
    times = np.concatenate(found)
    return times[times < end_ns]


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: type(process).__name__)
def test_blocks_are_sorted_and_their_size_changes_nothing(process: Process) -> None:
    whole = times_of(process, 10.0)
    assert len(whole) > 3000
    assert whole[0] >= 0
    assert (np.diff(whole) >= 0).all()
    for size in (1, 7, 100_000):
        assert np.array_equal(times_of(process, 10.0, size=size), whole)
    assert not np.array_equal(times_of(process, 10.0, seed=2), whole)


def test_block_size_changes_nothing_where_rounding_is_coarse() -> None:
    """After weeks a float64 steps by half a nanosecond, so the order of the additions shows."""
    for process in (Poisson(0.002), Gamma(0.5, 0.002), TwoLevel(0.001, 0.003, 5e4, 5e4)):
        assert np.array_equal(times_of(process, 4e6, size=7), times_of(process, 4e6, size=10_000))


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: type(process).__name__)
@pytest.mark.parametrize("seconds", [0.4, 200.0])
def test_the_mean_rate_holds_from_the_start(process: Process, seconds: float) -> None:
    runs = max(1, round(200 / seconds))
    came = sum(len(times_of(process, seconds, seed, size=512)) for seed in range(runs))
    assert came / (runs * seconds) == pytest.approx(process.mean_rate(seconds), rel=0.03)


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: type(process).__name__)
def test_at_rate_scales_the_long_run_mean(process: Process) -> None:
    assert process.at_rate(123.0).mean_rate() == pytest.approx(123.0, rel=1e-12)


def test_uniform_gaps_are_equal_to_the_nanosecond() -> None:
    times = times_of(Uniform(3.0, phase=0.5), 1000.0)
    assert len(times) == 3000
    assert np.abs(times - (np.arange(3000) + 0.5) / 3 * 1e9).max() <= 1
    assert set(np.diff(times).tolist()) == {333_333_333, 333_333_334}


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(times_of(Poisson(1000.0), 50.0))
    assert stats.kstest(gaps / 1e6, "expon").pvalue > 0.01


@pytest.mark.parametrize("shape", [0.05, 0.5, 4.0])
def test_gamma_gaps_and_dispersion(shape: float) -> None:
    times = times_of(Gamma(shape, 1000.0), 400.0)
    gaps = np.diff(times)
    assert gaps.mean() == pytest.approx(1e6, rel=0.03)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / shape, rel=0.05)
    counts = np.bincount(times // 500_000_000)
    assert counts.var() / counts.mean() == pytest.approx(1 / shape, rel=0.15)


def test_very_bursty_gamma_gives_zero_gaps_and_no_other_trouble() -> None:
    times = times_of(Gamma(0.001, 10_000.0), 100.0)
    assert (np.diff(times) == 0).mean() > 0.9
    assert len(times) / 100 == pytest.approx(10_000, rel=0.2)


def test_gamma_begins_in_equilibrium() -> None:
    """A plain first gap would begin every stream with a burst: here 5 queries more than the 1 expected."""
    came = sum(len(times_of(Gamma(0.05, 10.0), 0.1, seed, size=64)) for seed in range(4000))
    assert came / 4000 == pytest.approx(1.0, rel=0.15)


def test_two_level_rates_in_both_phases() -> None:
    process = TwoLevel(low=200.0, high=2000.0, low_seconds=3.0, high_seconds=1.0)
    assert process.mean_rate() == pytest.approx(650.0)
    assert process.mean_rate(3.5) == pytest.approx(1600 / 3.5)
    into = times_of(process, 400.0) % 4_000_000_000
    assert (into < 3_000_000_000).sum() / 300 == pytest.approx(200, rel=0.02)
    assert (into >= 3_000_000_000).sum() / 100 == pytest.approx(2000, rel=0.02)
    inside = np.histogram(into, bins=16, range=(0, 4e9))[0]
    assert stats.chisquare(inside[:12]).pvalue > 0.01  # flat within a phase
    assert stats.chisquare(inside[12:]).pvalue > 0.01


def test_expected_count_agrees_with_integration_and_its_inverse() -> None:
    lengths, begin, end = (2.0, 1.0, 0.5, 3.0), (0.0, 8.0, 0.0, 4.0), (6.0, 8.0, 0.0, 0.0)
    cycle = RateCycle.of(lengths, begin, end)
    fine = np.linspace(0, 6.5, 650_001)
    corners = np.array([0, 2, 2, 3, 3, 3.5, 3.5, 6.5]) + np.array([0, -1e-9, 0, -1e-9, 0, -1e-9, 0, 0])
    rate = np.interp(fine, corners, [0, 6, 8, 8, 0, 0, 4, 0])
    summed = np.concatenate(([0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * 1e-5)))
    for second in (0.3, 1.99, 2.5, 3.2, 3.5, 5.0, 6.49):
        assert cycle.expected(second * 1e9) == pytest.approx(np.interp(second, fine, summed), abs=1e-3)
        assert cycle.expected((second + 13) * 1e9) == pytest.approx(2 * 20 + np.interp(second, fine, summed), abs=1e-3)
    assert cycle.mean_rate() == pytest.approx(20 / 6.5)
    counts = np.linspace(0.01, 99.99, 5000)
    times = cycle.times(counts.copy())
    assert (np.diff(times) >= 0).all()
    assert np.allclose([cycle.expected(time) for time in times], counts, rtol=1e-9)
    silent = (times % 6.5e9 > 3.001e9) & (times % 6.5e9 < 3.499e9)
    assert not silent.any()


def test_markovian_mean_rate_is_exact() -> None:
    process = MarkovianArrivals([[-11, 1], [4, -204]], [[10, 0], [0, 200]])
    assert process.stationary == pytest.approx([0.8, 0.2])
    assert process.mean_rate() == pytest.approx(48.0, rel=1e-12)
    assert MarkovianArrivals([[-5.0]], [[5.0]]).mean_rate() == 5.0


def test_markovian_stationary_vector_agrees_with_least_squares() -> None:
    random = np.random.default_rng(5)
    for states in (2, 5, 20):
        hidden, arriving = random.exponential(size=(2, states, states)) ** 3
        np.fill_diagonal(hidden, 0)
        np.fill_diagonal(hidden, -(hidden + arriving).sum(axis=1))
        system = np.vstack(((hidden + arriving).T, np.ones(states)))
        other = np.linalg.lstsq(system, np.append(np.zeros(states), 1.0), rcond=None)[0]
        assert MarkovianArrivals(hidden, arriving).stationary == pytest.approx(other, abs=1e-10)


def test_markovian_gaps_have_the_exact_moments_and_lag_correlation() -> None:
    d0 = np.array([[-12.0, 1.0, 1.0], [0.5, -101.0, 0.5], [2.0, 1.0, -6.0]])
    d1 = np.array([[10.0, 0.0, 0.0], [0.0, 90.0, 10.0], [0.0, 1.0, 2.0]])
    process = MarkovianArrivals(d0, d1)
    inverse, one = np.linalg.inv(-d0), np.ones(3)
    embedded = process.stationary @ d1 / process.mean_rate()
    mean = embedded @ inverse @ one
    variance = 2 * embedded @ inverse @ inverse @ one - mean**2
    lagged = embedded @ inverse @ (inverse @ d1) @ inverse @ one
    gaps = np.diff(times_of(process, 20_000.0)) / 1e9
    assert gaps.mean() == pytest.approx(mean, rel=0.02)
    assert gaps.var() == pytest.approx(variance, rel=0.03)
    correlation = (lagged - mean**2) / variance
    assert correlation > 0.1
    assert np.corrcoef(gaps[1:], gaps[:-1])[0, 1] == pytest.approx(correlation, abs=0.01)


def test_markovian_with_one_state_is_poisson() -> None:
    gaps = np.diff(times_of(MarkovianArrivals([[-1000.0]], [[1000.0]]), 30.0))
    assert stats.kstest(gaps / 1e6, "expon").pvalue > 0.01


def test_markovian_ignores_states_it_leaves_for_ever() -> None:
    process = MarkovianArrivals([[-3, 1, 2], [0, -2, 1], [0, 1, -2]], [[0, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert process.stationary == pytest.approx([0, 0.5, 0.5])
    assert process.mean_rate() == pytest.approx(1.0)
    assert len(times_of(process, 2000.0)) == pytest.approx(2000, rel=0.1)


@pytest.mark.parametrize(
    ("d0", "d1", "says"),
    [
        ([[-1, 2], [1, -2]], [[1, 0], [0, 1]], "row 1 of D0 \\+ D1 sums to 2"),
        ([[-1, -1], [1, -2]], [[2, 0], [0, 1]], "negative entry outside its diagonal"),
        ([[-1, 2], [1, -2]], [[-1, 0], [0, 1]], "D1 has a negative entry"),
        ([[-1, 0], [0, -2]], [[1, 0], [0, 2]], "not unique"),
        ([[-1, 1], [1, -1]], [[0, 0], [0, 0]], "mean rate"),
        ([[-1, math.nan], [1, -1]], [[0, 0], [0, 0]], "not a finite number"),
        ([[-1]], [[1, 0], [0, 1]], "one shape"),
        ([-1], [1], "square"),
        ([["a"]], [[1]], "not a matrix"),
        ([[-1e12]], [[1e12]], "above"),
    ],
)
def test_bad_matrices_are_refused(d0: list[list[float]], d1: list[list[float]], says: str) -> None:
    with pytest.raises(StrettoError, match=says):
        MarkovianArrivals(d0, d1)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, 1e10])
def test_bad_rates_are_refused(rate: float) -> None:
    for make in (
        lambda: Uniform(rate),
        lambda: Poisson(rate),
        lambda: Gamma(0.5, rate),
        lambda: TwoLevel(0, rate, 1, 1),
        lambda: MarkovianArrivals([[-1]], [[1]]).at_rate(rate),
        lambda: TwoLevel(1, 2, 1, 1).at_rate(rate),
    ):
        with pytest.raises(StrettoError, match="queries/s"):
            make()


def test_bad_shapes_are_refused() -> None:
    for shape in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(StrettoError, match="shape"):
            Gamma(shape)
    for phase in (-0.1, 1.0, math.nan):
        with pytest.raises(StrettoError, match="phase"):
            Uniform(1.0, phase)
    for low, high, low_seconds, high_seconds in ((3, 2, 1, 1), (-1, 2, 1, 1), (1, 2, 0, 1), (1, 2, 1, math.nan)):
        with pytest.raises(StrettoError, match="two-level"):
            TwoLevel(low, high, low_seconds, high_seconds)
    with pytest.raises(StrettoError, match="repeat"):
        TwoLevel(1, 2, 1e200, 1)


def test_rare_arrivals_stay_whole_numbers() -> None:
    for process in (Uniform(1e-20), Poisson(1e-20), Gamma(0.5, 1e-20), TwoLevel(0, 1e-20, 1, 1)):
        for block in islice(process.blocks(SeedSequence(1), 8, 10**9), 2):
            assert (block >= 10**9).all()


@settings(deadline=None, derandomize=True)  # the first case compiles
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=40).filter(lambda weights: max(weights) > 0))
def test_alias_table_holds_exactly_the_shares(weights: list[float]) -> None:
    shares = shares_of("test weights", weights)
    tables = AliasTables.of([((7,), np.ones(1)), (range(len(weights)), shares)])
    held = np.zeros(len(weights))
    for entry in range(1, 1 + len(weights)):
        held[tables.value[entry]] += tables.keep[entry] / len(weights)
        held[tables.other[entry]] += (1 - tables.keep[entry]) / len(weights)
    assert held == pytest.approx(shares, abs=1e-9)
    assert (held[shares == 0] == 0).all()
    uniforms = np.linspace(0, 1, 100, endpoint=False)
    assert (tables.pick(uniforms, np.zeros(100, dtype=np.int64)) == 7).all()
    picked = tables.pick(uniforms, np.ones(100, dtype=np.int64))
    assert (shares[picked] > 0).all()
