"""Floors of batch sizes."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.profile import NS_PER_MS, LatencyProfile, Quantile
from stretto.core.view import View
from stretto.planners.parts.floors import floor_rates
from stretto.planners.registry import ENTRIES
from tests.twin.settings import two_kinds

PROFILE = LatencyProfile.linear(1.0, 4.0, 16)


def test_the_rate_of_a_floor_is_what_the_workers_answer_with_batches_one_smaller() -> None:
    rates = floor_rates(PROFILE, 100 * NS_PER_MS, 2.0, Quantile.MEAN)
    assert rates[0] == 0.0 and rates[3] == pytest.approx(2 * 3 / 0.007)
    assert list(rates) == sorted(rates)


def test_an_application_without_a_share_of_the_workers_has_no_floor() -> None:
    assert floor_rates(PROFILE, 100 * NS_PER_MS, 0.0, Quantile.MEAN) == (0.0,)


@pytest.mark.parametrize("name", [entry.name for entry in ENTRIES if entry.tried == "always"])
def test_planners_that_are_tried_always_plan_where_an_application_is_not_called(name: str) -> None:
    entry = next(entry for entry in ENTRIES if entry.name == name)
    deployment = two_kinds()
    variants = {application.name: application.variants[0].name for application in deployment.applications}
    planner = entry.make({}, {} if entry.chooses_variants else variants, None)
    assert planner(View(deployment, 0, np.array([100.0, 0.0]))).lanes
