"""The dispatcher's memory: one STATE record with counters and the addresses of the arrays beside it.

A compiled function takes the STATE record `s` (one pointer) and opens the arrays it needs: `lanes(s)[i].length`. So a
call from Python passes one array, whatever the size of the state, and calls between rules pass one word. The arrays
are owned by `layout.Memory`, which keeps them alive and writes their addresses here.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from stretto.core.compiled import compiled
from stretto.core.outcome import OUTCOME_COUNT
from stretto.core.plan import CELL
from stretto.dispatch.arrays import array_in, array_of

NEVER = 2**62  # a time that does not come
LEVELS = 5  # of the skip lists in queue.py
RATE_BUCKETS = 8  # parts of the window over which λ is counted
IN_FLIGHT = 2  # batches a worker holds: one running, one committed to follow it

_ARRAYS = (
    "queries",
    "links",
    "ends",
    "lanes",
    "lane_kinds",
    "lane_workers",
    "members",
    "meters",
    "rate_counts",
    "workers",
    "worker_lanes",
    "idle",
    "batches",
    "rows",
    "latency",
    "profiled",
    "resident",
    "routes",
    "route_lanes",
    "route_targets",
    "alias",
    "dealt",
    "choices",
    "tables",
    "floors",
    "works",
    "work_tickets",
    "heap",
    "heap_place",
    "heap_key",
    "decisions",
    "decided",
    "outcomes",
    "submitted",
)

STATE = np.dtype(
    [(f"{name}_at", "u8") for name in _ARRAYS]
    + [(f"{name}_count", "i8") for name in _ARRAYS]
    + [
        ("now_ns", "i8"),
        ("wake_ns", "i8"),
        ("free_slot", "i8"),  # head of the list of free query slots
        ("free_slots", "i8"),
        ("sequence", "i8"),  # queries ever submitted; orders equal keys
        ("waiting", "i8"),
        ("running", "i8"),
        ("decision_count", "i8"),
        ("tickets_named", "i8"),  # in `decided`
        ("random", "u8"),  # of the weighted routes
        ("applications", "i8"),
        ("kinds", "i8"),
        ("variants", "i8"),
        ("latency_stride", "i8"),
        ("member_words", "i8"),
        ("lane_choice", "i8"),
        ("rate_bucket_ns", "i8"),
        ("counts_lanes", "i8"),  # arrivals are counted by lane as well, for rules and readers of a lane's λ
        ("beside", "i8"),  # what the plan wants in memory is loaded beside the work
        ("correction", "f8"),  # step of the latency correction; 0: off
        ("correction_quantile", "f8"),  # which quantile of measured latency it follows; 0: the mean
        ("correction_step", "f8"),  # the step under the plan in force
        ("worth_writing", "f8"),  # how far it must have moved before the latencies in use follow
    ],
    align=True,
)


class Status(IntEnum):
    """Of a query slot."""

    FREE = 0
    WAITING = 1
    RUNNING = 2
    GONE = 3  # cancelled while running; its slot is freed when the batch ends


QUERY = np.dtype(
    [
        ("deadline_ns", "i8"),
        ("arrival_ns", "i8"),
        ("key", "i8"),  # the lane's order, smallest first
        ("sequence", "i8"),
        ("tag", "i8"),  # the driver's own number
        ("application", "i8"),
        ("lane", "i8"),
        ("client", "i8"),
        ("query_class", "i8"),
        ("priority", "i8"),
        ("demand", "i8"),  # which of its route's demand lanes it must go to; -1: none
        ("generation", "i8"),  # tells a reused slot from the ticket of its last query
        ("next", "i8"),  # in the batch, or in the free list
        ("work", "i8"),  # the worklist entry that holds it
        ("status", "i1"),
        ("height", "i1"),  # in the skip lists
        ("was_lost", "i1"),  # the worker that had it is gone: if it cannot be tried again in time, it failed
    ],
    align=True,
)

LANE = np.dtype(
    [
        # rules, from the plan
        ("order", "i8"),
        ("select", "i8"),
        ("margin_ns", "i8"),  # of strategies: batches end so much before their deadline
        ("release", "i8"),
        ("late", "i8"),
        ("worker_choice", "i8"),
        ("missing", "i8"),
        ("when_gathered", "i8"),
        ("staggers", "i8"),
        ("capacity", "i8"),
        ("counts_running", "i8"),  # towards its capacity
        ("min_batch", "i8"),
        ("max_batch", "i8"),
        ("sizes", "i8"),  # that its batches may have, a bit each; 0: any
        ("timeout_ns", "i8"),
        ("control_ns", "i8"),
        ("data_ns", "i8"),
        ("ahead_ns", "i8"),
        ("timer_ns", "i8"),
        ("choice_first", "i8"),  # variants of the select rule, in `choices`
        ("choice_count", "i8"),
        ("floor_first", "i8"),
        ("floor_count", "i8"),
        ("kind_first", "i8"),  # kinds of its workers, in `lane_kinds`
        ("kind_count", "i8"),
        ("worker_first", "i8"),  # its workers in the order of the plan, in `lane_workers`
        ("worker_count", "i8"),
        ("work_first", "i8"),
        ("work_count", "i8"),
        ("alive", "i8"),  # workers that serve it and are there
        ("fastest_ns", "i8"),  # l(1) of its fastest variant on its fastest kind
        ("fastest_row", "i8"),  # that variant and kind; -1 where a worklist names none
        ("cap_target_ns", "i8"),  # adaptive cap; 0: off
        ("cap_step", "f8"),
        ("cap_backoff", "f8"),
        ("crowd_rate", "f8"),  # queries/ns; 0: no choice leans on what the workers run
        ("crowd_usual", "f8"),
        ("crowd_lean", "f8"),
        ("crowded", "f8"),
        ("crowd_width", "f8"),
        ("crowd_heads", "i8"),
        # state
        ("cap", "f8"),
        ("length", "i8"),
        ("filled_ns", "i8"),  # when the first came after nobody waited
        ("running", "i8"),  # queries in batches that were formed here
        ("head_ns", "i8"),  # the earliest deadline waiting
        ("release_ns", "i8"),  # when its candidate may start; ≤ now: it waits for a worker
        ("later_ns", "i8"),  # when it may start on a further kind of worker
        ("rank_ns", "i8"),  # when its candidate must start; the smallest goes first
    ],
    align=True,
)

# Arrivals over the rate window: one entry per application, then one per lane. Its buckets stand in `rate_counts`.
METER = np.dtype(
    [
        ("first_ns", "i8"),  # start of counting; -1: nothing came yet
        ("edge_ns", "i8"),  # end of the bucket in use
        ("bucket", "i8"),
        ("total", "i8"),
        ("rate", "f8"),  # λ, queries per nanosecond
        ("pairs", "f8"),  # of neighbouring buckets with arrivals, older ones for less
        ("spread", "f8"),  # sum over them of (difference)²/sum: the dispersion of counts times `pairs`
    ],
    align=True,
)

# One entry per lane and kind of worker that serves it: what the lane's candidate would be there.
LANE_KIND = np.dtype([("kind", "i8"), ("variant", "i8"), ("size", "i8"), ("released", "i8")], align=True)

WORKER = np.dtype(
    [
        ("kind", "i8"),
        ("alive", "i8"),
        ("depth", "i8"),  # batches in flight
        ("front", "i8"),  # which of its two batch records runs
        ("lane_first", "i8"),
        ("lane_count", "i8"),
        ("lane_cursor", "i8"),  # round robin over its lanes
        ("loads_wanted", "i8"),  # variants that the placement asks for and that are not yet loaded
        ("arriving", "i8"),  # the variant that is loaded beside its work; -1: none
        ("free_ns", "i8"),  # when everything given to it is expected to be done
        ("memory_bytes", "i8"),
        ("busy_ns", "i8"),
    ],
    align=True,
)

BATCH = np.dtype(
    [
        ("first", "i8"),
        ("count", "i8"),
        ("lane", "i8"),
        ("variant", "i8"),
        ("start_ns", "i8"),
        ("load_ns", "i8"),
        ("expected_ns", "i8"),  # when it should end
    ],
    align=True,
)

# One row per (variant, kind): row = variant · kinds + kind.
ROW = np.dtype(
    [
        ("max_batch", "i8"),  # 0: cannot run there
        ("application", "i8"),
        ("beta_ns", "f8"),
        ("load_ns", "i8"),
        ("memory_bytes", "i8"),
        ("dynamic_bytes", "i8"),
        ("accuracy", "f8"),
        ("ratio", "f8"),  # measured over profiled latency
        ("written", "f8"),  # the ratio that the latency table in use was written with
        ("planned", "f8"),  # the ratio that the plan came with last; 0: none
        ("runs", "i8"),  # batches that it was measured from
    ],
    align=True,
)

# One entry per (worker, variant).
RESIDENT = np.dtype(
    [
        ("used_ns", "i8"),  # when a batch of it was last started or waited for it; -1: never
        ("rank", "i4"),  # among those that the plan prefetches, from 1; 0: it does not
        ("loaded", "i1"),
        ("wanted", "i1"),  # by the placement
        ("arriving", "i1"),  # it is being loaded beside the work: it takes memory, and cannot run yet
    ],
    align=True,
)

ROUTE = np.dtype(
    [
        ("rule", "i8"),
        ("first", "i8"),
        ("count", "i8"),
        ("target_first", "i8"),
        ("target_count", "i8"),
        ("demand_first", "i8"),  # lanes by demand, in `route_targets`
        ("demand_count", "i8"),
        ("cursor", "i8"),
        ("dealt_first", "i8"),  # in `dealt`: the lanes' shares, and then what each front end owes every lane
        ("front_ends", "i8"),
    ],
    align=True,
)
ALIAS = np.dtype([("keep", "f8"), ("other", "i8")], align=True)  # Walker's alias table, one entry per route lane
CHOICE = np.dtype([("rate", "f8"), ("variant", "i8")], align=True)
# By lane and kind. Cells and edges are those of the plan's Table, read in place; `layout.Memory` keeps them alive.
TABLE = np.dtype(
    [
        ("cells_at", "u8"),
        ("queued", "i8"),
        ("slacks", "i8"),
        ("step_ns", "i8"),
        ("edges_at", "u8"),
        ("edges_count", "i8"),  # 0: columns of `step_ns`
    ],
    align=True,
)
WORK = np.dtype(
    [("worker", "i8"), ("variant", "i8"), ("ticket_first", "i8"), ("ticket_count", "i8"), ("done", "i8")], align=True
)


class DecisionKind(IntEnum):
    """What the driver is told to do."""

    RUN = 0
    DROP = 1
    LOAD = 2
    UNLOAD = 3
    ANSWER = 4  # from its evidence, at once


DECISION = np.dtype(
    [
        ("kind", "i8"),
        ("worker", "i8"),
        ("variant", "i8"),
        ("reason", "i8"),  # Outcome of a drop or an answer
        ("first", "i8"),  # its tickets in `decided`
        ("count", "i8"),
        ("alone", "i8"),  # a load that no batch waits for
        ("beside", "i8"),  # a load that does not take the worker
        ("start_ns", "i8"),
        ("expected_ns", "i8"),  # when the batch should end
        ("tag", "i8"),  # of a dropped or answered query
        ("arrival_ns", "i8"),
        ("deadline_ns", "i8"),
        ("application", "i8"),
        ("query_class", "i8"),
    ],
    align=True,
)

DTYPES: dict[str, np.dtype[Any]] = {
    "queries": QUERY,
    "links": np.dtype("i8"),  # [slot, list, level]
    "ends": np.dtype("i8"),  # [lane, list, head or tail, level]
    "lanes": LANE,
    "lane_kinds": LANE_KIND,
    "lane_workers": np.dtype("i8"),
    "members": np.dtype("u8"),  # bit per worker, by lane
    "meters": METER,
    "rate_counts": np.dtype("i8"),  # [meter, bucket]
    "workers": WORKER,
    "worker_lanes": np.dtype("i8"),
    "idle": np.dtype("u8"),  # bit per worker
    "batches": BATCH,
    "rows": ROW,
    "latency": np.dtype("i8"),
    "profiled": np.dtype("i8"),
    "resident": RESIDENT,
    "routes": ROUTE,
    "route_lanes": np.dtype("i8"),
    "route_targets": np.dtype("i8"),
    "alias": ALIAS,
    "dealt": np.dtype("f8"),
    "choices": CHOICE,
    "tables": TABLE,
    "floors": np.dtype("f8"),
    "works": WORK,
    "work_tickets": np.dtype("i8"),
    "heap": np.dtype("i8"),
    "heap_place": np.dtype("i8"),
    "heap_key": np.dtype("i8"),
    "decisions": DECISION,
    "decided": np.dtype("i8"),
    "outcomes": np.dtype("i8"),  # [application, outcome]
    "submitted": np.dtype("i8"),
}

OUTCOMES = OUTCOME_COUNT

# What a compiled function opens: `lanes(s)[i].length`.
queries = array_in("queries", QUERY)
lanes = array_in("lanes", LANE)
lane_kinds = array_in("lane_kinds", LANE_KIND)
meters = array_in("meters", METER)
workers = array_in("workers", WORKER)
batches = array_in("batches", BATCH)
rows = array_in("rows", ROW)
resident = array_in("resident", RESIDENT)
routes = array_in("routes", ROUTE)
alias = array_in("alias", ALIAS)
choices = array_in("choices", CHOICE)
tables = array_in("tables", TABLE)
cells_at = array_of(CELL)
works = array_in("works", WORK)
decisions = array_in("decisions", DECISION)
int64s = array_of(np.int64)
uint64s = array_of(np.uint64)
float64s = array_of(np.float64)
as_int64: Any = np.int64  # one integer type everywhere, so that each rule is compiled once; to mypy it is no int


@compiled
def cells(table: Any) -> Any:
    """The cells of a table, where its maker laid them out."""
    return cells_at(table.cells_at, table.queued * table.slacks)
