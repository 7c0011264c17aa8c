"""The Plan: what a planner decides and the dispatcher follows. Plain frozen data, one type per option.

    route    by application · round robin · shortest lane · weighted random · by client · by class · dealt
    order    first come · earliest deadline · priority
    select   Fixed · ByLoad · MostAccurate · Table · Strategies · Worklist
    release  Eager · Accumulate · Deferred
    late     keep · drop when dispatched · drop when infeasible · refuse at the door

Besides, a lane says which worker takes a batch and which delays it reckons with, and a worker says which of its lanes
it takes next.
Lanes, applications, workers and variants are named by their number in the deployment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stretto.core.profile import MAX_BATCH_LIMIT, NS_PER_S

CELL = np.dtype([("variant", "i4"), ("batch", "i4")])  # of a Table, as the dispatcher reads it
GIVE_UP = -1  # in place of a cell's batch: the head is dropped, so that those behind it have more time


class RouteRule(IntEnum):
    """query → lane."""

    BY_APPLICATION = 0
    ROUND_ROBIN = 1
    SHORTEST = 2
    WEIGHTED = 3
    BY_CLIENT = 4
    BY_CLASS = 5
    DEALT = 6  # round robin by weights


class Order(IntEnum):
    """Inside a lane. Equal keys keep their order of arrival."""

    FIRST_COME = 0
    EARLIEST_DEADLINE = 1
    PRIORITY = 2  # highest first


class SelectRule(IntEnum):
    """What to run when a worker could take a batch."""

    FIXED = 0
    BY_LOAD = 1
    MOST_ACCURATE = 2
    TABLE = 3
    WORKLIST = 4
    STRATEGIES = 5


class ReleaseRule(IntEnum):
    """When a batch may start."""

    EAGER = 0
    ACCUMULATE = 1
    DEFERRED = 2


class Late(IntEnum):
    """A query that can no longer make it."""

    KEEP = 0
    DROP_WHEN_DISPATCHED = 1
    DROP_WHEN_INFEASIBLE = 2
    REFUSE = 3  # at the door; once admitted it is kept


class WorkerChoice(IntEnum):
    """Which free worker takes a batch."""

    EARLIEST_FREE = 0
    LOWEST_INDEX = 1
    PREFERENCE = 2  # the order in which the lane lists its workers


class Missing(IntEnum):
    """What becomes of a batch whose variant no worker of the lane holds that could take it."""

    LOAD = 0  # it is loaded, where time allows
    WAIT = 1  # it waits for a worker that holds it
    STAND_IN = 2  # until a worker holds it, the variant of the application that the worker ran last answers


class LaneChoice(IntEnum):
    """Which of its startable lanes a worker takes next."""

    EARLIEST_START = 0  # the lane whose head must start soonest
    ROUND_ROBIN = 1


@dataclass(frozen=True)
class Fixed:
    """Always the same variant."""

    variant: int


@dataclass(frozen=True)
class ByLoad:
    """`variants[i]` while the lane's arrival rate is at most `rates[i]` (queries/s, rising); the last beyond that."""

    rates: tuple[float, ...]
    variants: tuple[int, ...]


@dataclass(frozen=True)
class MostAccurate:
    """The first of `variants` (most accurate first) that brings the whole batch in by the head's deadline."""

    variants: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Table:
    """cell[n, slack // slack_step_ns] → variant (-1: wait) and batch (0: all queued; -1: the head is given up). The
    last row and column hold on.

    `kind` is the kind of worker that the table speaks for; None speaks for every kind.
    `edges_ns` makes columns of unequal width: the least slack of every column but the first, rising. The step is not
    read then.

    What a dispatcher needs of a table is prepared when the table is made, by the planner and in its time: `cells` is a
    copy that nobody writes to, which the dispatcher reads in place; adopting a table costs nothing by its size.
    """

    slack_step_ns: int
    variant: NDArray[np.int32]
    batch: NDArray[np.int32]
    kind: str | None = None
    edges_ns: tuple[int, ...] = ()
    cells: NDArray[np.void] = field(init=False, repr=False)  # variant and batch of each cell side by side, row by row
    edges: NDArray[np.int64] = field(init=False, repr=False)  # `edges_ns`, likewise
    variants: tuple[int, ...] = field(init=False, repr=False)  # that its cells name
    has_waits: bool = field(init=False, repr=False)  # some of its cells wait
    fault: str = field(init=False, repr=False)  # why nobody could follow it, as the end of a sentence; else empty

    def __post_init__(self) -> None:
        fault = _fault_of_table(self)
        cells = np.empty(0 if fault else self.variant.size, dtype=CELL)
        variants: tuple[int, ...] = ()
        has_waits = False
        if not fault:
            cells["variant"], cells["batch"] = self.variant.ravel(), self.batch.ravel()
            used = np.flatnonzero(np.bincount(self.variant.ravel() + 1))  # shifted, because -1 waits
            variants = tuple((used[used > 0] - 1).tolist())
            has_waits = bool(used[0] == 0)
        edges = np.array(() if fault else self.edges_ns, dtype=np.int64)
        cells.flags.writeable = edges.flags.writeable = False
        object.__setattr__(self, "cells", cells)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "variants", variants)
        object.__setattr__(self, "has_waits", has_waits)
        object.__setattr__(self, "fault", fault)


def _fault_of_table(table: Table) -> str:
    variant, batch = table.variant, table.batch
    if variant.ndim != 2 or variant.shape != batch.shape or 0 in variant.shape:
        return "needs variant and batch arrays of one shape (queued, slack)"
    if table.slack_step_ns <= 0:
        return "needs a slack step above zero"
    if table.edges_ns and len(table.edges_ns) != variant.shape[1] - 1:
        return f"has {len(table.edges_ns)} edges; {variant.shape[1]} columns have {variant.shape[1] - 1} between them"
    if any(later <= earlier for earlier, later in pairwise((0, *table.edges_ns))):
        return "needs edges that rise from above zero"
    if variant.min() < -1:
        return f"names variant {variant.min()}; -1 waits, others count from 0"
    if variant.max() < 0:
        return "always waits"
    if batch.min() < GIVE_UP or batch.max() > MAX_BATCH_LIMIT:
        return f"has a batch outside {GIVE_UP} … {MAX_BATCH_LIMIT}"
    if (variant[min(1, len(variant) - 1) :, 0] < 0).any():  # row 0 is asked only if there is no other
        return "waits at the smallest slack, so a head could wait for ever"
    return ""


@dataclass(frozen=True)
class Crowd:
    """Choices lean on what the lane's workers still run, beside how many wait.

    What they run is the time until they are free, at `rate` queries/s together. With every query that this is beyond
    `usual`, a table is read as if `lean` fewer waited: workers that have little before them start sooner, with less.
    Its last row, which holds for all longer queues, is read for those alone.
    And when a batch of all that fit starts, up to `heads` of the oldest are given up first: so many that batch − price
    · heads is largest. The price of a head is 1 where `crowded` wait and what runs is usual. It falls by a factor of e
    with every `width` queries more that wait or run.
    """

    rate: float
    usual: float
    lean: float
    crowded: float
    width: float
    heads: int


@dataclass(frozen=True)
class Tables:
    """One table per kind of worker. With a crowd: for the two dropping rules, earliest deadline first."""

    tables: tuple[Table, ...]
    crowd: Crowd | None = None


@dataclass(frozen=True)
class Strategies:
    """One variant, in the batch whose latest start is earliest, whatever its size (Clockwork).

    For each size b there is one strategy: the first query that a batch of b would still answer `margin_ns` before its
    deadline, with the b − 1 behind it. Queries before it are given up. Needs earliest deadline first, and dropping.
    """

    variant: int
    margin_ns: int = 0


@dataclass(frozen=True)
class Work:
    """One pre-formed batch: these queries, on this variant, on this worker."""

    worker: int
    variant: int
    tickets: tuple[int, ...]


@dataclass(frozen=True)
class Worklist:
    """Batches in the order in which each worker takes them. Queries in no batch wait for the next plan.

    `answers` are queries that end at once, without a worker: their evidence is the answer (SneakPeek 5.3.1).
    """

    works: tuple[Work, ...] = ()
    answers: tuple[int, ...] = ()


Select = Fixed | ByLoad | MostAccurate | Table | Tables | Strategies | Worklist


def renumbered(select: Select, numbers: Sequence[int]) -> Select:
    """The same choice where variant v has the number `numbers[v]`."""
    match select:
        case Fixed(variant) | Strategies(variant, _):
            return replace(select, variant=numbers[variant])
        case ByLoad(_, variants) | MostAccurate(variants):
            return replace(select, variants=tuple(numbers[variant] for variant in variants))
        case Table():
            return _renumbered_table(select, numbers)
        case Tables(tables):
            return replace(select, tables=tuple(_renumbered_table(table, numbers) for table in tables))
        case Worklist(works, _):
            return replace(select, works=tuple(replace(work, variant=numbers[work.variant]) for work in works))


def _renumbered_table(table: Table, numbers: Sequence[int]) -> Table:
    variant = np.array([*numbers, -1], dtype=np.int32)[table.variant]  # -1, to wait, stays
    variant.flags.writeable = False
    return replace(table, variant=variant)


@dataclass(frozen=True)
class AdaptiveCap:
    """Batch cap by additive increase and multiplicative decrease: a batch slower than `target_ns` shrinks it."""

    target_ns: int
    step: float = 1.0
    backoff: float = 0.9
    start: float = 1.0


@dataclass(frozen=True)
class Eager:
    """As soon as a worker is free, at most `max_batch` together; `adaptive_cap` lowers that to what proved fast enough.

    `floor_rates` is for the two dropping rules: floor_rates[b-1] is the lane rate (queries/s) from which a batch below
    b is not worth a worker while b could run together; heads that stand in the way are given up.

    With `staggers` a batch below the floor waits for more queries, but at most for one step of a stagger, l(b)/N with N
    workers. Without that, workers that become free together stay in step: the first one takes all that wait, and the
    others start batches of one.
    """

    max_batch: int = 4096
    adaptive_cap: AdaptiveCap | None = None
    floor_rates: tuple[float, ...] = ()
    staggers: bool = False


@dataclass(frozen=True)
class Accumulate:
    """When `min_batch` are gathered, or the head has waited `timeout_ns`. The rest is as for Eager.

    `sizes`: a batch has the largest of these sizes that is gathered; empty: any size.
    """

    min_batch: int
    timeout_ns: int
    max_batch: int = 4096
    adaptive_cap: AdaptiveCap | None = None
    floor_rates: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Deferred:
    """At the latest moment that still lets one more query join (Symphony 4.3, figure 16).

    `when_gathered`: also as soon as more than βλ are gathered, condition (a) of section 4.3. The rest is as for Eager.
    """

    max_batch: int = 4096
    when_gathered: bool = True
    adaptive_cap: AdaptiveCap | None = None
    floor_rates: tuple[float, ...] = ()


Release = Eager | Accumulate | Deferred


@dataclass(frozen=True)
class Delays:
    """What passes around a batch's run, as a scenario states it or a server measured it (Symphony appendix C)."""

    control_ns: int = 0  # d_ctrl: decision to worker
    data_ns: int = 0  # d_data: input transfer per query
    ahead_ns: int = 0  # a busy worker may be given its next batch this long before it is free
    timer_ns: int = 0  # how late a timer may ring: what a timer is to start, it starts so much earlier
    evidence_ns: int = 0  # from a query's arrival until evidence tells its class

    def of_batch_ns(self, batch: int) -> int:
        """Control and data delay of a batch."""
        return self.control_ns + self.data_ns * batch


@dataclass(frozen=True)
class Lane:
    """A queue with its rules and the workers that serve it."""

    name: str
    workers: tuple[int, ...]
    select: Select
    order: Order = Order.EARLIEST_DEADLINE
    release: Release = field(default_factory=Eager)
    late: Late = Late.KEEP
    worker_choice: WorkerChoice = WorkerChoice.EARLIEST_FREE
    capacity: int = 65_536  # queries that may wait, or (Fixed) wait or run; more are refused (0: all)
    delays: Delays = Delays()
    missing: Missing = Missing.LOAD


@dataclass(frozen=True)
class Route:
    """How the queries of one application find a lane among `lanes`.

    `weights` go with WEIGHTED and DEALT. DEALT goes round the lanes, each as often as its weight says and as evenly as
    can be. Where several `front_ends` deal, a query comes to one of them by chance, and each goes its own rounds.
    `targets` go with BY_CLIENT and BY_CLASS: position in `lanes` by client or class number; an unknown client or class
    takes position 0, or is dealt by `weights` where there are any. `demands`: a query that demands certain variants
    (submitted with the number of its demand) goes to the lane of that number here, whatever the rule, and to no other.
    """

    rule: RouteRule
    lanes: tuple[int, ...]
    weights: tuple[float, ...] = ()
    targets: tuple[int, ...] = ()
    demands: tuple[int, ...] = ()
    front_ends: int = 1

    def leads_as(self, other: Route) -> bool:
        """Whether nothing but the weights differs."""
        return replace(self, weights=()) == replace(other, weights=())


@dataclass(frozen=True)
class Plan:
    """Lanes, one route per application, and what each worker should hold in memory.

    What a `placement` asks for is loaded at once, and takes the worker meanwhile. Where there is a `prefetch` (of
    nothing, even) it does not: all loads go on beside the work, what is placed first and then what is prefetched, one
    at a time on each worker. Room is made by what neither asks for and no batch needs.
    """

    lanes: tuple[Lane, ...]
    routes: tuple[Route, ...]
    lane_choice: LaneChoice = LaneChoice.EARLIEST_START
    placement: tuple[tuple[int, ...], ...] | None = None  # variants by worker; None leaves memory as it is
    prefetch: tuple[tuple[int, ...], ...] | None = None  # besides, by worker, soonest first; see below
    # By variant and kind: the latencies it was made with, over profiled ones. The dispatcher reckons with them until it
    # measures quite others; None: with what it measures, by the batch.
    ratios: tuple[tuple[float, ...], ...] | None = None
    rate_window_ns: int = NS_PER_S  # λ per lane is counted over this window
    seed: int = 1  # of the weighted routes
    planner: str = ""

    @cached_property
    def heeds_classes_of(self) -> frozenset[int]:
        """Applications whose queries it treats by class, or one by one: evidence of them makes a difference."""
        by_one = {number for number, lane in enumerate(self.lanes) if isinstance(lane.select, Worklist)}
        return frozenset(
            number
            for number, route in enumerate(self.routes)
            if route.rule is RouteRule.BY_CLASS or not by_one.isdisjoint(route.lanes)
        )


def by_application(lanes: tuple[Lane, ...], **rest: object) -> Plan:
    """The common shape: lane i serves application i."""
    routes = tuple(Route(RouteRule.BY_APPLICATION, (number,)) for number in range(len(lanes)))
    return Plan(lanes=lanes, routes=routes, **rest)  # type: ignore[arg-type]
