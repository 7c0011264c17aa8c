"""When a server has seen enough of a load to have it judged."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.sim.residuals import Residuals
from stretto.twin.live import Case
from stretto.twin.setting import Setting
from stretto.twin.stretch import MOST_REQUESTS, REQUEST, ArrivalStretch
from tests.planners.parts.tasks import small_deployment


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
