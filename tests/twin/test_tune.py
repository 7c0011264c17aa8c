"""Judging over a range of loads: which loads, under what, and within how much time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Delays
from stretto.core.verdict import Candidate, Verdict
from stretto.planners.judged.ledger import RUNG, RUNG_OF_SEVERAL
from stretto.sim.bounds import fluid_goodput
from stretto.sim.service import Empirical, Service
from stretto.twin import tune
from stretto.twin.live import figures_of
from stretto.twin.setting import Setting
from stretto.twin.stretch import ArrivalStretch
from stretto.twin.tune import (
    MOST_LOADS,
    PRESUMED,
    START_LOADS,
    as_profiled,
    halving,
    loads_between,
    shares_of,
    start_library,
    tuned,
)
from tests.planners.parts.tasks import small_deployment
from tests.twin.libraries import verdict
from tests.twin.made import stretch
from tests.twin.settings import two_kinds


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[float, ...]]]:
    """The loads that were judged; nothing is tried for it."""
    asked: list[tuple[float, ...]] = []

    def judge(
        deployment: Deployment,
        setting: Setting,
        rates: tuple[float, ...],
        candidates: Sequence[Candidate] | None = None,
        budget_s: float = math.inf,
    ) -> Verdict:
        asked.append(rates)
        return verdict(*rates)

    monkeypatch.setattr(tune, "judge_setting", judge)
    yield asked


def test_loads_go_from_easy_to_a_little_more_than_capacity_in_the_middle_of_rungs() -> None:
    deployment = small_deployment(3)
    capacity = fluid_goodput(deployment, (1.0,))
    easy = fluid_goodput(deployment, (1.0,), variants=[2])
    loads = [rates[0] for rates in loads_between(deployment, (1.0,))]
    assert loads[0] == pytest.approx(0.5 * easy, rel=RUNG - 1) and loads[0] >= 0.5 * easy
    assert loads[-1] == pytest.approx(1.1 * capacity, rel=RUNG - 1) and loads[-1] <= 1.1 * capacity
    assert all(later / earlier == pytest.approx(RUNG) for earlier, later in pairwise(loads))
    few = loads_between(deployment, (1.0,), most=4)
    assert len(few) <= 4 and set(few) <= {(load,) for load in loads}
    rungs = pytest.approx([RUNG**41, RUNG**42])
    assert [rates[0] for rates in loads_between(deployment, (1.0,), 100.0, 130.0)] == rungs
    assert len(loads_between(deployment, (1.0,), 100.0, 101.0)) == 1, "never none"
    assert len(loads_between(deployment, (1.0,), 1.0, 1e12)) <= MOST_LOADS


def test_several_applications_keep_their_mix() -> None:
    loads = loads_between(two_kinds(), (0.75, 0.25))
    assert all(first == pytest.approx(3 * second) for first, second in loads)
    assert sum(loads[1]) / sum(loads[0]) == pytest.approx(RUNG_OF_SEVERAL)


def test_workers_that_are_too_slow_are_refused() -> None:
    with pytest.raises(StrettoError, match="no variant answers within the SLO"):
        loads_between(small_deployment(3, slo_ms=1.0), (1.0,))


def test_a_setting_of_other_applications_is_refused() -> None:
    setting = Setting({"app": ArrivalStretch(0.0), "else": ArrivalStretch(20.0)})
    with pytest.raises(StrettoError, match="nothing came for app in this setting, which is of else; measure one"):
        shares_of(small_deployment(3), setting)
    assert shares_of(two_kinds(), Setting({"second": ArrivalStretch(20.0)})) == (0.0, 1.0)


def test_as_profiled_gives_each_application_as_much_work() -> None:
    deployment = two_kinds()
    setting = as_profiled(deployment, Delays(control_ns=5))
    assert setting.delays.control_ns == 5 and not setting.residuals
    assert shares_of(deployment, setting) == pytest.approx((0.5, 0.5)), "they have the same variants"
    assert as_profiled(small_deployment(2), gamma_shape=0.5).arrivals["app"].dispersion == (2.0, 2.0, 2.0)


def test_a_library_says_what_it_was_judged_under(judged: list[tuple[float, ...]]) -> None:
    deployment, setting = small_deployment(3), Setting({"app": stretch("bursty")})
    told: list[float] = []
    made = tuned(deployment, setting, [(300.0,), (100.0,)], "measured (monday.npz)", progress=told.append)
    assert judged == [(300.0,), (100.0,)] and told == [0.5, 1.0]
    assert [judgement.verdict.rates for judgement in made.judgements] == [(100.0,), (300.0,)]
    assert all(judgement.figures == figures_of(setting, deployment) for judgement in made.judgements)
    assert made.conditions == "measured (monday.npz)"
    unmeasured = tuned(deployment, setting, [(300.0,)], "as profiled", is_measured=False)
    assert not unmeasured.judgements[0].figures


def test_start_plans_are_spread_over_the_loads_and_end_with_the_time(judged: list[tuple[float, ...]]) -> None:
    deployment = small_deployment(3)
    whole = start_library(deployment, Delays(), lambda work: work())
    assert 4 <= len(whole.judgements) <= START_LOADS
    loads = [judgement.verdict.rates[0] for judgement in whole.judgements]
    assert loads == sorted(loads) and judged[0][0] == loads[len(loads) // 2], "the middle first"
    left = [True, True]
    told: list[float] = []
    short = start_library(deployment, Delays(), lambda work: work() if left and left.pop() else None, told.append)
    assert len(short.judgements) == len(told) == 2


def test_start_plans_are_judged_with_some_batches_that_last_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    services: list[Service] = []

    def judge(deployment: Deployment, setting: Setting, rates: tuple[float, ...], **_: object) -> Verdict:
        services.append(setting.service())
        return verdict(*rates)

    monkeypatch.setattr(tune, "judge_setting", judge)
    start_library(small_deployment(2), Delays(), lambda work: work())
    assert services and set(services) == {Empirical(PRESUMED)} and max(PRESUMED) == 2


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 17])
def test_halving_tells_each_place_once_far_from_the_others_first(count: int) -> None:
    places = list(halving(count))
    assert sorted(places) == list(range(count))
    assert places[0] == count // 2


def test_it_is_judged_for_real() -> None:
    deployment = small_deployment(2)
    made = tuned(deployment, as_profiled(deployment), [(100.0,)], "as profiled", is_measured=False)
    (judgement,) = made.judgements
    assert judgement.verdict.rates == (100.0,) and 0.6 < judgement.verdict.promise.correct <= 0.9
    assert judgement.verdict.cpu_s == 0, "the same conditions give the same file"
