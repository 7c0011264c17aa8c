"""Jellyfish as a planner: one lane for each worker, one variant on it, clients routed to the lane that they fit.

Planned each 0.5 s from the measured rates and networks of clients. A lane is first come first served and eager at the
planned batch, and drops what comes too late when it would be dispatched. A client without a place is refused at the
door, as overload: served beside the others it would take time that they were promised. What comes from no known client
is dealt to the lanes that its share of λ was planned on.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.client import Client
from stretto.core.deployment import Deployment
from stretto.core.plan import Eager, Fixed, Lane, Late, Missing, Order, Plan, Route, RouteRule
from stretto.core.profile import NS_PER_S
from stretto.core.view import View
from stretto.core.worker import UNLIMITED_MEMORY
from stretto.planners.jellyfish.before import idle_as_before, lane_name, mapping_before, models_before, places_before
from stretto.planners.jellyfish.demand import ALONE, Demand, Ladder, check_served, demand_of, ladder_of, quantile_for
from stretto.planners.jellyfish.leftover import rescued, with_leftovers
from stretto.planners.jellyfish.pool import PooledPart, Pools, holds_all
from stretto.planners.jellyfish.problem import NEVER_NS, UNMAPPED, Mapping, mapping_of, most_value
from stretto.planners.jellyfish.refusing import refusing_lane, targets_by_slot
from stretto.planners.jellyfish.search import searched
from stretto.planners.jellyfish.selection import annealed
from stretto.planners.jellyfish.spread import spread
from stretto.planners.jellyfish.update import NOT_KNOWN, Followers, paired, rearranged
from stretto.planners.parts.rates import RATE_WINDOW_NS, rates_of
from stretto.planners.parts.sharing import workers_of_applications
from stretto.planners.parts.steady import SteadyLoads

NAME, POOLED = "jellyfish", "jellyfish_pool"
WORTH_A_CHANGE = 1e-3  # of the objective: clients and workers stay where they are for less
WAVER, SMOOTHING = 1.5, 0.2  # queries/s: by so much a count of a second differs by chance, and then a mean counts
SHARING_S, SHARING_RUNG = 4.0, 1.25  # workers move to another application only when loads have clearly moved


@dataclass(eq=False)
class Jellyfish:
    """`queueing`: times its own latency that a batch may have to wait, 1 as published. `step`: rates are told apart by
    so many queries/s. `headroom`: times the measured rates that capacity is for. `resident`: how many variants a worker
    holds at a time; 0: as many as its memory does. `annealing`: algorithm 2 as published, without the search behind it.
    `rescue`: a client without a place is served where it would be in time if it need not wait. `tail`: plan with the
    p99 of latencies, as published. `nearest`: prefetch models by distance alone, as published. `filling`: a batch may
    be larger than planned where deadlines allow it, and under more load than small batches bring through, heads that
    would force one are given up. Without it frames that come at once wait for several batches, and a queue that was
    once too long stays so (the micro-bursts of section VI-B). `pool`: one queue for all workers where that is more
    accurate than the mapping, up to this share of their throughput; 0: never, as published.
    """

    queueing: float = 1.0
    step: float = 0.25
    headroom: float = 1.0
    resident: int = 0
    annealing: bool = False
    rescue: bool = False
    tail: bool = True
    nearest: bool = False
    filling: bool = True
    pool: float = 0.0
    seed: int = 1
    _steady: SteadyLoads = field(init=False, repr=False)
    _deployment: Deployment | None = field(default=None, init=False, repr=False)
    _plan: Plan | None = field(default=None, init=False, repr=False)
    _ladders: dict[int, tuple[object, Ladder]] = field(default_factory=dict, init=False, repr=False)
    _followers: dict[int, Followers] = field(default_factory=dict, init=False, repr=False)  # by worker
    _pools: Pools = field(default_factory=Pools, init=False, repr=False)
    _rates: dict[tuple[str, str], float] = field(default_factory=dict, init=False, repr=False)  # by client
    _surplus: dict[str, float] = field(default_factory=dict, init=False, repr=False)  # of λ above those, by application

    def __post_init__(self) -> None:
        self._steady = SteadyLoads(SHARING_S, SHARING_RUNG, RATE_WINDOW_NS / 1e9)

    @property
    def knows_networks(self) -> bool:
        """SLOs are from frame to answer; the time on the way is taken out here, client by client."""
        return True

    def __call__(self, view: View) -> Plan:
        if view.deployment is not self._deployment:
            self._deployment, self._plan, self._ladders, self._followers = view.deployment, None, {}, {}
        view = self._with_steady_rates(view) if self.filling else view
        parts = [self._part(view, number, crew) for number, crew in enumerate(self._crews(view))]
        lanes: list[Lane] = []
        routes: list[Route] = []
        for part in parts:
            routes.append(part.route(len(lanes)))
            lanes.extend(part.lanes(view.deployment, self.filling))
        placement, prefetch = self._residency(view, parts)
        plan = Plan(
            lanes=tuple(lanes),
            routes=tuple(routes),
            placement=placement,
            prefetch=prefetch,
            rate_window_ns=RATE_WINDOW_NS,
            planner=POOLED if self.pool else NAME,
        )
        if self._plan is None or plan != self._plan:
            self._plan = plan
        return self._plan

    def _with_steady_rates(self, view: View) -> View:
        """Four clients of 25/s that fill a worker are counted with 26 now and then; who then found no place would be
        refused for nothing (ours).
        """
        clients = view.clients()
        before, self._rates = self._rates, {}
        for client in clients:
            rate_before = before.get(client.key)
            self._rates[client.key] = _steadied(rate_before, client.rate, WAVER)
            if rate_before is None or abs(client.rate - rate_before) > WAVER:
                self._surplus.pop(client.application, None)  # it was above another sum
        known = tuple(replace(client, rate=self._rates[client.key]) for client in clients)
        return replace(view, clients=lambda: known, rates=self._with_steady_surplus(view, known))

    def _with_steady_surplus(self, view: View, known: tuple[Client, ...]) -> NDArray[np.float64] | None:
        """λ, where what it has above the clients' own counts is steady too: it is counted over half a second, so one
        client of 25/s makes 24.6 or 26.7 of it, and the difference would be somebody without a name, who shares the
        client's worker (ours).
        """
        if view.rates is None:
            return None
        rates = np.array(view.rates, np.float64)
        before, self._surplus = self._surplus, {}
        for number, application in enumerate(view.deployment.applications):
            name = application.name
            counts = [c.rate for c in view.clients() if c.application == name and math.isfinite(c.rate)]
            chance = 2 * WAVER * math.sqrt(len(counts))
            self._surplus[name] = _steadied(before.get(name), float(rates[number]) - sum(counts), chance)
            steady = sum(c.rate for c in known if c.application == name and math.isfinite(c.rate))
            rates[number] = max(steady + self._surplus[name], 0.0)
        return rates

    def _crews(self, view: View) -> tuple[tuple[int, ...], ...]:
        """The workers of each application, of those that are there."""
        deployment = view.deployment
        applications = len(deployment.applications)
        if applications == 1:
            return (view.present,)
        loads = np.maximum(rates_of(view, 1.0), 1e-3)
        steps = self._steady.steps(view.now_ns, loads)
        shares = np.power(SHARING_RUNG, np.array(steps, np.float64))
        among = view.present if len(view.present) >= applications else tuple(range(len(deployment.workers)))
        return workers_of_applications(deployment, shares, {}, among)

    def _part(self, view: View, application: int, crew: tuple[int, ...]) -> _Part | PooledPart:
        deployment = view.deployment
        check_served(deployment, application, crew)
        ladder = self._ladder(view, application, crew)
        pooled = self._pooled(view, application, ladder)
        if pooled is not None and pooled.value > (1 + WORTH_A_CHANGE) * most_value(pooled.demand.problem):
            return pooled
        if pooled is None:
            demand = self._demand(view, application, ladder, 0.0 if self.rescue else 1.0)
        else:
            demand = pooled.demand
        before = models_before(view.plan, ladder)
        mapping = self._mapped(demand, before, places_before(view.plan, deployment, application, ladder, demand))
        mapping = _with_models_for_all(demand, ladder, mapping)
        if self.rescue:
            mapping = rescued(demand.problem, mapping)
        part = _Part(deployment, application, ladder, demand, mapping)
        if self.filling:
            part = part.at_hand_now(before, view.holds, self.resident, self._followers)
        is_whole = mapping.mapped == demand.problem.clients
        if pooled is not None and not (is_whole and pooled.value <= (1 + WORTH_A_CHANGE) * mapping.value):
            return pooled
        if not self.nearest:
            for worker, old, new in zip(ladder.workers, before.tolist(), part.mapping.models.tolist(), strict=True):
                self._followers.setdefault(worker, Followers()).saw(old, new)
        return part

    def _pooled(self, view: View, application: int, ladder: Ladder) -> PooledPart | None:
        """Where one may be made, and no worker would have to load anything for it."""
        deployment = view.deployment
        if (
            not self.pool
            or self.resident
            or not all(holds_all(deployment, ladder, worker) for worker in ladder.workers)
        ):
            return None
        demand = self._demand(view, application, ladder, 1 / len(ladder.workers))
        return self._pools.part(deployment, application, ladder, demand, self.pool)

    def _ladder(self, view: View, application: int, crew: tuple[int, ...]) -> Ladder:
        """Made anew only where the workers or what was measured of them have changed."""
        key = (crew, view.latency_ratio.tobytes())
        known = self._ladders.get(application)
        if known is None or known[0] != key:
            quantile = quantile_for(view.deployment, self.tail)
            ladder = ladder_of(view, application, crew, quantile)
            can_run = (ladder.latency_ns[:, :, 1].min(axis=1) < NEVER_NS).tolist()
            able = tuple(worker for worker, like in zip(crew, ladder.like_of, strict=True) if can_run[like])
            if able != crew:
                ladder = ladder_of(view, application, able, quantile)
            self._ladders[application] = known = (key, ladder)
        return known[1]

    def _demand(self, view: View, application: int, ladder: Ladder, share: float) -> Demand:
        """Where there is a worker for every client, nobody waits for anybody (ours: `spread` sees to that). `share`: of
        the wait that is planned with, for which a client must leave time or is hopeless; less than all of it in a pool,
        and for those that may be rescued.
        """

        def waiting(queueing: float) -> tuple[Demand, bool]:
            """With that much, and whether every client could have a worker."""
            options = {"step": self.step, "headroom": self.headroom, "least_wait": share * queueing}
            demand = demand_of(view, application, ladder, queueing=queueing, **options)
            named = len(demand.clients)
            by_chance = float(demand.problem.rate[named:].sum()) <= 2 * WAVER * math.sqrt(named)
            return demand, by_chance and named <= len(ladder.workers)

        demand, is_roomy = waiting(self.queueing)
        if not self.filling or not is_roomy or self.queueing <= ALONE or len(set(ladder.like_of)) > 1:
            return demand
        alone, is_roomy = waiting(ALONE)  # some may be hopeless only if they had to wait for others
        return alone if is_roomy else demand

    def _mapped(self, demand: Demand, before: NDArray[np.int64], places: NDArray[np.int64]) -> Mapping:
        problem = demand.problem
        start = np.where(before == NOT_KNOWN, 0, before)
        find = annealed if self.annealing else searched
        mapping = find(problem, start, seed=self.seed)
        if not self.annealing:
            mapping = with_leftovers(problem, mapping)
        if self.filling:
            mapping = spread(problem, mapping)
        mapping = rearranged(mapping, paired(problem.kind_of, before, mapping.models))
        if self.filling:
            mapping = idle_as_before(mapping, before)
        prior = mapping_before(problem, start, places)
        if self.annealing or prior is None:
            return mapping
        prior = with_leftovers(problem, prior)
        is_as_good = mapping.value <= prior.value * (1 + WORTH_A_CHANGE) and most_shared(prior) <= most_shared(mapping)
        return prior if prior.mapped > mapping.mapped or (prior.mapped == mapping.mapped and is_as_good) else mapping

    def _residency(self, view: View, parts: Sequence[_Part | PooledPart]) -> tuple[_Residency, _Residency]:
        """What each worker must hold, and its neighbours; nothing of either where every worker holds all there is."""
        deployment = view.deployment
        placement: list[tuple[int, ...]] = [()] * len(deployment.workers)
        prefetch: list[tuple[int, ...]] = [()] * len(deployment.workers)
        is_short = self.resident > 0
        for part in parts:
            for place, worker in enumerate(part.ladder.workers):
                followers = self._followers.get(worker, Followers())
                chosen, others, has_all = part.held(place, self.resident, followers)
                placement[worker], prefetch[worker] = (chosen,), others
                is_short = is_short or not has_all
        return (tuple(placement), tuple(prefetch)) if is_short else (None, None)


_Residency = tuple[tuple[int, ...], ...] | None


@dataclass(frozen=True, eq=False)
class _Part:
    """One application's part of the plan."""

    deployment: Deployment
    application: int
    ladder: Ladder
    demand: Demand
    mapping: Mapping

    def lanes(self, deployment: Deployment, filling: bool) -> list[Lane]:
        """One for each worker, then the one that refuses."""
        name = deployment.applications[self.application].name
        made = [
            Lane(
                name=lane_name(deployment, self.application, worker),
                workers=(worker,),
                select=Fixed(self.ladder.variants[self.mapping.models[place]]),
                order=Order.FIRST_COME,
                release=self._release(place, filling),
                late=Late.DROP_WHEN_DISPATCHED,
                missing=Missing.STAND_IN,
            )
            for place, worker in enumerate(self.ladder.workers)
        ]
        smallest = int(np.argmin(self.mapping.models))  # a refused client is told the least size, so that it may fit
        variant = self.ladder.variants[self.mapping.models[smallest]]
        return [*made, refusing_lane(name, self.ladder.workers[smallest], variant)]

    def _release(self, place: int, filling: bool) -> Eager:
        """The planned batch, or with `filling` the largest there is. Where the throughput of a profile falls with the
        batch, the largest one of those that bring through what the clients ask: what (6) allows must hold as it is run.
        """
        problem, mapping = self.demand.problem, self.mapping
        model, planned = int(mapping.models[place]), int(mapping.batches[place])
        variant, worker = self.ladder.variants[model], self.ladder.workers[place]
        profile = self.deployment.profile(variant, self.deployment.workers[worker].kind)
        most = max(planned, profile.max_batch) if filling else planned
        sizes = np.arange(1, most + 1)
        throughput = sizes * float(NS_PER_S) / problem.latency_ns[problem.kind_of[place], model, 1 : most + 1]
        asked = float(problem.rate[mapping.worker_of == place].sum())
        enough = np.flatnonzero(throughput * (1 + 1e-9) >= asked)
        return Eager(int(sizes[enough[-1]]) if len(enough) else int(sizes[throughput.argmax()]))

    def route(self, first: int) -> Route:
        """Clients by slot. Position 0 is where there is most room, for slots that nobody had when this was planned."""
        workers = len(self.ladder.workers)
        roomiest = int(np.argmax(self._room()))
        order = [roomiest, *(place for place in range(workers) if place != roomiest)]  # position in the route → place
        position = np.empty(workers + 1, np.int64)
        position[order] = np.arange(workers)
        position[UNMAPPED] = workers  # the last lane refuses
        of_clients = position[self.mapping.worker_of[: len(self.demand.clients)]].tolist()
        targets = targets_by_slot(self.demand, of_clients, workers)
        lanes = (*(first + place for place in order), first + workers)
        return Route(RouteRule.BY_CLIENT, lanes, self._weights(order), targets)

    def _room(self) -> NDArray[np.float64]:
        """Steps of rate that each worker could still take."""
        problem, mapping = self.demand.problem, self.mapping
        is_mapped = mapping.worker_of != UNMAPPED
        used = np.bincount(mapping.worker_of[is_mapped], problem.steps[is_mapped], problem.workers)
        room = problem.capacity[problem.kind_of, mapping.models, mapping.batches]
        return (room - used).astype(np.float64)

    def _weights(self, order: list[int]) -> tuple[float, ...]:
        """How queries of nobody are dealt: as their parts were mapped; evenly where none could be; and to where there
        is most room where there are none but of clients that came just now.
        """
        workers = self.mapping.worker_of[len(self.demand.clients) :]
        parts = np.bincount(workers[workers != UNMAPPED], minlength=len(order)).astype(np.float64)[order]
        if self.demand.unnamed and not parts.any():
            parts[:] = 1.0
        return (*(parts / parts.max()).tolist(), 0.0) if parts.any() else ()

    def at_hand_now(
        self,
        before: NDArray[np.int64],
        holds: NDArray[np.bool_] | None,
        resident: int,
        followers: dict[int, Followers],
    ) -> _Part:
        """A worker steps through the models that it has in memory, up and down: in place of one that must be loaded
        first it runs the largest below that. Nobody waits for a load then, and half a second later it is there, at the
        price of a little accuracy (ours). Where nobody knows what is in memory, what it was told to hold counts.
        """
        models = self.mapping.models.copy()
        numbers = {variant: model for model, variant in enumerate(self.ladder.variants)}
        for place, model in enumerate(before.tolist()):
            if model == NOT_KNOWN or models[place] == model:
                continue
            worker = self.ladder.workers[place]
            if holds is None:
                chosen, others, _ = self.held(place, resident, followers.get(worker, Followers()), model)
                at_hand = {numbers[variant] for variant in (chosen, *others)}
            else:
                at_hand = {number for variant, number in numbers.items() if holds[worker, variant]}
            if models[place] not in at_hand:
                models[place] = max((number for number in at_hand if number < models[place]), default=models[place])
        if (models == self.mapping.models).all():
            return self
        problem, worker_of, batches = self.demand.problem, self.mapping.worker_of, self.mapping.batches.copy()
        for place in range(problem.workers):
            allowed = problem.largest[problem.kind_of[place], models[place], worker_of == place]
            batches[place] = allowed.min() if len(allowed) else batches[place]
        return replace(self, mapping=mapping_of(problem, models, batches, worker_of))

    def held(
        self, place: int, resident: int, followers: Followers, model: int | None = None
    ) -> tuple[int, tuple[int, ...], bool]:
        """The variant that a worker runs (or `model`), its neighbours in memory, and whether that is all that it could
        run.
        """
        like, worker = self.ladder.like_of[place], self.deployment.workers[self.ladder.workers[place]]
        able = [m for m in range(len(self.ladder.variants)) if self.ladder.latency_ns[like, m, 1] < NEVER_NS]
        chosen = int(self.mapping.models[place]) if model is None else model
        models = self.deployment.variants
        numbers = [self.ladder.variants[chosen]]
        if not resident and worker.memory_bytes == UNLIMITED_MEMORY:
            return numbers[0], tuple(self.ladder.variants[m] for m in able if m != chosen), True
        for near in followers.of(chosen, able):
            more = [*numbers, self.ladder.variants[near]]
            need = sum(models[v].memory_bytes for v in more) + max(models[v].dynamic_memory_bytes for v in more)
            if need > worker.memory_bytes or (resident and len(more) > resident):
                break
            numbers = more
        return numbers[0], tuple(numbers[1:]), len(numbers) == len(able)


def _steadied(before: float | None, counted: float, chance: float) -> float:
    """A mean while a count differs from it by no more than chance; what is more counts at once."""
    if before is None or abs(counted - before) > chance:
        return counted
    return before + SMOOTHING * (counted - before)


def most_shared(mapping: Mapping) -> int:
    """Clients of the worker that has most of them."""
    return int(np.bincount(mapping.worker_of[mapping.worker_of != UNMAPPED], minlength=1).max())


def _with_models_for_all(demand: Demand, ladder: Ladder, mapping: Mapping) -> Mapping:
    """A worker without clients has a model that it can run too, and a batch, for whoever comes before the next plan;
    the smallest while there are clients without a place.
    """
    problem = demand.problem
    is_whole = mapping.mapped == problem.clients and not demand.hopeless
    models, batches = mapping.models.copy(), mapping.batches.copy()
    for worker in range(problem.workers):
        row = ladder.latency_ns[problem.kind_of[worker]]
        able = np.flatnonzero(row[:, 1] < NEVER_NS)
        if batches[worker] == 0 and not is_whole:
            models[worker] = able[0]
        if models[worker] not in able:
            models[worker] = able[np.argmin(np.abs(able - models[worker]))]
        if batches[worker] == 0:
            allowed = problem.largest[problem.kind_of[worker], models[worker]]
            batches[worker] = max(1, int(allowed.max(initial=0)))
    return Mapping(models, batches, mapping.worker_of, mapping.mapped, mapping.value)
