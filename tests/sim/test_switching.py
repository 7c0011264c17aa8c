"""Loads that switch between phases: rate, phase share and index of dispersion against theory, both ways to draw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stretto.core.profile import NS_PER_S
from stretto.sim.arrivals import ARRIVAL, Load, Mix
from stretto.sim.markovian import MarkovianArrivals
from stretto.sim.processes import Poisson, TwoLevel
from stretto.sim.switching import Switching, draw_arrivals, switches, switching_of
from stretto.training.settings import instance_deployment

MAIN = Switching((10.0, 180.0), (500.0, 500.0 / 18))
SHORT = Switching((10.0, 180.0), (5.0, 5.0 / 18))  # the same, switching a hundred times as often
SERVED = instance_deployment((2, 2), (9.9, 33.3), (0.7, 0.8), 300.0)


def index_of_dispersion(load: Switching, seconds: float) -> float:
    """Var N(t) / E N(t) of a two-phase switched Poisson process."""
    (low, high), (low_s, high_s) = load.rates, load.seconds
    rate = 1 / low_s + 1 / high_s
    share = low_s / (low_s + high_s)
    covariance = share * (1 - share) * (high - low) ** 2
    integral = 2 * covariance * (seconds / rate - (1 - np.exp(-rate * seconds)) / rate**2)
    return 1 + integral / (load.mean_rate * seconds)


def slot_counts(load: Switching, slots: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Arrivals and those of the bursty phase, slot of a second by slot."""
    (switch,) = switches((load,), seed)
    arrivals = np.zeros(4096, dtype=ARRIVAL)
    counts = np.zeros((slots, 2), np.int64)
    for slot in range(slots):
        came = draw_arrivals(switch, arrivals, 300, slot * NS_PER_S, (slot + 1) * NS_PER_S)
        times = arrivals["time_ns"][:came]
        assert (np.diff(times) >= 0).all() and (
            came == 0 or slot * NS_PER_S <= times[0] <= times[-1] < (slot + 1) * NS_PER_S
        )
        counts[slot] = came, arrivals["query_class"][:came].sum()
    return counts[:, 0], counts[:, 1]


def simulated_counts(load: Switching, seconds: int, seed: int) -> NDArray[np.int64]:
    chunks = list(load.source().chunks(SERVED, float(seconds), seed))
    times = np.concatenate([chunk["time_ns"] for chunk in chunks])
    return np.bincount(times // NS_PER_S, minlength=seconds)


def test_the_published_process() -> None:
    process = MAIN.source().process
    assert isinstance(process, MarkovianArrivals)
    assert process.d0 == pytest.approx(np.array([[-10.002, 0.002], [0.036, -180.036]]))
    assert process.stationary == pytest.approx([18 / 19, 1 / 19])
    assert MAIN.mean_rate == pytest.approx(18.947, abs=1e-3)  # half of the queries in either phase


@pytest.mark.parametrize("way", ["by slot", "at once"])
def test_statistics_are_those_of_theory(way: str) -> None:
    slots = 60_000
    if way == "by slot":
        counts, bursty = slot_counts(SHORT, slots, 3)
        assert bursty.sum() / counts.sum() == pytest.approx(0.5, abs=0.02)
    else:
        counts = simulated_counts(SHORT, slots, 3)
    assert counts.mean() == pytest.approx(SHORT.mean_rate, rel=0.02)
    for width in (1, 10):
        sums = counts.reshape(-1, width).sum(axis=1)
        assert sums.var() / sums.mean() == pytest.approx(index_of_dispersion(SHORT, width), rel=0.08)


def test_the_periodic_twin_keeps_its_times() -> None:
    counts, bursty = slot_counts(Switching((10.0, 180.0), (50.0, 10.0), is_periodic=True), 6000, 5)
    in_burst = np.flatnonzero(bursty)
    starts = in_burst[1:][np.diff(in_burst) > 1]
    assert (np.abs(np.diff(starts) - 60) <= 1).all() and counts.mean() == pytest.approx(230 / 6, rel=0.02)


def test_a_scenario_s_load_is_read() -> None:
    again = switching_of(MAIN.source())
    assert (
        again is not None and again.rates == pytest.approx(MAIN.rates) and again.seconds == pytest.approx(MAIN.seconds)
    )
    periodic = switching_of(Load(TwoLevel(10, 180, 500, 30), rate=2 * TwoLevel(10, 180, 500, 30).mean_rate()))
    assert periodic is not None and periodic.is_periodic and periodic.rates == pytest.approx((20, 360))
    assert switching_of(Load(Poisson(), 10.0)) is None
    assert switching_of(replace(MAIN.source(), mix={"task": Mix(deadlines_ns=(100,))})) is None
