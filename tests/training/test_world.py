"""The world of a policy: what it sees is what a planner sees; random settings, and what failures leave."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.planners.edge_rl.instances import BATCHES, instances_of
from stretto.planners.edge_rl.planner import EdgeRL
from stretto.planners.edge_rl.policy import Description
from stretto.sim.arrivals import Load
from stretto.sim.processes import Gamma
from stretto.sim.simulator import simulate
from stretto.sim.switching import Switching
from stretto.training.evaluate import Figures, evaluate, merit, violations_error
from stretto.training.settings import after_failures, instance_deployment, random_systems, without
from stretto.training.teacher import Rule, teacher
from stretto.training.world import System, World
from tests.planners.edge_rl.test_policy import made

LOAD = Switching((20.0, 180.0), (10.0, 10.0))
SYSTEM = System(instance_deployment((2, 2), (9.9, 33.3), (0.7769, 0.8278), 300.0), LOAD)


def test_a_policy_does_the_same_in_the_world_and_in_a_simulation() -> None:
    policy = made(SYSTEM.deployment, seed=5)
    world = World([SYSTEM], policy.description, 32, 1)
    figures, counts = evaluate(world, policy.decide, 6400, seed=3)
    assert counts.sum() == figures.overall.queries
    run = simulate(
        SYSTEM.deployment, EdgeRL(policies=(policy,)), LOAD.source(), seconds=6000, replan_s=1.0, seed=8
    ).summary
    assert run.correct_on_time == pytest.approx(figures.overall.goodput, abs=0.015)
    assert 1 - run.on_time_rate == pytest.approx(figures.overall.violations, abs=0.015)


def test_violations_scatter_by_their_standard_error() -> None:
    policy = made(SYSTEM.deployment, seed=5)
    world = World([SYSTEM], policy.description, 48, 1)
    runs = [evaluate(world, policy.decide, 4800, seed) for seed in range(24)]
    scatter = float(np.std([figures.overall.violations for figures, _ in runs], ddof=1))
    error = float(np.mean([violations_error(counts) for _, counts in runs]))
    assert 0.6 * scatter < error < 1.6 * scatter
    independent = (figures := runs[0][0].overall).violations * (1 - figures.violations) / figures.queries
    assert error > 3 * independent**0.5  # queries of one burst are late together


def test_most_goodput_within_the_violations_asked() -> None:
    def judged(goodput: float, violations: float) -> tuple[bool, float]:
        return merit(Figures(goodput, violations, 0.0, violations, 0.5, 1000), 0.001, 0.0145)

    inside, better, close, outside = judged(0.79, 0.01), judged(0.795, 0.0135), judged(0.80, 0.014), judged(0.81, 0.03)
    assert better > inside > close > outside  # 1.4% is within a standard error of 1.45%


def test_instances_hold_as_many_queries_as_the_policy_says() -> None:
    """Twice as many come as can be answered, and nothing leaves a buffer before it is served."""
    crowded = System(SYSTEM.deployment, Switching((600.0, 600.0), (10.0, 10.0)))
    world = World([crowded], Description("joint", 1.0, buffer=3), 8, 1)
    for _ in range(3):
        seen, slot = world.step(np.full((8, 4), 0.25))
    assert (seen.length == 3).any() and seen.length.max() == 3 and slot.counts[..., -1].sum() > 0


def test_batches_are_those_that_a_plan_has() -> None:
    served = instance_deployment((2, 2), (9.9, 33.3), (0.7769, 0.8278), 300.0)
    from benchmarks.edge_rl_ground import batching

    system = System(batching(served), LOAD)
    policy = made(system.deployment, seed=6, batching=True)
    world = World([system], policy.description, 32, 1)
    figures, _ = evaluate(world, policy.decide, 6400, seed=3)
    run = simulate(
        system.deployment, EdgeRL(policies=(policy,)), LOAD.source(), seconds=4000, replan_s=1.0, seed=8
    ).summary
    assert run.correct_on_time == pytest.approx(figures.overall.goodput, abs=0.02)
    assert len(run.batch_histogram) - 1 <= max(most for _, most in BATCHES)


def test_the_phase_is_seen_only_where_it_may_be() -> None:
    full = World([SYSTEM], SYSTEM.description(Description("joint", 1.0, sees_phase=True)), 16, 1)
    seen, slot = full.step(np.full((16, 4), 0.25))
    assert seen.phase is not None and (seen.phase == slot.phase).all() and set(seen.phase) <= {0, 1}
    partial = World([SYSTEM], SYSTEM.description(Description("joint", 1.0)), 16, 1)
    unseen, slot = partial.step(np.full((16, 4), 0.25))
    assert unseen.phase is None
    hidden = partial.hidden()  # what a critic is told all the same
    assert (hidden[:, 1] == slot.phase).all() and (hidden[:, 0] == 1 - slot.phase).all()
    assert len(set(slot.phase)) == 2


def test_a_load_without_phases_tells_none() -> None:
    drawn = System(SYSTEM.deployment, Load(Gamma(0.5), 60.0))
    world = World([drawn], Description("joint", 1.0), 16, 1)
    world.step(np.full((16, 4), 0.25))
    assert not world.has_phases and (world.hidden() == [1, 0, 0]).all()
    with pytest.raises(StrettoError, match="leave --full out"):
        World([drawn], Description("joint", 1.0, sees_phase=True), 16, 1)
    with pytest.raises(StrettoError, match="give the weights of bursts"):
        teacher(Rule((1.0, 1.0, 1.0, 1.0)), drawn, 1.0)


def test_random_settings_can_be_carried_and_repeat() -> None:
    systems = random_systems(40, 3)
    assert [system.load for system in systems] == [system.load for system in random_systems(40, 3)]
    assert [system.load for system in systems] != [system.load for system in random_systems(40, 4)]
    for system in systems:
        crew = instances_of(system.deployment)
        assert len(crew) == 4 and len({instance.variant for instance in crew}) == 2
        assert system.load.rates[1] <= 0.9 * sum(1e9 / instance.service_ns for instance in crew)
    world = World(systems, Description("shared", 0.25), 2, 1)
    seen, _ = world.step(np.full((80, 4), 0.25))
    assert seen.length.shape == (80, 4) and np.isfinite(world.setting.service_ns).all()


def test_what_failures_leave() -> None:
    left = after_failures(SYSTEM)
    assert [len(instances_of(system.deployment)) for system in left] == [3, 3]
    assert [len(system.deployment.workers) for system in left] == [3, 3]
    alone = without(SYSTEM, (0, 1))
    assert [variant.name for variant in alone.deployment.variants] == ["heavy"]
    with pytest.raises(StrettoError, match="no instance is left"):
        without(SYSTEM, (0, 1, 2, 3))
