"""Loads that planners follow: averaged while they waver, taken at once where they change, told in rungs."""

from __future__ import annotations

import math

import numpy as np

from stretto.planners.parts.steady import SteadyLoads

S = 10**9


def told(loads: SteadyLoads, now_s: float, *measured: float) -> list[float]:
    """Queries/s that the steps stand for."""
    return [loads.rung**step for step in loads.steps(int(now_s * S), np.array(measured))]


def close(found: list[float], *expected: float) -> bool:
    return all(abs(math.log(one / other)) < 1e-4 for one, other in zip(found, expected, strict=True))


def test_small_changes_are_averaged_over_the_time_that_is_asked_for() -> None:
    """Counts of 100 waver by 10: four more are nothing new."""
    loads = SteadyLoads(within_s=10.0, rung=1.0001, window_s=1.0)
    assert close(told(loads, 0, 100.0, 50.0), 100.0, 50.0)
    after = 1 - math.exp(-1)
    assert close(told(loads, 10, 104.0, 49.0), 100 + 4 * after, 50 - after)
    assert close(told(loads, 10, 104.0, 49.0), 100 + 4 * after, 50 - after), "no time has gone by"


def test_a_change_of_more_than_four_deviations_is_taken_at_once() -> None:
    for window_s, little, much in ((1.0, 40.0, 41.0), (4.0, 20.0, 20.5)):  # 4 √(100·1 + 1) = 40.2; 4 √(401) / 4 = 20.02
        for sign in (1, -1):
            loads = SteadyLoads(within_s=10.0, rung=1.0001, window_s=window_s)
            told(loads, 0, 100.0)
            assert close(told(loads, 0, 100.0 + sign * little), 100.0)
            assert close(told(loads, 0, 100.0 + sign * much), 100.0 + sign * much)


def test_less_than_a_rung_is_no_change_and_another_number_of_applications_begins_anew() -> None:
    loads = SteadyLoads(within_s=1.0, rung=2.0, window_s=1.0)
    assert loads.steps(0, np.array([300.0])) == (8,)
    for second, rate, step in ((10, 140.0, 8), (20, 500.0, 8), (30, 513.0, 9), (40, 270.0, 9), (60, 255.0, 8)):
        assert loads.steps(second * S, np.array([rate])) == (step,), rate
    assert loads.steps(70 * S, np.array([64.0, 32.0])) == (6, 5)
