"""Refuses a plan that does not fit its deployment, in a sentence that says what is wrong."""

from __future__ import annotations

import math

from stretto.core.deployment import Deployment
from stretto.core.errors import PlanError
from stretto.core.plan import (
    Accumulate,
    ByLoad,
    Deferred,
    Fixed,
    Lane,
    Late,
    MostAccurate,
    Order,
    Plan,
    Route,
    RouteRule,
    Strategies,
    Table,
    Tables,
    Worklist,
)
from stretto.core.profile import LEAST_RATIO, MAX_BATCH_LIMIT, MOST_RATIO

MAX_LANES = 65_536
MAX_CAPACITY = 2**24
MOST_SIZES = 62  # a batch size that a lane names alone is at most this: they are the bits of a number
MAX_FRONT_ENDS = 1000


def check_plan(plan: Plan, deployment: Deployment) -> None:
    """Raises PlanError where the plan could not be followed."""
    if not 1 <= len(plan.lanes) <= MAX_LANES:
        raise PlanError(f"a plan needs between 1 and {MAX_LANES} lanes, not {len(plan.lanes)}")
    names = [lane.name for lane in plan.lanes]
    if len(set(names)) != len(names):
        raise PlanError("two lanes have the same name")
    if plan.rate_window_ns < 1000:
        raise PlanError("the rate window must be at least a microsecond")
    if not 0 <= plan.seed < 2**64:
        raise PlanError(f"the seed of the weighted routes is {plan.seed}; it must be between 0 and 2^64 - 1")
    for lane in plan.lanes:
        _check_lane(lane, deployment)
    check_routes(plan.routes, plan.lanes, deployment)
    _check_memory("placement", plan.placement, deployment)
    _check_memory("prefetch", plan.prefetch, deployment)
    if plan.prefetch is not None:
        placed = plan.placement or ((),) * len(deployment.workers)
        for worker, variants, more in zip(deployment.workers, placed, plan.prefetch, strict=True):
            if len({*variants, *more}) < len(variants) + len(more):
                raise PlanError(f"worker {worker.name} is to hold a variant that the plan names twice")
        both = tuple((*variants, *more) for variants, more in zip(placed, plan.prefetch, strict=True))
        _check_memory("placement and prefetch", both, deployment)
    _check_ratios(plan, deployment)


def check_choices(plan: Plan, deployment: Deployment) -> None:
    """The same for a plan that differs in tables, floors and doors alone from one that passed already."""
    for lane in plan.lanes:
        _check_doors(lane)
        _check_crowd(lane)
        _check_select(lane, deployment)
    check_routes(plan.routes, plan.lanes, deployment)


def check_routes(
    routes: tuple[Route, ...], lanes: tuple[Lane, ...], deployment: Deployment, before: tuple[Route, ...] = ()
) -> None:
    """Raises PlanError where queries could not find a lane that answers them.

    `before` are routes over the same lanes that passed already: where they led, that is not looked at once more.
    """
    if len(routes) != len(deployment.applications):
        raise PlanError(
            f"the plan has {len(routes)} routes for {len(deployment.applications)} applications; each needs one"
        )
    for application, route in zip(deployment.applications, routes, strict=True):
        _check_route(route, application.name, len(lanes))
    for number, route in enumerate(routes):
        if before and route.leads_as(before[number]):
            continue
        for lane_number in {*route.lanes, *route.demands}:
            _check_serves(lanes[lane_number], number, deployment)


def selected_variants(lane: Lane) -> tuple[int, ...]:
    """Every variant that the lane may run."""
    match lane.select:
        case Fixed(variant) | Strategies(variant, _):
            return (variant,)
        case ByLoad(_, variants) | MostAccurate(variants):
            return variants
        case Table():
            return lane.select.variants
        case Tables(tables):
            return tuple(dict.fromkeys(variant for table in tables for variant in table.variants))
        case Worklist(works, _):
            return tuple(dict.fromkeys(work.variant for work in works))


def _check_lane(lane: Lane, deployment: Deployment) -> None:
    where = f"lane {lane.name}"
    if not lane.workers:
        raise PlanError(f"{where} has no worker")
    if len(set(lane.workers)) != len(lane.workers):
        raise PlanError(f"{where} lists a worker twice")
    if not all(0 <= worker < len(deployment.workers) for worker in lane.workers):
        raise PlanError(f"{where} names a worker outside 0 … {len(deployment.workers) - 1}")
    _check_doors(lane)
    delays = lane.delays
    if min(delays.control_ns, delays.data_ns, delays.ahead_ns, delays.timer_ns) < 0:
        raise PlanError(f"{where} has a negative delay")
    release = lane.release
    if not 1 <= release.max_batch <= MAX_BATCH_LIMIT:
        raise PlanError(f"{where} has max batch {release.max_batch}; it must be between 1 and {MAX_BATCH_LIMIT}")
    if isinstance(release, Accumulate) and not 1 <= release.min_batch <= release.max_batch:
        raise PlanError(f"{where} waits for {release.min_batch} queries but batches hold at most {release.max_batch}")
    if isinstance(release, Accumulate) and release.timeout_ns < 0:
        raise PlanError(f"{where} has a negative timeout")
    if (
        isinstance(release, Accumulate)
        and release.sizes
        and not (1 in release.sizes and all(1 <= size <= MOST_SIZES for size in release.sizes))
    ):
        raise PlanError(f"{where} has batches of certain sizes alone; those are 1 and others up to {MOST_SIZES}")
    cap = release.adaptive_cap
    if cap is not None and not (
        cap.target_ns > 0 and cap.step > 0 and 0 < cap.backoff < 1 and 1 <= cap.start < math.inf
    ):
        raise PlanError(f"{where} needs an adaptive cap with target and step above 0, backoff in (0, 1), start from 1")
    _check_crowd(lane)
    _check_select(lane, deployment)


def _check_crowd(lane: Lane) -> None:
    where, select = f"lane {lane.name}", lane.select
    if not isinstance(select, Tables) or select.crowd is None:
        return
    if lane.late not in (Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE):
        raise PlanError(f"{where} gives up heads in a crowd but keeps late queries; give it a dropping rule")
    if lane.order is not Order.EARLIEST_DEADLINE:
        raise PlanError(f"{where} gives up heads in a crowd, which needs the earliest deadline first")
    if any((table.batch > 0).any() for table in select.tables):
        raise PlanError(f"{where} gives up heads in a crowd for all that fit; let its cells take all that wait")
    crowd = select.crowd
    numbers = (crowd.rate, crowd.usual, crowd.lean, crowd.crowded, crowd.width)
    if crowd.heads < 0 or crowd.width <= 0 or not all(math.isfinite(each) and each >= 0 for each in numbers):
        raise PlanError(f"{where} needs a crowd of numbers from 0 up, with a width above 0")


def _check_doors(lane: Lane) -> None:
    """And floors: what is given up, at once or for larger batches."""
    where, floors = f"lane {lane.name}", lane.release.floor_rates
    if not 0 <= lane.capacity <= MAX_CAPACITY:
        raise PlanError(f"{where} has capacity {lane.capacity}; it must be between 0 and {MAX_CAPACITY}")
    if floors and lane.late not in (Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE):
        raise PlanError(f"{where} prunes for larger batches but keeps late queries; give it a dropping rule")
    if any(math.isnan(rate) for rate in floors):
        raise PlanError(f"{where} has a floor rate that is not a number")


def _check_select(lane: Lane, deployment: Deployment) -> None:
    where = f"lane {lane.name}"
    select = lane.select
    if isinstance(select, ByLoad):
        if not select.variants or len(select.rates) != len(select.variants):
            raise PlanError(f"{where} selects by load and needs one rate per variant")
        if any(not later > earlier for earlier, later in zip(select.rates, select.rates[1:], strict=False)):
            raise PlanError(f"{where} selects by load and needs rising rates")
    if isinstance(select, MostAccurate) and not select.variants:
        raise PlanError(f"{where} selects among no variants")
    if isinstance(select, Worklist) and isinstance(lane.release, Deferred):
        raise PlanError(f"{where} follows a worklist, which starts in order; it cannot be deferred")
    if isinstance(select, Strategies):
        drops = lane.late in (Late.DROP_WHEN_DISPATCHED, Late.DROP_WHEN_INFEASIBLE)
        if lane.order is not Order.EARLIEST_DEADLINE or not drops or isinstance(lane.release, Deferred | Accumulate):
            raise PlanError(f"{where} selects by strategies; it must be eager, go by deadlines and drop late queries")
        if select.margin_ns < 0:
            raise PlanError(f"{where} has a negative margin")
    if isinstance(select, Tables) and not select.tables:
        raise PlanError(f"{where} selects by table and has none")
    for table in (select,) if isinstance(select, Table) else select.tables if isinstance(select, Tables) else ():
        _check_table(table, lane, deployment)
    if isinstance(select, Tables):
        spoken = [table.kind for table in select.tables]
        missing = {deployment.workers[worker].kind for worker in lane.workers} - set(spoken)
        if None not in spoken and missing:
            raise PlanError(f"{where} has no table for worker kind {sorted(missing)[0]}")
    for variant in selected_variants(lane):
        if not 0 <= variant < len(deployment.variants):
            raise PlanError(f"{where} names variant {variant}, outside 0 … {len(deployment.variants) - 1}")
        if not any(_can_run(variant, worker, deployment) for worker in lane.workers):
            raise PlanError(f"{where} selects {deployment.variant_label(variant)}, which none of its workers can run")
    for work in select.works if isinstance(select, Worklist) else ():
        if work.worker not in lane.workers:
            raise PlanError(f"{where} has a batch for worker {work.worker}, which does not serve it")
        if not _can_run(work.variant, work.worker, deployment):
            label, name = deployment.variant_label(work.variant), deployment.workers[work.worker].name
            raise PlanError(f"{where} has a batch of {label} for worker {name}, which cannot run it")


def _can_run(variant: int, worker: int, deployment: Deployment) -> bool:
    """The worker's kind has a profile, and its memory is large enough."""
    model, owner = deployment.variants[variant], deployment.workers[worker]
    fits = model.memory_bytes + model.dynamic_memory_bytes <= owner.memory_bytes
    return fits and model.profile_on(owner.kind) is not None


def _check_table(table: Table, lane: Lane, deployment: Deployment) -> None:
    where = f"the table of lane {lane.name}"
    if table.fault:
        raise PlanError(f"{where} {table.fault}")
    if table.kind is not None and table.kind not in deployment.kinds:
        raise PlanError(f"{where} speaks for worker kind {table.kind}, which the deployment does not have")


def _check_route(route: Route, application: str, lanes: int) -> None:
    where = f"the route of application {application}"
    if not route.lanes:
        raise PlanError(f"{where} leads to no lane")
    if min(*route.lanes, *route.demands, 0) < 0 or max(*route.lanes, *route.demands, 0) >= lanes:
        raise PlanError(f"{where} names a lane outside 0 … {lanes - 1}")
    if route.rule is RouteRule.BY_APPLICATION and len(route.lanes) != 1:
        raise PlanError(f"{where} is by application and needs exactly one lane")
    if not 1 <= route.front_ends <= MAX_FRONT_ENDS:
        raise PlanError(f"{where} is dealt by {route.front_ends} front ends; give it 1 to {MAX_FRONT_ENDS}")
    if route.rule in (RouteRule.WEIGHTED, RouteRule.DEALT) or route.weights:
        if len(route.weights) != len(route.lanes):
            raise PlanError(f"{where} needs one weight per lane")
        if not all(map(math.isfinite, route.weights)) or min(route.weights) < 0 or max(route.weights) <= 0:
            raise PlanError(f"{where} needs weights that are not negative and not all zero")
    if route.rule in (RouteRule.BY_CLIENT, RouteRule.BY_CLASS):
        if not route.targets:
            raise PlanError(f"{where} needs a target per client or class")
        if min(route.targets) < 0 or max(route.targets) >= len(route.lanes):
            raise PlanError(f"{where} has a target outside its {len(route.lanes)} lanes")


def _check_serves(lane: Lane, application: int, deployment: Deployment) -> None:
    name = deployment.applications[application].name
    if isinstance(lane.select, Worklist):
        return
    for variant in selected_variants(lane):
        if deployment.application_of[variant] != application:
            raise PlanError(
                f"application {name} is routed to lane {lane.name}, which runs {deployment.variant_label(variant)}"
            )


def _check_ratios(plan: Plan, deployment: Deployment) -> None:
    if plan.ratios is None:
        return
    if [len(row) for row in plan.ratios] != [len(deployment.kinds)] * len(deployment.variants):
        raise PlanError("the plan's latencies need one ratio per variant and kind of worker")
    if any(not LEAST_RATIO <= ratio <= MOST_RATIO for row in plan.ratios for ratio in row):
        raise PlanError(f"the plan's latencies are between {LEAST_RATIO:g} and {MOST_RATIO:g} times the profiled ones")


def _check_memory(what: str, by_worker: tuple[tuple[int, ...], ...] | None, deployment: Deployment) -> None:
    if by_worker is None:
        return
    if len(by_worker) != len(deployment.workers):
        raise PlanError(f"the {what} needs one entry per worker")
    for worker, variants in zip(deployment.workers, by_worker, strict=True):
        if not all(0 <= variant < len(deployment.variants) for variant in variants):
            raise PlanError(f"the {what} of worker {worker.name} names an unknown variant")
        for variant in variants:
            if deployment.variants[variant].profile_on(worker.kind) is None:
                label = deployment.variant_label(variant)
                raise PlanError(f"the {what} of worker {worker.name} holds {label}, which it cannot run")
        need = sum(deployment.variants[variant].memory_bytes for variant in variants)
        need += max((deployment.variants[variant].dynamic_memory_bytes for variant in variants), default=0)
        if need > worker.memory_bytes:
            raise PlanError(f"the {what} of worker {worker.name} needs {need} bytes of its {worker.memory_bytes}")
