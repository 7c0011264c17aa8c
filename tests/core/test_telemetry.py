"""The arithmetic of readings: what happened between two of them."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.outcome import OUTCOME_COUNT, Outcome
from stretto.core.profile import LatencyProfile
from stretto.core.telemetry import Telemetry, View
from stretto.core.worker import workers


def reading(
    now_ns: int,
    submitted: tuple[int, int] = (0, 0),
    ended: dict[tuple[int, Outcome], int] | None = None,
    busy: tuple[int, int] = (0, 0),
    alive: tuple[bool, bool] = (True, True),
) -> Telemetry:
    outcomes = np.zeros((2, OUTCOME_COUNT), dtype=np.int64)
    for (application, outcome), count in (ended or {}).items():
        outcomes[application, outcome] = count
    return Telemetry(
        now_ns=now_ns,
        submitted=np.array(submitted),
        outcomes=outcomes,
        waiting=0,
        running=0,
        lane_names=(),
        lane_lengths=np.zeros(0, dtype=np.int64),
        lane_rates=np.zeros(0),
        worker_busy_ns=np.array(busy),
        worker_free_ns=np.zeros(2, dtype=np.int64),
        worker_alive=np.array(alive),
        latency_ratio=np.ones((1, 1)),
    )


def test_rates_are_arrivals_over_seconds() -> None:
    before, after = reading(1_000_000_000, (10, 0)), reading(3_000_000_000, (30, 5))
    assert after.rates_since(before).tolist() == [10.0, 2.5]
    assert before.rates_since(before).tolist() == [0.0, 0.0]


def test_the_bad_rate_counts_what_ended_without_an_answer_on_time() -> None:
    before = reading(0, ended={(0, Outcome.ON_TIME): 100})
    after = reading(
        1,
        ended={
            (0, Outcome.ON_TIME): 103,
            (0, Outcome.LATE): 1,
            (1, Outcome.ON_TIME): 3,
            (1, Outcome.DROPPED_OVERLOAD): 1,
            (1, Outcome.FAILED): 1,
            (1, Outcome.DROPPED_INFEASIBLE): 1,
            (1, Outcome.DROPPED_CANCELLED): 50,  # nobody's fault, so it counts neither way
        },
    )
    assert after.bad_rate_since(before) == pytest.approx(4 / 10)
    assert after.bad_rate_since(after) == 0.0


def test_the_idle_share_is_that_of_the_workers_that_are_there() -> None:
    before = reading(0, busy=(10, 10))
    assert reading(100, busy=(60, 110)).idle_share_since(before) == pytest.approx(0.25)
    assert reading(100, busy=(60, 110), alive=(True, False)).idle_share_since(before) == pytest.approx(0.5)
    assert reading(100, busy=(999, 999)).idle_share_since(before) == 0.0
    assert before.idle_share_since(before) == 0.0
    assert reading(100, alive=(False, False)).idle_share_since(before) == 0.0


def test_a_view_prefers_measured_rates_to_expected_ones() -> None:
    variant = Variant("v", 0.5, (LatencyProfile.linear(1.0, 1.0),))
    made = Deployment((Application("a", 1, (variant,)),), workers(1))
    before, after = reading(0), reading(1_000_000_000, (7, 0))
    assert View(made).rates() is None
    expected = View(made, expected_rates=(3.0, 4.0)).rates()
    assert expected is not None and expected.tolist() == [3.0, 4.0]
    first = View(made, telemetry=before, before=before, expected_rates=(3.0, 4.0)).rates()
    assert first is not None and first.tolist() == [3.0, 4.0]  # no time has passed
    measured = View(made, telemetry=after, before=before, expected_rates=(3.0, 4.0)).rates()
    assert measured is not None and measured.tolist() == [7.0, 0.0]
    assert View(made).waiting() == ()
