"""Policies of the shared queue: what they promise holds on other arrivals, and the margin keeps what is asked."""

import math
from collections.abc import Sequence
from dataclasses import MISSING, fields
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

from stretto.core.check import check_plan
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Lane, Late, Order, Plan, by_application
from stretto.core.view import Planner
from stretto.planners.parts.laws import Gamma
from stretto.planners.parts.policy import Policy
from stretto.planners.parts.task import Task, task_of
from stretto.planners.ramsis.planner import Ramsis
from stretto.planners.shared_queue.options import Options
from stretto.planners.shared_queue.planner import SharedQueue
from stretto.planners.shared_queue.policy import make_policy
from stretto.sim.arrivals import Load
from stretto.sim.processes import Gamma as GammaGaps
from stretto.sim.processes import Poisson, Process
from stretto.sim.results import Summary
from stretto.sim.service import Lognormal, Service
from stretto.sim.simulator import simulate
from stretto.sim.trial import simulated_trial
from tests.planners.parts.tasks import image_deployment, needs_measurements, small_deployment
from tests.sim.handmade import always

SEEDS = (101, 102, 103, 104)
SIMULATED = 20_000  # queries per seed
QUICK: dict[str, Any] = {"slack_steps": 40, "queries": 40_000}
EXACT: dict[str, Any] = {"slack_steps": 150, "max_late": 0.0005, "noise": 0.0, "margin": 0.0, "queries": 200_000}


def exact(**given: Any) -> Options:
    """For workers that are as fast as their profiles."""
    return Options(**(EXACT | given))


def plan_of(deployment: Deployment, policy: Policy) -> Plan:
    lane = Lane(
        deployment.applications[0].name,
        tuple(range(len(deployment.workers))),
        policy.table(deployment.variants_of(0)),
        Order.EARLIEST_DEADLINE,
        Eager(),
        Late.DROP_WHEN_INFEASIBLE,
    )
    plan = by_application((lane,))
    check_plan(plan, deployment)
    return plan


def runs(
    deployment: Deployment,
    planner: Planner,
    load: float,
    process: Process | None = None,
    service: Service | None = None,
    seeds: Sequence[int] = SEEDS,
) -> list[Summary]:
    source = Load(process or Poisson(), load)
    return [
        simulate(deployment, planner, source, seconds=SIMULATED / load, seed=seed, service=service).summary
        for seed in seeds
    ]


def assert_holds(policy: Policy, found: Sequence[Summary]) -> None:
    """Observed accuracy not below, and lateness not above, what was promised, within the error of observing."""
    root = math.sqrt(len(found))
    accuracy, late = [run.accuracy for run in found], [run.bad_rate for run in found]
    assert fmean(accuracy) >= policy.expectation.accuracy - 2 * stdev(accuracy) / root - 1e-9
    assert fmean(late) <= policy.expectation.late + 2 * stdev(late) / root
    # And the promise is not an empty one.
    assert fmean(accuracy) <= policy.expectation.accuracy + 0.02
    assert policy.expectation.late <= fmean(late) + max(0.005, 0.5 * fmean(late))


@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize("use", [0.1, 0.4, 0.6])
def test_what_is_promised_is_observed(use: float, workers: int) -> None:
    deployment = small_deployment(workers)
    task = task_of(deployment, 0)
    load = use * task.capacity()
    policy = make_policy(task, exact(**QUICK), load, trial=simulated_trial)
    assert_holds(policy, runs(deployment, always(plan_of(deployment, policy)), load))


@pytest.mark.parametrize("use", [0.3, 0.6])
def test_with_noise(use: float) -> None:
    deployment = small_deployment(4)
    task = task_of(deployment, 0)
    load = use * task.capacity()
    noisy = make_policy(task, exact(slack_steps=40, noise=0.15), load, trial=simulated_trial)  # late ones are rare
    plain = make_policy(task, exact(**QUICK), load, trial=simulated_trial)
    service = Lognormal(0.15)
    found = runs(deployment, always(plan_of(deployment, noisy)), load, service=service)
    assert_holds(noisy, found)
    careless = runs(deployment, always(plan_of(deployment, plain)), load, service=service)
    assert fmean(run.bad_rate for run in found) < 0.5 * fmean(run.bad_rate for run in careless)


@pytest.mark.parametrize("use", [0.3, 0.6])
def test_with_gamma_gaps(use: float) -> None:
    deployment = small_deployment(4)
    task = task_of(deployment, 0)
    load = use * task.capacity()
    bursty = make_policy(task, exact(law=Gamma(0.25), **QUICK), load, trial=simulated_trial)
    process = GammaGaps(0.25)
    found = runs(deployment, always(plan_of(deployment, bursty)), load, process)
    assert_holds(bursty, found)
    plain = make_policy(task, exact(**QUICK), load, trial=simulated_trial)
    careless = runs(deployment, always(plan_of(deployment, plain)), load, process)
    if fmean(run.bad_rate for run in careless) < EXACT["max_late"]:
        assert fmean(run.correct_on_time for run in found) > fmean(run.correct_on_time for run in careless)
    else:  # it keeps what is asked, and that has its price
        assert fmean(run.bad_rate for run in found) < 0.5 * fmean(run.bad_rate for run in careless)


def test_the_margin_is_chosen_to_keep_what_is_asked() -> None:
    deployment = small_deployment(1)
    task = task_of(deployment, 0)
    load = 0.6 * task.capacity()
    asked = (0.9, 0.003, 0.001)
    made = [make_policy(task, exact(slack_steps=40, max_late=late), load, trial=simulated_trial) for late in asked]
    seen = [
        [run.bad_rate for run in runs(deployment, always(plan_of(deployment, policy)), load, seeds=range(101, 113))]
        for policy in made
    ]
    assert fmean(seen[0]) > 0.003  # without a margin
    for limit, late in zip(asked, seen, strict=True):
        assert fmean(late) < limit + 2 * stdev(late) / math.sqrt(len(late))
    accuracy = [policy.expectation.accuracy for policy in made]
    assert accuracy == sorted(accuracy, reverse=True)  # safety has its price


def test_where_nothing_keeps_it_the_most_right_answers_are_given() -> None:
    deployment = small_deployment(2)
    task = task_of(deployment, 0)
    load = 1.2 * task.capacity()
    policy = make_policy(task, exact(**QUICK), load, trial=simulated_trial)
    assert policy.expectation.late > 0.1  # it says so
    ours, theirs = runs(deployment, always(plan_of(deployment, policy)), load), runs(deployment, Ramsis(), load)
    assert fmean(run.correct_on_time for run in ours) > 2 * fmean(run.correct_on_time for run in theirs)


def test_little_load_is_answered_by_the_best_and_at_once() -> None:
    task = task_of(small_deployment(), 0)
    policy = make_policy(task, exact(**QUICK), 0.02 * task.capacity(), trial=simulated_trial)
    assert policy.variant[1, -1] == 2
    assert policy.expectation.accuracy == pytest.approx(0.9, abs=0.003)
    (run,) = runs(small_deployment(), always(plan_of(small_deployment(), policy)), 5.0, seeds=(1,))
    assert run.queueing_ms["p50"] < 1.0  # there is nothing to wait for


def reordered(task: Task) -> Task:
    return task.only([3, 2, 0, 1])  # useless first


def test_pruned_variants_keep_their_place() -> None:
    task = task_of(small_deployment(), 0)
    load = 0.5 * task.capacity()
    ours = make_policy(task, exact(**QUICK), load, trial=simulated_trial)
    theirs = make_policy(reordered(task), exact(**QUICK), load, trial=simulated_trial)
    named = np.where(theirs.variant < 0, -1, np.array([3, 2, 0, 1])[theirs.variant])
    assert (named == ours.variant).all() and (theirs.batch == ours.batch).all()
    assert 3 not in ours.variant


def test_the_table_is_one_that_the_dispatcher_can_follow() -> None:
    task = task_of(small_deployment(), 0)
    policy = make_policy(task, exact(**QUICK), 0.6 * task.capacity(), trial=simulated_trial)
    assert policy.variant.shape == policy.batch.shape == (len(policy.variant), 41)
    assert (policy.slack_ns == 1_500_000 * np.arange(41)).all()
    assert (policy.batch >= 1).all()
    lost = policy.slack_ns < task.latency_ns[0, 1]
    assert (policy.variant[:, lost] == 0).all()  # as far as they are not dropped: the fastest, at once
    assert (policy.batch[:, lost] == task.max_batch).all()
    given_up = (policy.variant == 0) & (policy.batch == task.max_batch)  # the dispatcher takes as many as fit
    for queued in range(1, len(policy.variant)):
        for column in np.flatnonzero(~lost & ~given_up[queued]):
            chosen, size = policy.variant[queued, column], policy.batch[queued, column]
            assert chosen < 0 or task.latency_ns[chosen, size] <= policy.slack_ns[column] + 1
    assert not given_up[1:4, 12:].any()  # a few queries with 18 ms or more of slack are all answered


def test_a_margin_of_slack_is_kept() -> None:
    task = task_of(small_deployment(), 0)
    policy = make_policy(task, exact(margin=0.3, **QUICK), 0.4 * task.capacity(), trial=simulated_trial)
    given_up = (policy.variant == 0) & (policy.batch == task.max_batch)  # nothing to keep a margin for
    chosen = (policy.variant >= 0) & ~given_up
    latency = task.latency_ns[policy.variant, policy.batch]
    assert (latency <= 0.7 * policy.slack_ns[None, :] + 1)[1:][chosen[1:]].all()
    assert given_up[1:, policy.slack_ns * 0.7 < task.latency_ns[0, 1]].all()
    assert not given_up[1, policy.slack_ns * 0.7 >= task.latency_ns[0, 1]].any()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"slack_steps": 9}, "10 to 2000 steps, not 9"),
        ({"slack_steps": 10**9}, "10 to 2000 steps"),
        ({"max_late": 0.0}, "between 0 and 1, not 0.0"),
        ({"max_late": 1.0}, "between 0 and 1"),
        ({"max_late": float("nan")}, "between 0 and 1, not nan"),
        ({"noise": -0.1}, "noise of service times"),
        ({"noise": 1.5}, "noise of service times"),
        ({"margin": 1.0}, "share of the slack"),
        ({"margin": float("nan")}, "share of the slack"),
        ({"caution": 0.05}, "caution of 0.1 to 10, or 0: by trial, not 0.05"),
        ({"caution": float("nan")}, "caution of 0.1 to 10"),
        ({"queries": 10}, "1,000 to 100,000,000 queries, not 10"),
        ({"queries": 10**12}, "1,000 to 100,000,000 queries"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StrettoError, match=sentence):
        exact(**wrong)


def test_the_planner_s_defaults_are_the_only_ones() -> None:
    """Policies that were made with the others' were of a kind that nobody served."""
    required = {field.name for field in fields(Options) if field.default is field.default_factory is MISSING}
    assert required == EXACT.keys()
    assert SharedQueue().options == exact(slack_steps=50, max_late=0.001, noise=0.1, margin=0.1, queries=50_000)


def test_with_a_caution_it_is_solved_for_so_much_more_load_and_not_tried() -> None:
    task = task_of(small_deployment(), 0)
    load = 0.4 * task.capacity()
    usual, careful = (make_policy(task, exact(caution=caution, **QUICK), load, trial=None) for caution in (1.0, 1.3))
    assert usual.load == careful.load == load
    assert careful.expectation.accuracy < usual.expectation.accuracy <= 0.9
    deployment = small_deployment()
    seen = [runs(deployment, always(plan_of(deployment, policy)), load) for policy in (usual, careful)]
    assert fmean(run.accuracy for run in seen[1]) < fmean(run.accuracy for run in seen[0])
    assert fmean(run.bad_rate for run in seen[1]) <= fmean(run.bad_rate for run in seen[0])
    with pytest.raises(StrettoError, match="chosen by trial"):
        make_policy(task, exact(**QUICK), load, trial=None)


def test_every_option_is_in_the_description() -> None:
    others = [
        exact(slack_steps=100),
        exact(max_late=0.01),
        exact(noise=0.1),
        exact(margin=0.1),
        exact(caution=1.1),
        exact(queries=1_000),
        exact(seed=2),
        exact(law=Gamma(0.5)),
    ]
    described = [tuple(options.described().items()) for options in (exact(), *others)]
    assert len(set(described)) == len(described)


@needs_measurements
def test_four_workers_beat_ramsis_on_the_image_task() -> None:
    deployment = image_deployment(4)
    policy = make_policy(task_of(deployment, 0), exact(), 2000 / 15, trial=simulated_trial)
    ours = runs(deployment, always(plan_of(deployment, policy)), 2000 / 15)
    theirs = runs(deployment, Ramsis(), 2000 / 15)
    assert fmean(run.accuracy for run in ours) > fmean(run.accuracy for run in theirs) + 0.005
    assert fmean(run.bad_rate for run in ours) <= 0.001
    assert_holds(policy, ours)
