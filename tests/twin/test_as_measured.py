"""A deployment as measured: profiles are moved to where the runs were, and residuals are told from there."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.worker import workers
from stretto.sim.residuals import Measured, Residuals
from stretto.twin.as_measured import as_measured
from stretto.twin.setting import Setting
from tests.planners.parts.tasks import small_deployment


def test_profiles_move_and_what_a_run_takes_stays() -> None:
    deployment = small_deployment(2)
    first, kind = deployment.variant_label(0), deployment.kinds[0]
    ratios = np.linspace(0.3, 0.5, 400)
    setting = Setting({}, {(first, kind): Residuals({0: ratios[:200], 1: ratios[200:]})})
    moved, _, moved_by = as_measured(deployment, setting)
    factor = float(np.quantile(ratios, 0.95))
    for number in range(len(deployment.variants)):  # nobody ran the others: they are taken to be as fast
        before, after = deployment.profile(number, kind), moved.profile(number, kind)
        assert after.table_ns == pytest.approx(before.table_ns * factor, rel=2e-3)
    (laws, before), (same, after) = (service.laid_out(there) for service, there in _worlds(deployment, setting))
    assert (laws == same).all() and after * moved_by[0][0] == pytest.approx(before, rel=2e-3)
    assert moved.workers == deployment.workers
    assert np.array(moved_by) == pytest.approx(np.full((len(deployment.variants), 1), factor), rel=2e-3)


def test_what_is_as_profiled_is_left_alone() -> None:
    deployment = small_deployment(2)
    where = (deployment.variant_label(0), deployment.kinds[0])
    few = Setting({}, {where: Residuals({0: np.full(5, 0.2)})})
    exact = Setting({}, {where: Residuals({0: np.ones(100)})})
    for setting in (few, exact, Setting({})):
        assert as_measured(deployment, setting) == (deployment, setting, ((1.0,),) * len(deployment.variants))


def test_runs_that_follow_the_mean_move_each_variant_by_its_own_profile() -> None:
    """All take 1.5 times their mean: whoever's p95 is far above it is moved less."""
    points = {
        "even": {1: {"mean": 9.0, "p50": 9.0, "p95": 10.0, "p99": 10.0}},
        "tail": {1: {"mean": 5.0, "p50": 5.0, "p95": 10.0, "p99": 10.0}},
    }
    variants = tuple(Variant(name, 0.5, (LatencyProfile.measured(points[name]),)) for name in points)
    deployment = Deployment((Application("a", 10**9, variants),), workers(1))
    setting = Setting({}, {("a/even", "default"): Residuals({0: np.full(50, 1.5)})}, row=Quantile.MEAN)
    moved, under, ratios = as_measured(deployment, setting)
    assert np.array(ratios)[:, 0] == pytest.approx([1.35, 0.75])
    drawn = under.service()
    assert isinstance(drawn, Measured) and drawn.row is Quantile.MEAN
    laws, values = drawn.laid_out(moved)
    for number, mean_ns in enumerate((9.0e6, 5.0e6)):  # the second never ran: what it borrows is told of its mean, too
        run_ns = moved.profile(number).latency_ns(1, Quantile.MEAN) * values[laws[number, 0, 0]]
        assert run_ns == pytest.approx(1.5 * mean_ns, rel=1e-6)


def _worlds(deployment: Deployment, setting: Setting) -> list[tuple[Measured, Deployment]]:
    """As profiled, and as measured."""
    moved, under, _ = as_measured(deployment, setting)
    laws = [(setting.service(), deployment), (under.service(), moved)]
    return [(law, there) for law, there in laws if isinstance(law, Measured)]
