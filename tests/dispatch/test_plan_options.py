"""Every option of the Plan table does something that its neighbours do not: swap one, and a test here fails.

Profiles are l(b) = 10·b + 20 ns (variant 0) and half that (variant 1), so every moment can be worked out by hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import (
    Accumulate,
    AdaptiveCap,
    ByLoad,
    Deferred,
    Eager,
    Fixed,
    Lane,
    LaneChoice,
    Late,
    MostAccurate,
    Order,
    Plan,
    Route,
    RouteRule,
    Table,
    Work,
    WorkerChoice,
    Worklist,
    by_application,
)
from stretto.core.profile import LatencyProfile, Quantile
from stretto.core.worker import Worker
from stretto.dispatch.decisions import Drop, Load, Run, Unload
from stretto.dispatch.dispatcher import Dispatcher
from tests.lanes import rules_of_lane

SLOW, FAST = 0, 1


def latency(batch: int, variant: int = SLOW) -> int:
    return (10 * batch + 20) // (1 if variant == SLOW else 2)


def profile(variant: int, kind: str = "default") -> LatencyProfile:
    row = [0, *(latency(batch, variant) for batch in range(1, 17))]
    return LatencyProfile(np.tile(np.array(row, dtype=np.int64), (len(Quantile), 1)), kind)


def deployment(workers: int = 1, applications: int = 1, **worker_fields: object) -> Deployment:
    variants = (
        Variant("slow", 0.9, (profile(SLOW),), memory_bytes=60, load_ns=50),
        Variant("fast", 0.5, (profile(FAST),), memory_bytes=60, load_ns=50),
    )
    names = [f"app-{number}" for number in range(applications)]
    crew = tuple(Worker(f"worker-{number}", **worker_fields) for number in range(workers))  # type: ignore[arg-type]
    return Deployment(tuple(Application(name, 1000, variants) for name in names), crew)


def lane(name: str = "lane", workers: Sequence[int] = (0,), **fields: object) -> Lane:
    fields.setdefault("select", Fixed(SLOW))
    fields.setdefault("order", Order.FIRST_COME)
    return Lane(name, tuple(workers), **rules_of_lane(fields))


def dispatcher(*lanes: Lane, workers: int = 1, **plan_fields: object) -> Dispatcher:
    plan = by_application(lanes, **plan_fields)
    return Dispatcher(deployment(workers, len(lanes)), plan)


def routed(rule: RouteRule, count: int = 3, **route_fields: object) -> Dispatcher:
    """One application over `count` lanes, each with a worker that is busy, so that queries stay where they were put."""
    lanes = tuple(lane(f"lane-{number}", (number,)) for number in range(count))
    plan = Plan(lanes, (Route(rule, tuple(range(count)), **route_fields),), seed=5)  # type: ignore[arg-type]
    return Dispatcher(deployment(count), plan)


def runs(made: Dispatcher) -> list[Run]:
    return [decision for decision in made.decisions() if isinstance(decision, Run)]


def drops(made: Dispatcher) -> list[Drop]:
    return [decision for decision in made.decisions() if isinstance(decision, Drop)]


def lengths(made: Dispatcher) -> list[int]:
    return made.telemetry(0).lane_lengths.tolist()


# route


def test_round_robin_deals_in_turn() -> None:
    made = routed(RouteRule.ROUND_ROBIN)
    for _ in range(5):
        made.submit(0, 0, 1000)
    assert Counter(run.worker for run in runs(made)) == {0: 1, 1: 1, 2: 1}
    assert lengths(made) == [1, 1, 0]


def test_shortest_lane_takes_the_emptiest() -> None:
    made = routed(RouteRule.SHORTEST)
    for _ in range(4):  # equals take turns; three run at once
        made.submit(0, 0, 1000)
    assert [run.worker for run in runs(made)] == [0, 1, 2]
    assert lengths(made) == [1, 0, 0]
    made.submit(0, 0, 1000)
    made.submit(0, 0, 1000)
    made.submit(0, 0, 1000)  # its turn would be lane 0, which is as long as the others
    assert lengths(made) == [2, 1, 1]
    for _ in range(2):
        made.submit(0, 0, 1000)
    assert lengths(made) == [2, 2, 2]


def test_weighted_route_follows_its_weights_and_its_seed() -> None:
    counts = []
    for _ in range(2):
        made = routed(RouteRule.WEIGHTED, weights=(1.0, 0.0, 3.0))
        for _ in range(4000):
            made.submit(0, 0, 1000)
        counts.append(lengths(made))
    assert counts[0] == counts[1]
    assert counts[0][1] == 0
    assert counts[0][2] / counts[0][0] == pytest.approx(3, rel=0.1)


def test_by_client_and_by_class_look_up_their_own_number() -> None:
    for rule, field in ((RouteRule.BY_CLIENT, "client"), (RouteRule.BY_CLASS, "query_class")):
        made = routed(rule, targets=(2, 1))
        for number in (0, 1, 1, -1, 99):  # unknown ones go to the first lane
            made.submit(0, 0, 1000, **{field: number})
        assert [run.worker for run in runs(made)] == [2, 1, 0]
        assert lengths(made) == [1, 1, 0]


def test_by_application_keeps_applications_apart() -> None:
    made = dispatcher(lane("a", (0,)), lane("b", (1,), select=Fixed(2)), workers=2)
    made.submit(0, 1, 1000)
    assert [(run.worker, run.variant) for run in runs(made)] == [(1, 2)]


# order


@pytest.mark.parametrize(
    ("order", "expected"),
    [(Order.FIRST_COME, [1, 2, 3]), (Order.EARLIEST_DEADLINE, [3, 1, 2]), (Order.PRIORITY, [2, 1, 3])],
)
def test_order_inside_a_lane(order: Order, expected: list[int]) -> None:
    made = dispatcher(lane(order=order, release=Eager(max_batch=1)))
    made.submit(0, 0, 10_000)  # keeps the worker busy
    tickets = {
        made.submit(1, 0, 5000, priority=1): 1,
        made.submit(2, 0, 6000, priority=2): 2,
        made.submit(3, 0, 4000, priority=0): 3,
    }
    runs(made)
    started = []
    for now in (100, 200, 300):
        made.finished(now, 0)
        started += [tickets[run.tickets[0]] for run in runs(made)]
    assert started == expected


# select


def test_by_load_takes_the_variant_that_covers_the_rate() -> None:
    select = ByLoad((1e6, 1e9), (SLOW, FAST))
    chosen = []
    for gap in (10_000, 10):  # 1e5 and 1e8 queries a second
        made = dispatcher(lane(select=select, release=Eager(max_batch=1)))
        for number in range(50):
            made.submit(number * gap, 0, 10**9)
            if number < 49:
                made.finished(number * gap + 5, 0)
        chosen.append(runs(made)[-1].variant)
    assert chosen == [SLOW, FAST]


def test_most_accurate_that_fits_falls_back_as_slack_shrinks() -> None:
    for deadline, variant in ((1000, SLOW), (29, FAST)):  # l(1) is 30 and 15
        made = dispatcher(lane(select=MostAccurate((SLOW, FAST))))
        made.submit(0, 0, deadline)
        assert [run.variant for run in runs(made)] == [variant]


def test_table_chooses_by_queue_and_slack_and_may_wait() -> None:
    variant = np.array([[FAST, FAST], [FAST, -1], [FAST, SLOW]], dtype=np.int32)
    table = Table(100, variant, np.array([[0, 0], [0, 0], [0, 1]], dtype=np.int32))
    made = dispatcher(lane(select=table))
    made.submit(0, 0, 150)  # one queued, slack 150: wait until the slack is below 100
    assert made.wake_at_ns() == 51
    made.advance(51)
    assert [(run.variant, len(run.tickets)) for run in runs(made)] == [(FAST, 1)]
    made.submit(52, 0, 1000)
    made.submit(53, 0, 1000)  # two queued, much slack: one of them on the slow variant
    made.finished(66, 0)
    assert [(run.variant, len(run.tickets)) for run in runs(made)] == [(SLOW, 1)]


def test_worklist_runs_what_was_formed_in_order_and_nothing_else() -> None:
    made = dispatcher(lane(select=Worklist()))
    first, second, third = (made.submit(number, 0, 1000) for number in range(3))
    assert runs(made) == []
    works = (Work(0, FAST, (third,)), Work(0, SLOW, (first, second)))
    made.adopt(10, by_application((lane(select=Worklist(works)),)))
    assert [(run.variant, run.tickets) for run in runs(made)] == [(FAST, (third,))]
    made.finished(30, 0)
    assert [(run.variant, run.tickets) for run in runs(made)] == [(SLOW, (first, second))]


# release


def test_eager_starts_at_once_accumulate_and_deferred_do_not() -> None:
    made = dispatcher(lane(release=Eager()))
    made.submit(0, 0, 1000)
    assert len(runs(made)) == 1
    made = dispatcher(lane(release=Accumulate(3, timeout_ns=200)))
    made.submit(0, 0, 1000)
    assert (runs(made), made.wake_at_ns()) == ([], 200)
    made.submit(10, 0, 1000)
    assert runs(made) == []
    made.submit(20, 0, 1000)
    assert [len(run.tickets) for run in runs(made)] == [3]


def test_accumulate_gives_up_waiting_after_its_timeout() -> None:
    made = dispatcher(lane(release=Accumulate(3, timeout_ns=200)))
    made.submit(7, 0, 1000)
    made.advance(206)
    assert runs(made) == []
    made.advance(207)
    assert len(runs(made)) == 1


def test_deferred_starts_at_the_last_moment_for_one_more() -> None:
    made = dispatcher(lane(release=Deferred(when_gathered=False), order=Order.EARLIEST_DEADLINE))
    made.submit(0, 0, 1000)
    assert made.wake_at_ns() == 1000 - latency(2)
    made.submit(5, 0, 2000)
    assert made.wake_at_ns() == 1000 - latency(3)
    made.advance(1000 - latency(3))
    started = runs(made)
    assert [(run.start_ns, len(run.tickets)) for run in started] == [(1000 - latency(3), 2)]


def test_deferred_starts_at_once_when_gathered_or_full() -> None:
    made = dispatcher(lane(release=Deferred(when_gathered=True)))
    made.submit(0, 0, 10**9)  # λ is not known yet, so one is more than βλ
    assert len(runs(made)) == 1
    made = dispatcher(lane(release=Deferred(max_batch=2, when_gathered=False)))
    made.submit(0, 0, 1000)
    made.submit(1, 0, 1000)
    assert [len(run.tickets) for run in runs(made)] == [2]


def test_delays_move_the_start_and_let_a_busy_worker_be_told_early() -> None:
    fields = {"order": Order.EARLIEST_DEADLINE, "late": Late.DROP_WHEN_INFEASIBLE, "control_ns": 7, "data_ns": 2}
    made = dispatcher(lane(release=Deferred(when_gathered=False), **fields))
    made.submit(0, 0, 1000)
    assert made.wake_at_ns() == 1000 - latency(2) - 9
    made.advance(951)
    assert [(run.start_ns, run.expected_ns) for run in runs(made)] == [(960, 990)]
    made = dispatcher(lane(release=Eager(), **fields))
    made.submit(0, 0, 1000)
    assert [run.expected_ns for run in runs(made)] == [39]
    made.submit(1, 0, 1000)
    assert made.wake_at_ns() == 39 - 9  # d_ctrl + d_data before the worker is free
    made.advance(30)
    assert [run.start_ns for run in runs(made)] == [39]


# late


def outcome_of_a_hopeless_head(late: Late) -> tuple[list[Outcome], int]:
    """A query whose deadline passes while the worker is busy: (drops before the worker is free, runs after)."""
    made = dispatcher(lane(late=late))
    made.submit(0, 0, 1000)
    made.submit(1, 0, 60)  # can start until 30, which is when the worker is free; l(1) is 30
    made.decisions()
    made.advance(50)
    before = [drop.reason for drop in drops(made)]
    made.finished(50, 0)
    return before, len(runs(made))


def test_late_keep_serves_it_all_the_same() -> None:
    assert outcome_of_a_hopeless_head(Late.KEEP) == ([], 1)


def test_late_drop_when_dispatched_waits_for_the_worker() -> None:
    assert outcome_of_a_hopeless_head(Late.DROP_WHEN_DISPATCHED) == ([], 0)


def test_late_drop_when_infeasible_has_its_own_timer() -> None:
    assert outcome_of_a_hopeless_head(Late.DROP_WHEN_INFEASIBLE) == ([Outcome.DROPPED_INFEASIBLE], 0)
    made = dispatcher(lane(late=Late.DROP_WHEN_INFEASIBLE))
    made.submit(0, 0, 1000)
    made.submit(1, 0, 60)
    assert made.wake_at_ns() == 31  # the first moment at which it cannot make it


def test_late_refuse_answers_at_the_door_and_keeps_what_it_admitted() -> None:
    made = dispatcher(lane(late=Late.REFUSE))
    made.submit(0, 0, 1000)
    made.decisions()
    made.submit(1, 0, 59)  # the worker is free at 30, and l(1) is 30
    assert [drop.reason for drop in drops(made)] == [Outcome.DROPPED_INFEASIBLE]
    made.submit(2, 0, 60)
    made.advance(55)
    made.finished(55, 0)
    assert len(runs(made)) == 1


def test_batch_aware_pruning_gives_up_the_head_for_the_batch() -> None:
    for floors, batch, given_up in (((), 1, 0), ((0.0,) * 4, 4, 1)):
        made = dispatcher(
            lane(order=Order.EARLIEST_DEADLINE, late=Late.DROP_WHEN_INFEASIBLE, floor_rates=floors), workers=1
        )
        made.submit(0, 0, 1000)
        made.submit(1, 0, 65)  # at 30 there is time for it alone, not for five
        for _ in range(4):
            made.submit(2, 0, 900)
        made.decisions()
        made.finished(30, 0)
        decided = made.decisions()
        assert [len(d.tickets) for d in decided if isinstance(d, Run)] == [batch]
        assert [d.reason for d in decided if isinstance(d, Drop)] == [Outcome.DROPPED_OVERLOAD] * given_up


def test_a_batch_is_pruned_to_what_ends_in_time_together() -> None:
    made = dispatcher(lane(order=Order.EARLIEST_DEADLINE, late=Late.DROP_WHEN_INFEASIBLE))
    made.submit(0, 0, 1000)
    for deadline in (500, 80, 300, 400):
        made.submit(1, 0, deadline)
    made.decisions()
    made.finished(30, 0)  # until 80: l(3) = 50
    assert [len(run.tickets) for run in runs(made)] == [3]


# worker choice, lane choice


@pytest.mark.parametrize(
    ("choice", "order", "expected"),
    [
        (WorkerChoice.EARLIEST_FREE, (0, 1, 2), 1),
        (WorkerChoice.LOWEST_INDEX, (2, 1, 0), 0),
        (WorkerChoice.PREFERENCE, (2, 1, 0), 2),
    ],
)
def test_worker_choice(choice: WorkerChoice, order: tuple[int, ...], expected: int) -> None:
    made = dispatcher(lane(workers=order, worker_choice=choice, release=Eager(max_batch=1)), workers=3)
    for _ in range(3):
        made.submit(0, 0, 1000)
    made.decisions()
    for now, worker in ((30, 1), (40, 0), (50, 2)):  # worker 1 is idle longest
        made.finished(now, worker)
    made.submit(60, 0, 1000)
    assert [run.worker for run in runs(made)] == [expected]


@pytest.mark.parametrize(
    ("choice", "expected"), [(LaneChoice.EARLIEST_START, [1, 1]), (LaneChoice.ROUND_ROBIN, [1, 0])]
)
def test_lane_choice(choice: LaneChoice, expected: list[int]) -> None:
    lanes = (lane("a", release=Eager(max_batch=1)), lane("b", release=Eager(max_batch=1), select=Fixed(2)))
    made = dispatcher(*lanes, lane_choice=choice)
    made.submit(0, 0, 9000)
    for application, deadline in ((0, 5000), (1, 2000), (1, 3000)):
        made.submit(1, application, deadline)
    made.decisions()
    started = []
    for now in (100, 200):
        made.finished(now, 0)
        started += [0 if run.variant < 2 else 1 for run in runs(made)]
    assert started == expected


# capacity, cap, cancel, workers, memory, adoption


def test_capacity_turns_the_next_one_away() -> None:
    made = dispatcher(lane(capacity=3))
    for number in range(4):  # one runs, two wait
        made.submit(number, 0, 1000)
    assert [drop.reason for drop in drops(made)] == [Outcome.DROPPED_OVERLOAD]


def test_adaptive_cap_grows_by_steps_and_backs_off() -> None:
    made = dispatcher(lane(adaptive_cap=AdaptiveCap(target_ns=45, step=1, backoff=0.5)))
    for _ in range(30):
        made.submit(0, 0, 10**6)
    sizes = []
    for _ in range(6):
        batch = runs(made)[-1]
        sizes.append(len(batch.tickets))
        made.finished(batch.expected_ns, 0)
    assert sizes == [1, 2, 3, 1, 2, 3]  # l(3) = 50 is beyond the target


def test_cancel_waiting_running_and_ended() -> None:
    made = dispatcher(lane())
    running, waiting = made.submit(0, 0, 1000), made.submit(0, 0, 1000)
    made.decisions()
    assert made.cancel(1, waiting)
    assert made.cancel(2, running)
    assert not made.cancel(3, running)
    assert [drop.reason for drop in drops(made)] == [Outcome.DROPPED_CANCELLED] * 2
    made.finished(30, 0)
    reading = made.telemetry(30)
    assert (reading.waiting, reading.running) == (0, 0)
    assert reading.outcomes.sum() == 2
    again = made.submit(40, 0, 1000)
    assert again != running
    assert not made.cancel(41, running)


def test_a_lost_worker_gives_its_queries_back_while_they_can_make_it() -> None:
    made = dispatcher(lane(workers=(0, 1), late=Late.DROP_WHEN_INFEASIBLE), workers=2)
    hopeful, hopeless = made.submit(0, 0, 1000), made.submit(0, 0, 40)
    made.decisions()
    made.worker_left(15, 1)
    made.worker_left(20, 0)
    assert [(drop.ticket, drop.reason) for drop in drops(made)] == [(hopeless, Outcome.FAILED)]
    made.worker_joined(30, 1)
    assert [(run.worker, run.tickets) for run in runs(made)] == [(1, (hopeful,))]


def test_a_lost_query_of_a_keeping_lane_fails() -> None:
    made = dispatcher(lane())
    made.submit(0, 0, 40)
    made.decisions()
    made.worker_left(20, 0)
    assert [drop.reason for drop in drops(made)] == [Outcome.FAILED]


def test_a_variant_is_swapped_in_where_memory_is_short() -> None:
    tight = deployment(memory_bytes=100, resident=("app-0/slow",))
    made = Dispatcher(tight, by_application((lane(select=Fixed(FAST)),)))
    made.submit(0, 0, 1000)
    decided = made.decisions()
    assert [type(decision) for decision in decided] == [Unload, Load, Run]
    run = decided[-1]
    assert isinstance(run, Run)
    assert run.start_ns == 50  # after the load
    made.finished(run.expected_ns, 0)
    made.submit(100, 0, 1000)
    assert [type(decision) for decision in made.decisions()] == [Run]  # it is there now


def test_adoption_moves_the_waiting_and_leaves_the_running() -> None:
    made = dispatcher(lane("old"))
    for number in range(3):
        made.submit(number, 0, 1000)
    made.decisions()
    made.adopt(10, by_application((lane("new", select=Fixed(FAST)),)))
    reading = made.telemetry(10)
    assert (reading.waiting, reading.running) == (2, 1)
    made.finished(30, 0)
    assert [(run.variant, len(run.tickets)) for run in runs(made)] == [(FAST, 2)]


def test_adoption_keeps_the_rate_of_a_lane_of_the_same_name() -> None:
    made = dispatcher(lane("same"))
    for number in range(1000):
        made.submit(number * 1_000_000, 0, 10**12)
    before = made.telemetry(10**9).lane_rates[0]
    made.adopt(10**9, by_application((lane("same", select=Fixed(FAST)),)))
    assert before == pytest.approx(1000, rel=0.01)
    assert made.telemetry(10**9).lane_rates[0] == pytest.approx(before, rel=0.01)
    made.adopt(10**9, by_application((lane("other"),)))
    assert made.telemetry(10**9).lane_rates[0] == 0


def test_correction_follows_what_batches_took() -> None:
    made = Dispatcher(deployment(), by_application((lane(),)), correction=0.05)
    now = 0
    for _ in range(400):
        made.submit(now, 0, 10**9)
        now += 60  # twice the profiled 30
        made.finished(now, 0)
    assert made.telemetry(now).latency_ratio[SLOW, 0] == pytest.approx(2, rel=0.1)
    made.submit(now, 0, 10**9)
    assert runs(made)[-1].expected_ns - now == pytest.approx(60, rel=0.1)
