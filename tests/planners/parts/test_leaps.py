"""A load that leapt is what it is since then; one that wavers, climbs slowly or falls is as counted."""

import numpy as np
import pytest

from stretto.core.profile import NS_PER_S
from stretto.planners.parts.leaps import Leaps

TENTH = NS_PER_S // 10


def told(*counted: float) -> list[float]:
    leaps = Leaps(0.5)
    return [float(leaps.rates(number * TENTH, np.array([rate]))[0]) for number, rate in enumerate(counted)]


def test_a_leap_is_seen_in_full_at_the_next_look() -> None:
    counted = (1200.0, 1200.0, 1680.0, 2160.0, 2640.0, 3120.0, 3600.0, 3600.0)
    assert told(*counted) == pytest.approx([1200.0, 1200.0, *[3600.0] * 6])


def test_a_leap_between_two_looks_is_one_leap() -> None:
    """Its window ends between two looks, too. The rest of the rise was taken for another leap, to 4752."""
    counted = [1200.0, 1200.0, *(1200.0 + 4800.0 * (0.1 * number - 0.06) for number in range(1, 6)), 3600.0, 3600.0]
    rates = told(*counted)
    assert (
        rates[2:6] == sorted(rates[2:6]) and max(rates) == pytest.approx(3600.0) and rates[2] == pytest.approx(2160.0)
    )


def test_what_is_chance_or_slow_or_falls_is_as_counted() -> None:
    for counted in (
        (1000.0, 1080.0, 960.0, 1050.0, 990.0),
        (1000.0, 1100.0, 1200.0, 1300.0, 1400.0),
        (3600.0, 3120.0, 2640.0, 2160.0, 1680.0, 1200.0),
        (0.0, 0.0, 0.0),
    ):
        assert told(*counted) == pytest.approx(counted)


def test_a_leap_that_was_none_is_over_with_its_window() -> None:
    rates = told(1000.0, 1400.0, 1000.0, 1000.0, 1000.0, 1000.0, 1000.0)
    assert rates[1] == pytest.approx(3000.0) and rates[2:] == pytest.approx([1000.0] * 5)


def test_two_looks_at_once_make_no_leap_of_a_request() -> None:
    leaps = Leaps(0.5)
    leaps.rates(TENTH, np.array([0.0]))
    assert leaps.rates(TENTH + 1, np.array([6.0]))[0] <= 60.0


def test_applications_leap_apart_and_another_run_begins_anew() -> None:
    leaps = Leaps(0.5)
    leaps.rates(0, np.array([100.0, 1000.0]))
    assert leaps.rates(TENTH, np.array([100.0, 1500.0])) == pytest.approx([100.0, 3500.0])
    assert leaps.rates(0, np.array([1000.0, 1500.0])) == pytest.approx([1000.0, 1500.0])
    assert leaps.rates(TENTH, np.array([2000.0])) == pytest.approx([2000.0])
