"""Random deployments and plans: every option of the Plan table, small numbers, so that moments collide often.

Latencies are a few nanoseconds. Plans are valid by construction: what is drawn is what `check_plan` lets through.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.plan import (
    Accumulate,
    AdaptiveCap,
    ByLoad,
    Crowd,
    Deferred,
    Delays,
    Eager,
    Fixed,
    Lane,
    LaneChoice,
    Late,
    Missing,
    MostAccurate,
    Order,
    Plan,
    Release,
    Route,
    RouteRule,
    Select,
    Table,
    Tables,
    Work,
    WorkerChoice,
    Worklist,
)
from stretto.core.worker import UNLIMITED_MEMORY, Worker
from tests.dispatch.small import straight

KINDS = ("quick", "slow")


@st.composite
def variants(draw: st.DrawFn, name: str, kinds: tuple[str, ...], limited: bool) -> Variant:
    spoken = draw(st.lists(st.sampled_from(kinds), min_size=1, unique=True))
    profiles = []
    for kind in spoken:
        alpha, beta, largest = draw(st.integers(0, 4)), draw(st.integers(1, 20)), draw(st.integers(1, 6))
        profiles.append(straight(alpha, beta, largest, kind))
    return Variant(
        name,
        0.5,
        tuple(profiles),
        memory_bytes=draw(st.integers(0, 4)) if limited else 0,
        dynamic_memory_bytes=draw(st.integers(0, 3)) if limited else 0,
        load_ns=draw(st.sampled_from([0, 1, 7, 40])),
    )


@st.composite
def deployments(draw: st.DrawFn) -> Deployment:
    limited = draw(st.booleans())
    crew = []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(KINDS))
        memory = draw(st.integers(7, 12)) if limited else UNLIMITED_MEMORY
        crew.append(Worker(f"worker-{number}", kind, memory))
    kinds = tuple(dict.fromkeys(worker.kind for worker in crew))
    applications = []
    for number in range(draw(st.integers(1, 2))):
        models = [draw(variants(f"v{place}", kinds, limited)) for place in range(draw(st.integers(1, 3)))]
        applications.append(Application(f"app{number}", 100, tuple(models)))
    deployment = Deployment(tuple(applications), tuple(crew))
    if draw(st.booleans()):
        labels = [deployment.variant_label(variant) for variant in range(len(deployment.variants))]
        named = [tuple(draw(st.lists(st.sampled_from(labels), unique=True))) for _ in crew]
        crew = [replace(worker, resident=resident) for worker, resident in zip(crew, named, strict=True)]
        deployment = Deployment(tuple(applications), tuple(crew))
    return deployment


@st.composite
def larger(draw: st.DrawFn, before: Deployment) -> Deployment:
    """With one worker more, perhaps of a kind that was not in use, on which some variants run."""
    kind = draw(st.sampled_from(KINDS))
    applications = before.applications
    if kind not in before.kinds:
        models = [
            replace(model, profiles=(*model.profiles, straight(1, draw(st.integers(1, 20)), 9, kind)))
            if model.profile_on(kind) is None and draw(st.booleans())
            else model
            for model in before.variants
        ]
        applications = tuple(
            replace(application, variants=tuple(models[number] for number in before.variants_of(place)))
            for place, application in enumerate(before.applications)
        )
    worker = Worker(f"worker-{len(before.workers)}", kind, before.workers[0].memory_bytes)
    return Deployment(applications, (*before.workers, worker), before.quantile)


def runnable(deployment: Deployment, application: int, crew: tuple[int, ...]) -> list[int]:
    """The application's variants that at least one of the workers can run."""
    kinds = {deployment.workers[worker].kind for worker in crew}
    return [
        variant
        for variant in deployment.variants_of(application)
        if any(deployment.variants[variant].profile_on(kind) for kind in kinds)
    ]


@st.composite
def tables(draw: st.DrawFn, among: list[int], kind: str | None) -> Table:
    queued, slacks = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    cells = np.array([[draw(st.sampled_from([-1, *among])) for _ in range(slacks)] for _ in range(queued)])
    cells[:, 0] = np.where(cells[:, 0] < 0, among[0], cells[:, 0])
    batch = np.array([[draw(st.integers(0, 4)) for _ in range(slacks)] for _ in range(queued)])
    some_edges = st.lists(st.integers(1, 90), min_size=slacks - 1, max_size=slacks - 1, unique=True)
    edges = tuple(sorted(draw(some_edges))) if draw(st.booleans()) else ()
    return Table(draw(st.sampled_from([5, 13, 30])), cells.astype(np.int32), batch.astype(np.int32), kind, edges)


@st.composite
def selects(draw: st.DrawFn, deployment: Deployment, application: int, crew: tuple[int, ...]) -> Select:
    among = runnable(deployment, application, crew)
    some = st.lists(st.sampled_from(among), min_size=1, unique=True)
    rule = draw(st.sampled_from(["fixed", "fixed", "by load", "most accurate", "table", "tables"]))
    if rule == "by load":
        chosen = draw(some)
        first = draw(st.sampled_from([0.0, 1e7, 1e8]))
        return ByLoad(tuple(first * (1 + place) + place for place in range(len(chosen))), tuple(chosen))
    if rule == "most accurate":
        return MostAccurate(tuple(draw(some)))
    if rule == "table":
        return draw(tables(among, None))
    if rule == "tables":
        kinds = dict.fromkeys(deployment.workers[worker].kind for worker in crew)
        made = []
        for kind in kinds:
            able = [variant for variant in among if deployment.variants[variant].profile_on(kind)]
            if able:
                made.append(draw(tables(able, kind)))
        return Tables(tuple(made)) if len(made) == len(kinds) else Fixed(draw(st.sampled_from(among)))
    return Fixed(draw(st.sampled_from(among)))


@st.composite
def releases(draw: st.DrawFn, may_defer: bool = True) -> Release:
    largest = draw(st.sampled_from([1, 2, 3, 4096]))
    rule = draw(st.sampled_from(["eager", "accumulate", "deferred"] if may_defer else ["eager", "accumulate"]))
    if rule == "accumulate":
        return Accumulate(draw(st.integers(1, min(largest, 4))), draw(st.sampled_from([0, 3, 25, 100])), largest)
    return Deferred(largest, draw(st.booleans())) if rule == "deferred" else Eager(largest)


def leaning(select: Tables) -> Tables:
    """With a crowd, whose batches are all that fit."""
    whole = tuple(replace(table, batch=np.zeros_like(table.batch)) for table in select.tables)
    return Tables(whole, Crowd(2e8, 2.0, 0.5, 2.0, 1.0, 2))


@st.composite
def lanes(draw: st.DrawFn, name: str, select: Select, crew: tuple[int, ...]) -> Lane:
    late = draw(st.sampled_from(Late))
    floors: tuple[float, ...] = ()
    if late in (Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE) and draw(st.booleans()):
        floors = (0.0, *draw(st.sampled_from([(), (0.0,), (1e7, 5e7), (1e6, 1e7, 1e8)])))
    order = draw(st.sampled_from(Order))
    is_dropping = late in (Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE)
    may_lean = is_dropping and order is Order.EARLIEST_DEADLINE and isinstance(select, Tables)
    if may_lean and draw(st.booleans()):
        select = leaning(select)
    cap = AdaptiveCap(draw(st.integers(1, 30)), 1.0, 0.5, 2.0) if draw(st.integers(0, 3)) == 0 else None
    delayed = draw(st.integers(0, 2)) == 0
    return Lane(
        name=name,
        workers=crew,
        select=select,
        order=order,
        release=replace(draw(releases(not isinstance(select, Worklist))), floor_rates=floors, adaptive_cap=cap),
        late=late,
        worker_choice=draw(st.sampled_from(WorkerChoice)),
        capacity=draw(st.sampled_from([1, 2, 4, 65_536])),
        delays=Delays(
            draw(st.integers(0, 6)), draw(st.integers(0, 3)), draw(st.integers(0, 12)), draw(st.integers(0, 4))
        )
        if delayed
        else Delays(),
        missing=draw(st.sampled_from([Missing.LOAD, Missing.LOAD, Missing.STAND_IN, Missing.WAIT])),
    )


@st.composite
def worklists(
    draw: st.DrawFn, deployment: Deployment, crew: tuple[int, ...], waiting: list[tuple[int, int]]
) -> Worklist:
    """Batches of the (ticket, application) pairs that wait, each on a variant of its application."""
    works = []
    for application in range(len(deployment.applications)):
        tickets = [ticket for ticket, owner in waiting if owner == application]
        if not tickets:
            continue
        for _ in range(draw(st.integers(0, 3))):
            worker = draw(st.sampled_from(crew))
            able = runnable(deployment, application, (worker,))
            if able:
                named = draw(st.lists(st.sampled_from(tickets), min_size=1, max_size=5, unique=True))
                works.append(Work(worker, draw(st.sampled_from(able)), tuple(named)))
    answers = draw(st.lists(st.sampled_from([ticket for ticket, _ in waiting]), max_size=2)) if waiting else []
    return Worklist(tuple(works), tuple(answers))


@st.composite
def plans(draw: st.DrawFn, deployment: Deployment, waiting: list[tuple[int, int]]) -> Plan:
    everyone = range(len(deployment.workers))
    made: list[Lane] = []
    doors: list[list[int]] = []
    for application in range(len(deployment.applications)):
        doors.append([])
        for place in range(draw(st.integers(1, 2))):
            crew = tuple(draw(st.lists(st.sampled_from(everyone), min_size=1, unique=True)))
            if not runnable(deployment, application, crew):
                crew = tuple(everyone)
            doors[-1].append(len(made))
            made.append(draw(lanes(f"lane-{application}-{place}", draw(selects(deployment, application, crew)), crew)))
    if draw(st.integers(0, 2)) == 0:
        crew = tuple(draw(st.lists(st.sampled_from(everyone), min_size=1, unique=True)))
        for lane_numbers in doors:
            if draw(st.booleans()):
                lane_numbers.append(len(made))
        made.append(draw(lanes("window", draw(worklists(deployment, crew, waiting)), crew)))
    routes = []
    for application, numbers in enumerate(doors):
        demands = []
        for place in range(draw(st.sampled_from([0, 0, 1, 2]))):
            demands.append(len(made))
            crew = tuple(everyone)
            name = f"demand-{application}-{place}"
            made.append(draw(lanes(name, draw(selects(deployment, application, crew)), crew)))
        routes.append(replace(draw(route_among(numbers)), demands=tuple(demands)))
    placement, prefetch = draw(residency(deployment))
    return Plan(
        lanes=tuple(made),
        routes=tuple(routes),
        lane_choice=draw(st.sampled_from(LaneChoice)),
        placement=placement,
        prefetch=prefetch,
        rate_window_ns=draw(st.sampled_from([1000, 8000])),
        seed=draw(st.integers(0, 3)),
    )


@st.composite
def route_among(draw: st.DrawFn, numbers: list[int]) -> Route:
    rule = draw(st.sampled_from(RouteRule))
    if rule is RouteRule.BY_APPLICATION:
        return Route(rule, (draw(st.sampled_from(numbers)),))
    has_weights = rule in (RouteRule.WEIGHTED, RouteRule.DEALT)
    weights = tuple(draw(st.sampled_from([0.5, 1.0, 3.0])) for _ in numbers) if has_weights else ()
    targets: tuple[int, ...] = ()
    if rule in (RouteRule.BY_CLIENT, RouteRule.BY_CLASS):
        targets = tuple(draw(st.lists(st.sampled_from(range(len(numbers))), min_size=1, max_size=3)))
    front_ends = draw(st.integers(1, 3)) if rule is RouteRule.DEALT else 1
    return Route(rule, tuple(numbers), weights, targets, front_ends=front_ends)


Residency = tuple[tuple[int, ...], ...] | None


@st.composite
def residency(draw: st.DrawFn, deployment: Deployment) -> tuple[Residency, Residency]:
    """A placement, a prefetch, both or neither; what a worker is to hold fits into its memory."""
    is_placed, is_prefetched = draw(st.integers(0, 2)) == 0, draw(st.integers(0, 2)) == 0
    placed, prefetched = [], []
    for worker in deployment.workers:
        able = [number for number, variant in enumerate(deployment.variants) if variant.profile_on(worker.kind)]
        wanted = draw(st.lists(st.sampled_from(able), unique=True)) if able else []
        kept: list[int] = []
        for variant in wanted:
            held = [deployment.variants[number] for number in [*kept, variant]]
            need = sum(v.memory_bytes for v in held) + max(v.dynamic_memory_bytes for v in held)
            if need <= worker.memory_bytes:
                kept.append(variant)
        share = draw(st.integers(0, len(kept))) if is_placed and is_prefetched else len(kept) if is_placed else 0
        placed.append(tuple(kept[:share]))
        prefetched.append(tuple(kept[share:]))
    return tuple(placed) if is_placed else None, tuple(prefetched) if is_prefetched else None
