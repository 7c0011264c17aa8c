"""The next partition of a deployment: what must move does, and what need not stays."""

from __future__ import annotations

import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.partition import Partition
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.planners.partition.of_deployment import partitioned
from stretto.planners.partition.worth import UNBALANCED, usual_moves

MB = 10**6
NAMES = "abcdefgh"
EVEN = Partition({name: number % 4 for number, name in enumerate(NAMES)}, 4, 2, version=7)


def deployment(names: str = NAMES) -> Deployment:
    profile = LatencyProfile.linear(1.0, 5.0, 32)
    applications = [
        Application(name, 50 * NS_PER_MS, (Variant("only", 0.8, (profile,), memory_bytes=100 * MB),)) for name in names
    ]
    return Deployment(tuple(applications), workers(4))


def again(rates: list[float], previous: Partition = EVEN, **limits: float) -> Partition:
    names = NAMES[: len(rates)] if len(rates) <= len(NAMES) else NAMES + "i"
    asked = {"max_moves": 1, **limits}
    return partitioned(
        deployment(names),
        rates,
        4,
        clusters=2,
        previous=previous,
        is_steady=True,
        **asked,  # type: ignore[arg-type]
    ).partition


def test_what_is_in_balance_stays_the_very_partition() -> None:
    assert again([100.0] * 8) is EVEN
    slightly = 1 + 0.9 * UNBALANCED  # of the rate of one sub-cluster
    assert again([100.0 * (2 * slightly - 1), *[100.0] * 7]) is EVEN


def test_one_that_cannot_become_clearly_better_stays() -> None:
    """One application is busy, and has its sub-cluster with one other; more than half of the load is its own."""
    alone = Partition({"a": 0, **{name: 1 + number % 3 for number, name in enumerate(NAMES[1:])}}, 4, 2)
    assert again([10_000.0, *[1.0] * 7], alone) is alone


def test_a_load_that_moved_moves_as_little_as_it_may() -> None:
    rates = [400.0, 100.0, 100.0, 100.0, 400.0, 100.0, 100.0, 100.0]
    moved = again(rates, max_moves=2)
    assert moved.version == EVEN.version + 1 and len(moved.moved_from(EVEN)) == 2, "a busy one for a quiet one"
    assert moved.homes["a"] != moved.homes["e"]
    assert again(rates, max_moves=1) is EVEN, "one alone would have memory out of balance instead"


def test_a_limit_that_is_broken_is_kept_whatever_the_balance() -> None:
    rates = [100.0] * 8
    assert again(rates, max_rate=210.0) is EVEN
    with pytest.raises(StrettoError, match="take"):
        again(rates, max_rate=150.0)
    uneven = Partition({**EVEN.homes, "d": 2}, 4, 2)
    mended = again(rates, uneven, max_rate=290.0)
    assert len(mended.moved_from(uneven)) == 1 and max(map(list(mended.homes.values()).count, range(4))) == 2
    top_heavy = [120.0, 120.0, 80.0, 80.0] * 2
    assert again(top_heavy, max_cluster_rate=470.0, max_moves=2).moved_from(EVEN), "a cluster would take too much"


def test_an_application_that_is_new_finds_a_home() -> None:
    found = again([100.0] * 9)
    assert found.homes["i"] in range(4) and found.version == EVEN.version + 1
    assert {name: home for name, home in found.homes.items() if name != "i"} == EVEN.homes


def test_a_tenth_of_the_models_may_move_where_nobody_says() -> None:
    assert [usual_moves(models) for models in (1, 9, 10, 11, 800)] == [1, 1, 1, 2, 80]
