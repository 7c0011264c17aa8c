"""Slots, tickets, decisions and the counts: every query ends here, once."""

from __future__ import annotations

from typing import Any

from stretto.core.compiled import compiled
from stretto.core.outcome import Outcome
from stretto.dispatch.queue import NONE, dequeue
from stretto.dispatch.records import OUTCOMES, DecisionKind, Status, decisions, int64s, queries


@compiled
def ticket_of(s: Any, slot: int) -> int:
    """Slot and generation in one number, so that the ticket of an ended query is never mistaken for a live one."""
    return (queries(s)[slot].generation << 32) | slot


@compiled
def slot_of(s: Any, ticket: int) -> int:
    """The slot of a live ticket, or -1."""
    slot = ticket & 0xFFFFFFFF
    if ticket < 0 or slot >= s.queries_count:
        return NONE
    query = queries(s)[slot]
    return slot if query.status != Status.FREE and query.generation == ticket >> 32 else NONE


@compiled
def take_slot(s: Any) -> int:
    slot = s.free_slot
    query = queries(s)[slot]
    s.free_slot = query.next
    s.free_slots -= 1
    query.generation = (query.generation + 1) & 0x7FFFFFFF
    query.next = NONE
    return slot


@compiled
def free_slot(s: Any, slot: int) -> None:
    query = queries(s)[slot]
    query.status = Status.FREE
    query.next = s.free_slot
    s.free_slot = slot
    s.free_slots += 1


@compiled
def count_outcome(s: Any, application: int, outcome: int) -> None:
    int64s(s.outcomes_at, s.outcomes_count)[application * OUTCOMES + outcome] += 1


@compiled
def decide(s: Any, kind: int, worker: int, variant: int) -> Any:
    """A new decision record; the caller fills in the rest."""
    decision = decisions(s)[s.decision_count]
    s.decision_count += 1
    decision.kind = kind
    decision.worker = worker
    decision.variant = variant
    decision.reason = 0
    decision.first = s.tickets_named
    decision.count = 0
    decision.alone = 0
    decision.beside = 0
    decision.tag = NONE
    return decision


@compiled
def name_ticket(s: Any, decision: Any, slot: int) -> None:
    int64s(s.decided_at, s.decided_count)[s.tickets_named] = ticket_of(s, slot)
    s.tickets_named += 1
    decision.count += 1


@compiled
def announce(s: Any, kind: int, slot: int, outcome: int) -> None:
    """Tell the driver that a query ends without a batch, and count its outcome."""
    query = queries(s)[slot]
    decision = decide(s, kind, NONE, NONE)
    decision.reason = outcome
    decision.tag = query.tag
    decision.arrival_ns = query.arrival_ns
    decision.deadline_ns = query.deadline_ns
    decision.application = query.application
    decision.query_class = query.query_class
    name_ticket(s, decision, slot)
    count_outcome(s, query.application, outcome)


@compiled
def announce_drop(s: Any, slot: int, reason: int) -> None:
    """A query that was lost with its worker, and has no time left for that, failed: it did not come too late."""
    is_late = reason == Outcome.DROPPED_INFEASIBLE.value or reason == Outcome.DROPPED_EXPIRED.value
    if is_late and queries(s)[slot].was_lost:
        reason = Outcome.FAILED.value
    announce(s, DecisionKind.DROP.value, slot, reason)


@compiled
def answer_now(s: Any, slot: int, now_ns: int) -> None:
    """A query that is in no lane is answered by its evidence."""
    on_time = now_ns <= queries(s)[slot].deadline_ns
    announce(s, DecisionKind.ANSWER.value, slot, Outcome.ON_TIME.value if on_time else Outcome.LATE.value)
    free_slot(s, slot)


@compiled
def drop_waiting(s: Any, slot: int, reason: int) -> None:
    """A waiting query leaves its lane without an answer."""
    announce_drop(s, slot, reason)
    dequeue(s, queries(s)[slot].lane, slot)
    free_slot(s, slot)


@compiled
def lateness_reason(deadline_ns: int, now_ns: int) -> int:
    """Why a query that cannot make it is given up."""
    return Outcome.DROPPED_EXPIRED.value if deadline_ns < now_ns else Outcome.DROPPED_INFEASIBLE.value
