"""Quantiles, their error, and the line through them."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.profiling.estimate import fitted_line, p95_error, summarised


def blocks(count: int, size: int, spread: float, seed: int = 0, shift: float = 0.0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    shifts = random.normal(0, shift, count)
    return [(1e6 * (1 + shifts[k]) * (1 + spread * random.random(size))).astype(np.int64) for k in range(count)]


def test_figures_are_those_of_all_runs() -> None:
    runs = np.arange(1, 101) * 1_000_000
    found = summarised([runs[:30], runs[30:]])
    assert (found.mean, found.p50) == (50.5, 50.5)
    assert found.p95 == pytest.approx(np.quantile(np.arange(1, 101), 0.95))
    assert found.runs == 100 and not found.is_noisy


def test_the_error_covers_the_truth() -> None:
    truth = 1e6 * 1.19  # p95 of 1 + 0.2·uniform
    outside = 0
    for seed in range(200):
        sample = blocks(12, 10, 0.2, seed)
        estimate = np.quantile(np.concatenate(sample), 0.95)
        outside += abs(estimate - truth) > 1.3 * p95_error(sample) * estimate
    assert outside < 20


def test_blocks_that_differ_make_it_less_sure() -> None:
    assert p95_error(blocks(10, 50, 0.01, shift=0.05)) > 5 * p95_error(blocks(10, 50, 0.01))
    assert p95_error(blocks(100, 50, 0.2)) < p95_error(blocks(10, 50, 0.2))


def test_one_block_says_nothing() -> None:
    assert p95_error(blocks(1, 100, 0.1)) == float("inf")
    assert summarised(blocks(1, 100, 0.1)).relative_error == 1.0


def test_the_same_runs_give_the_same_error() -> None:
    assert p95_error(blocks(9, 20, 0.3)) == p95_error(blocks(9, 20, 0.3))


def test_the_line() -> None:
    assert fitted_line({1: 3.0, 2: 5.0, 4: 9.0}) == pytest.approx((2.0, 1.0))
    assert fitted_line({1: 3.0}) == (0.0, 3.0)
    alpha, beta = fitted_line({1: 1.0, 2: 2.5, 4: 6.0})
    assert beta == 0 and alpha == pytest.approx((1 + 5 + 24) / 21)
    assert fitted_line({1: 5.0, 2: 4.0}) == (0.0, 4.5)
