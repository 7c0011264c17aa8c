"""What a new plan takes over from the one before: the queries that wait, their lanes, rates and adaptive caps.

Everything here works on whole arrays, so that a new plan costs about the same whether ten queries wait or thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import PlanError
from stretto.core.plan import Fixed, Lane, Plan, RouteRule, Table, Tables, Worklist
from stretto.dispatch.layout import Memory
from stretto.dispatch.queue import NONE, collect_waiting
from stretto.dispatch.records import RATE_BUCKETS, Status

# Routes that know no right lane for a query.
DEALING = (RouteRule.ROUND_ROBIN, RouteRule.SHORTEST, RouteRule.WEIGHTED, RouteRule.DEALT)
MOST_SPREAD = 8  # sorting is quicker where fewer than one in so many queries of a span of numbers still waits

Numbers = NDArray[np.int64]


def differs_in_tables_alone(before: Plan, after: Plan) -> bool:
    """And in the floors and doors that go with tables. So it is with most plans that follow a load."""
    if len(before.lanes) != len(after.lanes) or replace(after, lanes=before.lanes) != before:
        return False
    return all(map(_has_other_tables, before.lanes, after.lanes))


def _has_other_tables(before: Lane, after: Lane) -> bool:
    """Or the very same choice; nothing else is another."""
    chooses_alike = isinstance(before.select, Table | Tables) and isinstance(after.select, Table | Tables)
    release = replace(after.release, floor_rates=before.release.floor_rates)
    like = replace(after, select=before.select, capacity=before.capacity, release=release)
    return like == before and (chooses_alike or after.select == before.select)


def slots_by_lane(memory: Memory) -> Numbers:
    """The slots of the queries in lanes, lane by lane, as they stand there."""
    slots = np.empty(int(memory.state["waiting"][0]), dtype=np.int64)
    collect_waiting(memory.state, slots)
    return slots


def oldest_first(memory: Memory, slots: Numbers) -> Numbers:
    """The slots in the order in which their queries came."""
    sequence = memory["queries"]["sequence"][slots]
    first, last = (int(sequence.min()), int(sequence.max())) if len(slots) else (0, 0)
    if last - first >= MOST_SPREAD * len(slots):
        return slots[np.argsort(sequence)]
    by_age = np.full(last - first + 1, NONE)  # numbers are nearly dense, so that each slot can be put in its place
    by_age[sequence - first] = slots
    return by_age[by_age != NONE]


def slots_of(memory: Memory, tickets: Numbers) -> Numbers:
    """For each ticket the slot of its query, or -1 where that does not wait any more."""
    queries = memory["queries"]
    slots = tickets & 0xFFFFFFFF
    is_waiting = (tickets >= 0) & (slots < len(queries))
    slots = np.where(is_waiting, slots, 0)
    is_waiting &= (queries["generation"][slots] == tickets >> 32) & (queries["status"][slots] == Status.WAITING)
    return np.where(is_waiting, slots, NONE)


@dataclass(frozen=True)
class NamedQueries:
    """The queries that the worklists of a plan name: in works (counted through all lanes), and to be answered."""

    slots: Numbers  # one entry for every ticket of every work; -1: that query does not wait any more
    work: Numbers  # the number of the work that the entry belongs to
    answered: Numbers  # slots of those that end with their evidence as the answer, each once

    @staticmethod
    def of(memory: Memory, plan: Plan) -> NamedQueries:
        """As the plan names them and the memory knows them."""
        worklists = [lane.select for lane in plan.lanes if isinstance(lane.select, Worklist)]
        if not worklists:
            nobody = np.empty(0, dtype=np.int64)
            return NamedQueries(nobody, nobody, nobody)
        works = [work for worklist in worklists for work in worklist.works]
        tickets = np.fromiter(chain.from_iterable(work.tickets for work in works), dtype=np.int64)
        answers = np.fromiter(chain.from_iterable(worklist.answers for worklist in worklists), dtype=np.int64)
        sizes = np.fromiter((len(work.tickets) for work in works), dtype=np.int64)
        answered = slots_of(memory, answers)
        numbers = np.repeat(np.arange(len(works)), sizes)
        return NamedQueries(slots_of(memory, tickets), numbers, np.unique(answered[answered != NONE]))


def check_works(memory: Memory, deployment: Deployment, plan: Plan) -> None:
    """Refuses a pre-formed batch that would answer a query with another application's variant."""
    works = [(lane, work) for lane in plan.lanes if isinstance(lane.select, Worklist) for work in lane.select.works]
    if not works:
        return
    named = NamedQueries.of(memory, plan)
    of_query = memory["queries"]["application"][named.slots]
    of_work = np.array([deployment.application_of[work.variant] for _, work in works])[named.work]
    wrong = np.flatnonzero((named.slots != NONE) & (of_query != of_work))
    if len(wrong):
        lane, work = works[named.work[wrong[0]]]
        name = deployment.applications[int(of_query[wrong[0]])].name
        raise PlanError(
            f"lane {lane.name} puts a query of {name} into a batch of {deployment.variant_label(work.variant)}"
        )


def staying_lanes(memory: Memory, slots: Numbers, before: Plan, after: Plan) -> Numbers:
    """For each waiting query the lane of the new plan that has the name of its lane, where its route still leads
    there by turns or by chance; -1 where it must be routed anew. Dealing all of them out again would mix queues.
    """
    queries, count = memory["queries"], len(after.lanes)
    numbers = {lane.name: number for number, lane in enumerate(after.lanes)}
    by_lane = np.array([numbers.get(lane.name, NONE) for lane in before.lanes], dtype=np.int64)
    # One number for an application and a lane that its route deals out to.
    doors = [
        application * count + number
        for application, route in enumerate(after.routes)
        if route.rule in DEALING
        for number in route.lanes
    ]
    if not doors:
        return np.full(len(slots), NONE)
    lane = by_lane[queries["lane"][slots]]
    may_stay = (lane != NONE) & (queries["demand"][slots] < 0)
    may_stay &= np.isin(queries["application"][slots] * count + lane, np.array(doors, dtype=np.int64))
    return np.where(may_stay, lane, NONE)


def mark_works(memory: Memory, slots: Numbers, named: NamedQueries) -> None:
    """Write into each waiting query which work holds it; a query named twice belongs to the last."""
    work = memory["queries"]["work"]
    work[slots] = NONE
    is_waiting = named.slots != NONE
    work[named.slots[is_waiting]] = named.work[is_waiting]


def _runs_on(before: Lane, after: Lane) -> bool:
    """Both run one variant, the same."""
    return isinstance(after.select, Fixed) and before.select == after.select


def carry_over(memory: Memory, arrays: dict[str, NDArray[Any]], before: Plan, after: Plan) -> None:
    """Rates go on where the window is the same, of applications and of lanes that keep their name; so do caps, and
    what runs counts in the lane that it came from, where that runs the same variant alone.

    `arrays` are those of the plan before.
    """
    first = int(memory.state["applications"][0])
    numbers = {lane.name: number for number, lane in enumerate(before.lanes)}
    pairs = [(numbers[lane.name], number) for number, lane in enumerate(after.lanes) if lane.name in numbers]
    source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    lanes = memory["lanes"]
    capped = (arrays["lanes"]["cap_target_ns"][source] > 0) & (lanes["cap_target_ns"][target] > 0)
    lanes["cap"][target[capped]] = arrays["lanes"]["cap"][source[capped]]
    go_on = np.array([_runs_on(before.lanes[old], after.lanes[new]) for old, new in pairs], dtype=bool)
    lanes["running"][target[go_on]] = arrays["lanes"]["running"][source[go_on]]
    now_at = np.full(len(before.lanes) + 1, NONE)  # the last one is for batches of no lane
    now_at[source[go_on]] = target[go_on]
    memory["batches"]["lane"] = now_at[memory["batches"]["lane"]]
    if before.rate_window_ns != after.rate_window_ns:
        return
    source = np.concatenate([np.arange(first), first + source])
    target = np.concatenate([np.arange(first), first + target])
    memory["meters"][target] = arrays["meters"][source]
    counts = memory["rate_counts"].reshape(-1, RATE_BUCKETS)
    counts[target] = arrays["rate_counts"].reshape(-1, RATE_BUCKETS)[source]
