"""The autoscaler: the arithmetic of Symphony section 4.4, what it remembers, its bounds, and that it settles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.plan import Deferred, Eager
from stretto.core.profile import NS_PER_MS, NS_PER_S, LatencyProfile
from stretto.core.worker import Worker, workers
from stretto.dispatch.dispatcher import Dispatcher
from stretto.planning.autoscale import COMING, FULL, IDLE, OVERLOAD, SAME, SHORT, Autoscaler
from stretto.planning.autoscale_options import AutoscaleOptions, Bounds
from stretto.planning.fleet_reading import Reading, is_flat_topped, reading_between, speeds_of
from tests.dispatch.small import lane, planned

ONE = {"default": Bounds(1, 1000)}
AS_PRINTED = AutoscaleOptions(ONE, room=0.0, slack=0.0, smoothing=1.0, calm_periods=1, shrink=1.0)
RATE = 100.0  # queries/s that one worker answers here


def flat(load: float, there: float, period: int = 1, present: int | None = None, noise: float = 1.0) -> Reading:
    """A period of a schedule that is flat-topped: a load of so many workers' work on so many workers."""
    load *= noise
    done = min(load, there)
    came, answered = round(load * RATE * 10), round(done * RATE * 10)
    bad = 1 - answered / came if came else 0.0
    at_end = round(there) if present is None else present
    return Reading(period * 10 * NS_PER_S, 10.0, (came,), (answered,), bad, {"default": at_end}, {"default": done})


@pytest.mark.parametrize(
    ("there", "load", "wanted"),
    [
        (10, 20.0, 20),  # r = 1/2: N·r/(1 − r) = 10 more
        (10, 10.5, 11),  # r = 1/21: half a worker is one
        (12, 16.0, 16),  # r = 1/4: 4 more
        (10, 6.0, 6),  # f = 0.4: 4 fewer
        (10, 9.5, 10),  # half a worker cannot go
        (10, 10.0, 10),
        (3, 11.9, 12),
    ],
)
def test_as_printed(there: int, load: float, wanted: int) -> None:
    assert Autoscaler(AS_PRINTED)(flat(load, there)).wanted == {"default": wanted}


def test_reasons_and_figures() -> None:
    options = replace(AS_PRINTED, kinds={"default": Bounds(1, 1000, 2.5)})
    more = Autoscaler(options)(flat(20, 10))
    assert (more.reason, more.bad_rate, more.idle_share, more.cost) == (OVERLOAD, 0.5, 0.0, 50.0)
    assert more.starting == {"default": 10}
    fewer = Autoscaler(options)(flat(6, 10))
    assert (fewer.reason, fewer.bad_rate, fewer.starting) == (IDLE, 0.0, {"default": 0})
    assert fewer.idle_share == pytest.approx(0.4)
    assert Autoscaler(options)(flat(10, 10)).reason == SAME
    late = Autoscaler(options)
    late(flat(20, 10))
    assert late(flat(20, 10, 2)).reason == COMING
    tight = Autoscaler(replace(options, kinds={"default": Bounds(1, 10)}))
    assert tight(flat(20, 10)).reason == FULL
    room = replace(options, room=0.2)
    assert Autoscaler(room)(flat(9.5, 10)).reason == SHORT


def test_workers_on_their_way_are_not_ordered_again() -> None:
    """They take several periods to start, and all the while queries go unanswered."""
    control = Autoscaler(AS_PRINTED)
    for period in range(1, 6):
        assert control(flat(20, 10, period)).wanted == {"default": 20}
    assert control(flat(20, 20, 6)).wanted == {"default": 20}


def test_a_period_in_which_they_came_says_the_same() -> None:
    """Half of it with 10 workers, half with 20: the mean of 15 were busy, and a quarter of the queries was bad."""
    control = Autoscaler(AS_PRINTED)
    control(flat(20, 10))
    assert control(flat(20, 15, 2, present=20)).wanted == {"default": 20}


def test_nobody_goes_while_queries_go_unanswered() -> None:
    reading = replace(flat(4, 10), bad_rate=0.3)
    assert Autoscaler(AS_PRINTED)(reading).wanted == {"default": 10}


def test_idle_room_is_kept_and_a_little_more_of_it_changes_nothing() -> None:
    options = AutoscaleOptions(ONE, room=0.1, slack=0.04, calm_periods=1)
    assert Autoscaler(options)(flat(80, 100)).wanted == {"default": 92}
    assert Autoscaler(options)(flat(88, 100)).wanted == {"default": 100}  # 12% idle
    assert Autoscaler(options)(flat(94, 100)).wanted == {"default": 100}  # 6%: more than half of the room
    assert Autoscaler(options)(flat(95, 100)).wanted == {"default": 108}
    # A quarter of the work has twice the room.
    assert Autoscaler(options)(flat(20, 100)).wanted == {"default": math.ceil(20 / (1 - 1 / math.sqrt(20)) * 1.02)}


def test_where_workers_idle_and_queries_are_bad_all_the_same_more_room_is_kept() -> None:
    """The schedule is not flat-topped: N·r/(1 − r) more, and they do not go again though they idle."""
    control = Autoscaler(AutoscaleOptions(ONE, calm_periods=1))
    for period in (1, 2):
        assert control(flat(7, 9, period)).wanted == {"default": 9}
    assert control(replace(flat(7, 9, 3), bad_rate=0.1)).wanted == {"default": 9}  # it may have been a burst
    assert control(replace(flat(7, 9, 4), bad_rate=0.1)).wanted == {"default": 10}
    for period in range(5, 50):
        assert control(flat(7, 10, period)).wanted == {"default": 10}
    for period in range(50, 2000):  # but not for ever
        control(flat(7, control._wanted["default"], period))
    assert control._wanted == {"default": 9}


def test_bad_queries_of_a_moment_in_which_workers_come_teach_nothing() -> None:
    control = Autoscaler(AutoscaleOptions(ONE, calm_periods=1))
    assert control(flat(8, 5)).wanted == {"default": 10}
    bad_at_first = replace(flat(8, 8, 2, present=10), bad_rate=0.1)
    assert control(bad_at_first).wanted == {"default": 10}
    assert control(flat(8, 10, 3)).wanted == {"default": 10}
    for period, wanted in ((4, 10), (5, 12)):  # N·r/(1 − r), rounded up, when it goes on
        assert control(replace(flat(8, 10, period), bad_rate=0.1)).wanted == {"default": wanted}


def test_a_load_that_rises_is_ordered_for_ahead() -> None:
    """What is there when the next workers come, half a period later, and to the end of the period after that."""
    options = replace(AS_PRINTED, start_s=5.0, slack=0.05)
    control = Autoscaler(options)
    loads = (95.0, 100.0, 105.0, 110.0)
    wanted = [control(flat(load, 200, n)).wanted["default"] for n, load in enumerate(loads, 1)]
    assert wanted[-1] == math.ceil((110 + 5 * 2.0) * 1.025)
    falling = Autoscaler(options)
    assert [falling(flat(load, 200, n)).wanted["default"] for n, load in enumerate((115.0, 110.0, 105.0, 100.0), 1)][
        -1
    ] == 103
    assert Autoscaler(options)(flat(110.0, 200)).wanted["default"] == 113


def test_bounds_and_steps() -> None:
    tight = replace(AS_PRINTED, kinds={"default": Bounds(4, 12)})
    assert Autoscaler(tight)(flat(100, 10)).wanted == {"default": 12}
    assert Autoscaler(tight)(flat(0, 10)).wanted == {"default": 4}
    assert Autoscaler(tight)(flat(1, 1)).wanted == {"default": 4}
    stepwise = replace(AS_PRINTED, growth=1.5, shrink=0.3)
    control = Autoscaler(stepwise)
    assert [control(flat(100, 10, n)).wanted["default"] for n in range(1, 4)] == [15, 22, 33]
    control = Autoscaler(stepwise)
    assert [control(flat(1, there, there)).wanted["default"] for there in (10, 7, 5)] == [7, 5, 4]
    slow = Autoscaler(stepwise)  # whoever is to go takes his time
    assert [slow(flat(1, 10, n)).wanted["default"] for n in range(1, 4)] == [7, 7, 7]


def eager(load: float, there: int, period: int = 1) -> Reading:
    """Everybody is busy, at half of the speed of workers that are pressed, which is 1 / 1.2 of the profiles'."""
    slow = 1.2 * min(2.0, max(1.0, there / (1.2 * load)))
    done = min(load, there / 1.2)
    came, answered = round(load * RATE * 10), round(done * RATE * 10)
    bad, busy = 1 - answered / came, min(there, load * slow)
    return Reading(
        period * 10 * NS_PER_S, 10.0, (came,), (answered,), bad, {"default": there}, {"default": busy}, False
    )


def test_where_nobody_idles_the_need_is_what_pressed_workers_take() -> None:
    """A load of 100 workers by the profiles, and of 120 that are pressed, as an overload shows."""
    control = Autoscaler(AutoscaleOptions(ONE), {"default": (RATE,)})
    there = 110
    for period in range(1, 8):
        there = control(eager(100, there, period)).wanted["default"]
    assert 120 <= there <= 135
    for load, least, most in ((200, 240, 265), (50, 60, 70)):
        for period in range(8):
            there = control(eager(load, there, period)).wanted["default"]
        assert least <= there <= most, (load, there)


def test_before_any_overload_the_profiles_are_believed_with_a_margin() -> None:
    control = Autoscaler(AutoscaleOptions(ONE), {"default": (RATE,)})
    there = 300
    for period in range(1, 8):
        there = control(eager(100, there, period)).wanted["default"]
    assert 125 <= there <= 142


def test_nothing_came_and_nothing_is_answered() -> None:
    options = AutoscaleOptions({"default": Bounds(2, 50)}, calm_periods=1, shrink=1.0)
    assert Autoscaler(options)(flat(0, 10)).wanted == {"default": 2}
    stuck = Reading(NS_PER_S, 1.0, (50,), (0,), 1.0, {"default": 3}, {"default": 0.0})
    assert Autoscaler(options)(stuck).wanted == {"default": 3}  # nothing says that more would do better
    nobody = Reading(NS_PER_S, 1.0, (50,), (0,), 1.0, {"default": 0}, {"default": 0.0})
    assert Autoscaler(options)(nobody).wanted == {"default": 2}


def test_one_quiet_period_lets_nobody_go() -> None:
    control = Autoscaler(AutoscaleOptions(ONE, calm_periods=2))
    control(flat(50, 52))
    assert control(flat(10, 52, 2)).wanted == {"default": 52}
    assert control(flat(50, 52, 3)).wanted == {"default": 52}
    control(flat(10, 52, 4))
    assert control(flat(10, 52, 5)).wanted["default"] < 20


def by_parts(loads: tuple[float, float], turn: float, fleets: tuple[int, int], join: float, noise: float) -> Reading:
    """A period in which the load steps at one moment and workers join at another (shares of the period)."""
    done = came = 0.0
    for place in range(50):
        load = loads[place >= 50 * turn] * noise
        there = fleets[place >= 50 * join]
        done, came = done + min(load, there) / 50, came + load / 50
    return replace(flat(came, done), present={"default": fleets[1]})


@given(
    base=st.integers(12, 120),
    loads=st.lists(st.sampled_from([0.8, 1.0, 2.0, 3.0]), min_size=2, max_size=4),
    join=st.floats(0, 0.5),
    turn=st.floats(0, 1, exclude_max=True),
    noises=st.lists(st.floats(0.99, 1.01), min_size=10, max_size=10),
)
def test_it_settles_within_three_periods_and_does_not_turn_around(
    base: int, loads: list[float], join: float, turn: float, noises: list[float]
) -> None:
    """A load that steps at any moment of a period; workers come within half a period; readings are noisy."""
    control = Autoscaler(AutoscaleOptions({"default": Bounds(1, 1000)}))
    there = wanted = math.ceil(base * loads[0] * 1.1)
    before = loads[0]
    for number, load in enumerate(loads):
        seen = []
        for period in range(8):
            levels = (base * before if period == 0 else base * load, base * load)
            reading = by_parts(levels, turn, (there, wanted), join if wanted > there else 0.0, noises[period])
            there, wanted = wanted, control(reading).wanted["default"]
            seen.append(wanted)
        before = load
        if number == 0:  # it only finds out where it is
            continue
        # The third look is the last that changes more than the slack.
        assert max(seen[2:]) - min(seen[2:]) <= 1 + 0.05 * max(seen[2:]), (load, seen)
        assert base * load <= seen[-1] <= base * load * 1.12 + 2, (load, seen)
        assert len({np.sign(b - a) for a, b in pairwise(seen)} - {0}) <= 1, (load, seen)


# -- several kinds ---------------------------------------------------------------------------------------------------

SPEEDS = {"big": (1000.0, 400.0), "small": (100.0, 0.0)}  # queries/s by application


def mixed(
    came: tuple[int, int], answered: tuple[int, int], there: Mapping[str, int], busy: Mapping[str, float]
) -> Reading:
    bad = 1 - sum(answered) / sum(came)
    return Reading(10 * NS_PER_S, 10.0, came, answered, bad, there, busy)


def kinds(big: Bounds, small: Bounds, **more: Any) -> Autoscaler:
    options = replace(AS_PRINTED, kinds={"big": big, "small": small}, growth=100.0, **more)
    return Autoscaler(options, SPEEDS)


def test_more_of_what_costs_least_for_what_goes_unanswered() -> None:
    """One big worker does as much as ten small ones. All are busy, and 20,000 of 40,000 queries go unanswered."""
    seen = mixed((40_000, 0), (20_000, 0), {"big": 1, "small": 10}, {"big": 1.0, "small": 10.0})
    assert kinds(Bounds(0, 100, 5.0), Bounds(0, 100, 1.0))(seen).wanted == {"big": 3, "small": 10}
    assert kinds(Bounds(0, 100, 20.0), Bounds(0, 100, 1.0))(seen).wanted == {"big": 1, "small": 30}


def test_a_kind_at_its_most_leaves_the_rest_to_the_next() -> None:
    seen = mixed((40_000, 0), (20_000, 0), {"big": 1, "small": 10}, {"big": 1.0, "small": 10.0})
    assert kinds(Bounds(0, 2, 5.0), Bounds(0, 100, 1.0))(seen).wanted == {"big": 2, "small": 20}
    assert kinds(Bounds(0, 2, 5.0), Bounds(0, 12, 1.0))(seen).wanted == {"big": 2, "small": 12}


def test_a_kind_that_cannot_serve_what_is_missing_is_not_ordered() -> None:
    seen = mixed((0, 8_000), (0, 4_000), {"big": 1, "small": 10}, {"big": 1.0, "small": 0.0})
    assert kinds(Bounds(0, 100, 50.0), Bounds(10, 100, 1.0))(seen).wanted == {"big": 2, "small": 10}


def test_slower_than_profiled_counts() -> None:
    """Busy workers answered half of what their profiles say, so that what is missing needs twice as many."""
    seen = mixed((20_000, 0), (10_000, 0), {"big": 1, "small": 10}, {"big": 1.0, "small": 10.0})
    assert kinds(Bounds(0, 100, 5.0), Bounds(0, 100, 1.0))(seen).wanted == {"big": 3, "small": 10}


def test_whoever_idles_goes() -> None:
    seen = mixed((20_000, 0), (20_000, 0), {"big": 2, "small": 10}, {"big": 2.0, "small": 3.0})
    assert kinds(Bounds(0, 100, 5.0), Bounds(0, 100, 1.0))(seen).wanted == {"big": 2, "small": 3}


def test_kinds_without_bounds_stay_as_they_are() -> None:
    control = Autoscaler(replace(AS_PRINTED, kinds={"small": Bounds(0, 100)}), SPEEDS)
    seen = mixed((40_000, 0), (20_000, 0), {"big": 1, "small": 10}, {"big": 1.0, "small": 10.0})
    assert control(seen).wanted == {"small": 30}


def test_somebody_stays() -> None:
    options = replace(AS_PRINTED, kinds={"a": Bounds(0, 9, 3.0), "b": Bounds(0, 9, 2.0)})
    quiet = Reading(NS_PER_S, 1.0, (0,), (0,), 0.0, {"a": 2, "b": 3}, {"a": 0.0, "b": 0.0})
    assert Autoscaler(options)(quiet).wanted == {"a": 0, "b": 1}
    beside = replace(quiet, present={"a": 2, "b": 3, "else": 1})
    assert Autoscaler(options)(beside).wanted == {"a": 0, "b": 0}


def test_a_floor_for_accuracy() -> None:
    """What deadlines need, or what the floor says of the rates that came."""
    asked: list[list[float]] = []

    def floor(rates: Any) -> dict[str, float]:
        asked.append(list(rates))
        return {"default": 30.0}

    control = Autoscaler(replace(AS_PRINTED, room=0.25, shrink=0.1), floor=floor)
    assert control(flat(20, 40)).wanted == {"default": 40}
    assert asked == [[2000.0]]
    assert control(flat(20, 25, 2)).wanted == {"default": 40}


def test_a_floor_is_of_workers_that_are_pressed() -> None:
    """What an accuracy needs is told by profiles, and pressed workers take 1.2 times as long, as an overload showed."""
    floors: dict[str, float] = {}
    control = Autoscaler(AutoscaleOptions(ONE), {"default": (RATE,)}, floor=lambda rates: floors)
    there = 110
    for period in range(1, 8):
        there = control(eager(100, there, period)).wanted["default"]
    assert 120 <= there <= 135, "an empty floor asks for nobody"
    floors["default"] = 200.0
    for period in range(8, 16):
        there = control(eager(100, there, period)).wanted["default"]
    assert 240 <= there <= 265, "as for a load of 200 workers by their profiles"


def test_a_kind_that_the_floor_does_not_name_is_wanted_for_its_work_alone() -> None:
    control = Autoscaler(
        replace(AS_PRINTED, kinds={"big": Bounds(0, 100, 5.0), "small": Bounds(0, 100, 1.0)}, growth=100.0),
        SPEEDS,
        floor=lambda rates: {"big": 7.0},
    )
    seen = mixed((20_000, 0), (20_000, 0), {"big": 2, "small": 10}, {"big": 2.0, "small": 0.0})
    assert control(seen).wanted == {"big": 7, "small": 0}


# -- readings --------------------------------------------------------------------------------------------------------


def small(kind_counts: Mapping[str, int] | None = None) -> Deployment:
    fleet = tuple(w for kind, count in (kind_counts or {"default": 2}).items() for w in workers(count, kind))
    profiles = tuple(LatencyProfile.linear(1, 9, kind=kind) for kind in (kind_counts or {"default": 2}))
    return Deployment((Application("app", 50 * NS_PER_MS, (Variant("v", 0.7, profiles),)),), fleet)


def test_a_reading_of_a_dispatcher_whose_fleet_grew() -> None:
    before = small()
    made = Dispatcher(before, planned(lane(crew=(0, 1))))
    made.worker_left(0, 1)
    first = made.telemetry(0)
    tickets = [made.submit(0, 0, 100 * NS_PER_MS) for _ in range(4)]
    made.decisions()
    made.cancel(1, tickets[3])
    made.finished(10 * NS_PER_MS, 0)
    after = Deployment(before.applications, (*before.workers, Worker("more")), before.quantile)
    made.enlarge(11 * NS_PER_MS, after)
    made.worker_joined(12 * NS_PER_MS, 2)
    reading = reading_between(after, first, made.telemetry(20 * NS_PER_MS), made.plan)
    assert reading is not None
    assert reading.present == {"default": 2} and reading.seconds == pytest.approx(0.02)
    assert reading.busy["default"] == pytest.approx(0.5)  # one of them, for half of the time
    assert list(reading.came) == [3] and sum(reading.answered) >= 1 and reading.bad_rate == 0.0
    assert reading_between(after, made.telemetry(20 * NS_PER_MS), first, made.plan) is None
    other = Dispatcher(before, planned(lane(crew=(0, 1))))
    assert reading_between(before, made.telemetry(20 * NS_PER_MS), other.telemetry(30 * NS_PER_MS), made.plan) is None


def test_which_plans_are_flat_topped() -> None:
    assert is_flat_topped(planned(lane(release=Deferred()), lane("b", release=Deferred(4))))
    assert not is_flat_topped(planned(lane(release=Deferred()), lane("b", release=Eager(2))))


def test_failed_and_cancelled_queries_ask_for_no_worker() -> None:
    made = Dispatcher(small(), planned(lane(crew=(0, 1))))
    first = made.telemetry(0)
    made.submit(0, 0, 100 * NS_PER_MS)
    made.decisions()
    made.finished(9 * NS_PER_MS, 0, ok=False)
    reading = reading_between(made.deployment, first, made.telemetry(NS_PER_S), made.plan)
    assert reading is not None and list(reading.came) == [0] and made.counts()[1][0, Outcome.FAILED] == 1
    assert reading.bad_rate == 0


def test_speeds_by_kind() -> None:
    deployment = small({"a": 1, "b": 1})
    fast = replace(deployment.applications[0].variants[0], profiles=(LatencyProfile.linear(1, 9, 8, kind="a"),))
    only = replace(deployment, applications=(replace(deployment.applications[0], variants=(fast,)),))
    assert speeds_of(only) == {"a": [pytest.approx(8 / 0.017)], "b": [0.0]}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"kinds": {}}, "a kind of worker"),
        ({"period_s": 0.0}, "period of autoscaling is 0"),
        ({"period_s": math.nan}, "period"),
        ({"bad_rate": 1.0}, "bad rate"),
        ({"room": 0.9}, "room"),
        ({"growth": 1.0}, "growth"),
        ({"shrink": 0.0}, "shrink"),
        ({"smoothing": 0.0}, "smoothing"),
        ({"calm_periods": 0}, "calm periods"),
        ({"start_s": -1.0}, "start-up delay"),
    ],
)
def test_senseless_options(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(StrettoError, match=words):
        AutoscaleOptions(**wrong)


@pytest.mark.parametrize("wrong", [(5, 4), (-1, 4), (0, 0), (1, 10**9)])
def test_senseless_bounds(wrong: tuple[int, int]) -> None:
    with pytest.raises(StrettoError, match="workers"):
        Bounds(*wrong)
    with pytest.raises(StrettoError, match="costs"):
        Bounds(1, 2, -1.0)
