"""Applications, variants, workers and the numbering that a deployment gives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment, with_latencies
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plain import from_plain, to_plain
from stretto.core.plan import Delays, Fixed, Lane, RouteRule, by_application
from stretto.core.profile import LatencyProfile
from stretto.core.worker import UNLIMITED_MEMORY, Worker, workers

ON_A = LatencyProfile.linear(1.0, 1.0, 8, "a")
ON_B = LatencyProfile.linear(2.0, 1.0, 8, "b")


def two_by_two() -> Deployment:
    first = Application("first", 100, (Variant("small", 0.5, (ON_A, ON_B)), Variant("large", 0.9, (ON_A,))))
    second = Application("second", 100, (Variant("only", 0.7, (ON_B,)),))
    return Deployment((first, second), (Worker("w0", "b"), Worker("w1", "a"), Worker("w2", "b")))


def test_numbers_go_by_place() -> None:
    made = two_by_two()
    assert made.kinds == ("b", "a")
    assert [variant.name for variant in made.variants] == ["small", "large", "only"]
    assert made.application_of == (0, 0, 1)
    assert made.first_variant == (0, 2)
    assert [list(made.variants_of(number)) for number in range(2)] == [[0, 1], [2]]
    assert [made.variant_label(number) for number in range(3)] == ["first/small", "first/large", "second/only"]


def test_a_ladder_goes_from_fast_to_accurate_and_keeps_the_places_of_variants_that_are_not_deployed() -> None:
    """Accuracy decides, so that it is the same on every kind of worker; the faster one stands first where it ties."""
    names = {"slow": (0.9, ON_B), "swift": (0.9, ON_A), "poor": (0.5, ON_B), "also": (0.9, ON_A)}
    variants = tuple(Variant(name, accuracy, (profile,)) for name, (accuracy, profile) in names.items())
    whole = Application("a", 100, variants)
    assert whole.ladder == ("poor", "also", "swift", "slow")
    part = replace(whole, variants=variants[:2], whole_ladder=whole.ladder)
    assert part.ladder == from_plain(to_plain(part)).ladder == whole.ladder
    moved = with_latencies(Deployment((part,), workers(1, "b")), [[9.0], [9.0]])
    assert moved.applications[0].ladder == whole.ladder
    assert replace(part, whole_ladder=("poor", "slow")).ladder == ("poor", "slow", "swift")
    old = {key: value for key, value in to_plain(part).items() if key != "whole_ladder"}  # of a log of before
    assert from_plain(old).ladder == ("swift", "slow")
    with pytest.raises(StrettoError, match="variant 'a b' must start"):
        replace(part, whole_ladder=("a b",))


def test_a_profile_is_found_by_kind() -> None:
    made = two_by_two()
    assert made.profile(0) is ON_B  # the first kind in use
    assert made.profile(0, "a") is ON_A
    assert made.variants[1].profile_on("b") is None
    with pytest.raises(StrettoError, match="first/large has no profile for worker kind b"):
        made.profile(1)


def test_equal_workers_are_named_by_number() -> None:
    assert [worker.name for worker in workers(3, "t4")] == ["t4-0", "t4-1", "t4-2"]
    assert {worker.memory_bytes for worker in workers(3)} == {UNLIMITED_MEMORY}


def test_an_answer_is_on_time_or_late() -> None:
    assert [outcome.name for outcome in Outcome if outcome.is_answer] == ["ON_TIME", "LATE"]


def test_the_delay_of_a_batch_and_the_common_plan() -> None:
    assert Delays(7, 3).of_batch_ns(4) == 19
    lane = Lane("first", (0,), Fixed(0))
    plan = by_application((lane, lane), planner="mine")
    assert [(route.rule, route.lanes) for route in plan.routes] == [
        (RouteRule.BY_APPLICATION, (0,)),
        (RouteRule.BY_APPLICATION, (1,)),
    ]
    assert plan.planner == "mine"


ONE = (Variant("v", 0.5, (ON_A,)),)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Variant("", 0.5, (ON_A,)), "variant '' must start with a letter or digit"),
        (lambda: Variant("a b", 0.5, (ON_A,)), "variant 'a b' must start"),
        (lambda: Variant("v", 1.5, (ON_A,)), "accuracy of variant v is 1.5; it is a fraction"),
        (lambda: Variant("v", float("nan"), (ON_A,)), "it is a fraction between 0 and 1"),
        (lambda: Variant("v", 0.5, (ON_A,), recall=(0.5, -1.0)), "every recall of variant v is a fraction"),
        (lambda: Variant("v", 0.5, ()), "variant v has no latency profile"),
        (lambda: Variant("v", 0.5, (ON_A, ON_A)), "variant v has two profiles for one kind"),
        (
            lambda: Variant("v", 0.5, (ON_A,), memory_bytes=-1),
            "memory, load time and frame size of variant v cannot be negative",
        ),
        (lambda: Variant("v", 0.5, (ON_A,), load_ns=-1), "cannot be negative"),
        (lambda: Application("-x", 1, ONE), "application '-x' must start"),
        (lambda: Application("x" * 129, 1, ONE), "at most 128 letters"),
        (lambda: Application("x", 0, ONE), "the SLO of application x must be above zero"),
        (lambda: Application("x", 1, ()), "application x has no variant"),
        (lambda: Application("x", 1, ONE + ONE), "application x has two variants of one name"),
        (lambda: Worker("w w"), "worker 'w w' must start"),
        (lambda: Worker("w", "k k"), "worker kind 'k k' must start"),
        (lambda: Worker("w", memory_bytes=0), "worker w has no memory"),
        (lambda: Deployment((), workers(1, "a")), "needs at least one application"),
        (lambda: Deployment((Application("x", 1, ONE),), ()), "between 1 and 65536 workers, not 0"),
        (lambda: Deployment((Application("x", 1, ONE),) * 2, workers(1, "a")), "two applications have the same name"),
        (lambda: Deployment((Application("x", 1, ONE),), workers(1, "a") * 2), "two workers have the same name"),
        (lambda: Deployment((Application("x", 1, ONE),), workers(1, "z")), "no variant of application x has a profile"),
        (
            lambda: Deployment((Application("x", 1, ONE),), (Worker("w", "a", resident=("x/w",)),)),
            "worker w lists 'x/w' as resident, which no application has",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(StrettoError, match=sentence):
        make()
