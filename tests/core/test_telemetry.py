"""The arithmetic of readings: what happened between two of them."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.outcome import OUTCOME_COUNT, Outcome
from stretto.core.telemetry import Telemetry


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
        rates=np.zeros(2),
        is_rated=np.ones(2, np.bool_),
        waiting=0,
        running=0,
        lane_names=(),
        lane_lengths=np.zeros(0, dtype=np.int64),
        lane_rates=np.zeros(0),
        worker_busy_ns=np.array(busy),
        worker_free_ns=np.zeros(2, dtype=np.int64),
        worker_alive=np.array(alive),
        worker_holds=np.zeros((2, 1), np.bool_),
        latency_ratio=np.ones((1, 1)),
        is_measured=np.zeros((1, 1), np.bool_),
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
