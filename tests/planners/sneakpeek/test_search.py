"""The exact search against plain enumeration."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.core.application import Penalty
from stretto.core.deployment import Deployment
from stretto.core.view import WaitingQuery
from stretto.planners.sneakpeek.search import find_best
from stretto.planners.sneakpeek.timeline import locally_optimal
from tests.planners.sneakpeek.cases import Enumeration, application, deployment, problem, query, variant, window

ROOM = 100_000
KINDS = (("gpu", 1.0), ("slow", 2.5))
share = st.floats(0.05, 1.0)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Deployment, list[WaitingQuery], list[list[int]]]:
    """Up to four groups of up to three applications, on one or two workers."""
    penalty = draw(st.sampled_from(Penalty))
    workers = draw(st.sampled_from([("gpu",), ("gpu",), ("gpu", "gpu"), ("gpu", "slow")]))
    applications = []
    for number in range(draw(st.integers(1, 3))):
        variants = [
            variant(
                f"v{v}",
                draw(share),
                draw(st.floats(0.5, 10)),
                draw(st.floats(0, 30)),
                load_ms=draw(st.sampled_from([0.0, 3.0, 20.0])),
                max_batch=draw(st.sampled_from([2, 16])),
                kinds=KINDS if v == 0 else KINDS[: draw(st.integers(1, 2))],
            )
            for v in range(draw(st.integers(1, 3)))
        ]
        evidence = draw(st.none() | share)
        applications.append(application(f"a{number}", *variants, penalty=penalty, evidence=evidence))
    queries: list[WaitingQuery] = []
    groups: list[list[int]] = []
    for _ in range(draw(st.integers(1, 4 if len(workers) == 1 else 3))):
        owner = draw(st.integers(0, len(applications) - 1))
        group = []
        for _ in range(draw(st.integers(1, 3))):
            group.append(len(queries))
            theta = (0.5, 0.5) if draw(st.booleans()) else None
            length_ms = draw(st.floats(20, 150))
            deadline_ms = length_ms - draw(st.floats(0, 120))
            queries.append(query(len(queries), owner, deadline_ms, length_ms=length_ms, theta=theta))
        groups.append(group)
    return deployment(applications, workers), queries, groups


@settings(max_examples=100, deadline=None)
@given(cases())
def test_the_search_finds_what_enumeration_finds(case: tuple[Deployment, list[WaitingQuery], list[list[int]]]) -> None:
    served, queries, groups = case
    of = window(served, queries)
    _, worker, chosen, worth, is_best = find_best(problem(of, groups), -1.0, ROOM)
    assert is_best
    assert abs(worth - Enumeration(served, queries, groups, of).best()) <= 1e-9
    assert len(worker) == len(chosen)


@settings(max_examples=50, deadline=None)
@given(cases(), st.integers(0, 500))
def test_the_locally_optimal_schedule_is_never_above_the_best(
    case: tuple[Deployment, list[WaitingQuery], list[list[int]]], trials: int
) -> None:
    served, queries, groups = case
    p = problem(window(served, queries), groups)
    order = np.arange(len(groups))
    plain = locally_optimal(p, order, False, 0)[3]
    better = locally_optimal(p, order, False, trials)[3]
    best = find_best(p, -1.0, ROOM)[3]
    assert plain <= better + 1e-9
    assert better <= best + 1e-9


@settings(max_examples=50, deadline=None)
@given(cases())
def test_a_known_schedule_only_shortens_the_search(
    case: tuple[Deployment, list[WaitingQuery], list[list[int]]],
) -> None:
    served, queries, groups = case
    p = problem(window(served, queries), groups)
    best = find_best(p, -1.0, ROOM)[3]
    known = locally_optimal(p, np.arange(len(groups)), False, 100)[3]
    again = find_best(p, known, ROOM)
    assert abs(again[3] - best) <= 1e-9
    assert len(again[0]) == (len(groups) if again[3] > known else 0)
    assert len(find_best(p, best, ROOM)[0]) == 0  # nothing is worth more than the best


def test_without_room_the_search_says_that_it_did_not_finish() -> None:
    models = [variant(f"v{v}", 0.5 + v / 10, 1, 5 + 9 * v) for v in range(5)]
    served = deployment([application(f"a{number}", *models) for number in range(6)])
    queries = [query(number, number % 6, 40 + 5 * number) for number in range(12)]
    groups = [[number, number + 6] for number in range(6)]
    p = problem(window(served, queries), groups)
    assert find_best(p, -1.0, ROOM)[4]
    assert not find_best(p, -1.0, 50)[4]
