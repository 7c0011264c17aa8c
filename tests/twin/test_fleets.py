"""The cheapest fleet for what was measured: by whatever the judge says of each, within bounds."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from stretto.core.advice import FleetNeeds
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays
from stretto.core.verdict import Promise, Verdict
from stretto.twin.fleets import cheapest_judged
from stretto.twin.live import Case, LiveTwin
from stretto.twin.setting import Setting
from stretto.twin.stretch import ArrivalStretch
from stretto.twin.tune import as_profiled
from tests.twin.libraries import verdict
from tests.twin.made import deployment as one_kind
from tests.twin.settings import two_kinds

RATE = 800.0
RATES = RATE, RATE  # of the two applications
COSTS = {"fast": 1.0, "slow": 0.4}
BOUNDS = {"fast": (0, 20), "slow": (0, 20)}


def measured(deployment: Deployment, rate: float = RATE) -> Setting:
    setting = as_profiled(deployment, Delays())
    arrivals = {application.name: ArrivalStretch(rate) for application in deployment.applications}
    return replace(setting, arrivals=arrivals)


def judged_by_power(needed: float, seen: list[Counter[str]]):  # type: ignore[no-untyped-def]
    """A fast worker is worth three slow ones; enough of them are never late."""

    def judge(deployment: Deployment, rates: tuple[float, ...]) -> Verdict:
        counts = Counter(worker.kind for worker in deployment.workers)
        seen.append(counts)
        late = 0.0 if 3 * counts["fast"] + counts["slow"] >= needed else 0.2
        return Verdict(rates, verdict(*rates).candidate, Promise(0.7 * (1 - late), late), verdict(*rates).candidate)

    return judge


@pytest.mark.parametrize("needed", [19.0, 23.0, 28.0])
def test_it_is_the_cheapest_of_all_that_are_enough(needed: float) -> None:
    deployment, seen = two_kinds(), list[Counter[str]]()
    found = cheapest_judged(deployment, RATES, FleetNeeds(COSTS, BOUNDS, 0.01), judged_by_power(needed, seen))
    mixes = itertools.product(range(21), range(21))
    cost, fast, slow = min((f + 0.4 * s, f, s) for f, s in mixes if 3 * f + s >= needed)
    assert dict(found.wanted) == {"fast": fast, "slow": slow} and found.cost == pytest.approx(cost)
    assert found.is_enough and found.late == 0.0 and found.accuracy == pytest.approx(0.7)
    assert found.load == pytest.approx(2 * RATE) and len(seen) < 150


def test_an_accuracy_that_nobody_knows_is_not_told() -> None:
    deployment = two_kinds()
    first, *others = deployment.applications
    variant, *more = first.variants
    unknown = replace(first, variants=(replace(variant, has_accuracy=False), *more))
    deployment = replace(deployment, applications=(unknown, *others))
    found = cheapest_judged(deployment, RATES, FleetNeeds(COSTS, BOUNDS, 0.01), judged_by_power(19.0, []))
    assert found.accuracy is None and found.is_enough


def test_it_carries_more_than_was_measured_where_that_is_asked_for() -> None:
    seen: list[float] = []

    def judge(deployment: Deployment, rates: tuple[float, ...]) -> Verdict:
        seen.append(sum(rates))
        return judged_by_power(19.0, [])(deployment, rates)

    found = cheapest_judged(two_kinds(), RATES, FleetNeeds(COSTS, BOUNDS, 0.01, above=0.25), judge)
    assert set(seen) == {2.5 * RATE} == {found.load}


@pytest.mark.parametrize(
    ("bounds", "wanted"),
    [
        ({"fast": (0, 4), "slow": (1, 20)}, {"fast": 4, "slow": 18}),
        ({"fast": (0, 20), "slow": (5, 20)}, {"fast": 10, "slow": 5}),
    ],
)
def test_it_stays_within_the_bounds(bounds: dict[str, tuple[int, int]], wanted: dict[str, int]) -> None:
    deployment = two_kinds()
    needs = FleetNeeds(COSTS, bounds, 0.01)
    found = cheapest_judged(deployment, RATES, needs, judged_by_power(30.0, []))
    assert found.wanted == wanted and found.is_enough


def test_what_cannot_be_says_why() -> None:
    deployment = two_kinds()
    with pytest.raises(StrettoError, match="not scaled"):
        cheapest_judged(deployment, RATES, FleetNeeds({"fast": 1.0}, BOUNDS, 0.01), judged_by_power(1, []))
    with pytest.raises(StrettoError, match="allow more workers"):
        cheapest_judged(deployment, RATES, FleetNeeds(COSTS, BOUNDS, 0.01), judged_by_power(1e6, []))


def test_the_judge_itself_is_asked_about_each_fleet() -> None:
    """One worker runs 16 queries in 2.6 ms, so at most 6,150 a second; two carry 9,000 easily."""
    deployment = one_kind("a")
    setting = measured(deployment, 9000.0)
    asked: list[int] = []

    def judged(case: Case, rates: tuple[float, ...]) -> Verdict:
        asked.append(len(case.deployment.workers))
        return case.judged(rates)

    needs = FleetNeeds({"default": 0.5}, {"default": (1, 3)}, 0.01)
    found = LiveTwin.cheapest(deployment, Case(deployment, setting), needs, judged)
    assert found.wanted == {"default": 2} and found.cost == 1.0 and found.late < 0.01 and found.is_enough
    assert 2 in asked and 1 not in asked  # the fluid bound rules that out
