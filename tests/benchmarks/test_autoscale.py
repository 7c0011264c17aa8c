"""Autoscaling: the arithmetic of Symphony section 4.4, and its margin."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.autoscale import Advice, Autoscale
from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import OUTCOME_COUNT, Outcome
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import View
from stretto.core.worker import workers

AS_PUBLISHED = Autoscale(hysteresis=0.0)


@pytest.mark.parametrize(
    ("count", "bad_rate", "idle_share", "add", "remove"),
    [
        (24, 0.0, 0.0, 0, 0),
        (24, 0.01, 0.0, 0, 0),  # not above the threshold
        (24, 0.2, 0.0, 6, 0),  # 24·0.2/0.8
        (24, 0.2, 0.5, 6, 0),  # bad queries come first, whatever is idle
        (10, 0.011, 0.0, 1, 0),
        (24, 0.0, 0.5, 0, 12),
        (24, 0.0, 0.49, 0, 11),
        (10, 0.0, 0.3, 0, 3),  # 10·0.3 in floating point is not quite 3
        (10, 0.0, 1.0, 0, 9),  # one stays
        (10, 1.0, 0.0, 40, 0),
    ],
)
def test_as_published(count: int, bad_rate: float, idle_share: float, add: int, remove: int) -> None:
    assert AS_PUBLISHED.advise(count, bad_rate, idle_share) == Advice(add, remove, bad_rate, idle_share)


@given(st.integers(1, 1000), st.floats(0, 1), st.floats(0, 0.9))
def test_the_margin_stays_and_advice_settles(count: int, idle_share: float, hysteresis: float) -> None:
    scale = Autoscale(hysteresis=hysteresis)
    advice = scale.advise(count, 0.0, idle_share)
    left = count - advice.remove
    assert left >= 1
    if advice.remove:
        idle_then = 1 - count * (1 - idle_share) / left
        assert idle_then >= hysteresis - 1e-6
        assert scale.advise(left, 0.0, idle_then).remove <= 1


@given(st.integers(1, 1000), st.floats(0.011, 0.79))
def test_what_is_added_would_have_served_what_went_bad(count: int, bad_rate: float) -> None:
    advice = Autoscale().advise(count, bad_rate, 0.0)
    assert advice.remove == 0
    assert (count + advice.add) * (1 - bad_rate) >= count - 1e-6
    assert (count + advice.add - 1) * (1 - bad_rate) < count + 1e-6


def test_least_workers_and_growth() -> None:
    assert Autoscale(hysteresis=0, min_workers=6).advise(10, 0, 0.9).remove == 4
    assert Autoscale(min_workers=6).advise(4, 0, 0.9).remove == 0
    assert Autoscale(growth=0.5).advise(10, 0.9, 0).add == 5
    assert Autoscale(growth=0.01).advise(10, 0.9, 0).add == 1


def test_from_what_a_view_says_of_the_time_since_the_last() -> None:
    variant = Variant("v", 0.7, (LatencyProfile.linear(1, 4),))
    deployment = Deployment((Application("app", 50 * NS_PER_MS, (variant,)),), workers(5))
    alive = np.array([True, True, True, True, False])
    ended = np.zeros((1, OUTCOME_COUNT), np.int64)
    ended[0, Outcome.ON_TIME] = 60
    ended[0, Outcome.LATE] = 10
    ended[0, Outcome.DROPPED_INFEASIBLE] = 10
    busy = View(deployment, alive=alive, ended=ended, idle_share=0.0)
    assert Autoscale()(busy) == Advice(2, 0, 0.25, 0.0)  # 4·0.25/0.75
    idle = View(deployment, alive=alive, idle_share=0.75)
    assert Autoscale(hysteresis=0)(idle) == Advice(0, 3, 0.0, 0.75)
    assert Autoscale()(View(deployment, alive=alive)) == Advice(0, 0, 0.0, 0.0)


@pytest.mark.parametrize("wrong", [{"bad_rate": 1.0}, {"hysteresis": 1.0}, {"growth": 0.0}, {"min_workers": 0}])
def test_senseless_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(StrettoError, match="autoscaling needs"):
        Autoscale(**wrong)  # type: ignore[arg-type]
