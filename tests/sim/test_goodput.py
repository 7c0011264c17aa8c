"""Goodput search: against capacities known on paper, and its bracket logic against made-up laws."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.outcome import Outcome
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.view import Planner
from stretto.core.worker import workers
from stretto.planners.symphony import Symphony
from stretto.sim.arrivals import Load
from stretto.sim.goodput import GoodputResult, find_goodput
from stretto.sim.processes import Uniform
from stretto.sim.results import Summary, Tallies, empty_tallies, summarise
from stretto.sim.simulator import simulate
from tests.sim.handmade import linear

ONE = linear(1)


def summary(bad: int, submitted: int = 1000) -> Summary:
    """Of a run in which `bad` queries were dropped and the others answered on time."""
    tallies = Tallies(submitted=np.array([submitted]), **empty_tallies(ONE, 4))
    tallies.counts[0, Outcome.ON_TIME] = submitted - bad
    tallies.counts[0, Outcome.DROPPED_INFEASIBLE] = bad
    return summarise(tallies, ONE, seconds=1.0, planner="", seed=1, worker_busy=np.zeros(1))


def law(capacity: float, asked: list[float] | None = None) -> Callable[[float, int], Summary]:
    """Everything is on time up to `capacity`, and nothing beyond."""

    def run(rate: float, seed: int) -> Summary:
        if asked is not None:
            asked.append(rate)
        return summary(0 if rate <= capacity else 1000)

    return run


def uniform_goodput(deployment: Deployment, planner: Planner, guess: float, max_bad: float = 0.01) -> GoodputResult:
    def run(rate: float, seed: int) -> Summary:
        source = Load(Uniform(phase=0.0), rate)
        return simulate(deployment, planner, source, seconds=20.0, seed=seed, warmup_s=1.0).summary

    return find_goodput(run, guess=guess, tolerance=0.002, max_bad=max_bad)


def one_at_a_time(slo_ms: int, count: int = 1) -> Deployment:
    """l = 10 ms and no batching: a worker answers 100 queries/s."""
    only = Variant("only", 1.0, (LatencyProfile.linear(0, 10, 1),))
    return Deployment((Application("a", slo_ms * NS_PER_MS, (only,)),), workers(count))


@pytest.mark.parametrize("guess", [7.0, 100.0, 3000.0])
@pytest.mark.parametrize(("slo_ms", "capacity"), [(20, 100 / 0.99), (15, 1000 / (10 - 5 / 98))])
def test_a_worker_that_answers_one_at_a_time(slo_ms: int, capacity: float, guess: float) -> None:
    """Above 100 queries/s each query waits δ = 10 ms − gap longer than the one before, until one cannot make it.

    With 20 ms the next query is just there when it is dropped: no time is lost, and the worker keeps up with 99 in a
    hundred. With 15 ms the worker then idles for half a gap and the wait starts from zero: one query is lost for each
    5 ms / δ + 1 answered, which are 99 at δ = 5/98 ms.
    """
    found = uniform_goodput(one_at_a_time(slo_ms), Symphony(), guess)
    assert found.rate == pytest.approx(capacity, rel=0.003)
    assert found.rate < found.failed <= found.rate * 1.0021
    strict = uniform_goodput(one_at_a_time(slo_ms), Symphony(), guess, max_bad=0.0)
    assert strict.rate == pytest.approx(100.0, rel=0.003)


def test_workers_add_up() -> None:
    assert uniform_goodput(one_at_a_time(20, 3), Symphony(), 100.0).rate == pytest.approx(300 / 0.99, rel=0.004)


def test_one_worker_that_batches() -> None:
    """Uniform arrivals on one worker: the largest b with 2·l(b) ≤ SLO (equation 1), at b/l(b).

    l(b) = b + 4 ms and 24 ms allow b = 8 in 12 ms: 667 queries/s. Beyond it every batch is still full, so the search
    may go on to the rate at which one in a hundred is lost.
    """
    deployment = linear(1, alpha_ms=1.0, beta_ms=4.0, slo_ms=24.0)
    found = uniform_goodput(deployment, Symphony(deferred=False), 300.0)
    assert found.rate == pytest.approx(8 / 0.012, rel=0.05)


def test_no_capacity_is_zero() -> None:
    """A model slower than its SLO. Very low rates bring no query at all, and that is no proof that they hold."""
    deployment = linear(2, alpha_ms=1.0, beta_ms=30.0, slo_ms=20.0)
    found = uniform_goodput(deployment, Symphony(variants={"a0": "only"}), 50.0)
    assert (found.rate, found.failed) == (0.0, 0.0)
    assert all(not probe.is_good(0.01) for probe in found.probes)
    assert found.probes[-1].rate <= 50 * 1e-6


@pytest.mark.parametrize("capacity", [0.003, 0.9, 10.0, 99.0, 1000.0, 1001.0, 5e6])
def test_any_capacity_is_found_from_any_guess(capacity: float) -> None:
    asked: list[float] = []
    found = find_goodput(law(capacity, asked), guess=1000.0, tolerance=0.005)
    assert found.rate <= capacity < found.failed
    assert found.failed - found.rate <= 0.005 * found.failed
    assert [probe.rate for probe in found.probes] == asked
    assert len(asked) < 35


def test_the_bracket_widens_upwards_step_by_step() -> None:
    asked: list[float] = []
    find_goodput(law(1500.0, asked), guess=1000.0, tolerance=0.5)
    assert asked == [1000.0, 1250.0, 1250.0 * 1.5625]


def test_the_bracket_widens_downwards_step_by_step() -> None:
    asked: list[float] = []
    find_goodput(law(600.0, asked), guess=1000.0, tolerance=0.5)
    assert asked == [1000.0, 800.0, 800.0 / 1.5625]


def test_bisection_goes_to_the_middle() -> None:
    asked: list[float] = []
    found = find_goodput(law(1100.0, asked), guess=1000.0, tolerance=0.06)
    assert asked == [1000.0, 1250.0, 1125.0, 1062.5]
    assert (found.rate, found.failed) == (1062.5, 1125.0)


def test_a_system_without_a_limit_ends_the_search() -> None:
    found = find_goodput(law(math.inf), guess=10.0)
    assert found.rate == found.failed >= 10 * 1e6


def test_the_limit_on_bad_answers_is_inclusive() -> None:
    def run(rate: float, seed: int) -> Summary:
        return summary(10 if rate <= 500 else 11)

    assert find_goodput(run, guess=400.0, max_bad=0.01).rate == pytest.approx(500, rel=0.005)
    assert find_goodput(run, guess=400.0, max_bad=0.0099).rate == 0.0


def test_the_worst_application_decides() -> None:
    deployment = linear(1, applications=2)

    def run(rate: float, seed: int) -> Summary:
        tallies = Tallies(submitted=np.array([100_000, 100]), **empty_tallies(deployment, 4))
        tallies.counts[:, Outcome.ON_TIME] = (100_000, 99 if rate <= 70 else 98)
        return summarise(tallies, deployment, seconds=1.0, planner="", seed=1, worker_busy=np.zeros(1))

    assert find_goodput(run, guess=100.0).rate == pytest.approx(70, rel=0.005)


@pytest.mark.parametrize(("good_seeds", "holds"), [({1, 2}, True), ({2, 3}, True), ({3}, False), (set(), False)])
def test_most_seeds_decide(good_seeds: set[int], holds: bool) -> None:
    """And no more seeds are run than are needed to know."""

    def run(rate: float, seed: int) -> Summary:
        return summary(0 if rate <= 50 or (rate <= 100 and seed in good_seeds) else 500)

    found = find_goodput(run, guess=100.0, seeds=(1, 2, 3), tolerance=0.01)
    assert found.rate == pytest.approx(100.0 if holds else 50.0, rel=0.01)
    first = [probe.seed for probe in found.probes if probe.rate == 100.0]
    assert first == {frozenset({1, 2}): [1, 2], frozenset({2, 3}): [1, 2, 3]}.get(frozenset(good_seeds), [1, 2])


def test_half_of_the_seeds_are_not_most() -> None:
    def run(rate: float, seed: int) -> Summary:
        return summary(0 if rate <= 50 or seed == 1 else 500)

    assert find_goodput(run, guess=100.0, seeds=(1, 2)).rate == pytest.approx(50, rel=0.005)


def test_progress_rises_to_one() -> None:
    shares: list[float] = []
    find_goodput(law(1234.0), guess=1000.0, progress=shares.append)
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize("guess", [0.0, -5.0, math.nan])
def test_a_bad_guess_is_refused(guess: float) -> None:
    with pytest.raises(StrettoError, match="first rate above zero"):
        find_goodput(law(10.0), guess=guess)


@pytest.mark.parametrize("tolerance", [0.0, 1.0, -0.1, math.nan])
def test_a_bad_tolerance_is_refused(tolerance: float) -> None:
    with pytest.raises(StrettoError, match="tolerance"):
        find_goodput(law(10.0), guess=1.0, tolerance=tolerance)


def test_no_seed_is_refused() -> None:
    with pytest.raises(StrettoError, match="at least one seed"):
        find_goodput(law(10.0), guess=1.0, seeds=())
