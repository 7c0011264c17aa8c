"""Following the judge: while the load is what it judged, up at once and down calmly, and not into what has failed."""

from __future__ import annotations

from dataclasses import replace

from stretto.core.advice import JudgedFleet
from stretto.core.profile import NS_PER_S
from stretto.planning.autoscale import JUDGED, Autoscaler
from stretto.planning.autoscale_options import AutoscaleOptions, Bounds
from stretto.planning.fleet_reading import Reading
from stretto.planning.judged_fleet import ABOVE, BAD_PERIODS, FollowedJudge

OPTIONS = AutoscaleOptions({"default": Bounds(1, 1000)}, calm_periods=2)
RATE = 100.0  # queries/s that one worker answers


def judged(workers: int, load: float, **more: int) -> JudgedFleet:
    """For so much, and a little more."""
    wanted = {"default": workers, **more}
    return JudgedFleet(wanted, float(sum(wanted.values())), load * (1 + ABOVE), 0.0, 0.9, "a plan")


def reading(load: float, present: int, bad: float = 0.0) -> Reading:
    came = round(load * 10)
    answered = round(came * (1 - bad))
    return Reading(10 * NS_PER_S, 10.0, (came,), (answered,), bad, {"default": present}, {"default": load / RATE})


class Run:
    """Workers that come at once, of a load by period."""

    def __init__(self, begin: int) -> None:
        self.judge = FollowedJudge(OPTIONS)
        self.control = Autoscaler(OPTIONS, {"default": [RATE]}, judge=self.judge)
        self.workers, self.reason = begin, ""

    def period(self, load: float, bad: float = 0.0) -> int:
        advice = self.control(reading(load, self.workers, bad))
        self.workers, self.reason = advice.wanted["default"], advice.reason
        return self.workers


def test_its_fleet_goes_before_the_signals() -> None:
    """Signals alone want room on top of ten workers' work; the judge knows that ten are enough, or that twelve are."""
    alone = Run(12)
    assert [alone.period(1000.0) for _ in range(4)][-1] == 12
    run = Run(12)
    run.judge.hear(judged(10, 1000.0))
    assert [run.period(1000.0) for _ in range(4)] == [12, 10, 10, 10], "fewer when two periods agree"
    assert run.reason == JUDGED and not run.judge.is_behind
    run.judge.hear(judged(14, 1000.0))
    assert run.period(1020.0) == 14, "more at once"


def test_a_load_that_moved_is_the_signals_until_it_is_judged() -> None:
    run = Run(10)
    run.judge.hear(judged(10, 1000.0))
    assert run.period(1000.0) == 10
    assert run.period(2000.0, bad=0.5) > 15 and run.judge.is_behind
    more = run.period(2000.0)
    assert more >= 20
    run.judge.hear(judged(18, 2000.0))
    assert [run.period(2000.0) for _ in range(3)][-1] == 18 and not run.judge.is_behind
    fewer = [run.period(500.0) for _ in range(6)][-1]
    assert 5 <= fewer <= 8 and run.judge.is_behind
    assert [run.period(900.0) for _ in range(3)][-1] <= 18, "what is enough for more is enough for less"


def test_a_fleet_that_fails_is_not_followed_again() -> None:
    run = Run(8)
    run.judge.hear(judged(8, 1000.0))
    seen = [run.period(1000.0, bad=0.2) for _ in range(BAD_PERIODS)]
    assert seen[-1] > 8, "its promise was broken with all of its workers there"
    before = run.workers
    for again in (judged(8, 1000.0), judged(7, 1100.0), judged(8, 990.0)):
        run.judge.hear(again)
        assert [run.period(1000.0) for _ in range(3)][-1] > 8
    run.judge.hear(judged(11, 1000.0))
    assert [run.period(1000.0) for _ in range(4)][-1] == 11, "another one is"
    run.judge.hear(judged(4, 500.0))
    assert [run.period(500.0) for _ in range(6)][-1] == 4 and before > 8


def test_a_fleet_whose_workers_have_not_come_has_not_failed() -> None:
    """Not even where its one worker is of a kind that nobody has yet."""
    judge = FollowedJudge(OPTIONS)
    judge.hear(judged(1, 100.0))
    nobody = replace(reading(100.0, 0, bad=1.0), present={})
    for _ in range(3 * BAD_PERIODS):
        judge({"default": 1}, {"default": 1}, nobody, True)
    judge.hear(judged(1, 100.0))
    assert judge({"default": 3}, {"default": 1}, reading(100.0, 1), False) == {"default": 1}, "it is followed"


def test_growth_is_bounded_and_a_kind_that_it_does_not_name_is_the_signals() -> None:
    run = Run(2)
    run.judge.hear(judged(100, 150.0))
    assert [run.period(150.0) for _ in range(3)] == [8, 32, 100], "four times as many in a period at most"
    run.judge.hear(JudgedFleet({}, 0.0, 150.0, 0.0, 0.9, "a plan"))
    run.period(150.0)
    run.judge.hear(None)
    assert not run.judge.is_behind and [run.period(150.0) for _ in range(8)][-1] < 5


def test_loads_that_waver_move_nothing() -> None:
    run = Run(10)
    run.judge.hear(judged(10, 1000.0))
    wavering = [1000.0, 1110.0, 890.0, 1090.0, 910.0, 1120.0, 880.0, 1000.0] * 3
    assert {run.period(load) for load in wavering} == {10}


def test_an_answer_for_half_a_step_is_not_taken_for_the_whole() -> None:
    """Asked in the period into which the step fell, the judge answers for the mean of both loads."""
    run = Run(10)
    run.judge.hear(judged(10, 1000.0))
    run.period(1000.0)
    run.period(2500.0, bad=0.4)
    run.judge.hear(judged(25, 2500.0))
    assert run.period(3000.0) >= 30 and run.judge.is_behind, "the load is at 3000 at once, not on its way there"
    assert all(run.period(3000.0) >= 30 for _ in range(4))
    run.judge.hear(judged(29, 2900.0))
    assert [run.period(3000.0) for _ in range(3)][-1] == 29, "a little more is the same load"
