"""How many workers a load keeps busy, by equations 2 and 3 of Symphony worked out naively."""

from __future__ import annotations

import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.planners.parts.sharing import expected_work

MODELS = ((1.053, 5.072, 25), (5.090, 18.368, 70))  # table 4: α, β and the SLO in ms


@pytest.mark.parametrize(("count", "batches"), [(8, (16, 8)), (1, (7, 3))])
def test_work_is_reckoned_in_staggered_batches(count: int, batches: tuple[int, int]) -> None:
    """Table 4 has the batches: 16 and 8 staggered on 8 workers; 7 and 3 on one, which has nobody to take turns with."""
    applications = tuple(
        Application(f"m{slo}", slo * NS_PER_MS, (Variant("v", 0.9, (LatencyProfile.linear(alpha, beta),)),))
        for alpha, beta, slo in MODELS
    )
    rates = (2000.0, 300.0)
    expected = [
        rate * (alpha + beta / batch) / 1e3
        for (alpha, beta, _), rate, batch in zip(MODELS, rates, batches, strict=True)
    ]
    found = expected_work(Deployment(applications, workers(count)), (0, 1), rates)
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_model_too_slow_for_any_batch_is_reckoned_alone() -> None:
    slow = Application("slow", 10 * NS_PER_MS, (Variant("v", 0.9, (LatencyProfile.linear(6.0, 3.9),)),))
    assert expected_work(Deployment((slow,), workers(2)), (0,), (100.0,)) == pytest.approx([0.99])
