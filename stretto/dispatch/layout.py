"""Lays a deployment and a plan out as the arrays of records.py. Plain Python and numpy; runs when a plan is adopted."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.check import selected_variants
from stretto.core.deployment import Deployment
from stretto.core.plan import (
    Accumulate,
    ByLoad,
    Crowd,
    Deferred,
    Eager,
    Fixed,
    Lane,
    MostAccurate,
    Plan,
    ReleaseRule,
    Route,
    RouteRule,
    SelectRule,
    Strategies,
    Table,
    Tables,
    Worklist,
)
from stretto.core.profile import NS_PER_S, Quantile
from stretto.core.worker import Worker
from stretto.dispatch.alias import alias_table, as_shares
from stretto.dispatch.queue import LISTS
from stretto.dispatch.records import DTYPES, IN_FLIGHT, LANE, LEVELS, NEVER, OUTCOMES, RATE_BUCKETS, STATE

SELECT_RULES: dict[type, SelectRule] = {
    Fixed: SelectRule.FIXED,
    ByLoad: SelectRule.BY_LOAD,
    MostAccurate: SelectRule.MOST_ACCURATE,
    Table: SelectRule.TABLE,
    Tables: SelectRule.TABLE,
    Worklist: SelectRule.WORKLIST,
    Strategies: SelectRule.STRATEGIES,
}
RELEASE_RULES: dict[type, ReleaseRule] = {
    Eager: ReleaseRule.EAGER,
    Accumulate: ReleaseRule.ACCUMULATE,
    Deferred: ReleaseRule.DEFERRED,
}
LANE_FIELDS = LANE.names or ()
NO_CROWD = Crowd(0.0, 0.0, 0.0, 0.0, 0.0, 0)
WORTH_WRITING = 0.01  # of a latency: a change that is told to the rules
STEP_OF_PLAN = 0.25
WORTH_LEAVING_PLAN = 0.15  # one that is, where the plan came with latencies
QUANTILE_SHARE = {Quantile.MEAN: 0.0, Quantile.P50: 0.5, Quantile.P95: 0.95, Quantile.P99: 0.99}


class Memory:
    """Owns the arrays and keeps their addresses in the STATE record true."""

    def __init__(self) -> None:
        self.state: NDArray[Any] = np.zeros(1, dtype=STATE)
        self.arrays: dict[str, NDArray[Any]] = {}
        self.cells: list[NDArray[Any]] = []  # and edges of the plan's tables, whose addresses stand in `tables`

    def put(self, name: str, array: NDArray[Any]) -> None:
        """Install an array under a name; the one before is released."""
        stored = np.ascontiguousarray(array, dtype=DTYPES[name])
        if stored.size == 0:
            stored = np.zeros(1, dtype=DTYPES[name])  # an address must point somewhere
        self.arrays[name] = stored
        self.state[f"{name}_at"] = stored.ctypes.data
        self.state[f"{name}_count"] = stored.size

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.arrays[name]


def lay_out_deployment(memory: Memory, deployment: Deployment, correction: float) -> None:
    """What does not change with the plan: latency rows, workers, their memory, and the counters."""
    kinds, variants, workers = deployment.kinds, deployment.variants, deployment.workers
    profiles = [variant.profile_on(kind) for variant in variants for kind in kinds]
    stride = 2 + max(profile.max_batch for profile in profiles if profile is not None)
    rows = np.zeros(len(profiles), dtype=DTYPES["rows"])
    latency = np.full((len(profiles), stride), NEVER, dtype=np.int64)
    for number, profile in enumerate(profiles):
        variant = variants[number // len(kinds)]
        rows[number]["load_ns"] = variant.load_ns
        rows[number]["memory_bytes"] = variant.memory_bytes
        rows[number]["dynamic_bytes"] = variant.dynamic_memory_bytes
        rows[number]["accuracy"] = variant.accuracy
        rows[number]["application"] = deployment.application_of[number // len(kinds)]
        rows[number]["ratio"] = rows[number]["written"] = 1.0
        if profile is not None:
            rows[number]["max_batch"] = profile.max_batch
            rows[number]["beta_ns"] = profile.beta_ns[deployment.quantile]
            latency[number, : profile.max_batch + 1] = profile.table_ns[deployment.quantile]
    memory.put("rows", rows)
    memory.put("latency", latency.ravel())
    memory.put("profiled", latency.ravel().copy())
    crew = np.zeros(len(workers), dtype=DTYPES["workers"])
    crew["kind"] = [kinds.index(worker.kind) for worker in workers]
    crew["alive"] = 1
    crew["arriving"] = -1
    crew["memory_bytes"] = [worker.memory_bytes for worker in workers]
    memory.put("workers", crew)
    memory.put("batches", np.zeros(len(workers) * IN_FLIGHT, dtype=DTYPES["batches"]))
    memory.put("resident", np.zeros(len(workers) * len(variants), dtype=DTYPES["resident"]))
    words = (len(workers) + 63) // 64
    all_idle = (1 << len(workers)) - 1
    memory.put("idle", np.frombuffer(all_idle.to_bytes(8 * words, "little"), dtype="<u8").astype(np.uint64))
    memory.put("outcomes", np.zeros(len(deployment.applications) * OUTCOMES, dtype=np.int64))
    memory.put("submitted", np.zeros(len(deployment.applications), dtype=np.int64))
    state = memory.state
    state["applications"] = len(deployment.applications)
    state["kinds"], state["variants"], state["latency_stride"] = len(kinds), len(variants), stride
    state["member_words"] = words
    state["correction"] = correction
    state["correction_quantile"] = QUANTILE_SHARE[deployment.quantile]
    state["wake_ns"] = NEVER
    state["free_slot"] = -1
    memory["resident"]["used_ns"] = -1
    loaded = memory["resident"]["loaded"].reshape(len(workers), len(variants))  # no plan wants anything else yet
    for worker, residents in enumerate(first_residents(deployment)):
        loaded[worker, list(residents)] = 1


def fill_worker_memory(memory: Memory, deployment: Deployment, worker: int) -> None:
    """The variants that a worker holds when it appears: those it names, or as many as fit in order of their number."""
    entries = memory["resident"][worker * len(deployment.variants) : (worker + 1) * len(deployment.variants)]
    entries["loaded"] = entries["arriving"] = 0
    entries["used_ns"] = -1
    memory["workers"][worker]["arriving"] = -1
    entries["loaded"][list(first_residents(deployment)[worker])] = 1
    _count_loads_wanted(memory, worker, entries)


@lru_cache(maxsize=8)
def first_residents(deployment: Deployment) -> tuple[tuple[int, ...], ...]:
    """By worker, the variants that it holds when it appears. Workers that are alike hold the same."""
    by_likeness: dict[tuple[Any, ...], tuple[int, ...]] = {}
    residents = []
    for owner in deployment.workers:
        likeness = (owner.kind, owner.memory_bytes, owner.resident)
        if likeness not in by_likeness:
            by_likeness[likeness] = _residents_of(deployment, owner)
        residents.append(by_likeness[likeness])
    return tuple(residents)


def _residents_of(deployment: Deployment, owner: Worker) -> tuple[int, ...]:
    residents: list[int] = []
    held = peak = 0
    for number, variant in enumerate(deployment.variants):
        named = owner.resident is None or deployment.variant_label(number) in owner.resident
        if not named or variant.profile_on(owner.kind) is None:
            continue
        hungriest = max(peak, variant.dynamic_memory_bytes)
        if held + variant.memory_bytes + hungriest <= owner.memory_bytes:
            residents.append(number)
            held, peak = held + variant.memory_bytes, hungriest
    return tuple(residents)


def _count_loads_wanted(memory: Memory, worker: int, entries: NDArray[Any]) -> None:
    """Those that take the worker."""
    missing = int(((entries["wanted"] == 1) & (entries["loaded"] == 0)).sum())
    memory["workers"][worker]["loads_wanted"] = 0 if memory.state["beside"][0] else missing


def lay_out_slots(memory: Memory, slots: int) -> None:
    """Query slots, with those in use kept where they are; the new ones are free."""
    before = memory.arrays.get("queries")
    had = 0 if before is None else len(before)
    queries = np.zeros(slots, dtype=DTYPES["queries"])
    links = np.full((slots, LISTS * LEVELS), -1, dtype=np.int64)
    if before is not None:
        queries[:had] = before
        links[:had] = memory["links"].reshape(had, -1)
    queries["next"][had:] = np.arange(had + 1, slots + 1)
    queries["next"][-1] = memory.state["free_slot"][0]
    memory.put("queries", queries)
    memory.put("links", links.ravel())
    memory.state["free_slot"] = had
    memory.state["free_slots"] += slots - had
    lay_out_decisions(memory)


def lay_out_decisions(memory: Memory) -> None:
    """Room for all that one event can decide, with the number of slots and workers as it is."""
    slots, workers = len(memory["queries"]), len(memory["workers"])
    variants = int(memory.state["variants"][0])
    for name, size in (("decisions", slots + workers * (4 + variants)), ("decided", 2 * slots)):
        grown = np.zeros(size, dtype=DTYPES[name])
        if name in memory.arrays:
            grown[: len(memory[name])] = memory[name]
        memory.put(name, grown)


def lay_out_plan(memory: Memory, deployment: Deployment, plan: Plan) -> None:
    """The lanes, empty, and everything that the rules look up. The caller carries estimates over."""
    count = len(plan.lanes)
    parts: dict[str, list[Any]] = {
        name: [] for name in ("lane_kinds", "lane_workers", "choices", "floors", "works", "work_tickets")
    }
    lanes = np.array([_lane_record(lane, deployment, parts) for lane in plan.lanes], dtype=LANE)
    for name, values in parts.items():
        memory.put(name, np.array(values, dtype=DTYPES[name]))
    memory.put("lanes", lanes)
    _lay_out_crews(memory, plan)
    lay_out_tables(memory, deployment, plan)
    meters = np.zeros(len(deployment.applications) + count, dtype=DTYPES["meters"])
    meters["first_ns"] = -1
    memory.put("meters", meters)
    memory.put("rate_counts", np.zeros(len(meters) * RATE_BUCKETS, dtype=np.int64))
    memory.put("ends", np.full(count * LISTS * 2 * LEVELS, -1, dtype=np.int64))
    memory.put("heap", np.arange(count, dtype=np.int64))
    memory.put("heap_place", np.arange(count, dtype=np.int64))
    memory.put("heap_key", np.full(count, NEVER, dtype=np.int64))
    lay_out_routes(memory, plan.routes)
    state = memory.state
    state["wake_ns"] = NEVER
    state["lane_choice"] = plan.lane_choice
    state["rate_bucket_ns"] = plan.rate_window_ns // RATE_BUCKETS
    state["counts_lanes"] = 1
    state["correction_step"], state["worth_writing"] = state["correction"], WORTH_WRITING
    if plan.ratios is not None:  # steps so small that luck alone does not lead away from it
        state["correction_step"], state["worth_writing"] = state["correction"] * STEP_OF_PLAN, WORTH_LEAVING_PLAN
        _lay_out_latencies(memory, np.array(plan.ratios, dtype=np.float64))
    state["beside"] = plan.prefetch is not None
    _lay_out_memory(memory, deployment, plan)


def lay_out_choices(memory: Memory, deployment: Deployment, plan: Plan) -> None:
    """Tables with their crowds, floors and doors alone, of lanes that are laid out and are otherwise as they were."""
    choices: list[tuple[float, int]] = []
    floors: list[float] = []
    for record, lane in zip(memory["lanes"], plan.lanes, strict=True):
        named, of_lane = _choices(lane), lane.release.floor_rates
        record["capacity"] = lane.capacity
        for name, value in _crowd(lane).items():
            record[name] = value
        record["choice_first"], record["choice_count"] = len(choices), len(named)
        record["floor_first"], record["floor_count"] = len(floors), len(of_lane)
        choices.extend(named)
        floors.extend(of_lane)
    memory.put("choices", np.array(choices, dtype=DTYPES["choices"]))
    memory.put("floors", np.array(floors, dtype=DTYPES["floors"]))
    lay_out_tables(memory, deployment, plan)


def _choices(lane: Lane) -> list[tuple[float, int]]:
    """The variants that a lane may run, each with the rate up to which it does."""
    variants = selected_variants(lane)
    rates = lane.select.rates if isinstance(lane.select, ByLoad) else (np.inf,) * len(variants)
    return list(zip(rates, variants, strict=True))


def _crowd(lane: Lane) -> dict[str, float]:
    """Zeros where its tables know none."""
    crowd = (lane.select.crowd if isinstance(lane.select, Tables) else None) or NO_CROWD
    return {
        "crowd_rate": crowd.rate / NS_PER_S,
        "crowd_usual": crowd.usual,
        "crowd_lean": crowd.lean,
        "crowd_heads": crowd.heads,
        "crowded": crowd.crowded,
        "crowd_width": crowd.width,
    }


def _lay_out_latencies(memory: Memory, ratios: NDArray[np.float64]) -> None:
    """The plan's; those that were measured since it first came stay, for a plan is made anew many times a second."""
    rows, planned = memory["rows"], ratios.ravel()
    profiled = memory["profiled"].reshape(len(rows), -1)
    for number in np.flatnonzero(rows["planned"] != planned).tolist():
        row = rows[number]
        row["ratio"] = row["written"] = row["planned"] = planned[number]
        sizes = slice(1, int(row["max_batch"]) + 1)
        memory["latency"].reshape(len(rows), -1)[number, sizes] = profiled[number, sizes] * planned[number]


def _lane_record(lane: Lane, deployment: Deployment, parts: dict[str, list[Any]]) -> tuple[Any, ...]:
    """The lane as its record has it. What has no fixed number of entries goes to the end of its part."""
    release, delays, cap = lane.release, lane.delays, lane.release.adaptive_cap
    record: dict[str, Any] = {
        "order": lane.order,
        "select": SELECT_RULES[type(lane.select)],
        "release": RELEASE_RULES[type(release)],
        "late": lane.late,
        "worker_choice": lane.worker_choice,
        "missing": lane.missing,
        "capacity": lane.capacity,
        "counts_running": isinstance(lane.select, Fixed),
        "max_batch": release.max_batch,
        "control_ns": delays.control_ns,
        "data_ns": delays.data_ns,
        "ahead_ns": delays.ahead_ns,
        "timer_ns": delays.timer_ns,
    }
    record["head_ns"] = record["release_ns"] = record["later_ns"] = record["rank_ns"] = NEVER
    if isinstance(release, Accumulate):
        record["min_batch"], record["timeout_ns"] = release.min_batch, release.timeout_ns
        record["sizes"] = sum(1 << size for size in set(release.sizes))
    if isinstance(release, Deferred):
        record["when_gathered"] = release.when_gathered
    if isinstance(release, Eager):
        record["staggers"] = release.staggers
    if cap is not None:
        record["cap_target_ns"], record["cap_step"] = cap.target_ns, cap.step
        record["cap_backoff"], record["cap"] = cap.backoff, cap.start
    record |= _crowd(lane)
    if isinstance(lane.select, Strategies):
        record["margin_ns"] = lane.select.margin_ns
    works = lane.select.works if isinstance(lane.select, Worklist) else ()
    kinds = dict.fromkeys(deployment.workers[worker].kind for worker in lane.workers)
    for first, size, name, values in (
        ("choice_first", "choice_count", "choices", _choices(lane)),
        ("floor_first", "floor_count", "floors", release.floor_rates),
        ("kind_first", "kind_count", "lane_kinds", [(deployment.kinds.index(kind), -1, 0, 0) for kind in kinds]),
        ("worker_first", "worker_count", "lane_workers", lane.workers),
    ):
        record[first], record[size] = len(parts[name]), len(values)
        parts[name].extend(values)
    record["work_first"], record["work_count"] = len(parts["works"]), len(works)
    for work in works:
        parts["works"].append((work.worker, work.variant, len(parts["work_tickets"]), len(work.tickets), 0))
        parts["work_tickets"].extend(work.tickets)
    return tuple(record.get(name, 0) for name in LANE_FIELDS)


def _lay_out_crews(memory: Memory, plan: Plan) -> None:
    """Which workers serve a lane, as bits and as a count of those alive, and which lanes a worker serves."""
    workers, words = memory["workers"], int(memory.state["member_words"][0])
    lane = np.repeat(np.arange(len(plan.lanes)), [len(lane.workers) for lane in plan.lanes])
    worker = memory["lane_workers"]  # lane by lane
    members = np.zeros((len(plan.lanes), words), dtype=np.uint64)
    np.bitwise_or.at(members, (lane, worker >> 6), np.uint64(1) << (worker & 63).astype(np.uint64))
    memory.put("members", members.ravel())
    memory["lanes"]["alive"] = np.bincount(lane, weights=workers["alive"][worker])
    counts = np.bincount(worker, minlength=len(workers))
    workers["lane_count"] = counts
    workers["lane_first"] = np.cumsum(counts) - counts
    workers["lane_cursor"] %= np.maximum(1, counts)
    memory.put("worker_lanes", lane[np.argsort(worker, kind="stable")])


def lay_out_tables(memory: Memory, deployment: Deployment, plan: Plan) -> None:
    """Where the cells and edges of each lane's table stand, by kind of worker."""
    records = np.zeros((len(plan.lanes), len(deployment.kinds)), dtype=DTYPES["tables"])
    cells: list[NDArray[Any]] = []
    for number, lane in enumerate(plan.lanes):
        select = lane.select
        for table in (select,) if isinstance(select, Table) else select.tables if isinstance(select, Tables) else ():
            cells.extend((table.cells, table.edges))
            edges = (table.edges.ctypes.data, table.edges.size)
            entry = (table.cells.ctypes.data, *table.variant.shape, table.slack_step_ns, *edges)
            for kind, name in enumerate(deployment.kinds):
                if table.kind is None or table.kind == name:
                    records[number, kind] = entry
    memory.put("tables", records.ravel())
    memory.cells = cells


def lay_out_routes(memory: Memory, plan_routes: tuple[Route, ...]) -> None:
    """The routes, one per application; a round goes on where it was, or many plans would favour the first lane."""
    records: list[tuple[int, ...]] = []
    lanes: list[int] = []
    targets: list[int] = []
    dealt: list[float] = []
    cursors = memory["routes"]["cursor"].tolist() if "routes" in memory.arrays else [0] * len(plan_routes)
    for route, cursor in zip(plan_routes, cursors, strict=True):
        numbers = (len(lanes), len(route.lanes), len(targets), len(route.targets))
        demands = (len(targets) + len(route.targets), len(route.demands))
        records.append((route.rule, *numbers, *demands, cursor % len(route.lanes), len(dealt), route.front_ends))
        lanes.extend(route.lanes)
        targets.extend((*route.targets, *route.demands))
        if route.rule is RouteRule.DEALT:
            shares = as_shares(np.array(route.weights, dtype=np.float64))
            dealt.extend((*shares, *_first_debts(shares, route.front_ends)))
    memory.put("routes", np.array(records, dtype=DTYPES["routes"]))
    memory.put("route_lanes", np.array(lanes, dtype=np.int64))
    memory.put("route_targets", np.array(targets, dtype=np.int64))
    memory.put("dealt", np.array(dealt, dtype=np.float64))
    memory.put("alias", np.zeros(len(lanes), dtype=DTYPES["alias"]))
    lay_out_weights(memory, plan_routes)


def _first_debts(shares: NDArray[np.float64], front_ends: int) -> list[float]:
    """What each front end owes every lane to begin with: they stand at different places of the round."""
    debts, owed = np.zeros(len(shares)), list[float]()
    for front_end in range(front_ends):
        owed.extend(debts)
        steps = (front_end + 1) * len(shares) // front_ends - front_end * len(shares) // front_ends
        for _ in range(steps):
            debts += shares
            debts[debts.argmax()] -= 1.0
    return owed


def lay_out_weights(memory: Memory, plan_routes: tuple[Route, ...]) -> None:
    """The weights alone, of routes that are laid out."""
    keep, other, first = memory["alias"]["keep"], memory["alias"]["other"], 0
    for number, route in enumerate(plan_routes):
        end = first + len(route.lanes)
        if route.rule in (RouteRule.BY_CLIENT, RouteRule.BY_CLASS) and not route.weights:
            keep[first:end], other[first:end] = 0.0, 0  # whoever is unknown goes to the first lane
        elif route.weights:
            shares = as_shares(np.array(route.weights, dtype=np.float64))
            keep[first:end], other[first:end] = alias_table(shares)
            if route.rule is RouteRule.DEALT:
                place = int(memory["routes"]["dealt_first"][number])
                memory["dealt"][place : place + len(shares)] = shares
        first = end


def _lay_out_memory(memory: Memory, deployment: Deployment, plan: Plan) -> None:
    """What each worker should hold. Without a placement that stays as it was; without a prefetch there is none."""
    entries = memory["resident"].reshape(len(deployment.workers), len(deployment.variants))
    entries["rank"] = 0
    for worker, variants in enumerate(plan.prefetch or ()):
        entries["rank"][worker, list(variants)] = np.arange(1, len(variants) + 1)
    for worker, variants in enumerate(plan.placement or ()):
        entries["wanted"][worker] = 0
        entries["wanted"][worker, list(variants)] = 1
    if plan.placement is not None or plan.prefetch is not None:
        for worker in range(len(deployment.workers)):
            _count_loads_wanted(memory, worker, entries[worker])
