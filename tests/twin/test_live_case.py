"""When a server has seen enough of a load to have it judged."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.sim.residuals import Residuals
from stretto.twin.live import Case, doubt_of_load, doubt_of_runs
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


def test_how_well_load_and_run_times_are_known() -> None:
    """A load is counted for 4 s, and until 1,600 queries came, but for 20 s at most."""
    counted = {4_000.0: 16_000, 100.0: 1_600, 10.0: 200}
    for rate, queries in counted.items():
        assert doubt_of_load((rate,)) == pytest.approx(queries**-0.5)
    assert doubt_of_load((4_000.0, 100.0)) == pytest.approx(17_600**-0.5)
    ratios = np.random.default_rng(1).lognormal(0.0, 0.3, 900)
    runs = {("app/a", "default"): Residuals({0: ratios[:100], 2: ratios[100:]})}
    assert doubt_of_runs(Setting({}, runs)) == pytest.approx(0.3 / 30, rel=0.1)
    assert doubt_of_runs(Setting({})) == 0.0
