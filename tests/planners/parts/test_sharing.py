"""How many workers a load keeps busy, by equations 2 and 3 of Symphony worked out naively."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.planners.parts.fronts import as_profiled
from stretto.planners.parts.sharing import expected_work, time_shares

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


def test_time_is_shared_by_the_best_variants_where_all_can_have_them_and_by_the_cheapest_where_nobody_can() -> None:
    """Batches of one: a query takes the cheap variant 2 ms and the dear one 7 ms of a worker."""

    def application(name: str) -> Application:
        cheap, dear = LatencyProfile.linear(1.0, 1.0, 1), LatencyProfile.linear(1.0, 6.0, 1)
        return Application(name, 100 * NS_PER_MS, (Variant("cheap", 0.5, (cheap,)), Variant("dear", 0.9, (dear,))))

    def shares(slow: float, count: int, *rates: float) -> list[float]:
        second = application("second")
        if slow != 1:
            cheap, dear = LatencyProfile.linear(slow, slow, 1), LatencyProfile.linear(slow, 6.0 * slow, 1)
            second = replace(second, variants=(Variant("cheap", 0.5, (cheap,)), Variant("dear", 0.9, (dear,))))
        return time_shares(as_profiled(Deployment((application("first"), second), workers(count))), rates)

    assert shares(1, 10, 100.0, 300.0) == pytest.approx([0.25, 0.75])
    assert shares(3, 10, 100.0, 100.0) == pytest.approx([7 / 28, 21 / 28]), "both have the dear one"
    assert shares(3, 1, 1000.0, 1000.0) == pytest.approx([2 / 8, 6 / 8]), "both have the cheap one"
    # 100 of each: 0.2 and 0.6 workers for the cheap ones. The first gains 0.4 for 5 ms, the second for 15 ms.
    assert shares(3, 1, 100.0, 100.0)[0] == pytest.approx(0.4, abs=0.011), "what is left goes to the first"
    assert shares(1, 1, 100.0, 100.0) == pytest.approx([0.5, 0.5])
