"""The compiled dispatcher, simulated, gives the same decisions as the slow reference, on random small traces.

The same batches on the same workers at the same times with the same members, and the same drops with the same reasons.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Deferred, Delays, Eager, Fixed, Lane, Late, Plan, WorkerChoice, by_application
from stretto.core.profile import NS_PER_MS, NS_PER_S, LatencyProfile, Quantile
from stretto.core.view import Planner
from stretto.core.worker import workers
from stretto.planners.symphony import Symphony
from stretto.sim.arrivals import Load, Mix
from stretto.sim.processes import Gamma
from stretto.sim.simulator import simulate
from tests.sim.handmade import Handmade, always
from tests.sim.reference import Batch, Dropped, Model, Reference, Request

REASONS = {
    Outcome.DROPPED_INFEASIBLE: "infeasible",
    Outcome.DROPPED_EXPIRED: "expired",
    Outcome.DROPPED_OVERLOAD: "overload",
}
LARGEST = 4096  # no limit but the profile's
Decisions = tuple[list[Batch], list[Dropped]]


@dataclass(frozen=True)
class Scene:
    """Models, equal workers, and the requests that come."""

    models: tuple[Model, ...]
    workers: int
    requests: tuple[Request, ...]
    window: int = NS_PER_S
    slo: int = 1000

    def deployment(self) -> Deployment:
        applications = []
        for number, model in enumerate(self.models):
            profile = LatencyProfile(np.tile(np.array([0, *model.latency]), (len(Quantile), 1)))
            applications.append(Application(f"a{number}", self.slo, (Variant("only", 1.0, (profile,)),)))
        return Deployment(tuple(applications), workers(self.workers))

    def with_fitted_beta(self) -> Scene:
        """β of condition (a) is the intercept of the profile's fitted line."""
        deployment = self.deployment()
        betas = [float(deployment.profile(number).beta_ns[Quantile.P95]) for number in range(len(self.models))]
        models = tuple(replace(model, beta=beta) for model, beta in zip(self.models, betas, strict=True))
        return replace(self, models=models)

    def plan(self) -> Plan:
        lanes = tuple(
            Lane(
                name=f"a{number}",
                workers=tuple(range(self.workers)),
                select=Fixed(number),
                release=Deferred(model.max_batch, model.gathered, floor_rates=model.floors)
                if model.deferred
                else Eager(model.max_batch, floor_rates=model.floors),
                late=Late.DROP_WHEN_INFEASIBLE,
                worker_choice=WorkerChoice.LOWEST_INDEX,
                delays=Delays(model.control, model.data),
            )
            for number, model in enumerate(self.models)
        )
        return by_application(lanes, rate_window_ns=self.window)


def scene(models: list[Model], count: int, came: list[tuple[int, int, int]], window: int = NS_PER_S) -> Scene:
    """Requests as (model, arrival, deadline), in order of arrival."""
    requests = tuple(Request(number, *one) for number, one in enumerate(came))
    return Scene(tuple(models), count, requests, window).with_fitted_beta()


def referred(scene: Scene) -> Decisions:
    reference = Reference(scene.models, scene.workers, scene.requests, scene.window)
    reference.run()
    return sorted(reference.batches), sorted(reference.drops)


def simulated(scene: Scene, planner: Planner | None = None) -> Decisions:
    source = Handmade([(one.model, one.arrival, one.deadline) for one in scene.requests])
    result = simulate(scene.deployment(), planner or always(scene.plan()), source, seconds=1.0, record=True)
    assert result.queries is not None and result.summary.unfinished == 0
    return decisions_of(result.queries)


def decisions_of(queries: NDArray[Any]) -> Decisions:
    """Recorded queries put together into batches; with exact service nobody is answered late."""
    batches, drops = [], []
    places = {(int(row["start_ns"]), int(row["worker"])) for row in queries if row["worker"] >= 0}
    for start, worker in sorted(places):
        members = np.flatnonzero((queries["start_ns"] == start) & (queries["worker"] == worker))
        rows = queries[members]
        for name in ("application", "end_ns", "batch"):
            assert (rows[name] == rows[name][0]).all()
        assert rows["batch"][0] == len(members) and (rows["outcome"] == Outcome.ON_TIME).all()
        by_deadline = members[np.lexsort((members, rows["deadline_ns"]))]
        end, model = int(rows["end_ns"][0]), int(rows["application"][0])
        batches.append(Batch(start, worker, model, end, tuple(by_deadline.tolist())))
    for number, row in enumerate(queries):
        if row["worker"] < 0:
            drops.append(Dropped(number, int(row["end_ns"]), REASONS[Outcome(int(row["outcome"]))]))
    return batches, drops


def assert_same(scene: Scene, planner: Planner | None = None) -> None:
    batches, drops = referred(scene)
    own_batches, own_drops = simulated(scene, planner)
    assert own_batches == batches
    assert own_drops == drops


# -- random traces ----------------------------------------------------------------------------------------------------


@st.composite
def latencies(draw: st.DrawFn, unit: int = 1) -> tuple[int, ...]:
    """Random whole numbers that never fall: one to six batch sizes."""
    rises = draw(st.lists(st.integers(0, 6), max_size=5))
    return tuple((np.cumsum([draw(st.integers(1, 20)), *rises]) * unit).tolist())


@st.composite
def scenes(
    draw: st.DrawFn,
    rules: st.SearchStrategy[Model],
    delayed: bool = False,
    capped: bool = True,
    most_models: int = 3,
    unit: int = 1,
    window: int = NS_PER_S,
) -> Scene:
    """1 to 3 models, 1 to 4 workers, up to 30 requests, each with a deadline of its own."""
    delay = st.integers(0, 5 if delayed else 0)
    cap = st.sampled_from((LARGEST, LARGEST, 1, 2, 3) if capped else (LARGEST,))
    models = [
        replace(draw(rules), latency=draw(latencies(unit)), control=draw(delay), data=draw(delay), max_batch=draw(cap))
        for _ in range(draw(st.integers(1, most_models)))
    ]
    request = st.tuples(st.integers(0, len(models) - 1), st.integers(0, 8 * unit), st.integers(0, 60 * unit))
    came, now = [], 0
    for model, pause, slack in draw(st.lists(request, min_size=1, max_size=30)):
        now += pause
        came.append((model, now, now + slack))
    return scene(models, draw(st.integers(1, 4)), came, window)


DEFERRED = st.just(Model((1,)))
GATHERED = st.just(Model((1,), gathered=True))
EAGER = st.just(Model((1,), deferred=False))
BATCH_AWARE = st.builds(
    lambda rates, deferred, gathered: Model((1,), deferred=deferred, gathered=gathered, floors=(0.0, *sorted(rates))),
    st.lists(st.floats(1e7, 1e9), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
thoroughly = settings(max_examples=150, deadline=None, derandomize=True)


@thoroughly
@given(scenes(DEFERRED))
def test_deferred(scene: Scene) -> None:
    assert_same(scene)


@thoroughly
@given(scenes(GATHERED))
def test_deferred_or_gathered(scene: Scene) -> None:
    """Condition (a) of section 4.3 as well, with λ from the first window."""
    assert_same(scene)


@thoroughly
@given(scenes(GATHERED, unit=60, window=1000))
def test_gathered_over_many_windows(scene: Scene) -> None:
    """A window shorter than the trace, so that its buckets fill and are forgotten."""
    assert_same(scene)


@thoroughly
@given(scenes(DEFERRED, delayed=True))
def test_deferred_with_delays(scene: Scene) -> None:
    assert_same(scene)


@thoroughly
@given(scenes(GATHERED, delayed=True))
def test_deferred_or_gathered_with_delays(scene: Scene) -> None:
    assert_same(scene)


@thoroughly
@given(scenes(EAGER))
def test_work_conserving(scene: Scene) -> None:
    assert_same(scene)


@thoroughly
@given(scenes(EAGER, delayed=True))
def test_work_conserving_with_delays(scene: Scene) -> None:
    assert_same(scene)


@thoroughly
@given(scenes(BATCH_AWARE))
def test_batch_aware(scene: Scene) -> None:
    assert_same(scene)


@thoroughly
@given(scenes(BATCH_AWARE, delayed=True))
def test_batch_aware_with_delays(scene: Scene) -> None:
    assert_same(scene)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    scenes(
        st.builds(Model, st.just((1,)), deferred=st.booleans(), gathered=st.booleans()), capped=False, most_models=1
    ),
    st.sampled_from(("staggered", "keeps up", "expiry only")),
    st.integers(20, 100),
)
def test_the_planner_asks_for_these_rules(scene: Scene, rule: str, slo: int) -> None:
    """Symphony and its work-conserving twin, with the drop rule of equations 2 and 3, with batch-aware pruning, and
    with expiry alone.
    """
    (model,) = scene.models
    floors = {"staggered": staggered, "keeps up": keeping_up, "expiry only": lambda *_: ()}[rule]
    planner = Symphony(
        deferred=model.deferred,
        when_gathered=model.gathered,
        batch_aware=rule == "keeps up",
        expiry_only=rule == "expiry only",
        variants={"a0": "only"},
    )
    assert_same(replace(scene, models=(replace(model, floors=floors(model, scene.workers, slo)),), slo=slo), planner)


def staggered(model: Model, workers: int, slo: int) -> tuple[float, ...]:
    """A batch of b is gathered in b/λ, and (1 + 1/N)·l(b) with N = λ·l(b)/b is no longer than the SLO."""
    floors = [0.0]
    for batch in range(2, len(model.latency) + 1):
        if model.takes(batch) < slo:
            floors.append(batch * NS_PER_S / (slo - model.takes(batch)))
    return tuple(floors)


def keeping_up(model: Model, workers: int, slo: int) -> tuple[float, ...]:
    """One model has all N workers: a batch below b is too small from the rate that b − 1 can just sustain,
    N·(b−1)/l(b−1), and no floor is above the largest b with (1 + 1/N)·l(b) ≤ SLO.
    """
    floors = [0.0]
    for batch in range(2, len(model.latency) + 1):
        if (workers + 1) * model.takes(batch) <= workers * slo:
            floors.append(workers * (batch - 1) * NS_PER_S / model.takes(batch - 1))
    return tuple(floors)


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize(("control_ms", "data_ms"), [(0.0, 0.0), (1.0, 0.05)])
@pytest.mark.parametrize("rate", [600.0, 1500.0])
def test_a_real_load(rate: float, control_ms: float, data_ms: float, gathered: bool) -> None:
    """Bursts of real models in real milliseconds, up to a heavy overload."""
    shapes = ((1.053, 5.072), (5.09, 18.368), (0.57, 14.348))
    models = [
        Model(
            tuple(round((alpha * batch + beta) * NS_PER_MS) for batch in range(1, 33)),
            control=round(control_ms * NS_PER_MS),
            data=round(data_ms * NS_PER_MS),
            gathered=gathered,
            max_batch=LARGEST,
        )
        for alpha, beta in shapes
    ]
    empty = scene(models, 4, [])
    mix = {f"a{number}": Mix(deadlines_ns=(30 * NS_PER_MS, 80 * NS_PER_MS)) for number in range(3)}
    (arrivals,) = Load(Gamma(0.5), rate, mix=mix).chunks(empty.deployment(), 1.0, 11)
    came = [(int(one["application"]), int(one["time_ns"]), int(one["deadline_ns"])) for one in arrivals]
    assert_same(scene(models, 4, came))


# -- cases by hand ----------------------------------------------------------------------------------------------------


def test_a_candidate_starts_at_the_last_moment_for_one_more() -> None:
    """dl − l(b+1): 50 − 12 with two, 50 − 14 once a third has come."""
    model = Model((8, 10, 12, 14), max_batch=LARGEST)
    assert simulated(scene([model], 1, [(0, 0, 50), (0, 5, 60)])) == ([Batch(38, 0, 0, 48, (0, 1))], [])
    assert simulated(scene([model], 1, [(0, 0, 50), (0, 5, 60), (0, 38, 90)])) == ([Batch(38, 0, 0, 50, (0, 1, 2))], [])
    assert simulated(scene([model], 1, [(0, 0, 50), (0, 5, 60), (0, 37, 90)])) == ([Batch(37, 0, 0, 49, (0, 1, 2))], [])


def test_delays_come_before_the_start() -> None:
    """Decided at dl − l(b+1) − delay(b), started delay(b) later."""
    model = Model((8, 10, 12, 14), control=3, data=2, max_batch=LARGEST)
    assert simulated(scene([model], 1, [(0, 0, 50), (0, 5, 60)])) == ([Batch(38, 0, 0, 48, (0, 1))], [])
    # At 31 it is decided; one that comes at 32 is too late for it.
    batches, drops = simulated(scene([model], 1, [(0, 0, 50), (0, 5, 60), (0, 32, 70)]))
    assert batches == [Batch(38, 0, 0, 48, (0, 1)), Batch(60, 0, 0, 68, (2,))] and drops == []


def test_a_worker_soon_free_is_granted_early() -> None:
    """The batch that follows was on its way, and starts at the very end of the one before."""
    first, second = Model((20,), max_batch=LARGEST), Model((5,), control=4, max_batch=LARGEST)
    expected = [Batch(0, 0, 0, 20, (0,)), Batch(20, 0, 1, 25, (1,))]
    assert simulated(scene([first, second], 1, [(0, 0, 20), (1, 2, 40)])) == (expected, [])


def test_an_infeasible_query_is_dropped_while_every_worker_is_busy() -> None:
    model = Model((10,), max_batch=LARGEST)
    expected = ([Batch(0, 0, 0, 10, (0,))], [Dropped(1, 9, "infeasible"), Dropped(2, 12, "expired")])
    assert simulated(scene([model], 1, [(0, 0, 30), (0, 1, 18), (0, 12, 11)])) == expected


def test_a_batch_is_pruned_to_the_earliest_deadlines_that_fit() -> None:
    busy, model = Model((20,), max_batch=LARGEST), Model((4, 8, 12, 16), max_batch=LARGEST)
    came = [(0, 0, 20), (1, 1, 60), (1, 2, 29), (1, 3, 61), (1, 4, 40)]
    # Free at 20; the deadline 29 leaves 9: two fit, 29 and 40. The others wait for their own last moment, 60 − 12.
    expected = [Batch(0, 0, 0, 20, (0,)), Batch(20, 0, 1, 28, (2, 4)), Batch(48, 0, 1, 56, (1, 3))]
    assert simulated(scene([busy, model], 1, came)) == (expected, [])


def test_a_head_is_given_up_for_a_full_batch() -> None:
    """At a rate from which batches of three are the least; without the floor the head goes alone."""
    busy, model = Model((20,), max_batch=LARGEST), Model((6, 8, 10, 12), max_batch=LARGEST)
    came = [(0, 0, 20), (1, 1, 27), (1, 2, 60), (1, 3, 60), (1, 4, 60)]
    alone = [Batch(0, 0, 0, 20, (0,)), Batch(20, 0, 1, 26, (1,)), Batch(48, 0, 1, 58, (2, 3, 4))]
    assert simulated(scene([busy, model], 1, came)) == (alone, [])
    together = [Batch(0, 0, 0, 20, (0,)), Batch(20, 0, 1, 30, (2, 3, 4))]
    aware = scene([busy, replace(model, floors=(0.0, 1e8, 1e9, 2e9))], 1, came)  # λ is one per ns: 10⁹ a second
    assert simulated(aware) == (together, [Dropped(1, 20, "overload")])


def test_the_most_urgent_candidate_goes_first() -> None:
    busy = Model((20,), max_batch=LARGEST)
    slow, fast = Model((10,), max_batch=LARGEST), Model((2,), max_batch=LARGEST)
    came = [(0, 0, 20), (1, 1, 50), (2, 2, 45)]  # dl − l: 40 and 43
    expected = [Batch(0, 0, 0, 20, (0,)), Batch(20, 0, 1, 30, (1,)), Batch(30, 0, 2, 32, (2,))]
    assert simulated(scene([busy, slow, fast], 1, came)) == (expected, [])


def test_a_head_is_not_given_up_in_vain() -> None:
    """Three are the target at this rate, and two wait: without the first the second would go alone, too."""
    busy, model = Model((20,), max_batch=LARGEST), Model((6, 8, 10), floors=(0.0, 1.0, 1.0), max_batch=LARGEST)
    expected = [Batch(0, 0, 0, 20, (0,)), Batch(20, 0, 1, 26, (1,)), Batch(26, 0, 1, 32, (2,))]
    case = scene([busy, model], 1, [(0, 0, 20), (1, 1, 27), (1, 2, 33)])
    assert simulated(case) == referred(case) == (expected, [])


# -- bugs that this comparison found ----------------------------------------------------------------------------------


def test_a_candidate_that_may_not_start_any_more_counts_down_again() -> None:
    """Released by βλ while the worker was busy, then λ rose: a free worker turned it down, and nobody woke it again."""
    busy, model = Model((5,)), Model((10, 11, 12, 13), gathered=True)
    expected = [Batch(0, 0, 0, 5, (0,)), Batch(88, 0, 1, 99, (1, 2))]
    case = scene([busy, replace(model, max_batch=LARGEST)], 1, [(0, 0, 5), (1, 1, 100), (1, 2, 100)])
    assert simulated(case) == referred(case) == (expected, [])


def test_a_worker_soon_free_asks_the_next_lane_when_the_first_has_nothing() -> None:
    """Lane 1 is more urgent but cannot make it on this worker: lane 2 was put off, one nanosecond at a time."""
    busy, lost, ready = Model((18,)), Model((5, 9, 10), control=1), Model((3,), control=4)
    case = scene([busy, lost, ready], 1, [(0, 0, 18), (1, 1, 22), (2, 3, 40), (1, 13, 60)])
    batches = [Batch(0, 0, 0, 18, (0,)), Batch(18, 0, 2, 21, (2,)), Batch(51, 0, 1, 56, (3,))]
    assert simulated(case) == referred(case) == (batches, [Dropped(1, 14, "infeasible")])


def test_the_first_arrival_after_a_silence_is_counted() -> None:
    """It was forgotten together with the buckets before it, so that λ was zero and the query started at once."""
    model = Model((2000, 2010, 2020, 2030), gathered=True)
    case = scene([model], 1, [(0, 0, 3000), (0, 10_000, 20_000)], window=1000)
    assert simulated(case) == referred(case) == ([Batch(0, 0, 0, 2000, (0,)), Batch(17_990, 0, 0, 19_990, (1,))], [])


def test_of_two_lanes_at_one_instant_the_first_goes_first() -> None:
    """It depended on what their timers had been through before."""
    case = scene([Model((1,)), Model((9, 9))], 1, [(1, 0, 20), (0, 11, 12)])
    assert simulated(case) == referred(case) == ([Batch(11, 0, 0, 12, (1,))], [Dropped(0, 12, "infeasible")])


def test_of_two_workers_at_one_instant_the_first_goes_first() -> None:
    """Both end at 8: what waits goes to worker 0, although the end of worker 1 was known before."""
    case = scene([Model((3,)), Model((7,))], 2, [(0, 0, 9), (1, 1, 30), (0, 5, 30), (0, 6, 30)])
    batches = [Batch(0, 0, 0, 3, (0,)), Batch(1, 1, 1, 8, (1,)), Batch(5, 0, 0, 8, (2,)), Batch(8, 0, 0, 11, (3,))]
    assert simulated(case) == referred(case) == (batches, [])


def test_a_lane_that_gave_up_its_head_in_vain_does_not_use_up_the_turn_of_another() -> None:
    """At 8, lane 1 drops a head and its next one had better wait for worker 1: lane 0 was not asked any more."""
    models = [
        Model((1, 1, 2, 7), data=2, deferred=False),
        Model((7, 10), control=2, data=2, deferred=False, max_batch=1),
    ]
    came = [(0, 0, 3), (1, 0, 11), (0, 1, 4), (1, 1, 14), (0, 2, 14), (1, 2, 20), (1, 2, 18), (0, 2, 14), (0, 3, 13)]
    case = scene(models, 2, [*came, (0, 4, 19), (0, 5, 19), (0, 5, 18)])
    batches, drops = referred(case)
    assert batches[-1] == Batch(14, 0, 0, 16, (11, 9, 10))
    assert drops == [Dropped(5, 10, "infeasible"), Dropped(6, 8, "infeasible")]
    assert simulated(case) == (batches, drops)
