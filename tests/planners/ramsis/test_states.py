"""States and actions: sections 4.2 and 4.3."""

from dataclasses import replace

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.planners.parts.fronts import pareto_front, undominated
from stretto.planners.parts.task import task_of
from stretto.planners.ramsis.options import Options
from stretto.planners.ramsis.states import Rows, rows_of, space_of
from tests.planners.parts.tasks import image_deployment, needs_measurements, small_deployment, small_task

MS = 1_000_000
OPTIONS = Options(slack_steps=6, max_queue=8)


def actions(rows: Rows, queued: int, slack: int) -> set[tuple[int, int]]:
    own = (rows.queued == queued) & (rows.slack == slack)
    return {(int(variant), int(batch)) for variant, batch in zip(rows.variant[own], rows.batch[own], strict=True)}


def test_fixed_length_slacks_are_even_and_end_at_the_slo() -> None:
    grid = space_of(small_task(), Options(slack_steps=6)).slack_ns
    assert (grid / MS).tolist() == [0, 10, 20, 30, 40, 50, 60]
    uneven = space_of(small_task(slo_ms=60.1), Options(slack_steps=7)).slack_ns
    assert uneven[-1] == 60_100_000
    assert np.ptp(np.diff(uneven)) <= 7


def test_model_based_slacks_are_the_latencies_within_the_slo() -> None:
    task = small_task()
    grid = set(space_of(task, Options(slack_steps=0)).slack_ns.tolist())
    assert grid == {0, 60 * MS} | {int(x) for x in task.latency_ns.ravel() if x <= 60 * MS}


def test_of_a_queue_longer_than_any_batch_the_rest_stays() -> None:
    options = Options(slack_steps=6, max_queue=9)
    rows = rows_of(small_task(max_batch=5), space_of(small_task(max_batch=5), options), options)
    assert actions(rows, 5, 6) == {(0, 5), (1, 5)}
    assert actions(rows, 9, 6) == {(0, 5), (1, 5)}
    assert actions(rows, 9, 0) == {(0, 5)}


def test_maximal_batches_take_all_or_go_late() -> None:
    """l(2) is 11, 20 and 34 ms; l(8) is 29, 50 and 88 ms."""
    rows = rows_of(small_task(), space_of(small_task(), OPTIONS), OPTIONS)
    assert actions(rows, 2, 2) == {(0, 2), (1, 2)}
    assert actions(rows, 2, 6) == {(0, 2), (1, 2), (2, 2)}
    assert actions(rows, 8, 3) == {(0, 8)}
    late = ~rows.on_time
    assert actions(rows, 8, 2) == {(0, 8)}
    assert late[(rows.queued == 8) & (rows.slack == 2)].all()
    assert not late[(rows.queued == 8) & (rows.slack == 3)].any()


def test_variable_batches_take_any_number_that_fits() -> None:
    options = replace(OPTIONS, variable=True)
    rows = rows_of(small_task(), space_of(small_task(), options), options)
    assert actions(rows, 3, 2) == {(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)}
    assert actions(rows, 3, 0) == {(0, 3)}


def test_dropping_cuts_batches_and_gives_up_the_head() -> None:
    options = replace(OPTIONS, drop=True)
    rows = rows_of(small_task(), space_of(small_task(), options), options)
    assert actions(rows, 8, 2) == {(0, 5), (1, 2)}
    assert actions(rows, 8, 6) == {(0, 8), (1, 8), (2, 4)}
    given_up = (rows.queued == 8) & (rows.slack == 0)
    assert rows.latency_ns[given_up].tolist() == [0, 0]  # (8, 0) and the full queue
    assert not rows.on_time[given_up].any()


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("variable", [False, True])
@pytest.mark.parametrize("steps", [0, 5, 30])
def test_every_state_has_an_action_and_no_promise_is_broken(steps: int, variable: bool, drop: bool) -> None:
    task, options = small_task(), Options(slack_steps=steps, max_queue=12, variable=variable, drop=drop)
    space = space_of(task, options)
    rows = rows_of(task, space, options)
    assert (np.diff(rows.first(space.size)) > 0).all()
    assert (rows.latency_ns[rows.on_time] <= space.slack_ns[rows.slack[rows.on_time]]).all()
    run = rows.latency_ns > 0
    assert (rows.latency_ns[run] == task.latency_ns[rows.variant[run], rows.batch[run]]).all()
    last = rows.state == space.full
    assert (rows.queued[last] == space.max_queue).all()
    assert not rows.on_time[last].any()


def test_a_variant_that_another_beats_in_both_is_pruned() -> None:
    task = task_of(small_deployment(), 0)
    assert [task.variants[m] for m in pareto_front(task)] == ["fast", "middle", "slow"]


def test_a_variant_that_batches_better_is_kept_where_every_batch_counts() -> None:
    """Like shufflenet_v2_x1_5: slower than mobilenet_v3_large for one query and less accurate, faster for two."""
    task = small_task()
    latency = task.latency_ns.copy()
    latency[1, 1:] = latency[0, 1:] + 1  # a little slower than the fast one, and less accurate
    latency[1, 2:] -= 2
    beaten = replace(task, accuracy=np.array([0.7, 0.6, 0.9]), latency_ns=latency)
    assert pareto_front(beaten) == [0, 2]
    assert undominated(beaten) == [1, 0, 2]
    assert undominated(task_of(small_deployment(), 0)) == [0, 1, 2]
    twice = task.only([0, 0, 2])
    assert undominated(twice) == [0, 2]


@needs_measurements
def test_the_image_task_has_the_nine_variants_of_figure_3() -> None:
    task = task_of(image_deployment(), 0)
    assert [task.variants[m].removeprefix("efficientnet_") for m in pareto_front(task)] == [
        *("shufflenet_v2_x0_5", "mobilenet_v3_large"),
        *("b0", "b2", "b3", "b4", "v2_s", "v2_m", "v2_l"),
    ]


def test_a_task_that_nothing_can_meet_is_refused() -> None:
    with pytest.raises(StrettoError, match="answers a single query within its SLO"):
        small_task(slo_ms=5)
