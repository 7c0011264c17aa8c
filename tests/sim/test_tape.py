"""Tapes: played as a naive loop would, counts of Markovian arrivals by formula, outcomes as one long simulation has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.linalg import expm

from stretto.core.profile import NS_PER_S
from stretto.planners.edge_rl.instances import dealt_plan, instances_of
from stretto.sim.arrivals import ARRIVAL, Client, Clients, Load, Mix, Source
from stretto.sim.many import Case, ManySimulations
from stretto.sim.markovian import MarkovianArrivals
from stretto.sim.processes import Gamma, Poisson
from stretto.sim.query_log import QueryLog
from stretto.sim.simulator import simulate
from stretto.sim.switching import Switching
from stretto.sim.tape import QUERY, Tape, play, players, tape_of
from stretto.sim.traces import RateTrace
from stretto.training.settings import instance_deployment

SERVED = instance_deployment((2, 2), (9.9, 33.3), (0.7769, 0.8278), 300.0)
WEIGHTS = (0.4, 0.35, 0.1, 0.15)
MS = 1_000_000


def herd_of(load: Tape | Switching, copies: int, seed: int = 3) -> ManySimulations:
    plan = dealt_plan(SERVED, [instances_of(SERVED)], [np.array(WEIGHTS)], planner="test")
    return ManySimulations([Case(SERVED, plan, load)], copies, seed=seed)


def log_file(folder: Path, rows: list[tuple[float, float]]) -> QueryLog:
    lines = [f"{time},task,{deadline}" for time, deadline in rows]
    (folder / "queries.csv").write_text("\n".join(["time_ms,application,deadline_ms", *lines]) + "\n")
    return QueryLog.read(folder / "queries.csv")


def test_a_tape_is_played_in_a_circle_from_any_moment() -> None:
    tape = Tape(np.array([(0, 5), (10, 6), (10, 7), (37, 8)], QUERY), 50)
    records, queries = players([None, tape], 40, seed=2)
    assert (records["count"][:40] == 0).all() and len(set(records["shift_ns"][40:])) > 20
    arrivals = np.zeros(64, ARRIVAL)
    for player in records[40:]:
        begins_ns = -int(player["shift_ns"])  # on the tape; after its last query, its next round has begun already
        begins_ns += 50 if begins_ns < 0 else 0
        expected = [
            (50 * lap + t - begins_ns, 50 * lap + t - begins_ns + slack)
            for lap in range(9)
            for t, slack in tape.queries.tolist()
        ]
        came = []
        for end_ns in (0, 3, 30, 31, 170, 300):
            count = play(player, queries, arrivals, end_ns)
            came += [(int(row["time_ns"]), int(row["deadline_ns"])) for row in arrivals[:count]]
        assert came == [pair for pair in expected if 0 <= pair[0] < 300]


def test_counts_of_markovian_arrivals_have_the_moments_of_the_matrices() -> None:
    """E N(t) = λt. Two arrivals lie u apart with density π·D1·exp((D0 + D1)u)·D1·1, from which follow Var N(t) and the
    covariance of the counts of two slots in a row.
    """
    d0 = np.array([[-12.0, 1.0, 1.0], [0.5, -101.0, 0.5], [2.0, 1.0, -6.0]])
    d1 = np.array([[10.0, 0.0, 0.0], [0.0, 90.0, 10.0], [0.0, 1.0, 2.0]])
    moves = np.vstack([(d0 + d1).T, np.ones(3)])
    stationary = np.linalg.lstsq(moves, np.array([0.0, 0.0, 0.0, 1.0]), rcond=None)[0]
    rate = float(stationary @ d1.sum(axis=1))
    slot_s, steps = 0.2, 400
    lags = (np.arange(2 * steps) + 0.5) * slot_s / steps
    excess = np.array([stationary @ d1 @ expm((d0 + d1) * lag) @ d1.sum(axis=1) - rate**2 for lag in lags])
    variance = rate * slot_s + 2 * ((slot_s - lags) * excess)[:steps].sum() * slot_s / steps
    covariance = (np.minimum(lags, 2 * slot_s - lags) * excess).sum() * slot_s / steps

    herd = herd_of(tape_of(Load(MarkovianArrivals(d0, d1)), SERVED, seed=5), 128)
    weights = np.tile(WEIGHTS, (128, 1))
    counts = np.array([herd.run_slot(slot_s, weights).arrivals.copy() for _ in range(600)])
    assert counts.mean() == pytest.approx(rate * slot_s, rel=0.02)
    assert counts.var() == pytest.approx(variance, rel=0.05)
    pairs = ((counts[1:] - counts.mean()) * (counts[:-1] - counts.mean())).mean()
    assert pairs == pytest.approx(covariance, rel=0.1) and covariance > 0.2 * variance  # it is bursty


@pytest.mark.parametrize(
    "source",
    [
        Load(Gamma(0.3), 60.0),
        Load(RateTrace(np.array([0.0, 20.0, 40.0]), np.array([20.0, 100.0, 60.0]), "hold")),
        Clients((Client("task", Poisson(20.0)), Client("task", Gamma(4.0), 40.0, 100 * MS))),
    ],
    ids=["gamma", "trace", "clients"],
)
def test_outcomes_are_those_of_one_long_simulation(source: Source) -> None:
    copies, slots = 64, 120
    herd = herd_of(tape_of(source, SERVED, seed=7), copies)
    total = np.zeros(5)
    for slot in range(slots):
        counts = herd.run_slot(1.0, np.tile(WEIGHTS, (copies, 1))).counts
        assert counts[:, 1].sum() == 0  # no phase is known, so all is counted in the first
        total += counts.sum(axis=(0, 1)) if slot >= 5 else 0
    plan = dealt_plan(SERVED, [instances_of(SERVED)], [np.array(WEIGHTS)], planner="test")
    run = simulate(SERVED, lambda view: plan, source, seconds=7200, seed=4).summary
    share = total / total.sum()
    outcomes = {name: count / run.submitted for name, count in run.outcomes.items()}
    assert total.sum() / copies / (slots - 5) == pytest.approx(run.submitted / 7200, rel=0.03)
    assert share[[0, 2]].sum() == pytest.approx(outcomes["on_time"], abs=0.01)
    assert share[[1, 3]].sum() == pytest.approx(outcomes.get("late", 0.0), abs=0.01)


def test_a_log_is_played_whole_with_its_own_deadlines(tmp_path: Path) -> None:
    log = log_file(tmp_path, [(1000.0, 40.0), (1003.0, 50.0), (1009.0, 60.0)])
    tape = tape_of(log, SERVED, seed=1)
    assert tape.queries.tolist() == [(0, 40 * MS), (3 * MS, 50 * MS), (9 * MS, 60 * MS)]
    assert tape.span_ns == 13.5 * MS  # so that queries come as often as in the log
    herd = herd_of(tape, 16)
    came = sum(int(herd.run_slot(0.1, np.tile(WEIGHTS, (16, 1))).arrivals.sum()) for _ in range(27))
    assert came == 16 * 600  # 2.7 s are 200 rounds


def test_deadlines_of_a_mix_are_kept() -> None:
    source = Load(Poisson(), 50.0, mix={"task": Mix(deadlines_ns=(100 * MS, 400 * MS))})
    slack = tape_of(source, SERVED, seed=1).queries["slack_ns"]
    assert set(slack.tolist()) == {100 * MS, 400 * MS} and slack.mean() == pytest.approx(250 * MS, rel=0.01)


def test_drawn_tapes_differ_by_seed_and_last_for_many_bursts() -> None:
    source = Load(Gamma(0.5), 20.0)
    one, other = (tape_of(source, SERVED, seed=seed) for seed in (1, 2))
    assert len(one.queries) > 900_000 and not np.array_equal(one.queries[:100], other.queries[:100])
    assert one.span_ns == pytest.approx(50_000 * NS_PER_S, rel=0.01)
