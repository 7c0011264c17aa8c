"""What one dispatcher learned and hands on to the next: rates, caps and corrected latencies, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import AdaptiveCap, Eager, Fixed, Plan, by_application
from stretto.core.worker import Worker, workers
from stretto.dispatch.dispatcher import Dispatcher
from tests.dispatch.small import FAR, PROFILE, lane, on_kinds, straight, variant

QUICK = straight(1, 3, 20, "quick")  # a kind that no worker has at first, with larger batches
A = on_kinds("a", straight(2, 10), QUICK)


def two_applications(*names: str, of: Variant = A, crew: tuple[Worker, ...] = workers(1)) -> Deployment:
    return Deployment(tuple(Application(name, 100, (of,)) for name in names), crew)


def experienced(plan: Plan | None = None) -> Dispatcher:
    """Applications cat and dog, of which dog had a query each 10 ns and batches of twice the latency."""
    capped = lane("dogs", select=Fixed(1), adaptive_cap=AdaptiveCap(10**6, start=2.0), release=Eager(8))
    made = Dispatcher(
        two_applications("cat", "dog"),
        plan or by_application((lane("cats"), capped), rate_window_ns=1000),
        correction=0.5,
    )
    now = 0
    for _ in range(200):
        made.submit(now, 1, FAR)
        made.submit(now, 1, FAR)
        now += 20
        made.finished(now, 0, True, 2 * PROFILE.latency_ns(2))
    return made


def heir(deployment: Deployment, correction: float = 0.5, window_ns: int = 1000, **dogs: Any) -> Dispatcher:
    rules: dict[str, Any] = {"adaptive_cap": AdaptiveCap(10**6), "release": Eager(8)} | dogs
    lanes = tuple(
        lane(f"{each.name}s", select=Fixed(number), **(rules if each.name == "dog" else {}))
        for number, each in enumerate(deployment.applications)
    )
    return Dispatcher(deployment, by_application(lanes, rate_window_ns=window_ns), correction=correction, now_ns=4000)


def test_rates_caps_and_latencies_are_taken_over_by_name() -> None:
    old = experienced()
    new = heir(two_applications("bird", "dog", "cat"))
    new.inherit(4000, old.estimates())
    before, after = old.telemetry(4000), new.telemetry(4000)
    assert after.rates.tolist() == [0.0, before.rates[1], before.rates[0]] and before.rates[1] > 5e7
    assert after.lane_rates.tolist() == [0.0, before.lane_rates[1], before.lane_rates[0]]
    assert after.is_rated.tolist() == [False, True, False]
    assert after.latency_ratio[:, 0].tolist() == [1.0, before.latency_ratio[1, 0], 1.0]
    assert before.latency_ratio[1, 0] > 1.5
    assert after.is_measured[:, 0].tolist() == [False, True, False]
    # And it decides with them: the batch is as large as the cap allows, and takes as long as measured.
    for number in range(9):
        new.submit(4000, 1, FAR, more=number < 8)
    (run,) = new.decisions()
    size = int(old.estimates().caps[1])
    row = int(old.memory["latency"].reshape(2, -1)[1][size])
    assert (len(run.tickets), run.expected_ns - run.start_ns) == (size, row)  # type: ignore[union-attr]
    assert size > 2 and row > 1.5 * PROFILE.latency_ns(size)


def test_kinds_are_matched_by_name() -> None:
    old = experienced()
    crew = (Worker("q", "quick"), Worker("d"))
    new = heir(two_applications("dog", crew=crew))
    new.inherit(4000, old.estimates())
    assert new.latency_ratio().tolist() == [[1.0, old.latency_ratio()[1, 0]]]


@pytest.mark.parametrize(
    "profile",
    [straight(2, 11), straight(2, 10, max_batch=7), straight(2, 10, max_batch=9)],
    ids=["slower", "shorter", "longer"],
)
def test_another_profile_starts_with_what_it_says(profile: Any) -> None:
    new = heir(two_applications("dog", of=variant("a", profile)))
    new.inherit(4000, experienced().estimates())
    assert new.latency_ratio().tolist() == [[1.0]]
    assert new.telemetry(4000).rates[0] > 5e7  # its queries are the same


def test_another_window_counts_anew_but_caps_stay() -> None:
    old = experienced()
    new = heir(two_applications("dog"), window_ns=2000)
    new.inherit(4000, old.estimates())
    assert new.telemetry(4000).rates.tolist() == [0.0]
    assert new.estimates().caps[0] == old.estimates().caps[1]


def test_a_cap_is_taken_over_only_between_lanes_that_have_one() -> None:
    new = heir(two_applications("dog"), adaptive_cap=None)
    new.inherit(4000, experienced().estimates())
    assert new.estimates().caps.tolist() == [0.0]


def test_without_correction_the_profile_stays_as_it_is() -> None:
    new = heir(two_applications("dog"), correction=0.0)
    new.inherit(4000, experienced().estimates())
    assert new.latency_ratio().tolist() == [[1.0]]


def test_estimates_are_a_copy() -> None:
    old = experienced()
    estimates = old.estimates()
    rates, ratio = estimates.rates.copy(), estimates.ratio.copy()
    for number in range(50):
        old.submit(5000 + number, 0, FAR)
        old.finished(5000 + number, 0, True, 10**6)
    assert (estimates.rates == rates).all() and (estimates.ratio == ratio).all()


def test_a_dispatcher_with_queries_of_its_own_inherits_nothing() -> None:
    new = heir(two_applications("dog"))
    new.submit(4000, 0, FAR)
    with pytest.raises(StrettoError, match="has estimates of its own"):
        new.inherit(4001, experienced().estimates())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rates": np.zeros(1)}, "do not fit their names"),
        ({"lanes": ("cats",)}, "do not fit their names"),
        ({"profiled": np.zeros((2, 1), np.int64)}, "do not fit their names"),
        ({"ratio": np.full((2, 1), np.nan)}, "ratio of latencies lies between"),
        ({"written": np.full((2, 1), 99.0)}, "ratio of latencies lies between"),
        ({"counting": np.full((4, 4), 8)}, "out of its range"),
        ({"caps": np.array([np.inf, 1.0])}, "out of its range"),
    ],
)
def test_estimates_that_no_dispatcher_wrote_are_refused(change: dict[str, Any], words: str) -> None:
    new = heir(two_applications("dog"))
    with pytest.raises(StrettoError, match=words):
        new.inherit(4000, replace(experienced().estimates(), **change))
    assert new.telemetry(4000).rates.tolist() == [0.0]
