"""When a server has seen enough of a load to have it judged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.core.plan import Delays
from stretto.core.profile import NS_PER_S
from stretto.core.verdict import Candidate
from stretto.core.worker import workers
from stretto.sim.residuals import Residuals
from stretto.twin.classes import Labelled
from stretto.twin.live import Case, Conditions, burst_of, doubt_of_load, doubt_of_runs, judge_setting
from stretto.twin.setting import Setting
from stretto.twin.stretch import MOST_REQUESTS, REQUEST, ArrivalStretch
from tests.planners.parts.tasks import small_deployment
from tests.twin.made import poisson, requests_at
from tests.twin.settings import two_kinds


@pytest.mark.parametrize(("rate", "span_s", "is_enough"), [(100, 4, True), (100, 1, False), (8_000, 2.5, True)])
def test_some_seconds_are_enough_and_so_is_all_that_is_remembered_of_a_fast_load(
    rate: int, span_s: float, is_enough: bool
) -> None:
    """Of 8,000 requests a second no four seconds are ever remembered."""
    deployment = small_deployment(2)
    span_ns = round(span_s * 1e9)
    requests = np.zeros(min(round(rate * span_s), MOST_REQUESTS), REQUEST)
    requests["offset_ns"] = np.linspace(0, span_ns - 1, len(requests)).astype(np.int64)
    requests["rows"], requests["slack_ns"] = 1, -1
    runs = {(deployment.variant_label(0), deployment.kinds[0]): Residuals({0: np.ones(200)})}
    arrivals = {deployment.applications[0].name: ArrivalStretch.of(requests, span_ns)}
    assert Case(deployment, Setting(arrivals, runs)).is_enough == is_enough
    assert not Case(deployment, Setting(arrivals)).is_enough, "nothing ran yet"


def test_another_kind_of_worker_is_another_case() -> None:
    """Regression: only their number was compared."""
    one = two_kinds()
    setting = Setting({})
    cases = [
        Case(replace(one, workers=workers(fast, "fast") + workers(slow, "slow")), setting)
        for fast, slow in ((2, 2), (1, 3), (2, 1))
    ]
    changes = [cases[0].conditions().changed_to(case.conditions()) for case in cases]
    assert changes == ["", "other workers are there", "other workers are there"]
    turned = Case(replace(one, workers=one.workers[::-1]), setting)
    assert not cases[0].conditions().changed_to(turned.conditions())


def test_applications_are_judged_over_the_time_that_all_of_them_were_heard() -> None:
    """Regression: where one was remembered for longer than the other, their peaks did not stay together."""
    there, times_ns = two_kinds(), poisson(400, 20, 1)
    start_ns = 8 * NS_PER_S
    later_ns = times_ns[times_ns >= start_ns] - start_ns
    whole, second = (
        ArrivalStretch.of(requests_at(times), span_ns)
        for times, span_ns in ((times_ns, 20 * NS_PER_S), (later_ns, 12 * NS_PER_S))
    )
    found, wanted = (
        judge_setting(
            there, Setting({"first": first, "second": second}), (400.0, 400.0), candidates=[Candidate("priced")]
        )
        for first in (whole, second)
    )
    assert found.promise == wanted.promise


def test_how_well_load_and_run_times_are_known() -> None:
    """A load is counted for 4 s, and until 1,600 queries came, but for 20 s at most."""
    counted = {4_000.0: 16_000, 100.0: 1_600, 10.0: 200}
    for rate, queries in counted.items():
        assert doubt_of_load((rate,)) == pytest.approx(queries**-0.5)
    assert doubt_of_load((4_000.0, 100.0)) == pytest.approx(17_600**-0.5)
    ratios = np.random.default_rng(1).lognormal(0.0, 0.3, 900)
    runs = {("app/a", "default"): Residuals({0: ratios[:100], 2: ratios[100:]})}
    assert doubt_of_runs(Setting({}, runs)) == pytest.approx(0.3 / 30, rel=0.1)
    assert doubt_of_runs(Setting({})) == 0.0


def test_what_is_known_badly_has_not_drifted_by_chance() -> None:
    """Requests of eight rows, steady: after six seconds their dispersion is known to a fifth, and was judged anew."""
    there = small_deployment(2)
    name = there.applications[0].name

    def case(times_ns: np.ndarray, seconds: int) -> Case:
        requests = requests_at(times_ns)
        requests["rows"] = 8
        return Case(there, Setting({name: ArrivalStretch.of(requests, seconds * NS_PER_S)}))

    brief = [case(poisson(50, 6, seed), 6).conditions() for seed in range(40)]
    long = case(poisson(50, 100, 99), 100).conditions()
    assert not any(each.changed_to(long) for each in brief)
    without = [replace(each, doubts={}).changed_to(replace(long, doubts={})) for each in brief]
    assert sum(map(bool, without)) > 5, "chance alone is more than a drift"
    second_ns = poisson(50, 100, 7)
    bursts = case(second_ns // NS_PER_S * NS_PER_S + second_ns % NS_PER_S // 5, 100).conditions()
    assert all(each.changed_to(bursts) for each in brief)


def test_how_late_the_latest_batches_end_wavers() -> None:
    """It is the third of 512: twice as much is chance. A steady load was judged anew each half minute."""
    there = small_deployment(2)

    def conditions(timer_ms: float, control_ms: float = 1.0) -> Conditions:
        delays = Delays(control_ns=round(control_ms * 1e6), timer_ns=round(timer_ms * 1e6))
        return Case(there, Setting({}, delays=delays)).conditions()

    assert not conditions(8.5).changed_to(conditions(25.0)) and not conditions(25.0).changed_to(conditions(8.5))
    assert "timer_ns" in conditions(4.0).changed_to(conditions(25.0))
    assert "control_ns" in conditions(8.5, 4.0).changed_to(conditions(8.5, 8.0)), "a mean of many is known well"


def test_other_classes_are_another_case_where_evidence_is_looked_at() -> None:
    there = small_deployment(2)
    name = there.applications[0].name
    requests = requests_at(poisson(100, 20, 1))
    known = Labelled(np.full((4, 2), 0.5), np.array([0, 1, 0, 1]))

    def conditions(shares: tuple[float, ...], evidence: dict[str, Labelled]) -> Conditions:
        arrivals = {name: ArrivalStretch.of(requests, 20 * NS_PER_S, shares)}
        return Case(there, Setting(arrivals, evidence=evidence)).conditions()

    before = conditions((0.6, 0.3), {name: known})
    assert "class 0" in before.changed_to(conditions((0.2, 0.7), {name: known}))
    assert not before.changed_to(conditions((0.58, 0.33), {name: known})), "by chance"
    assert not conditions((0.6, 0.3), {}).changed_to(conditions((0.2, 0.7), {})), "nobody looks"


def stretch_of(times_ns: NDArray[np.int64], seconds: int) -> ArrivalStretch:
    return ArrivalStretch.of(requests_at(times_ns), seconds * NS_PER_S)


def test_a_count_of_short_bursts_wavers_by_more_than_chance_and_one_of_single_queries_does_not() -> None:
    """Eight queries within 100 ms each two seconds, and as many at any time."""
    begins = np.arange(20) * 2 * NS_PER_S
    bursts = np.sort((begins[:, None] + np.random.default_rng(1).integers(0, NS_PER_S // 10, (20, 8))).ravel())
    level, in_bursts = stretch_of(poisson(40, 40, 1), 40), stretch_of(bursts, 40)
    assert burst_of(Setting({"a": level})) == 1.0
    assert 6.0 < burst_of(Setting({"b": in_bursts})) < 8.0
    both = burst_of(Setting({"a": level, "b": in_bursts}))
    assert 1.4 < both < 1.8, "bursts of a tenth of the queries do not make the others waver"


def test_a_load_that_rises_is_no_burst_however_short_it_was_seen() -> None:
    """Regression: where nobody could tell whether it moves, a step of the load was taken for bursts of 73 queries."""
    steps = np.concatenate([poisson(200, 3, 1), poisson(2000, 3, 2) + 3 * NS_PER_S])
    for seconds in (6, 7):
        assert burst_of(Setting({name: stretch_of(steps, seconds) for name in ("a", "b")})) == 1.0
