"""Which model a batch of one queue runs on: each cell against its definition, and a queue that catches up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stretto.core.bandwidth import in_steps
from stretto.core.plan import Table
from stretto.core.profile import NS_PER_MS, NS_PER_S
from stretto.planners.jellyfish.planner import Jellyfish
from stretto.planners.jellyfish.problem import NEVER_NS
from stretto.planners.jellyfish.stepping import (
    COLUMNS,
    MOST_QUEUED,
    smallest_that_keep_up,
    stepping_table,
    throughputs,
)
from stretto.sim.network.clients import NetworkClient
from stretto.sim.network.run import simulate_network
from tests.planners.jellyfish.test_planner import client, deployed, seen


@st.composite
def latencies(draw: st.DrawFn) -> NDArray[np.int64]:
    """[model, batch] in ns, rising with both; a model may have no large batches."""
    models, batches = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    steps = np.array([[draw(st.integers(1, 40)) for _ in range(batches)] for _ in range(models)])
    latency = np.zeros((models, batches + 1), np.int64)
    latency[:, 1:] = np.cumsum(np.cumsum(steps, axis=1), axis=0) * NS_PER_MS
    for row in latency:
        row[draw(st.integers(1, batches)) + 1 :] = NEVER_NS
    return latency


@given(latencies(), st.integers(1, 3), st.floats(1.0, 400.0))
def test_each_cell_has_the_most_accurate_model_that_keeps_up(
    latency_ns: NDArray[np.int64], workers: int, rate: float
) -> None:
    keeps_up = smallest_that_keep_up(throughputs(latency_ns, workers), rate)
    table = stepping_table([10 + model for model in range(len(latency_ns))], latency_ns, keeps_up)
    assert not table.fault
    for queued in range(1, table.variant.shape[0] + 2):
        for column in range(0, COLUMNS + 1, 7):
            expected = 10
            for model, row in enumerate(latency_ns):
                in_time = [batch for batch in range(1, len(row)) if row[batch] <= column * table.slack_step_ns]
                size = min(max(in_time, default=0), queued)
                brought = [batch * workers * NS_PER_S / row[batch] for batch in range(1, size + 1)]
                if size and (size == queued or max(brought) >= rate):
                    expected = 10 + model
            assert table.variant[min(queued, len(table.variant) - 1), column] == expected


def test_a_table_for_large_batches_stays_small() -> None:
    latency_ns = np.arange(4097, dtype=np.int64)[None, :] * NS_PER_MS
    table = stepping_table([0], latency_ns, np.array([1]))
    assert table.variant.shape == (MOST_QUEUED + 2, COLUMNS + 1)


def clients(count: int) -> list[NetworkClient]:
    fast = in_steps([1e8])
    return [NetworkClient("detect", 25.0, fast, joins_s=0.1 * number) for number in range(count)]


def test_more_accurate_than_the_largest_model_that_keeps_up_and_in_time() -> None:
    """150 frames/s on two workers: in batches that leave time the most accurate model brings 130/s through, the one
    before it 188.
    """
    deployment = deployed(2)
    result = simulate_network(deployment, Jellyfish(pool=1.0), clients(6), seconds=10, seed=3)
    settled = result.frames[result.frames["made_ns"] > 2 * NS_PER_S]
    ran = np.bincount(settled["variant"], minlength=4)
    assert (settled["outcome"] == 0).mean() > 0.995
    assert ran[3] > 100 and ran[2] > 100, "both models run"
    accuracy = [variant.accuracy for variant in deployment.variants]
    assert (ran * accuracy).sum() / ran.sum() > accuracy[2]


def test_the_table_stays_while_latencies_waver_and_follows_when_they_move() -> None:
    """A plan with another table would be another plan, told to everybody each half second."""
    view = seen(deployed(), *(client(slot, 20.0, 40.0) for slot in range(6)))
    planner = Jellyfish(pool=1.0)
    tables = []
    for ratio in (1.0, 1.01, 0.995, 1.05):
        plan = planner(replace(view, latency_ratio=np.full_like(view.latency_ratio, ratio)))
        (lane,) = plan.lanes
        assert isinstance(lane.select, Table)
        tables.append(lane.select)
    assert tables[0] is tables[1] is tables[2] is not tables[3]
    assert tables[3].slack_step_ns > tables[0].slack_step_ns
