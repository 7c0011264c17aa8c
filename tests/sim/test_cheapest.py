"""The search for the cheapest fleet, against exhaustive search, and what it says where there is none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from stretto.core.errors import StrettoError
from stretto.sim.bounds import FluidFleet
from stretto.sim.capacity import Requirement
from stretto.sim.cheapest import Cheapest, cheapest_fleet, check_costs

MOST = 12


@dataclass(frozen=True)
class Given:
    """What a fleet of so much speed gives: late queries once it is short of what is needed."""

    workers: int
    accuracy: float
    violation: float


class World:
    """Workers of each kind have a speed; a fleet is enough from `needed` on, which is `loss` above what flows."""

    def __init__(self, speeds: Mapping[str, float], costs: Mapping[str, float], flow: float, loss: float) -> None:
        self.speeds, self.costs, self.flow, self.needed = speeds, costs, flow, flow * loss
        self.asked: list[dict[str, int]] = []
        self.most = MOST

    def promise(self, fleet: dict[str, int]) -> Given:
        self.asked.append(fleet)
        return Given(sum(fleet.values()), 0.9, 0.0 if self.is_enough(fleet) else 0.5)

    def is_enough(self, fleet: Mapping[str, int]) -> bool:
        return sum(self.speeds[kind] * count for kind, count in fleet.items()) >= self.needed - 1e-9

    def bound(self, held: Mapping[str, int]) -> FluidFleet | None:
        kinds = list(self.costs)
        solved = linprog(
            [self.costs[kind] for kind in kinds],
            A_ub=[[-self.speeds[kind] for kind in kinds], [1.0] * len(kinds)],
            b_ub=[-self.flow, self.most],
            bounds=[(held.get(kind, 0), held.get(kind)) for kind in kinds],
        )
        if solved.x is None:
            return None
        return FluidFleet(float(solved.fun), dict(zip(kinds, solved.x.tolist(), strict=True)))

    def search(self, most: int = MOST) -> Cheapest[Given]:
        self.most = most
        return cheapest_fleet(self.promise, self.bound, Requirement(1.0, 0.5, 0.01), self.costs, most=most)

    def by_hand(self) -> float:
        """The lowest cost of all fleets that are enough."""
        return min(
            (
                sum(cost * count for cost, count in zip(self.costs.values(), counts, strict=True))
                for counts in itertools.product(range(MOST + 1), repeat=len(self.costs))
                if 1 <= sum(counts) <= MOST and self.is_enough(dict(zip(self.costs, counts, strict=True)))
            ),
            default=math.inf,
        )


@settings(deadline=None)
@given(
    speeds=st.lists(st.sampled_from([0.0, 0.4, 1.0, 1.7, 3.0, 8.0]), min_size=1, max_size=3),
    prices=st.lists(st.sampled_from([0.1, 0.5, 0.9, 1.0, 2.5, 7.0]), min_size=3, max_size=3),
    flow=st.floats(0.2, 20),
    loss=st.sampled_from([1.0, 1.05, 1.2, 1.4]),
)
def test_it_is_the_cheapest_of_all(speeds: list[float], prices: list[float], flow: float, loss: float) -> None:
    kinds = ["a", "b", "c"][: len(speeds)]
    world = World(dict(zip(kinds, speeds, strict=True)), dict(zip(kinds, prices, strict=False)), flow, loss)
    best = world.by_hand()
    if math.isinf(best):
        with pytest.raises(StrettoError, match="not enough"):
            world.search()
        return
    found = world.search()
    assert found.best.cost == pytest.approx(best) and world.is_enough(found.fleet())
    assert found.least_cost <= best + 1e-9
    assert len(world.asked) == len({tuple(fleet.values()) for fleet in world.asked})  # none is judged twice


def test_dear_questions_are_few() -> None:
    """A hundred and more fleets cost less than the answer; the bound and what failed rule out nearly all of them."""
    world = World({"gpu": 25.0, "cpu": 0.9}, {"gpu": 2.5, "cpu": 0.1}, 60.0, 1.15)
    found = world.search(most=200)
    assert found.best.cost == pytest.approx(
        min(2.5 * gpus + 0.1 * math.ceil(max(0, 69 - 25 * gpus) / 0.9) for gpus in range(4))
    )
    assert len(world.asked) <= 12


def test_a_mix_may_be_cheapest() -> None:
    world = World({"gpu": 10.0, "cpu": 1.0}, {"gpu": 5.0, "cpu": 1.0}, 12.0, 1.0)
    found = world.search()
    assert found.fleet() == {"gpu": 1, "cpu": 2} and found.best.cost == 7.0
    assert [trial.cost for trial in found.tried] == sorted(trial.cost for trial in found.tried)


def test_a_kind_that_cannot_serve_is_left_out() -> None:
    assert World({"a": 0.0, "b": 1.0}, {"a": 0.1, "b": 1.0}, 3.0, 1.0).search().fleet() == {"a": 0, "b": 3}


def test_where_there_is_none() -> None:
    with pytest.raises(StrettoError, match=r"12 workers of kind a are not enough for 1 queries/s.*fluid bound"):
        World({"a": 1.0}, {"a": 1.0}, 13.0, 1.0).search()
    with pytest.raises(StrettoError, match=r"the largest fleet tried promises 0\.9000 and 50\.000%"):
        World({"a": 1.0}, {"a": 1.0}, 11.0, 1.4).search()


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ({}, "1 to 6 kinds"),
        ({f"k{n}": 1.0 for n in range(7)}, "not 7"),
        ({"a": 0.0}, "costs 0 an hour"),
        ({"a": math.nan}, "costs nan"),
    ],
)
def test_costs_that_make_no_sense(costs: dict[str, float], words: str) -> None:
    with pytest.raises(StrettoError, match=words):
        check_costs(costs)


def test_too_many_mixes_are_refused() -> None:
    kinds = [f"k{n}" for n in range(5)]
    world = World(dict.fromkeys(kinds, 1.0), {kind: 1.0 + n / 100 for n, kind in enumerate(kinds)}, 40.0, 1.0)
    with pytest.raises(StrettoError, match="more than 5000 mixes"):
        world.search(most=200)


def test_a_fleet_whose_promise_is_refuted_is_not_the_answer() -> None:
    """A promise is asked about once, and only where it is enough; every fleet below a refuted one is ruled out."""
    world = World({"gpu": 10.0, "cpu": 1.0}, {"gpu": 5.0, "cpu": 1.0}, 12.0, 1.0)
    world.most = MOST
    refuted: list[Given] = []

    def confirms(given: Given) -> bool:
        assert given.violation <= 0.01 and not any(given is other for other in refuted)
        if given.workers < 4:
            refuted.append(given)
            return False
        return True

    requirement = Requirement(1.0, 0.5, 0.01)
    found = cheapest_fleet(world.promise, world.bound, requirement, world.costs, most=MOST, confirms=confirms)
    assert refuted and found.best.promise.workers >= 4 and found.best.cost > 7.0
    assert not any(trial.is_enough and trial.promise.workers < 4 for trial in found.tried)
