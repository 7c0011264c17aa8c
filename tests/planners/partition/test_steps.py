"""Steps: one worker at a time, nobody loses its last holder, and memory is never overdrawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.planners.partition.steps import Memory, next_placement

NOBODY = np.zeros(8, np.bool_)


def memory(models: int, workers: int, room: float, dynamic: float = 0.0) -> Memory:
    return Memory(np.ones(models), np.full(models, dynamic), np.full(workers, room))


def table(*rows: str) -> np.ndarray:
    return np.array([[cell == "x" for cell in row] for row in rows])


def test_one_worker_loads_at_a_time_and_the_old_ones_serve_until_all_have() -> None:
    """The last model moves from the first two workers to the other two."""
    goal = table("xx..", "xx..", "..xx", "..xx")
    placed = holds = table("xx.x", "xx.x", "..x.", "..x.")
    alive, room, calm = np.ones(4, np.bool_), memory(4, 4, 9), np.zeros(4, np.bool_)
    first = next_placement(goal, placed, holds, alive, room, calm)
    assert (first == table("xx.x", "xx.x", "..xx", "..x.")).all()
    assert (next_placement(goal, first, holds, alive, room, calm) == first).all()  # it has not loaded it yet
    holds = table("xx.x", "xx.x", "..xx", "..x.")
    second = next_placement(goal, first, holds, alive, room, calm)
    assert (second == table("xx.x", "xx.x", "..xx", "..xx")).all()
    holds = table("xx.x", "xx.x", "..xx", "..xx")
    assert (next_placement(goal, second, holds, alive, room, calm) == goal).all()


def test_several_at_once_where_that_is_asked_for() -> None:
    goal, placed = table("x.", "x.", "xx", "xx", "xx"), table("xx", "xx", "x.", "x.", "x.")
    after = next_placement(goal, placed, placed, np.ones(5, np.bool_), memory(2, 5, 9), np.zeros(2, np.bool_), 2)
    assert after[2:, 1].sum() == 2


def test_a_worker_that_cannot_take_more_yet_takes_nobody_elses_turn() -> None:
    """Two may load. The first loads its own already and has no room for more; that leaves a place for the second."""
    goal, placed, holds = table("xx", ".x", ".."), table("x.", "..", "x."), table("..", "..", "x.")
    room = Memory(np.ones(2), np.zeros(2), np.array([1.0, 2.0, 2.0]))
    after = next_placement(goal, placed, holds, np.ones(3, np.bool_), room, np.zeros(2, np.bool_), 2)
    assert (after[:2] == table("x.", ".x")).all()


def test_memory_holds_all_models_and_the_hungriest_at_work() -> None:
    some = Memory(np.array([1.0, 2.0]), np.array([4.0, 3.0]), np.array([7.0, 6.9, 5.0, 0.0]))
    for models, fits in (("xx", [True, False, False, False]), ("x.", [True] * 3 + [False]), ("..", [True] * 4)):
        assert [some.fits(worker, table(models)[0]) for worker in range(4)] == fits, models


def test_workers_that_are_away_take_nobodys_turn_and_begin_with_all_that_is_theirs() -> None:
    goal, nothing = table("x", "x", "x"), table(".", ".", ".")
    after = next_placement(
        goal, nothing, table(".", "x", "."), np.array([False, True, True]), memory(1, 3, 9), np.zeros(1, np.bool_)
    )
    assert (after == table("x", "x", "x")).all(), "the second has it already, and loads nothing"
    two = next_placement(goal, nothing, nothing, np.array([False, True, True]), memory(1, 3, 9), np.zeros(1, np.bool_))
    assert (two == table("x", "x", ".")).all()


def test_only_what_is_hurried_is_loaded_everywhere_at_once() -> None:
    goal, nothing, hurried = table("xx", "xx", "x."), table("..", "..", ".."), np.array([False, True])
    after = next_placement(goal, nothing, nothing, np.ones(3, np.bool_), memory(2, 3, 9), hurried)
    assert (after == table("xx", ".x", "..")).all(), "of the other one, one worker at a time"


def test_what_most_others_hold_is_given_up_first_and_the_last_holder_keeps_it() -> None:
    """Room for two. The first worker has two old models; of the second one there are two more."""
    goal = table("..x", "...", "...", "...")
    goal[1:, 0] = True
    holds = table("xx.", "xx.", ".x.", "...")
    room = Memory(np.ones(3), np.zeros(3), np.array([2.0, 9.0, 9.0, 9.0]))
    alive, calm = np.ones(4, np.bool_), np.zeros(3, np.bool_)
    assert next_placement(goal, holds, holds, alive, room, calm)[0].tolist() == [True, False, True]

    goal, holds = table(".x", ".x", "x."), table("x.", "x.", "..")  # room for one: the first may change, not both
    after = next_placement(goal, holds, holds, np.ones(3, np.bool_), memory(2, 3, 1), np.zeros(2, np.bool_), 3)
    assert (after == table(".x", "x.", "x.")).all()


def test_whoever_has_nobody_is_loaded_everywhere_at_once() -> None:
    goal, placed = table("xx", "xx", "xx"), table("x.", "x.", "x.")
    after = next_placement(goal, placed, placed, np.ones(3, np.bool_), memory(2, 3, 9), np.array([False, True]))
    assert (after == goal).all()


def test_a_full_worker_gives_up_what_others_hold() -> None:
    """Two models change places; each worker has room for two."""
    goal = table("x..x", "x..x", ".xx.", ".xx.")
    holds = placed = table("x.x.", "x.x.", ".x.x", ".x.x")
    after = next_placement(goal, placed, holds, np.ones(4, np.bool_), memory(4, 4, 2), np.zeros(4, np.bool_))
    assert (after == table("x..x", "x.x.", ".x.x", ".x.x")).all()
    goal, holds, placed = (each[:, ::-1].copy() for each in (goal, holds, placed))
    after = next_placement(goal, placed, holds, np.ones(4, np.bool_), memory(4, 4, 2), np.zeros(4, np.bool_))
    assert (after == table("x..x", ".x.x", "x.x.", "x.x.")).all(), "the same of the first model"


def test_what_nobody_else_holds_is_kept() -> None:
    """One worker each, and no room: nothing can be moved without leaving one of them without a worker."""
    goal, holds = table(".x", "x."), table("x.", ".x")
    after = next_placement(goal, holds, holds, np.ones(2, np.bool_), memory(2, 2, 1), np.zeros(2, np.bool_))
    assert (after == holds).all()


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    parts=st.integers(2, 3),
    crew=st.integers(2, 3),
    models=st.integers(3, 7),
    spare=st.integers(0, 2),
)
def test_every_change_arrives_and_nobody_is_ever_without(
    seed: int, parts: int, crew: int, models: int, spare: int
) -> None:
    """Sub-clusters of two workers or more: from any partition to any other that fits."""
    draw = np.random.default_rng(seed)
    before, after = draw.integers(0, parts, models), draw.integers(0, parts, models)
    part = np.repeat(np.arange(parts), crew)
    holds, goal = part[:, None] == before, part[:, None] == after
    placed, alive, calm = holds.copy(), np.ones(len(part), np.bool_), np.zeros(models, np.bool_)
    room = memory(models, len(part), max(holds.sum(axis=1).max(), goal.sum(axis=1).max()) + spare, 0.0)
    for _ in range(4 * len(part) * models):
        placed = next_placement(goal, placed, holds, alive, room, calm)
        assert ((placed & ~holds).any(axis=1)).sum() <= 1
        for worker in range(len(part)):
            assert room.fits(worker, placed[worker])
        if (placed == goal).all() and (holds & goal == goal).all():
            break
        # One load ends; room was made by what is not placed any more.
        loading = np.argwhere(placed & ~holds)
        if len(loading):
            worker, model = loading[0]
            holds[worker] &= placed[worker]
            holds[worker, model] = True
        assert (holds & placed).any(axis=0).all()
    else:
        pytest.fail("it never arrived")
