"""The compiled event loop: arrivals, completions and timers under virtual time, into the dispatcher's own functions.

At one instant completions come first, then loads beside the work, then arrivals, then evidence, then timers: a worker
that is free at the moment of a deferred start takes it, and a query that arrives at that moment joins. Each completion
and arrival lets due timers ring, so of several arrivals at that very moment the first one joins and the others come
after the start.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any

import numpy as np

from stretto.core.compiled import compiled
from stretto.core.lateness import kept_share
from stretto.core.outcome import Outcome
from stretto.core.profile import Quantile
from stretto.dispatch.arrays import array_in
from stretto.dispatch.events import advance, classified, finished, loaded, submit
from stretto.dispatch.heap import move_key
from stretto.dispatch.queue import NONE
from stretto.dispatch.records import (
    IN_FLIGHT,
    NEVER,
    OUTCOMES,
    DecisionKind,
    Status,
    as_int64,
    batches,
    decisions,
    float64s,
    int64s,
    queries,
    workers,
)
from stretto.sim.arrivals import ARRIVAL
from stretto.sim.residuals import BUCKETS as BATCH_BUCKETS
from stretto.sim.service import Draw
from stretto.sim.tally import BUCKETS, TALLIES, bucket_of

QUANTILES = len(Quantile)


class Pause(IntEnum):
    """Why the loop came back."""

    REACHED = 0  # the end of the slice
    ARRIVALS = 1  # all arrivals at hand are in; more are needed before time goes on
    SLOTS = 2  # no query slot is free


# One row per query, where a run records them. Answered without a variant: by its evidence.
RECORD = np.dtype(
    [
        ("arrival_ns", "i8"),
        ("deadline_ns", "i8"),
        ("start_ns", "i8"),
        ("end_ns", "i8"),
        ("application", "i4"),
        ("client", "i4"),
        ("query_class", "i4"),
        ("variant", "i4"),
        ("worker", "i4"),
        ("batch", "i4"),
        ("outcome", "i4"),
        ("priority", "i4"),
    ],
    align=True,
)

# What evidence tells of a query, and when: a row for each arrival, in their order, where evidence takes time.
TELL = np.dtype([("time_ns", "i8"), ("ticket", "i8"), ("query_class", "i8")], align=True)

_ARRAYS = (
    *(
        "arrivals",
        "tells",
        "records",
        "heap",
        "place",
        "finish",
        "took",
        "loads",
        "service",
        "parameters",
        "laws",
        "handoffs",
        "penalties",
    ),
    *TALLIES,
    "class_counts",
)

SIMULATION = np.dtype(
    [(f"{name}_at", "u8") for name in _ARRAYS]
    + [(f"{name}_count", "i8") for name in _ARRAYS]
    + [
        ("now_ns", "i8"),
        ("next_arrival", "i8"),
        ("first_tag", "i8"),  # number of the first arrival at hand
        ("more_arrivals", "i8"),
        ("warmup_ns", "i8"),  # queries that arrive before are served but not counted
        ("recording", "i8"),
        ("classes", "i8"),  # above 0: ends are counted by class and variant, and nothing else is
        ("next_tell", "i8"),
        ("tell_of_first", "i8"),  # row of the first arrival at hand in `tells`
        ("next_load", "i8"),  # the worker whose load beside its work ends first, of those in `loads`; -1: none
        ("draw", "i8"),
        ("base", "i8"),
        ("stride", "i8"),
        ("random", "u8"),
    ],
    align=True,
)

arrivals_of = array_in("arrivals", ARRIVAL)
tells_of = array_in("tells", TELL)
records_of = array_in("records", RECORD)


@compiled
def uniform(m: Any) -> float:
    """In (0, 1): splitmix64."""
    m.random += np.uint64(0x9E3779B97F4A7C15)
    z = m.random
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (np.float64(z >> np.uint64(11)) + 0.5) * (1.0 / 9007199254740992.0)


@compiled
def between_quantiles(m: Any, first: int, size: int) -> float:
    """Inverse of a distribution that is linear between p50, p95 and p99, and as far below p50 as p95 is above it."""
    service = int64s(m.service_at, m.service_count)
    p50 = float(service[first + Quantile.P50 * m.stride + size])
    p95 = max(p50, float(service[first + Quantile.P95 * m.stride + size]))
    p99 = max(p95, float(service[first + Quantile.P99 * m.stride + size]))
    u = uniform(m)
    if u < 0.5:
        least = max(0.5 * p50, 2.0 * p50 - p95)
        return least + (p50 - least) * u / 0.5
    if u < 0.95:
        return p50 + (p95 - p50) * (u - 0.5) / 0.45
    if u < 0.99:
        return p95 + (p99 - p95) * (u - 0.95) / 0.04
    return p99 + (p99 - p95) * (u - 0.99) / 0.04


@compiled
def measured_ratio(m: Any, first: int, count: int) -> float:
    """Inverse of the sorted sample's distribution, linear between its values; its mean is the sample's."""
    ratios = float64s(m.parameters_at, m.parameters_count)
    place = min(max(uniform(m) * count - 0.5, 0.0), float(count - 1))
    below = min(int(place), count - 1)
    above = min(below + 1, count - 1)
    low = ratios[first + below]
    return low + (ratios[first + above] - low) * (place - below)


@compiled
def service_ns(m: Any, row: int, size: int) -> int:
    first = row * QUANTILES * m.stride
    if m.draw == Draw.QUANTILES:
        return max(1, int(between_quantiles(m, first, size)))
    base = int64s(m.service_at, m.service_count)[first + m.base * m.stride + size]
    if m.draw == Draw.NONE:
        return base
    if m.draw == Draw.MEASURED:
        bucket = math.frexp(float(size))[1] - 1  # the whole part of the binary logarithm
        law = 2 * (row * BATCH_BUCKETS + bucket)
        laws = int64s(m.laws_at, m.laws_count)
        if laws[law + 1] == 0:
            return max(1, int(between_quantiles(m, first, size)))
        return max(1, int(base * measured_ratio(m, laws[law], laws[law + 1])))
    parameters = float64s(m.parameters_at, m.parameters_count)
    if m.draw == Draw.LOGNORMAL:
        sigma = parameters[0]
        normal = math.sqrt(-2.0 * math.log(uniform(m))) * math.cos(2.0 * math.pi * uniform(m))
        return max(1, int(base * math.exp(sigma * normal - 0.5 * sigma * sigma)))
    return max(1, int(base * parameters[int(uniform(m) * m.parameters_count)]))


@compiled
def handoff_ns(m: Any) -> int:
    """What the way to an idle worker and back takes beyond the delays that plans reckon with; may be below zero."""
    handoffs = int64s(m.handoffs_at, m.handoffs_count)
    return handoffs[min(int(uniform(m) * m.handoffs_count), m.handoffs_count - 1)]


@compiled
def end_ns(m: Any, s: Any, worker_index: int, was_idle: bool) -> int:
    """When what the worker runs now will end, drawn; NEVER where it runs nothing."""
    worker = workers(s)[worker_index]
    if worker.depth == 0:
        return NEVER
    batch = batches(s)[worker_index * IN_FLIGHT + worker.front]
    if batch.count == 0:
        return batch.expected_ns
    run_ns = service_ns(m, batch.variant * s.kinds + worker.kind, batch.count)
    end = batch.start_ns + run_ns
    if m.handoffs_count > 0:
        int64s(m.took_at, m.took_count)[worker_index] = run_ns
        if was_idle:  # a batch that waits at its worker starts there without asking anybody
            end = max(m.now_ns, end + handoff_ns(m))
    return end


@compiled
def schedule(m: Any, s: Any, worker_index: int) -> None:
    """An idle worker was given a batch to run that has no end yet."""
    finish = int64s(m.finish_at, m.finish_count)
    if finish[worker_index] == NEVER:
        end = end_ns(m, s, worker_index, True)
        move_key(int64s(m.heap_at, m.heap_count), int64s(m.place_at, m.place_count), finish, worker_index, end)


@compiled
def count_by_class(m: Any, s: Any, query_class: int, end: int) -> None:
    """`end` is 2·variant for an answer on time, one more for a late one, and 2·variants for none."""
    int64s(m.class_counts_at, m.class_counts_count)[query_class * (2 * s.variants + 1) + end] += 1


@compiled
def tally_drop(m: Any, s: Any, decision: Any, now_ns: int) -> None:
    if m.classes > 0:
        count_by_class(m, s, decision.query_class, 2 * s.variants)
        return
    if decision.arrival_ns >= m.warmup_ns:
        int64s(m.counts_at, m.counts_count)[decision.application * OUTCOMES + decision.reason] += 1
    if m.recording:
        record = records_of(m)[decision.tag]
        record.end_ns = now_ns
        record.outcome = decision.reason


@compiled
def late_share(m: Any, application: int, now_ns: int, arrival_ns: int, deadline_ns: int) -> float:
    """What a late answer given now is still worth."""
    penalty = int64s(m.penalties_at, m.penalties_count)[application]
    return kept_share(penalty, now_ns, deadline_ns, deadline_ns - arrival_ns)


@compiled
def tally_answer(m: Any, decision: Any, now_ns: int) -> None:
    """A query was answered by its evidence: no variant, no worker, no time."""
    if decision.arrival_ns >= m.warmup_ns:
        application, waited = decision.application, bucket_of(now_ns - decision.arrival_ns)
        int64s(m.counts_at, m.counts_count)[application * OUTCOMES + decision.reason] += 1
        int64s(m.evidence_counts_at, m.evidence_counts_count)[application * 2 + decision.reason] += 1
        if now_ns > decision.deadline_ns:
            kept = late_share(m, application, now_ns, decision.arrival_ns, decision.deadline_ns)
            float64s(m.late_evidence_worth_at, m.late_evidence_worth_count)[application] += kept
        int64s(m.latency_histogram_at, m.latency_histogram_count)[application * BUCKETS + waited] += 1
        int64s(m.queueing_histogram_at, m.queueing_histogram_count)[application * BUCKETS + waited] += 1
    if m.recording:
        record = records_of(m)[decision.tag]
        record.start_ns = record.end_ns = now_ns
        record.outcome = decision.reason


@compiled
def tally_classes(m: Any, s: Any, batch: Any, now_ns: int) -> None:
    """The same by class alone: for many short runs at once, whose histograms nobody reads."""
    slot = batch.first
    while slot != NONE:
        query = queries(s)[slot]
        if query.status == Status.RUNNING:
            count_by_class(m, s, query.query_class, 2 * batch.variant + (now_ns > query.deadline_ns))
        slot = query.next


@compiled
def tally_batch(m: Any, s: Any, worker_index: int, now_ns: int) -> None:
    """Count the answers of the batch that is about to end."""
    worker = workers(s)[worker_index]
    batch = batches(s)[worker_index * IN_FLIGHT + worker.front]
    if batch.count == 0:
        return
    if m.classes > 0:
        tally_classes(m, s, batch, now_ns)
        return
    counts = int64s(m.counts_at, m.counts_count)
    variant_counts = int64s(m.variant_counts_at, m.variant_counts_count)
    latencies = int64s(m.latency_histogram_at, m.latency_histogram_count)
    queueings = int64s(m.queueing_histogram_at, m.queueing_histogram_count)
    if batch.start_ns >= m.warmup_ns:
        sizes = int64s(m.batch_histogram_at, m.batch_histogram_count)
        sizes[batch.variant * m.stride + batch.count] += 1
    start_ns = min(batch.start_ns, now_ns)  # a handoff may be faster than planned
    slot = batch.first
    while slot != NONE:
        query = queries(s)[slot]
        if query.status == Status.RUNNING:
            outcome = 0 if now_ns <= query.deadline_ns else 1  # ON_TIME, LATE
            if query.arrival_ns >= m.warmup_ns:
                counts[query.application * OUTCOMES + outcome] += 1
                variant_counts[batch.variant * 2 + outcome] += 1
                if outcome == 1:
                    kept = late_share(m, query.application, now_ns, query.arrival_ns, query.deadline_ns)
                    float64s(m.late_worth_at, m.late_worth_count)[batch.variant] += kept
                latencies[query.application * BUCKETS + bucket_of(now_ns - query.arrival_ns)] += 1
                queueings[query.application * BUCKETS + bucket_of(start_ns - query.arrival_ns)] += 1
            if m.recording:
                record = records_of(m)[query.tag]
                record.start_ns = start_ns
                record.end_ns = now_ns
                record.variant = batch.variant
                record.worker = worker_index
                record.batch = batch.count
                record.outcome = outcome
        slot = query.next


@compiled
def find_next_load(m: Any) -> None:
    """Of all loads beside the work, the one that ends first."""
    loads = int64s(m.loads_at, m.loads_count)
    m.next_load = NONE
    for worker in range(m.loads_count):
        if loads[worker] < NEVER and (m.next_load == NONE or loads[worker] < loads[m.next_load]):
            m.next_load = worker


@compiled
def end_load(m: Any, state: Any, now_ns: int) -> None:
    worker_index = m.next_load
    int64s(m.loads_at, m.loads_count)[worker_index] = NEVER
    find_next_load(m)
    loaded(state, now_ns, worker_index, workers(state[0])[worker_index].arriving, True)


@compiled
def settle(m: Any, s: Any, now_ns: int) -> None:
    """Carry out what was just decided."""
    for number in range(s.decision_count):
        decision = decisions(s)[number]
        if decision.kind == DecisionKind.DROP:
            tally_drop(m, s, decision, now_ns)
        elif decision.kind == DecisionKind.ANSWER:
            tally_answer(m, decision, now_ns)
        elif decision.kind == DecisionKind.LOAD and decision.beside:
            int64s(m.loads_at, m.loads_count)[decision.worker] = decision.expected_ns
            find_next_load(m)
        elif decision.kind != DecisionKind.UNLOAD:
            schedule(m, s, decision.worker)
    s.decision_count = 0
    s.tickets_named = 0


@compiled
def run_until(simulation: Any, state: Any, until_ns: int) -> int:
    """Let virtual time run to `until_ns` (events at that very moment wait for the next slice)."""
    m = simulation[0]
    s = state[0]
    settle(m, s, m.now_ns)  # what an adoption or a fault decided
    heap = int64s(m.heap_at, m.heap_count)
    place = int64s(m.place_at, m.place_count)
    finish = int64s(m.finish_at, m.finish_count)
    loads = int64s(m.loads_at, m.loads_count)
    arrivals = arrivals_of(m)
    tells = tells_of(m)
    while True:
        if m.next_arrival >= m.arrivals_count and m.more_arrivals:
            return Pause.ARRIVALS.value
        arrival_ns = arrivals[m.next_arrival].time_ns if m.next_arrival < m.arrivals_count else NEVER
        worker_index = heap[0]
        finish_ns = finish[worker_index]
        load_ns = loads[m.next_load] if m.next_load != NONE else NEVER
        tell_ns = tells[m.next_tell].time_ns if m.next_tell < m.tells_count else NEVER
        now_ns = min(arrival_ns, finish_ns, load_ns, tell_ns, s.wake_ns)
        if now_ns >= until_ns:
            if until_ns < NEVER:
                m.now_ns = until_ns
            return Pause.REACHED.value
        m.now_ns = now_ns
        if finish_ns == now_ns:
            tally_batch(m, s, worker_index, now_ns)
            finished(state, now_ns, worker_index, True, int64s(m.took_at, m.took_count)[worker_index])
            move_key(heap, place, finish, worker_index, end_ns(m, s, worker_index, False))
        elif load_ns == now_ns:
            end_load(m, state, now_ns)
        elif arrival_ns == now_ns:
            if s.free_slots == 0:
                return Pause.SLOTS.value
            query = arrivals[m.next_arrival]
            ticket = submit(
                state,
                now_ns,
                as_int64(query.application),  # one type, so that one compiled submit serves sim and live
                query.deadline_ns,
                m.first_tag + m.next_arrival,
                as_int64(query.client),
                as_int64(query.query_class),
                as_int64(query.priority),
                NONE,
                False,
                False,
            )
            if m.tells_count > 0:
                tells[m.tell_of_first + m.next_arrival].ticket = ticket
            m.next_arrival += 1
        elif tell_ns == now_ns:
            tell = tells[m.next_tell]
            m.next_tell += 1
            if tell.query_class != NONE:
                classified(state, now_ns, tell.ticket, tell.query_class)
        else:
            advance(state, now_ns)
        if s.decision_count > 0:
            settle(m, s, now_ns)


assert (Outcome.ON_TIME, Outcome.LATE) == (0, 1)  # the tallies rely on it
