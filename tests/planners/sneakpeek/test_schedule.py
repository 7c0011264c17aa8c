"""Whole windows: what is promised of a schedule, and how far it is from the exact solution of equation 3."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.sneakpeek_oracle import MOST_REQUESTS, optimal
from stretto.core.application import Penalty
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Order
from stretto.core.view import WaitingQuery
from stretto.core.worker import Worker
from stretto.planners.sneakpeek.schedule import Options, Schedule, schedule
from tests.planners.sneakpeek.cases import MEMORY, Enumeration, application, deployment, query, variant, window

CLASSES = 4


def random_deployment(random: np.random.Generator, applications: int = 3, workers: int = 1) -> Deployment:
    """Faster variants are less accurate, more so for some classes."""
    made = []
    for number in range(applications):
        variants = []
        for v in range(3):
            recall = np.clip(0.6 + 0.15 * v + random.normal(0, 0.08, CLASSES), 0, 1)
            beta_ms = (4 + 9 * v) * random.uniform(0.6, 1.4)
            variants.append(variant(f"v{v}", recall.mean(), 0.5 + v, beta_ms, load_ms=1 + v, recall=recall))
        made.append(application(f"a{number}", *variants, evidence=0.65))
    return deployment(made, ("gpu",) * workers)


def random_queries(random: np.random.Generator, count: int, applications: int = 3) -> list[WaitingQuery]:
    return [
        query(
            number,
            int(random.integers(applications)),
            float(random.uniform(20, 120)),
            length_ms=120.0,
            theta=random.dirichlet(np.full(CLASSES, 0.2)),
        )
        for number in range(count)
    ]


def placed(found: Schedule) -> list[int]:
    return sorted([place for batch in found.batches for place in batch.requests] + list(found.answers))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 30),
    st.integers(1, 3),
    st.sampled_from(Order),
    st.booleans(),
    st.booleans(),
    st.integers(0, 7),
    st.integers(0, 4),
)
def test_every_request_is_placed_once_on_a_variant_of_its_application(
    seed: int, count: int, workers: int, order: Order, is_grouped: bool, max_accuracy: bool, exact: int, most: int
) -> None:
    random = np.random.default_rng(seed)
    served = random_deployment(random, workers=workers)
    queries = random_queries(random, count)
    options = Options(order, max_accuracy, is_grouped, exact_groups=exact, max_group=most, trials=100)
    found = schedule(window(served, queries), options)
    assert placed(found) == list(range(count))
    for batch in found.batches:
        assert 0 <= batch.worker < workers
        assert {queries[place].application for place in batch.requests} == {served.application_of[batch.variant]}
        assert len(batch.requests) <= 16
    assert found.worth <= count


def test_the_oracle_is_what_enumeration_finds() -> None:
    for seed in range(6):
        random = np.random.default_rng(seed)
        served = random_deployment(random, 2)
        queries = random_queries(random, 4, 2)
        of = window(served, queries)
        singles = [[place] for place in range(4)]
        assert optimal(of).worth == pytest.approx(Enumeration(served, queries, singles, of).best())


def test_grouped_schedules_are_close_to_the_exact_solution() -> None:
    """Six requests of three applications; profiled accuracy, so that both go by the same numbers."""
    gaps = []
    for seed in range(60):
        random = np.random.default_rng(seed)
        served = random_deployment(random)
        of = window(served, random_queries(random, 6), data_aware=False, short_circuit=False)
        best = optimal(of)
        found = schedule(of, Options(split_classes=False))
        assert found.is_best and found.worth <= best.worth + 1e-9
        gaps.append(1 - found.worth / best.worth)
    assert fmean(gaps) <= 0.05


def test_splitting_by_class_and_the_exact_search_never_lose() -> None:
    better = 0
    for seed in range(30):
        random = np.random.default_rng(seed)
        served = random_deployment(random)
        of = window(served, random_queries(random, 8))
        whole = schedule(of, Options(split_classes=False, caution=0.0)).worth
        split = schedule(of, Options(exact_groups=9, caution=0.0)).worth
        local = schedule(of, Options(exact_groups=0, trials=0, caution=0.0)).worth
        assert split >= max(whole, local) - 1e-9
        better += split > whole + 1e-6
    assert better > 10


def test_evidence_answers_what_no_variant_can_in_time() -> None:
    served = deployment([application("a", variant("slow", 0.95, 1, 90, recall=(0.95, 0.95)), evidence=0.8)])
    sure = (0.9, 0.1)
    found = schedule(window(served, [query(0, 0, 40, theta=sure), query(1, 0, 40)]), Options())
    assert found.answers == (0,) and [batch.requests for batch in found.batches] == [(1,)]
    assert schedule(window(served, [query(0, 0, 95, theta=sure)]), Options()).answers == ()
    # A little late is worth more by the sigmoid, but not where evidence could have answered in time.
    late = window(served, [query(0, 0, 80, theta=sure)])
    assert schedule(late, Options()).answers == (0,)
    assert schedule(late, Options(caution=0.0)).answers == ()
    poor = replace(served, applications=(replace(served.applications[0], evidence_accuracy=0.6),))
    assert schedule(window(poor, [query(0, 0, 80, theta=sure)]), Options()).answers == ()


def test_several_workers_share_a_large_group() -> None:
    served = deployment([application("a", variant("only", 0.9, 20, 5), penalty=Penalty.STEP)], ("gpu", "gpu"))
    queries = [query(number, 0, 46) for number in range(4)]
    found = schedule(window(served, queries), Options())
    assert sorted(len(batch.requests) for batch in found.batches) == [2, 2]
    assert {batch.worker for batch in found.batches} == {0, 1}
    assert found.worth == pytest.approx(4 * 0.9)
    alone = schedule(window(served, queries), Options(max_group=4))
    assert alone.worth < 4 * 0.9  # one group of four on one worker is late


def test_what_no_worker_can_run_is_left_out_or_answered() -> None:
    big = replace(variant("big", 0.9, 1, 9), memory_bytes=10 * MEMORY)
    small = application("small", variant("v", 0.8, 1, 9))
    for evidence, answers in ((None, ()), (0.5, (0,))):
        served = Deployment((application("large", big, evidence=evidence), small), (Worker("w", "gpu", MEMORY, ()),))
        found = schedule(window(served, [query(0, 0, 50, theta=(0.5, 0.5)), query(1, 1, 50)]), Options())
        assert [batch.requests for batch in found.batches] == [(1,)]
        assert found.answers == answers


def test_the_oracle_refuses_what_is_too_large() -> None:
    served = deployment([application("a", variant("v", 0.8, 1, 9))])
    with pytest.raises(StrettoError, match="exact schedule"):
        optimal(window(served, [query(number, 0, 50) for number in range(MOST_REQUESTS + 1)]))
