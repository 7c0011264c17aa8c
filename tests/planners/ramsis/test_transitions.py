"""Transition probabilities against equation 2 written out, against Monte-Carlo, and as distributions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.planners.parts.laws import Gamma, Law, Poisson
from stretto.planners.ramsis.options import Options
from stretto.planners.ramsis.policy import Model, model_of
from stretto.planners.ramsis.streams import streams_of
from tests.planners.parts.tasks import dense, small_task

MS = 1_000_000
RATE = 180.0  # three workers with 60 queries/s each


def number_of(model: Model, queued: int, slack: int, variant: int, batch: int) -> int:
    rows = model.rows
    own = (rows.queued == queued) & (rows.slack == slack) & (rows.variant == variant) & (rows.batch == batch)
    return int(np.flatnonzero(own)[0])


def row_of(model: Model, queued: int, slack: int, variant: int, batch: int) -> np.ndarray:
    process, row = model.process, number_of(model, queued, slack, variant, batch)
    span = slice(process.begin[row], process.begin[row + 1])
    return dense(model.space.size, process.target[span], process.probability[span])


def pf(law: Law, count: int, seconds: float) -> float:
    return float(np.exp(law.log_probability(np.array([count]), np.array([RATE * seconds])))[0])


def equation_2(
    law: Law, workers: int, slo: float, grid: list[float], state: tuple[int, int], latency: float
) -> np.ndarray:
    """[n', j'] by the sum over k_A, k_B, k_C and k_D as printed, with the printed interval lengths."""
    n, j = state
    found = np.zeros((9, len(grid)))
    span_a = slo - grid[j]
    whole = sum(pf(law, k, span_a) for k in range((n - 1) * workers, n * workers))
    for k_a in range((n - 1) * workers, n * workers):
        for after, cell in itertools.product(range(9), range(len(grid) - 1)):
            span_b = max(0.0, latency + grid[cell] - slo)
            span_c = max(0.0, latency + grid[cell + 1] - slo - span_b)
            span_d = latency - span_c - span_b
            if after == 0 or span_c == 0.0:
                continue
            phase = k_a % workers
            for k_b in range(workers - phase):
                low = workers - phase - k_b
                for k_c in range(low, (after + 1) * workers - phase - k_b):
                    least = max(0, after * workers - phase - k_b - k_c)
                    for k_d in range(least, (after + 1) * workers - phase - k_b - k_c):
                        chance = pf(law, k_b, span_b) * pf(law, k_c, span_c) * pf(law, k_d, span_d)
                        found[after, cell] += pf(law, k_a, span_a) / whole * chance
    return found


@pytest.mark.parametrize("law", [Poisson(), Gamma(0.5)], ids=["poisson", "gamma"])
@pytest.mark.parametrize(("queued", "slack", "variant"), [(1, 4, 2), (2, 3, 1)])
def test_whole_batches_follow_equation_2(law: Law, queued: int, slack: int, variant: int) -> None:
    task, options = small_task(2), Options(slack_steps=4, max_queue=8, law=law)
    model = model_of(task, RATE, options)
    found = row_of(model, queued, slack, variant, queued)
    slo, grid = 0.06, (model.space.slack_ns * 1e-9).tolist()
    printed = equation_2(law, 2, slo, grid, (queued, slack), float(task.latency_ns[variant, queued]) * 1e-9)
    ours = found[: model.space.full].reshape(model.space.max_queue, model.space.slacks)
    # Equation 1 sends the empty queue to (1, SLO), and nothing else leads there.
    assert ours[:, :-1] == pytest.approx(printed[1:, :-1], abs=2e-10)
    assert ours[0, -1] + found[-1] == pytest.approx(1 - printed[1:].sum(), abs=1e-9)
    assert model.empty[number_of(model, queued, slack, variant, queued)] == pytest.approx(ours[0, -1], abs=1e-9)


def monte_carlo(
    rng: np.random.Generator, model: Model, workers: int, state: tuple[int, int], batch: int, latency_ns: int
) -> np.ndarray:
    """Where a worker finds itself, by throwing the arrivals and keeping the cases that are in the state."""
    queued, slack = state
    slo = int(model.space.slack_ns[-1])
    span = slo - int(model.space.slack_ns[slack])
    throws, width = 60_000, 90
    times = np.cumsum(rng.exponential(1e9 / RATE, (throws, width)), axis=1)
    assert times[:, -1].min() > span + latency_ns
    own = times[:, workers - 1 :: workers]  # the head itself came at time 0, at phase 0
    times = own[(own < span).sum(axis=1) == queued - 1]
    assert len(times) > 500
    after = queued - batch + (times < span + latency_ns).sum(axis=1) - (queued - 1)
    head = times[:, batch - 1]
    left = slo - (span + latency_ns - head)
    cell = np.searchsorted(model.space.slack_ns, np.maximum(left, 0), side="right") - 1
    states = (after - 1) * model.space.slacks + cell
    states[after == 0] = model.space.after_empty
    states[after > model.space.max_queue] = model.space.full
    return np.bincount(states, minlength=model.space.size) / len(states)


@pytest.mark.parametrize(
    ("queued", "slack", "variant", "batch"), [(1, 8, 2, 1), (3, 5, 1, 3), (2, 7, 0, 1), (4, 5, 0, 2), (3, 7, 1, 2)]
)
@pytest.mark.parametrize("count", [1, 3])
def test_probabilities_are_those_of_thrown_arrivals(
    count: int, queued: int, slack: int, variant: int, batch: int
) -> None:
    task, options = small_task(count), Options(slack_steps=10, max_queue=8, variable=True)
    model = model_of(task, RATE, options)
    expected = row_of(model, queued, slack, variant, batch)
    rng = np.random.default_rng(queued + 10 * batch)
    seen = monte_carlo(rng, model, count, (queued, slack), batch, int(task.latency_ns[variant, batch]))
    # The model has the head at its cell's edge; so has the experiment. What is left is chance.
    assert np.abs(seen - expected).sum() / 2 < 0.06
    shape = (model.space.max_queue, model.space.slacks)
    marginal = np.abs((seen - expected)[:-1].reshape(shape).sum(axis=1))
    assert marginal.max() < 0.03


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 20),
    st.floats(0.05, 3.0),
    st.sampled_from([0, 7, 25]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([Poisson(), Gamma(0.3)]),
)
def test_every_row_sums_to_one(
    count: int, use: float, steps: int, variable: bool, drop: bool, shortest: bool, law: Law
) -> None:
    task = small_task(count)
    options = Options(slack_steps=steps, max_queue=11, variable=variable, drop=drop, shortest=shortest, law=law)
    model = model_of(task, use * task.capacity(), options)
    process = model.process
    assert (process.probability > 0).all()
    sums = np.add.reduceat(process.probability, process.begin[:-1])
    assert sums == pytest.approx(np.ones(len(sums)), abs=1e-12)
    assert process.target.min() >= 0
    assert process.target.max() <= model.space.full
    assert ((model.empty >= 0) & (model.empty <= 1 + 1e-12)).all()


def test_a_head_that_is_already_late_has_no_slack_left() -> None:
    """A batch longer than the SLO: the printed intervals would take its late heads for a full queue."""
    model = model_of(small_task(1, slo_ms=25), 40.0, Options(slack_steps=5, max_queue=8))
    row = row_of(model, 8, 0, 0, 8)  # 29 ms
    assert row[: model.space.full].reshape(8, 6)[:, 0].sum() > 0.05
    assert row[model.space.full] < 1e-5


@pytest.mark.parametrize(("workers", "beyond"), [(1, 30.0), (2, 22.5), (3, 16.875), (4, 12.65625)])
def test_shortest_queue_first_has_two_rates(workers: int, beyond: float) -> None:
    """Appendix I.1: λ/K up to two queued, then (λ/Kμ)^K·μ. Each worker's share is 30 of the 40 queries/s that the slow
    variant answers one by one within half the SLO, so the long queue gets 40·(3/4)^K.
    """
    streams = streams_of(small_task(workers), 30.0 * workers, Options(max_queue=8, shortest=True))
    (short, short_lengths), (long, long_lengths) = streams
    assert (short.phases, short.rate) == (1, 30.0)
    assert short_lengths.tolist() == [1, 2]
    assert long_lengths.tolist() == [3, 4, 5, 6, 7, 8]
    assert long.rate == pytest.approx(beyond)


def equation_4(rate: float, slo: float, grid: list[float], latency: float, longest: int) -> np.ndarray:
    """[n', j'] by the sum over k_C as printed: nothing comes in B, the head and maybe more in C, the rest in D."""

    def pf_w(count: int, seconds: float) -> float:
        return math.exp(-rate * seconds) * (rate * seconds) ** count / math.factorial(count)

    found = np.zeros((longest + 1, len(grid)))
    for after, cell in itertools.product(range(1, longest + 1), range(len(grid) - 1)):
        span_b = max(0.0, latency + grid[cell] - slo)
        span_c = max(0.0, latency + grid[cell + 1] - slo - span_b)
        span_d = latency - span_b - span_c
        for k_c in range(1, after + 1):
            found[after, cell] += pf_w(0, span_b) * pf_w(k_c, span_c) * pf_w(after - k_c, span_d)
    return found


@pytest.mark.parametrize(("queued", "rate"), [(1, 30.0), (2, 30.0), (3, 16.875), (4, 16.875)])
def test_with_the_shortest_queue_batches_follow_equation_4(queued: int, rate: float) -> None:
    """Three workers with 30 queries/s each: a queue of up to two gets its share, a longer one 40·(3/4)³."""
    task, options = small_task(3), Options(slack_steps=4, max_queue=8, shortest=True)
    model = model_of(task, 90.0, options)
    latency = float(task.latency_ns[0, queued]) * 1e-9
    printed = equation_4(rate, 0.06, (model.space.slack_ns * 1e-9).tolist(), latency, 8)
    found = row_of(model, queued, 4, 0, queued)
    ours = found[: model.space.full].reshape(model.space.max_queue, model.space.slacks)
    assert ours[:, :-1] == pytest.approx(printed[1:, :-1], abs=2e-10)
    assert ours[0, -1] == pytest.approx(math.exp(-rate * latency), abs=1e-9)  # equation 1: the empty queue
