"""What a run is worth, and choices made in isolation."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.application import Penalty
from stretto.planners.sneakpeek.timeline import locally_optimal
from tests.planners.sneakpeek.cases import application, deployment, problem, query, variant, window

FAST, GOOD = variant("fast", 0.6, 1, 4), variant("good", 0.9, 2, 38)
SINGLE = np.arange(1)


def chosen(penalty: Penalty, deadline_ms: float, max_accuracy: bool = False, evidence: float | None = None) -> int:
    served = deployment([application("a", FAST, GOOD, penalty=penalty, evidence=evidence)])
    theta = None if evidence is None else (0.5, 0.5)
    p = problem(window(served, [query(0, 0, deadline_ms, theta=theta)]), [[0]])
    _, _, variants, _ = locally_optimal(p, SINGLE, max_accuracy, 0)
    return int(variants[0]) if len(variants) else -1


def test_the_locally_optimal_variant_is_the_one_worth_most_at_its_end() -> None:
    assert chosen(Penalty.STEP, 50) == 1
    assert chosen(Penalty.STEP, 39) == 0  # the good one would be late
    assert chosen(Penalty.SIGMOID, 39) == 1  # a little lateness costs less than the accuracy
    assert chosen(Penalty.STEP, 2) == 0  # all are late: the one that ends first
    assert chosen(Penalty.STEP, 39, max_accuracy=True) == 1


def test_evidence_answers_where_it_is_worth_more() -> None:
    assert chosen(Penalty.STEP, 39, evidence=0.7) == -1
    assert chosen(Penalty.STEP, 50, evidence=0.7) == 1
    assert chosen(Penalty.STEP, 39, max_accuracy=True, evidence=0.7) == 1  # never the most accurate


def test_neighbours_on_one_variant_run_together_unless_that_makes_one_late() -> None:
    served = deployment([application("a", variant("only", 0.9, 5, 10), penalty=Penalty.STEP)])
    order = np.arange(2)
    relaxed = problem(window(served, [query(0, 0, 60), query(1, 0, 60)]), [[0], [1]])
    assert locally_optimal(relaxed, order, False, 0)[0].tolist() == [0, 0]
    urgent = problem(window(served, [query(0, 0, 16), query(1, 0, 60)]), [[0], [1]])
    assert locally_optimal(urgent, order, False, 0)[0].tolist() == [0, 1]


def test_a_variant_that_the_worker_does_not_hold_is_loaded_first() -> None:
    near, far = variant("near", 0.5, 1, 9), variant("far", 0.9, 1, 9, load_ms=15)
    served = deployment([application("a", near, far, penalty=Penalty.STEP)])
    for deadline_ms, expected in ((30, 1), (20, 0)):
        p = problem(window(served, [query(0, 0, deadline_ms)]), [[0]])
        assert locally_optimal(p, SINGLE, False, 0)[2].tolist() == [expected]


def test_unequal_workers_are_told_apart() -> None:
    kinds = (("gpu", 1.0), ("slow", 4.0))
    served = deployment(
        [application("a", variant("only", 0.9, 1, 9, kinds=kinds), penalty=Penalty.STEP)], ("slow", "gpu")
    )
    p = problem(window(served, [query(number, 0, 45) for number in range(4)]), [[0], [1], [2], [3]])
    _, workers, _, worth = locally_optimal(p, np.arange(4), False, 0)
    assert worth == pytest.approx(4 * 0.9)
    assert sorted(workers.tolist()) == [0, 1]  # one on the slow worker, which takes 40 ms; the others on the fast one
