"""A load that moves is judged as a whole, by candidates that follow it."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Plan
from stretto.core.profile import NS_PER_S, LatencyProfile
from stretto.core.verdict import Candidate
from stretto.core.view import View, WaitingQuery
from stretto.core.worker import workers
from stretto.twin import followed
from stretto.twin.conditional import MOST_WAITING, bounded
from stretto.twin.followed import Followed
from stretto.twin.live import judge_setting
from stretto.twin.setting import Setting
from stretto.twin.stretch import ArrivalStretch
from tests.planners.test_judged import swapping
from tests.twin.made import requests_at

LOW, HIGH = 150.0, 1500.0
PLAN = Plan((), ())
SPAN_S = 60

START = Candidate("priced")


def deployment(*names: str) -> Deployment:
    """The quick variant carries 1900 queries/s, the good one 220."""
    quick = Variant("quick", 0.7, (LatencyProfile.linear(0.5, 0.5, 16),))
    good = Variant("good", 0.9, (LatencyProfile.linear(4.5, 1.0, 16),))
    applications = tuple(Application(name, 100_000_000, (quick, good)) for name in names or ("a",))
    return Deployment(applications, workers(1))


def moving(seed: int) -> Setting:
    """Bursts of 0.4 s in every 4 s."""
    random = np.random.default_rng(seed)
    starts = np.arange(0, SPAN_S, 0.1)
    rates = np.where(starts % 4 < 0.4, HIGH, LOW)
    times = np.concatenate(
        [start + 0.1 * random.random(random.poisson(0.1 * rate)) for start, rate in zip(starts, rates, strict=True)]
    )
    requests = requests_at((np.sort(times) * NS_PER_S).astype(np.int64), slack_ns=100_000_000)
    return Setting(arrivals={"a": ArrivalStretch.of(requests, SPAN_S * NS_PER_S)})


@pytest.fixture(scope="module")
def setting() -> Setting:
    return moving(1)


def test_the_verdict_holds_between_the_levels_of_the_load_and_gives_no_less_than_the_start(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "SECONDS", 8.0)
    there, rate = deployment(), setting.arrivals["a"].rate
    verdict = judge_setting(there, setting, (rate,))
    lowest, highest = verdict.levels
    assert lowest * rate < 1.3 * LOW and highest * rate > 0.7 * HIGH
    others = Followed({tail: (there, moving(2)) for tail in (0.0, 0.5, 1.0)})
    ours, start = (
        fmean(others.score(candidate, seed).value for seed in (21, 22, 23)) for candidate in (verdict.candidate, START)
    )
    assert ours > start - 0.01
    assert verdict.promise.correct == pytest.approx(ours, abs=0.03)


def test_an_application_that_is_not_called_changes_nothing(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "SECONDS", 4.0)
    rate = setting.arrivals["a"].rate
    lowest, highest = judge_setting(deployment("b", "a"), setting, (1.0, rate), candidates=[START]).levels
    assert lowest * rate < 1.3 * LOW and highest * rate > 0.7 * HIGH


def test_a_budget_that_is_spent_leaves_one_that_follows_the_load(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "SECONDS", 2.0)
    rate = setting.arrivals["a"].rate
    verdict = judge_setting(deployment(), setting, (rate,), candidates=[START, Candidate("symphony")], budget_s=0.0)
    assert verdict.candidate == verdict.runner_up == START and verdict.tried <= 3
    assert 0.3 < verdict.promise.correct <= 1


def test_a_steady_load_is_judged_at_its_one_level(setting: Setting) -> None:
    steady = replace(setting, arrivals={"a": ArrivalStretch(200.0)})
    assert judge_setting(deployment(), steady, (200.0,)).levels == (1.0, 1.0)


def test_a_planner_that_cannot_plan_scores_nothing(setting: Setting) -> None:
    case = Followed({1.0: (deployment(), setting)})
    assert case.score(Candidate("priced", (("caution", 1.05), ("margin", 0.5))), 1).correct > 0.5
    assert case.score(Candidate("symphony"), 1).value < 0.5


def test_those_that_follow_a_load_at_once_enter_beside_the_best(setting: Setting) -> None:
    case = Followed({1.0: (deployment(), setting)})
    best = Candidate("shared_queue", (("noise", 0.1),))
    entrants = case.entrants([best])
    assert entrants[0] == best and len(set(entrants)) == len(entrants)
    assert {"priced", "slackfit"} <= {candidate.planner for candidate in entrants}


def test_two_of_each_planner_enter_beside_all_that_follow_at_once_and_planning_is_counted(setting: Setting) -> None:
    case = Followed({1.0: (deployment(), setting)})
    ranked = [Candidate("shared_queue", (("caution", caution),)) for caution in (1.0, 1.1, 1.2)]
    entered = case.entrants([*ranked, Candidate("joint"), START])
    forms = [
        form for each in ranked[:2] for form in (each, each.with_option("leaps", True), each.with_option("prior", 0.0))
    ]
    forms += [Candidate("joint"), Candidate("joint", (("caution", 1.3),))]
    assert [each for each in entered if each.planner in ("shared_queue", "joint")] == forms
    assert Candidate("slackfit") in entered and len(set(entered)) == len(entered)
    assert case.score(ranked[0], 1, part=0.1).correct > 0 and case.plan_cpu_s > 0


def test_the_best_of_each_planner_enters_for_every_tail_of_run_times(setting: Setting) -> None:
    """Regression: the tail that was best at one level of the load lost a third of all queries at the next."""
    case = Followed({tail: (deployment(), setting) for tail in (1.0, 0.5, 0.0)})
    first, second = (Candidate("shared_queue", (("caution", caution),), tail=0.0) for caution in (1.0, 1.1))
    entered = case.entrants([first, second])
    assert {replace(first, tail=tail) for tail in (1.0, 0.5, 0.0)} <= set(entered) and second in entered
    assert replace(second, tail=1.0) not in entered and len(set(entered)) == len(entered)


def test_arrivals_are_drawn_once_for_all_candidates_of_a_round(setting: Setting) -> None:
    case = Followed({1.0: (deployment(), setting)})
    first, second = (case.score(Candidate("priced", (("margin", margin),)), 5, part=0.1) for margin in (0.0, 0.2))
    assert first.correct > 0 and second.correct > 0
    assert len(case._arrivals) == 1
    assert case.score(Candidate("priced", (("margin", 0.0),)), 5, part=0.1) == first


def test_where_workers_are_shared_all_of_the_best_planners_enter_with_what_is_for_a_moving_load(
    setting: Setting,
) -> None:
    case = Followed({1.0: (deployment("a", "b"), setting)}, is_shared=True)

    def joint(noise: float, caution: float, tail: float = 1.0) -> Candidate:
        return Candidate("joint", (("noise", noise), ("caution", caution)), tail=tail)

    slackfit, priced = Candidate("slackfit"), [Candidate("priced", (("margin", margin),)) for margin in (0.0, 0.2)]
    best = [joint(0.1, 1.0), joint(0.1, 1.06), joint(0.1, 1.0, 0.0), priced[0], joint(0.2, 0.93), slackfit, priced[1]]
    assert set(case.entrants(best)) == {
        *(joint(noise, caution) for noise, caution in ((0.1, 1.0), (0.1, 1.3), (0.2, 0.93), (0.2, 1.3))),
        *priced,
    }


def test_schedules_by_windows_enter_however_they_stood_among_plans_that_stand_still(setting: Setting) -> None:
    case = Followed({1.0: (deployment("a", "b"), setting)}, is_shared=True)
    best = [Candidate("joint"), Candidate("priced"), Candidate("slackfit"), Candidate("sneakpeek")]
    assert {each.planner for each in case.entrants(best)} == {"joint", "priced", "sneakpeek"}


def test_several_applications_that_move_are_judged_in_the_closed_loop_at_the_load_that_is_asked_about(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "SECONDS", 8.0)
    there, load = deployment("a", "b"), 0.5 * setting.arrivals["a"].rate
    both = replace(setting, arrivals={"a": setting.arrivals["a"], "b": moving(3).arrivals["a"]})
    few = [Candidate("joint", (("noise", noise), ("caution", 1.0))) for noise in (0.0, 0.1)]
    verdict = judge_setting(there, both, (load, load), candidates=few)
    assert verdict.levels == (1.0, 1.0)
    assert dict(verdict.candidate.options)["caution"] in (0.965, 1.0, 1.03, 1.18, 1.3, 1.42)
    case = Followed({1.0: (there, both)}, 0.5, is_shared=True)
    served = fmean(case.score(verdict.candidate, seed).correct for seed in (31, 32, 33))
    assert verdict.promise.correct == pytest.approx(served, abs=0.08)  # at the whole load half of them are lost


def test_what_is_loaded_at_first_is_no_part_of_a_trial() -> None:
    """The worker holds one variant, and none at the start."""
    there = deployment()
    slow = tuple(replace(variant, memory_bytes=1, load_ns=NS_PER_S) for variant in there.applications[0].variants)
    loading = Deployment(
        (replace(there.applications[0], variants=slow),),
        tuple(replace(worker, memory_bytes=1, resident=()) for worker in there.workers),
    )
    steady = Setting(arrivals={"a": ArrivalStretch(100.0)})
    assert Followed({1.0: (loading, steady)}).score(Candidate("placed"), 5, part=0.2).late < 0.05


def test_schedules_by_windows_are_followed_only_where_they_may_be() -> None:
    """Regression: they came back in among those that need no tables, at loads that they were taken out for."""
    there = swapping()
    for has_windows in (True, False):
        case = Followed({1.0: (there, moving(1))}, has_windows=has_windows)
        planners = {each.planner for each in case.entrants(())}
        assert ("sneakpeek" in planners) is has_windows and "priced" in planners


def test_a_schedule_of_more_than_can_wait_is_given_up() -> None:
    waits = WaitingQuery(0, 0, 0, 1, -1, -1, 0)
    planner = bounded(lambda view: PLAN)
    few, many = ((waits,) * count for count in (MOST_WAITING, MOST_WAITING + 1))
    assert planner(View(deployment(), waiting=lambda: few)) is PLAN
    with pytest.raises(StrettoError, match="more queries wait"):
        planner(View(deployment(), waiting=lambda: many))
