"""Orders and groups."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.application import Penalty
from stretto.core.plan import Order
from stretto.planners.sneakpeek.groups import bounded, fewer, form_groups, ordered, urgency
from stretto.planners.sneakpeek.schedule import Options, schedule
from tests.planners.sneakpeek.cases import application, deployment, query, variant, window

RECALL = ((0.9, 0.5, 0.7), (0.95, 0.9, 0.8))
VARIED = application(
    "varied", *(variant(f"v{n}", float(np.mean(r)), 1, 9, recall=r) for n, r in enumerate(RECALL)), evidence=0.6
)
PLAIN = application("plain", variant("only", 0.9, 1, 9))
SERVED = deployment([VARIED, PLAIN])
SURE = [(0.9, 0.05, 0.05), (0.1, 0.8, 0.1), (0.0, 0.1, 0.9)]


def test_priority_is_that_of_equation_12_with_seconds() -> None:
    of = window(SERVED, [query(0, 0, 100), query(1, 1, 100), query(2, 1, 40)], data_aware=False)
    variance = np.var([np.mean(r) for r in RECALL])
    expected = [(1 + variance) * np.exp(-0.1), np.exp(-0.1), np.exp(-0.04)]
    assert urgency(of, Order.PRIORITY) == pytest.approx(expected)
    assert np.argmax(urgency(of, Order.EARLIEST_DEADLINE)) == 2
    first = window(SERVED, [query(0, 0, 10, length_ms=5), query(1, 0, 100, length_ms=200)])
    assert np.argmax(urgency(first, Order.FIRST_COME)) == 1


def test_variance_outweighs_a_small_difference_of_deadlines_and_no_large_one() -> None:
    variance = np.var([np.mean(r) for r in RECALL])  # 0.0084: as much as 8 ms
    near = window(SERVED, [query(0, 0, 100 + 900 * variance), query(1, 1, 100)], data_aware=False)
    far = window(SERVED, [query(0, 0, 100 + 1100 * variance), query(1, 1, 100)], data_aware=False)
    assert np.argmax(urgency(near, Order.PRIORITY)) == 0
    assert np.argmax(urgency(far, Order.PRIORITY)) == 1


def test_long_past_and_far_deadlines_do_not_overflow() -> None:
    of = window(SERVED, [query(0, 0, -1e12), query(1, 0, 1e12)])
    assert np.isfinite(urgency(of, Order.PRIORITY)).all()


def test_groups_are_by_application_and_split_by_believed_class() -> None:
    queries = [query(0, 0, 90, theta=SURE[0]), query(1, 0, 80, theta=SURE[1]), query(2, 0, 70, theta=SURE[0])]
    queries += [query(3, 0, 60, theta=(0.5, 0.3, 0.2)), query(4, 1, 50), query(5, 0, 40)]
    of = window(SERVED, queries, certainty=0.5)  # as published: more likely than all others together
    assert of.query_class.tolist() == [0, 1, 0, -1, -1, -1]
    whole = [group.tolist() for group in form_groups(of, range(6), False)]
    assert whole == [[0, 1, 2, 3], [4], [5]], "the last one cannot be answered from evidence"
    split = [group.tolist() for group in form_groups(of, range(6), True)]
    assert split == [[0, 2], [1], [3], [4], [5]]
    nobody = window(SERVED, queries, certainty=0.5, short_circuit=False)
    assert [group.tolist() for group in form_groups(nobody, range(6), False)] == [[0, 1, 2, 3, 5], [4]]
    assert [group.tolist() for group in form_groups(nobody, range(6), True)] == [[0, 2], [1], [3, 5], [4]]


def test_a_query_is_of_the_kind_of_its_likeliest_class() -> None:
    """However little of θ that is; two classes with the same recalls are one kind."""
    recalls = ((0.9, 0.9, 0.5, 0.7), (0.6, 0.6, 0.8, 0.7))
    models = [variant(f"v{n}", 0.7, 1, 4, recall=recall) for n, recall in enumerate(recalls)]
    served = deployment([application("many", *models, evidence=0.7)])
    thetas = [(0.28, 0.24, 0.24, 0.24), (0.2, 0.4, 0.2, 0.2), (0.25, 0.2, 0.3, 0.25), (0.1, 0.1, 0.1, 0.7)]
    of = window(served, [query(n, 0, 90, theta=theta) for n, theta in enumerate(thetas)])
    assert [group.tolist() for group in form_groups(of, range(4), True)] == [[0, 1], [2], [3]]
    assert of.accuracy[0].tolist() == pytest.approx([0.28 * 0.9 + 0.24 * 2.1, 0.28 * 0.6 + 0.24 * 2.1])


def test_one_query_without_evidence_does_not_forbid_the_answers_of_its_group() -> None:
    """Regression: a group was answered from evidence only where all of it could be, and live there is always one that
    came too late for evidence. Here no variant can be in time but for one query.
    """
    slow = variant("slow", 0.9, 40, 60, recall=(0.9, 0.9))
    served = deployment([application("one", slow, penalty=Penalty.STEP, evidence=0.8)])
    thetas = [(0.8, 0.2), None, (0.3, 0.7), (0.9, 0.1)]
    of = window(served, [query(n, 0, 110, theta=theta) for n, theta in enumerate(thetas)])
    for by_class in (False, True):
        for exact in (0, 6):
            found = schedule(of, Options(split_classes=by_class, exact_groups=exact))
            assert sorted(found.answers) == [0, 2, 3] and found.worth == pytest.approx(3 * 0.8 + 0.9)
            assert [batch.requests for batch in found.batches] == [(1,)]
    assert len(fewer(of, form_groups(of, range(4), True), 1, 10)) == 2, "nor when groups are put together"


def test_large_groups_are_cut_and_groups_go_by_mean_urgency() -> None:
    assert [g.tolist() for g in bounded([np.array([3, 1, 2, 0, 5])], 2)] == [[3, 1], [2, 0], [5]]
    means = ordered([np.array([0]), np.array([1, 2]), np.array([3])], np.array([0.5, 1.0, 0.4, 0.9]))
    assert means.tolist() == [2, 1, 0]


def test_the_groups_that_are_put_together_are_those_alike_and_never_too_large() -> None:
    queries = [query(n, 0, 90, theta=SURE[c]) for n, c in enumerate((0, 1, 2))] + [query(3, 1, 90)]
    of = window(SERVED, queries)
    groups = form_groups(of, range(4), True)
    # Between variants, classes 0 (0.05 apart) and 2 (0.1) differ least from each other; class 1 is 0.4 apart.
    assert [g.tolist() for g in fewer(of, groups, 3, 10)] == [[0, 2], [1], [3]]
    assert [g.tolist() for g in fewer(of, groups, 1, 10)] == [[0, 2, 1], [3]] or len(fewer(of, groups, 1, 10)) == 2
    assert len(fewer(of, groups, 1, 1)) == 4
