"""How long a worker takes for a query, by variant: as the text of the Symphony paper has it, batch by batch."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from stretto.planners.parts.fluid import seconds_per_query
from tests.planners.parts.tasks import small_task


@pytest.mark.parametrize("rate", [0.0, 3.0, 40.0, 200.0, 5_000.0])
@pytest.mark.parametrize("workers", [0.2, 1.0, 2.0, 7.5])
def test_a_query_takes_its_part_of_the_best_batch_that_is_in_time_and_can_form(rate: float, workers: float) -> None:
    """A batch is staggered over the workers, (1 + 1/N)·l(b) ≤ SLO, and forms while its first query may wait. One query
    alone needs no more than the SLO.
    """
    task = small_task(3, slo_ms=60)
    took = seconds_per_query(task, rate, workers)
    for variant, latencies in enumerate(task.latency_ns):
        best = math.inf
        for batch, latency_ns in itertools.islice(enumerate(latencies.tolist()), 1, None):
            is_staggered = (1 + 1 / workers) * latency_ns <= task.slo_ns
            is_alone = batch == 1 and latency_ns <= task.slo_ns
            can_form = batch <= 1 + rate * max(task.slo_ns - latency_ns, 0) / 1e9
            if latency_ns > 0 and (is_staggered or is_alone) and can_form:
                best = min(best, latency_ns / batch / 1e9)
        assert took[variant] == pytest.approx(best)
    assert np.isfinite(took).any()
