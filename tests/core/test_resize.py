"""Resizing keeps flat images, means and the range of the values, and what was made larger comes back unchanged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.resize import area_weights, resized, smooth_weights, weights

EDGES = st.integers(1, 40)
SEEDS = st.integers(0, 2**32 - 1)
STEADY = settings(deadline=None)  # the first solution of a kind loads what numpy needs for it


@STEADY
@given(EDGES, EDGES)
def test_a_flat_image_stays_flat(source: int, target: int) -> None:
    made = weights(source, target)
    assert made.shape == (target, source)
    np.testing.assert_allclose(made.sum(axis=1), 1, atol=1e-4)


@STEADY
@given(EDGES, EDGES, EDGES, EDGES, SEEDS)
def test_values_stay_within_those_that_were_there(h: int, w: int, new_h: int, new_w: int, seed: int) -> None:
    rows = np.random.default_rng(seed).random((2, 1, h, w)).astype(np.float32)
    made = resized(rows, new_h, new_w)
    assert made.shape == (2, 1, new_h, new_w)
    assert made.dtype == np.float32
    for before, after in zip(rows, made, strict=True):
        assert after.min() >= before.min() - 1e-5
        assert after.max() <= before.max() + 1e-5


@STEADY
@given(EDGES, EDGES, SEEDS)
def test_a_smaller_image_keeps_the_mean(source: int, target: int, seed: int) -> None:
    if target > source:
        source, target = target, source
    rows = np.random.default_rng(seed).random((1, source, source)).astype(np.float32)
    assert resized(rows, target, target).mean() == pytest.approx(rows.mean(), abs=1e-5)


@STEADY
@given(EDGES, EDGES)
def test_larger_and_smaller_again_is_the_same(source: int, more: int) -> None:
    there_and_back = area_weights(source + more, source) @ weights(source, source + more)
    np.testing.assert_allclose(there_and_back, np.eye(source), atol=2e-4)


@STEADY
@given(EDGES, EDGES, st.integers(1, 4), SEEDS)
def test_round_trip_of_blocks(h: int, w: int, factor: int, seed: int) -> None:
    """Each pixel made a block of pixels and then the mean of that block again: the same image, in bytes too."""
    rows = np.random.default_rng(seed).integers(0, 256, (1, h, w), np.uint8)
    blocks = rows.repeat(factor, axis=1).repeat(factor, axis=2)
    made = resized(blocks, h, w)
    assert made.dtype == np.uint8
    assert made.tolist() == rows.tolist()


@STEADY
@given(st.integers(1, 12), st.integers(1, 12), SEEDS)
def test_no_other_image_with_these_means_is_smoother(source: int, more: int, seed: int) -> None:
    """Any change that leaves the means as they are makes the differences between neighbours larger."""
    random = np.random.default_rng(seed)
    target = source + more
    means = area_weights(target, source).astype(np.float64)
    made = smooth_weights(source, target).astype(np.float64) @ random.random(source)
    change = random.normal(size=target)
    change -= np.linalg.pinv(means) @ (means @ change)
    roughness = float((np.diff(made) ** 2).sum())
    for step in (0.1, -0.1):
        assert (np.diff(made + step * change) ** 2).sum() >= roughness - 1e-4


def test_each_image_is_held_to_its_own_range() -> None:
    dark, bright = np.full((1, 4, 4), 0.1, np.float32), np.random.default_rng(1).random((1, 4, 4)).astype(np.float32)
    together = resized(np.stack([dark, bright]), 9, 9)
    np.testing.assert_array_equal(together[1], resized(bright[None], 9, 9)[0])
    np.testing.assert_allclose(together[0], 0.1, rtol=1e-5)


def test_the_same_size_is_the_same_array() -> None:
    rows = np.zeros((2, 1, 4, 4), np.float32)
    assert resized(rows, 4, 4) is rows


def test_smaller_is_by_area() -> None:
    assert weights(28, 8).tolist() == area_weights(28, 8).tolist()
    assert not weights(28, 8).flags.writeable
