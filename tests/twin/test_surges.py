"""Surges: the same queries, closer together for a part of each period."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.sim.arrivals import Load
from stretto.sim.processes import Poisson
from stretto.twin.surges import Surges
from tests.planners.parts.tasks import small_deployment

RATE, SECONDS = 2_000.0, 20.0


def test_the_rate_is_higher_in_a_part_of_each_period_and_the_mean_stays() -> None:
    deployment, source = small_deployment(2), Load(Poisson(), RATE)
    surges = Surges(source, factor=2.5, share=0.2, period_s=1.0)
    (before,) = source.chunks(deployment, SECONDS, 3)
    (after,) = surges.chunks(deployment, SECONDS, 3)
    assert len(after) == len(before) and surges.expected_rates(deployment, SECONDS) == (RATE,)
    assert (np.diff(after["time_ns"]) >= 0).all()
    assert (after["deadline_ns"] - after["time_ns"] == before["deadline_ns"] - before["time_ns"]).all()
    within = after["time_ns"] % 10**9 < 0.2e9
    assert within.sum() / (0.2 * SECONDS) == pytest.approx(2.5 * RATE, rel=0.03)
    assert (~within).sum() / (0.8 * SECONDS) == pytest.approx(RATE * (1 - 0.5) / 0.8, rel=0.03)


@pytest.mark.parametrize(
    ("factor", "share", "period_s"), [(5.0, 0.2, 1.0), (0.5, 0.2, 1.0), (2.0, 0.0, 1.0), (2.0, 0.2, 0.0)]
)
def test_a_surge_that_cannot_be_is_refused(factor: float, share: float, period_s: float) -> None:
    with pytest.raises(StrettoError, match="a part of its period"):
        Surges(Load(Poisson(), RATE), factor, share, period_s)
