"""Priors, the posterior mean and expected scores, against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stretto.core.errors import StrettoError
from stretto.core.evidence import (
    accuracy_by_class,
    class_f1,
    class_recall,
    estimation_error,
    expected_accuracy,
    jeffreys,
    own_prior,
    posterior_mean,
    quadratic_scores,
    strong,
    weak,
)

CLASSES = st.integers(2, 6)


def test_the_posterior_of_the_paper_s_example() -> None:
    """Five neighbours, two of one class and three of the other, under Jeffreys: (2.5, 3.5) of 6."""
    np.testing.assert_allclose(posterior_mean([2, 3], jeffreys(2)), [2.5 / 6, 3.5 / 6])
    np.testing.assert_allclose(posterior_mean([[0, 0], [5, 0]], jeffreys(2)), [[0.5, 0.5], [5.5 / 6, 0.5 / 6]])


def test_weak_and_strong_priors() -> None:
    np.testing.assert_allclose(weak([19, 1]), [0.95, 0.05])
    np.testing.assert_allclose(strong([0.95, 0.05], 12), [11.4, 0.6])
    np.testing.assert_allclose(posterior_mean([0, 5], weak([0.95, 0.05])), [0.95 / 6, 5.05 / 6])
    # A strong prior drowns the same five observations.
    np.testing.assert_allclose(posterior_mean([0, 5], strong([0.95, 0.05], 12)), [11.4 / 17, 5.6 / 17])


@pytest.mark.parametrize("alpha", [[], [0.0, 1.0], [-1.0, 1.0], [float("nan"), 1.0], [float("inf"), 1.0], [[1.0]]])
def test_priors_that_are_none(alpha: list[float]) -> None:
    with pytest.raises(StrettoError, match="prior"):
        own_prior(alpha)


@pytest.mark.parametrize("queries", [0.0, -1.0, float("nan"), float("inf")])
def test_windows_that_are_none(queries: float) -> None:
    with pytest.raises(StrettoError, match="window"):
        strong([1, 1], queries)


def test_shapes_that_do_not_go_together() -> None:
    with pytest.raises(StrettoError, match="prior of shape"):
        posterior_mean([1, 2, 3], [0.5, 0.5])
    with pytest.raises(StrettoError, match="does not go with scores"):
        expected_accuracy([0.5, 0.5], [0.1, 0.2, 0.3])


@given(st.data(), CLASSES)
def test_a_posterior_is_a_distribution_between_prior_and_evidence(data: st.DataObject, classes: int) -> None:
    counts = data.draw(arrays(np.int64, (3, classes), elements=st.integers(0, 50)))
    alpha = data.draw(arrays(np.float64, classes, elements=st.floats(0.01, 100)))
    theta = posterior_mean(counts, alpha)
    np.testing.assert_allclose(theta.sum(axis=1), 1)
    for row, found in zip(counts, theta, strict=True):
        by_hand = [(alpha[i] + row[i]) / (alpha.sum() + row.sum()) for i in range(classes)]
        np.testing.assert_allclose(found, by_hand)
        more = row.copy()
        more[0] += 1
        assert posterior_mean(more, alpha)[0] > found[0] or found[0] == pytest.approx(1)


def test_expected_accuracy_is_profiled_accuracy_at_the_test_set_s_frequencies() -> None:
    """Equation 8: θ = the frequencies of the test set gives back trace over sum."""
    confusion = np.array([[80, 20, 0], [5, 40, 5], [0, 10, 15]])
    theta = confusion.sum(axis=1) / confusion.sum()
    assert expected_accuracy(theta, class_recall(confusion)) == pytest.approx(np.trace(confusion) / confusion.sum())


def test_expected_accuracy_of_many_queries_and_variants() -> None:
    theta = np.array([[1.0, 0.0], [0.25, 0.75]])
    recall = np.array([[0.9, 0.5], [0.6, 0.8], [1.0, 0.0]])
    np.testing.assert_allclose(expected_accuracy(theta, recall), [[0.9, 0.6, 1.0], [0.6, 0.75, 0.25]])
    np.testing.assert_allclose(expected_accuracy(theta[1], recall), [0.6, 0.75, 0.25])
    np.testing.assert_allclose(expected_accuracy(theta, recall[0]), [0.9, 0.6])


def test_f1_by_class() -> None:
    confusion = [[8, 2], [4, 6]]
    # Class 0: precision 8/12, recall 8/10. Class 1: precision 6/8, recall 6/10.
    np.testing.assert_allclose(class_f1(confusion), [2 * 8 / 22, 2 * 6 / 18])
    assert class_f1([[3, 0, 0], [1, 2, 0], [0, 0, 0]])[2] == 0


def test_recall_of_a_class_that_was_never_tested_is_the_overall_accuracy() -> None:
    np.testing.assert_allclose(class_recall([[3, 1, 0], [0, 4, 0], [0, 0, 0]]), [0.75, 1.0, 7 / 8])


def test_quadratic_scores() -> None:
    found = quadratic_scores([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [0.8, 0.2]], [0, 0, 0, 1])
    np.testing.assert_allclose(found, [1.0, -1.0, 0.5, 0.4 - 0.68])


def test_the_error_is_the_distance_to_the_recall_of_the_true_class() -> None:
    recall = np.array([[0.9, 0.5], [0.6, 0.8]])
    assert estimation_error([0.7, 0.7], [0], recall) == pytest.approx((0.2 + 0.1) / 2)
    truth = expected_accuracy(np.eye(2)[[0, 1]], recall)
    assert estimation_error(truth, [0, 1], recall) == pytest.approx(0)


@pytest.mark.parametrize("confusion", [[[0, 0], [0, 0]], [[1, 2]], [1, 2]])
def test_matrices_that_count_nothing(confusion: list[list[int]]) -> None:
    with pytest.raises(StrettoError, match="confusion"):
        class_recall(confusion)


def test_accuracy_by_class_is_equation_9_averaged_over_queries_that_are_told_so() -> None:
    """θ_k × recall_k summed over the classes, query by query; a class that nobody was told to be of has its recall."""
    random = np.random.default_rng(4)
    theta, recall = random.dirichlet(np.full(5, 0.7), 60), random.random((3, 5))
    theta[theta.argmax(axis=1) == 2, 2] = 0.0
    theta /= theta.sum(axis=1, keepdims=True)
    accuracy, shares = accuracy_by_class(theta, recall)
    for told in range(5):
        queries = [row for row in theta.tolist() if row.index(max(row)) == told]
        assert shares[told] == pytest.approx(len(queries) / 60)
        for variant in range(3):
            expected = [sum(row[k] * recall[variant, k] for k in range(5)) for row in queries]
            mean = sum(expected) / len(expected) if expected else recall[variant, told]
            assert accuracy[variant, told] == pytest.approx(mean)
    assert shares[2] == 0 and shares.sum() == pytest.approx(1)
