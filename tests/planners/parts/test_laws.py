"""Arrival laws: counts that sum to one, with the right mean and variance, and independent increments."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.errors import StrettoError
from stretto.planners.parts.laws import Gamma, Law, Poisson, largest_count, law_of_shape, probabilities

laws = st.one_of(st.just(Poisson()), st.floats(0.05, 0.99).map(Gamma))


@settings(max_examples=40, deadline=None)
@given(laws, st.floats(0.01, 300.0))
def test_counts_have_the_mean_and_variance_they_say(law: Law, mean: float) -> None:
    chance = probabilities(law, 3 * largest_count(law, mean), np.array([mean]))[0]
    counts = np.arange(len(chance))
    assert chance.sum() == pytest.approx(1.0, abs=1e-9)
    assert chance @ counts == pytest.approx(mean, rel=1e-6)
    assert chance @ counts**2 - mean**2 == pytest.approx(mean * law.dispersion, rel=1e-5)
    assert chance[largest_count(law, mean) + 1 :].sum() < 1e-10


@settings(max_examples=40, deadline=None)
@given(laws, st.floats(0.01, 40.0), st.floats(0.01, 40.0))
def test_increments_are_independent(law: Law, one: float, other: float) -> None:
    """The count over two intervals is that of one interval as long: what equation 2 rests on."""
    first, second, both = probabilities(law, 200, np.array([one, other, one + other]))
    assert np.convolve(first, second)[:200] == pytest.approx(both, abs=1e-10)


def test_no_time_brings_no_query() -> None:
    for law in (Poisson(), Gamma(0.5)):
        assert probabilities(law, 3, np.array([0.0]))[0].tolist() == [1.0, 0.0, 0.0]


def test_gamma_of_shape_one_is_poisson() -> None:
    mean = np.array([0.5, 20.0])
    assert probabilities(Gamma(1.0), 50, mean) == pytest.approx(probabilities(Poisson(), 50, mean))


def test_a_shape_of_one_is_poisson_and_smoother_arrivals_are_refused() -> None:
    assert (law_of_shape(1), law_of_shape(0.37)) == (Poisson(), Gamma(0.37))
    with pytest.raises(StrettoError, match="no arrivals with independent increments are smoother"):
        Gamma(2.0)
