"""Many simulations at once: each does what `simulate` does, other weights are those of `reroute`, nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.core.errors import StrettoError
from stretto.dispatch.dispatcher import Dispatcher
from stretto.planners.edge_rl.instances import BUFFER, dealt_plan, instances_of
from stretto.sim import many
from stretto.sim.many import Case, ManySimulations
from stretto.sim.simulator import simulate
from stretto.sim.switching import Switching
from stretto.training.settings import instance_deployment

SERVED = instance_deployment((2, 2), (9.9, 33.3), (0.7769, 0.8278), 300.0)
CREW = instances_of(SERVED)
BUSY = Switching((60.0, 180.0), (20.0, 20.0))


def plan_of(*weights: float) -> Case:
    plan = dealt_plan(SERVED, [CREW], [np.array(weights)], planner="test")
    return Case(SERVED, plan, BUSY)


def test_they_do_what_one_simulation_does() -> None:
    weights = (0.4, 0.35, 0.1, 0.15)
    copies, slots = 64, 200
    herd = ManySimulations([plan_of(*weights)], copies, seed=3)
    total = np.zeros(5)
    for slot in range(slots):
        counts = herd.run_slot(1.0, np.tile(weights, (copies, 1))).counts
        total += counts.sum(axis=(0, 1)) if slot >= 5 else 0
    run = simulate(SERVED, lambda view: plan_of(*weights).plan, BUSY.source(), seconds=12_000, seed=4).summary
    share = total / total.sum()
    outcomes = {name: count / run.submitted for name, count in run.outcomes.items()}
    assert share[[1, 3]].sum() == pytest.approx(outcomes["late"], abs=0.01)
    assert share[4] == pytest.approx(outcomes["dropped_overload"], abs=0.01)
    assert share[2:4].sum() == pytest.approx(run.applications[0].variants[1].answered / run.submitted, abs=0.01)


def test_nothing_is_lost_and_the_lines_tell_what_is_there() -> None:
    herd = ManySimulations([plan_of(0.25, 0.25, 0.25, 0.25)], 32, seed=5)
    came = ended = 0
    for slot in range(40):
        weights = np.random.default_rng(slot).dirichlet(np.ones(4), 32)
        result = herd.run_slot(0.5, weights)
        came += int(result.arrivals.sum())
        ended += int(result.counts.sum())
        assert came == ended + int(result.lines.length.sum())
        assert result.lines.length.max() <= BUFFER
        shown = (result.lines.arrival_ns >= 0).sum(axis=2)
        assert (shown == np.minimum(result.lines.length, 16)).all()
        assert ((result.lines.started_ns >= 0) == (result.lines.running > 0)).all()


def test_weights_are_those_of_reroute() -> None:
    """The same alias table, so that the same draws choose the same lanes."""
    herd = ManySimulations([plan_of(0.25, 0.25, 0.25, 0.25)], 2, seed=1)
    weights = np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.0, 0.3, 0.0]])
    herd.run_slot(0.001, weights)
    for number in range(2):
        plan = dealt_plan(SERVED, [CREW], [weights[number]], planner="test")
        dispatcher = Dispatcher(SERVED, plan_of(0.25, 0.25, 0.25, 0.25).plan)
        dispatcher.follow(0, plan)
        assert dispatcher.plan is plan
        size = dispatcher.memory["alias"].nbytes
        offset = int(herd._states["alias_at"][number]) - herd._memory.ctypes.data - number * herd._memory.shape[1]
        laid = herd._memory[number, offset : offset + size].view(dispatcher.memory["alias"].dtype)
        assert (laid == dispatcher.memory["alias"]).all()


def test_what_copies_share_stays_as_it_is() -> None:
    herd = ManySimulations([plan_of(0.25, 0.25, 0.25, 0.25)], 8, seed=6)
    before = herd._still.copy()
    for slot in range(30):
        herd.run_slot(1.0, np.random.default_rng(slot).dirichlet(np.ones(4), 8))
        assert not herd._states["decision_count"].any()  # those that decided share the room for it
    assert (herd._still == before).all()
    assert len(set(herd._states["rows_at"])) == 1 and len(set(herd._states["queries_at"])) == 8


def test_settings_differ_side_by_side() -> None:
    slow = instance_deployment((2, 2), (20.0, 90.0), (0.6, 0.7), 500.0)
    plan = dealt_plan(slow, [instances_of(slow)], [np.full(4, 0.25)], planner="test")
    herd = ManySimulations([plan_of(0.25, 0.25, 0.25, 0.25), Case(slow, plan, BUSY)], 16, seed=2)
    total = sum(herd.run_slot(1.0, np.full((32, 4), 0.25)).counts.copy() for _ in range(50))
    refused = total[:, :, -1].sum(axis=1) / total.sum(axis=(1, 2))
    assert refused[:16].mean() < refused[16:].mean()


def test_same_seed_same_counts_and_restart_forgets() -> None:
    def counted(herd: ManySimulations) -> list[int]:
        return [int(herd.run_slot(1.0, np.full((8, 4), 0.25)).counts.sum()) for _ in range(20)]

    herd = ManySimulations([plan_of(0.25, 0.25, 0.25, 0.25)], 8, seed=9)
    first = counted(herd)
    herd.restart(9)
    assert counted(herd) == first
    herd.restart(10)
    assert counted(herd) != first


def test_too_many_queries_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "MOST_ARRIVALS", 4)
    herd = ManySimulations([plan_of(0.25, 0.25, 0.25, 0.25)], 1)
    with pytest.raises(StrettoError, match="more than 4 queries come in one slot of 10000 ms; take a shorter slot"):
        herd.run_slot(10.0, np.full((1, 4), 0.25))
