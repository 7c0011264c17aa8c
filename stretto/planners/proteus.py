"""Proteus (Ahmad et al., ASPLOS 2024): which variant each worker holds, by an integer program solved anew each 10 s.

When demand rises, workers change to faster variants: accuracy gives way, and no machine has to come. The program places
one variant on each worker and says which share of an application's queries each worker gets; queries are dealt by these
shares at random. A worker gathers queries as long as the deadline of its head allows, for batches of 1, 2, 4 or 8.

Published is one binary unknown per worker and variant. Workers of a kind are alike, so counts of workers and flows of
queries by (group of alike workers, variant) have the same optimum with far fewer unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Eager, Lane, Late, Missing, Order, Plan, Route, RouteRule, Table
from stretto.core.profile import NS_PER_S, LatencyProfile, Quantile
from stretto.core.view import View
from stretto.core.worker import Worker
from stretto.planners.parts.rates import rates_of

SIZES = (1, 2, 4, 8)  # of batches
HEADROOM = 1.05  # β: workers are planned for so many times the demand
HEADROOM_STEP, LEAST_HEADROOM = 0.05, 0.2  # by which it is lowered while nothing fits; below the least it is halved
CENTRE_OF_MASS = 1.6  # of the exponential weights of past windows, in windows
WINDOW_NS = 9 * NS_PER_S  # of demand: a little less than the 10 s between plans, so that it is full when the next comes
LEAST_SHARE = 1e-3  # an application without arrivals is planned for as if it had this share of the mean demand
GAP = 1e-6  # of the objective, within which the program is solved
MOST_NODES = 100_000  # of the solver's search; a limit in seconds would give different plans on different machines
WAIT = -1

Groups = tuple[tuple[int, ...], ...]  # of alike workers, by number


@dataclass(frozen=True)
class Holding:
    """A variant that workers of a group may hold; each answers `throughput` queries/s (p), `batch` (b*) at once."""

    group: int
    variant: int
    application: int
    batch: int
    throughput: int
    accuracy: float


@dataclass(frozen=True)
class Problem:
    """What can be held, how many workers each group has, and the demand by application (queries/s)."""

    holdings: tuple[Holding, ...]
    workers: tuple[int, ...]
    demand: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Solution:
    """By holding: how many workers have it, and the queries/s that these get together."""

    counts: NDArray[np.int64]
    flows: NDArray[np.float64]
    accuracy: float  # the objective: mean over the demand
    headroom: float  # at which it was found
    is_optimal: bool


@dataclass
class Proteus:
    """Remembers the demand of past windows. Which worker holds what, it reads from the plan in force."""

    headroom: float = HEADROOM
    _past: NDArray[np.float64] | None = field(default=None, repr=False)  # Σ weight · demand, by application
    _weight: float = field(default=0.0, repr=False)  # Σ weight
    _entered_ns: int = field(default=0, repr=False)

    def __call__(self, view: View) -> Plan:
        groups = alike_workers(view)
        problem = problem_of(view.deployment, groups, self._demand(view))
        solution = solve(problem, self.headroom)
        return _plan(view, problem, solution, place(view, groups, problem, solution))

    def _demand(self, view: View) -> NDArray[np.float64]:
        """Exponentially weighted over the windows measured so far; before the first one, what is expected."""
        rates = rates_of(view, 1.0)
        if self._past is not None and len(self._past) != len(rates):
            self._past = None
        if view.plan is not None and (self._past is None or view.now_ns - self._entered_ns >= WINDOW_NS):
            decay = CENTRE_OF_MASS / (1.0 + CENTRE_OF_MASS)
            self._weight = 1.0 if self._past is None else decay * self._weight + 1.0
            self._past = rates.copy() if self._past is None else decay * self._past + rates
            self._entered_ns = view.now_ns
        demand = rates if self._past is None else self._past / self._weight
        planned: NDArray[np.float64] = np.maximum(demand, LEAST_SHARE * demand.mean())
        return planned


def largest_batch(profile: LatencyProfile, slo_ns: int) -> int:
    """b*: the largest of the sizes whose p50 latency is below half the SLO; 0 where none is."""
    sizes = (b for b in SIZES if b <= profile.max_batch and 2 * profile.latency_ns(b, Quantile.P50) < slo_ns)
    return max(sizes, default=0)


def alike_workers(view: View) -> Groups:
    """The workers that are there, by kind and memory."""
    groups: dict[tuple[str, int], list[int]] = {}
    for number in view.present:
        worker = view.deployment.workers[number]
        groups.setdefault((worker.kind, worker.memory_bytes), []).append(number)
    return tuple(tuple(group) for group in groups.values())


def problem_of(deployment: Deployment, groups: Groups, demand: NDArray[np.float64]) -> Problem:
    """What the groups may hold, at the p50 of the profiles."""
    crews = [deployment.workers[group[0]] for group in groups]
    holdings = tuple(
        holding
        for number, worker in enumerate(crews)
        for variant in range(len(deployment.variants))
        if (holding := _holding(deployment, number, worker, variant)) is not None
    )
    for number, application in enumerate(deployment.applications):
        if not any(holding.application == number for holding in holdings):
            raise StrettoError(
                f"Proteus finds no worker that answers application {application.name} within half its SLO;"
                " raise the SLO, or add a faster variant or worker"
            )
    return Problem(holdings, tuple(len(group) for group in groups), tuple(demand.tolist()))


def _holding(deployment: Deployment, group: int, worker: Worker, variant: int) -> Holding | None:
    model, application = deployment.variants[variant], deployment.application_of[variant]
    profile = model.profile_on(worker.kind)
    if profile is None or model.memory_bytes + model.dynamic_memory_bytes > worker.memory_bytes:
        return None
    batch = largest_batch(profile, deployment.applications[application].slo_ns)
    throughput = batch * NS_PER_S // profile.latency_ns(max(1, batch), Quantile.P50)
    if throughput == 0:
        return None
    return Holding(group, variant, application, batch, int(throughput), model.accuracy)


def solve(problem: Problem, headroom: float = HEADROOM) -> Solution:
    """The most accurate placement at the highest headroom, from the given one down, that has any.

    Below a headroom of one, some of the demand will be shed. Published is to give up below the least; but there must be
    a plan, so it is lowered further then.
    """
    steps = max(0, math.ceil((headroom - LEAST_HEADROOM) / HEADROOM_STEP - 1e-9))
    tried = [headroom - HEADROOM_STEP * step for step in range(steps + 1)]
    tried += [tried[-1] * 0.5**step for step in range(1, 30)]
    for candidate in tried:
        solution = solve_at(problem, candidate)
        if solution is not None:
            return solution
    raise StrettoError(
        "Proteus gives each worker one variant, and there is no way to have a fitting one of every application;"
        " it needs at least as many workers as applications"
    )


def solve_at(problem: Problem, headroom: float) -> Solution | None:
    """The program at one headroom; None where nothing fits. Unknowns: the counts of all holdings, then the flows."""
    holdings, size = problem.holdings, len(problem.holdings)
    demand = np.array(problem.demand)
    each = np.arange(size)
    in_group = sparse.csr_matrix((np.ones(size), ([h.group for h in holdings], each)), (len(problem.workers), size))
    of_application = sparse.csr_matrix((np.ones(size), ([h.application for h in holdings], each)), (len(demand), size))
    # One worker takes no more than the whole demand: the same integer answers, and fewer fractional ones to search.
    throughput = sparse.diags([min(float(h.throughput), headroom * problem.demand[h.application]) for h in holdings])
    accuracy = np.array([h.accuracy for h in holdings])
    rows = [
        LinearConstraint(sparse.hstack([in_group, 0 * in_group]), -np.inf, problem.workers),
        LinearConstraint(sparse.hstack([of_application, 0 * of_application]), 1, np.inf),  # shares sum to one somewhere
        LinearConstraint(sparse.hstack([0 * of_application, of_application]), demand, demand),
        LinearConstraint(sparse.hstack([-throughput, headroom * sparse.identity(size)]), -np.inf, 0),
    ]
    most = [problem.workers[h.group] for h in holdings]
    solved = milp(
        np.concatenate([np.zeros(size), -accuracy / demand.sum()]),
        constraints=rows,
        integrality=np.repeat([1, 0], size),
        bounds=Bounds(0.0, np.concatenate([most, [problem.demand[h.application] for h in holdings]])),
        options={"mip_rel_gap": GAP, "node_limit": MOST_NODES},
    )
    if solved.x is None:
        return None
    counts = np.rint(solved.x[:size]).astype(np.int64)
    flows = np.where(counts > 0, np.maximum(solved.x[size:], 0.0), 0.0)
    mean = float(accuracy @ flows / demand.sum())
    return Solution(counts, flows, mean, headroom, bool(solved.status == 0))


def place(view: View, groups: Groups, problem: Problem, solution: Solution) -> dict[int, int]:
    """By worker, the place of its holding in the problem.

    A worker keeps what the plan in force gave it, or has in memory, where that is wanted. One that the program has no
    use for helps where a worker of its group has most to do.
    """
    placed: dict[int, int] = {}
    for number, group in enumerate(groups):
        open_counts = {
            place: int(solution.counts[place])
            for place, holding in enumerate(problem.holdings)
            if holding.group == number and solution.flows[place] > 0
        }
        given = dict(open_counts)
        for is_kept in (_was_given, _has_in_memory, _any_worker):
            for worker in group:
                fitting = (p for p, count in open_counts.items() if count > 0 and worker not in placed)
                chosen = next((p for p in fitting if is_kept(view, worker, problem.holdings[p].variant)), None)
                if chosen is not None:
                    placed[worker] = chosen
                    open_counts[chosen] -= 1
        for worker in (worker for worker in group if worker not in placed and given):
            unchanged = [p for p in given if _was_given(view, worker, problem.holdings[p].variant)]
            placed[worker] = max(
                unchanged or given, key=lambda p: solution.flows[p] / (problem.holdings[p].throughput * given[p])
            )
            given[placed[worker]] += 1
    return placed


def _was_given(view: View, worker: int, variant: int) -> bool:
    placement = None if view.plan is None else view.plan.placement
    return placement is not None and worker < len(placement) and variant in placement[worker]


def _has_in_memory(view: View, worker: int, variant: int) -> bool:
    return view.holds is not None and bool(view.holds[worker, variant])


def _any_worker(view: View, worker: int, variant: int) -> bool:
    return True


def _plan(view: View, problem: Problem, solution: Solution, placed: dict[int, int]) -> Plan:
    """A lane per worker; the flow of a holding is shared evenly by the workers that have it."""
    deployment = view.deployment
    sharing = np.bincount(list(placed.values()), minlength=len(problem.holdings))
    lanes: list[Lane] = []
    tables: dict[int, Table] = {}  # by holding
    shares: list[list[tuple[int, float]]] = [[] for _ in deployment.applications]  # by application: lane and queries/s
    placement: list[tuple[int, ...]] = [()] * len(deployment.workers)
    for worker, chosen in sorted(placed.items()):
        holding = problem.holdings[chosen]
        placement[worker] = (holding.variant,)
        shares[holding.application].append((len(lanes), float(solution.flows[chosen] / sharing[chosen])))
        if chosen not in tables:
            tables[chosen] = _table(view, holding, deployment.workers[worker].kind)
        lanes.append(_lane(deployment, worker, holding, tables[chosen]))
    routes = []
    for by_lane in shares:
        total = sum(rate for _, rate in by_lane)
        weights = tuple(rate / total for _, rate in by_lane)
        routes.append(Route(RouteRule.WEIGHTED, tuple(lane for lane, _ in by_lane), weights))
    return Plan(
        lanes=tuple(lanes),
        routes=tuple(routes),
        placement=tuple(placement),
        rate_window_ns=WINDOW_NS,
        planner="proteus",
    )


def _lane(deployment: Deployment, worker: int, holding: Holding, table: Table) -> Lane:
    return Lane(
        name=f"{deployment.variant_label(holding.variant)}@{deployment.workers[worker].name}",
        workers=(worker,),
        select=table,
        order=Order.FIRST_COME,
        release=Eager(holding.batch),
        late=Late.DROP_WHEN_DISPATCHED,
        missing=Missing.WAIT,
    )


def _table(view: View, holding: Holding, kind: str) -> Table:
    """Read at the quantile by which the dispatcher tells what is in time, with what passes around a run."""
    profile, quantile = view.deployment.profile(holding.variant, kind), view.deployment.quantile
    sizes = [size for size in SIZES if size <= holding.batch]
    needs_ns = [profile.latency_ns(size, quantile) + view.delays.of_batch_ns(size) for size in sizes]
    return batching_table(holding.variant, sizes, needs_ns)


def batching_table(variant: int, sizes: Sequence[int], needs_ns: Sequence[int]) -> Table:
    """Proteus's batching as a table: `needs_ns` is what a batch of each of the sizes takes.

    The largest size that the queue fills starts when the head's slack is just what it takes, or at once when more wait
    than the largest size. Where a larger one is filled but takes longer than the slack, because a query came too late
    for it or the worker was busy, the largest that is still in time starts at once.
    """
    edges = sorted({edge for need in needs_ns for edge in (need, need + 1)})  # the very moment has its own column
    queued, slacks = range(sizes[-1] + 2), (0, *edges)
    variants = np.full((len(queued), len(slacks)), variant, np.int32)
    batch = np.ones(variants.shape, np.int32)
    for n in queued:
        for column, slack in enumerate(slacks):
            filled = [(size, need) for size, need in zip(sizes, needs_ns, strict=True) if size <= max(n, 1)]
            if n <= sizes[-1] and slack > filled[-1][1]:
                variants[n, column] = WAIT
            batch[n, column] = max((size for size, need in filled if need <= slack), default=1)
    return Table(1, variants, batch, edges_ns=tuple(edges))
