"""A deployment as measured: profiles are moved to where the runs were, and residuals are told from there."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.sim.residuals import Residuals
from stretto.twin.as_measured import as_measured
from stretto.twin.setting import Setting
from tests.planners.parts.tasks import small_deployment


def test_profiles_move_and_what_a_run_takes_stays() -> None:
    deployment = small_deployment(2)
    first, *others = [deployment.variant_label(number) for number in range(len(deployment.variants))]
    kind = deployment.kinds[0]
    ratios = np.linspace(0.3, 0.5, 400)
    setting = Setting({}, {(first, kind): Residuals({0: ratios[:200], 1: ratios[200:]})})
    moved, under, moved_by = as_measured(deployment, setting)
    factor = float(np.quantile(ratios, 0.95))
    for number in range(len(deployment.variants)):  # nobody ran the others: they are taken to be as fast
        before, after = deployment.profile(number, kind), moved.profile(number, kind)
        assert after.table_ns == pytest.approx(before.table_ns * factor, abs=1)
    (runs,) = (residuals.by_bucket[1] for where, residuals in under.residuals.items() if where == (first, kind))
    assert runs * factor == pytest.approx(ratios[200:])
    assert moved.workers == deployment.workers and others
    assert np.array(moved_by) == pytest.approx(np.full((len(deployment.variants), 1), factor))


def test_what_is_as_profiled_is_left_alone() -> None:
    deployment = small_deployment(2)
    where = (deployment.variant_label(0), deployment.kinds[0])
    few = Setting({}, {where: Residuals({0: np.full(5, 0.2)})})
    exact = Setting({}, {where: Residuals({0: np.ones(100)})})
    for setting in (few, exact, Setting({})):
        assert as_measured(deployment, setting) == (deployment, setting, ((1.0,),) * len(deployment.variants))
