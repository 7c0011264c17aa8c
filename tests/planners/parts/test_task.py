"""What a task's workers carry."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tests.planners.parts.tasks import small_task


@pytest.mark.parametrize("slo_ms", [8.0, 15.0, 24.0, 25.0, 60.0])
def test_capacities_by_trying_every_batch(slo_ms: float) -> None:
    """Latencies of a batch of b: 3 b + 5, 5 b + 10 and 9 b + 16 ms, the accurate ones last."""
    most = [0.0] * 3
    for number, batch in product(range(3), range(1, 9)):
        took_ms = ((3, 5), (5, 10), (9, 16))[number][0] * batch + ((3, 5), (5, 10), (9, 16))[number][1]
        if took_ms <= slo_ms:
            most[number] = max(most[number], 3 * 1000 * batch / took_ms)
    task = small_task(3, slo_ms)
    assert task.capacity() == pytest.approx(max(most))
    assert task.capacity_of_best() == pytest.approx(next(each for each in reversed(most) if each))


def test_a_variant_without_a_latency_is_none_of_the_able() -> None:
    """0 stands for a batch that it cannot run; a nanosecond is a latency."""
    task = small_task(3, 60.0)
    latency_ns = task.latency_ns.copy()
    latency_ns[2] = 0
    assert replace(task, latency_ns=latency_ns).capacity_of_best() == pytest.approx(
        task.only([0, 1]).capacity_of_best()
    )
    latency_ns[2, 1] = 1
    assert replace(task, latency_ns=latency_ns).capacity_of_best() == pytest.approx(3e9)
