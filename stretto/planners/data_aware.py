"""Data-awareness for any planner (SneakPeek section 4, equation 9): accuracy by what evidence says, through the Plan.

A planner that knows applications and accuracies needs no change. It is shown a deployment in which an application with
recall per class is several: one for each *kind of query*, and one for queries without evidence, which have the profiled
accuracies. A query is told to be of its likeliest class, and a kind is the classes for which the variants differ alike.
The accuracy of a variant for a kind is θ·recall, averaged over samples that evidence told to be of the kind; where no
samples were asked about, evidence counts as certain. The plan is brought back: variants get their own numbers, and the
real application is routed by class to the lanes that were made for its kinds.

Kinds are few (`kinds`), because queries in different lanes do not share batches. Where two kinds get the same fixed
variant, they share one lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stretto.core.application import Application
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.plan import Accumulate, Deferred, Fixed, Lane, Plan, Release, Route, RouteRule, renumbered
from stretto.core.view import Planner, View, WaitingQuery
from stretto.planners.ports import HasRhythm, KnowsNetworks, Prepares

MOST_KINDS = 64
MOST_HELD = 0.25  # of the SLO, that a query waits for evidence
ROUNDS = 50  # of finding the kinds, at most
UNKNOWN_SHARE = 0.01  # of an application's queries, as long as nothing is measured


@dataclass(frozen=True, eq=False)
class Disguise:
    """The deployment that the inner planner sees, and how its numbers lead back."""

    deployment: Deployment
    owner: NDArray[np.int64]  # real application, by one in disguise
    variant: NDArray[np.int64]  # real variant, by one in disguise
    first: NDArray[np.int64]  # by real application: the one shown for unknown classes; those for its kinds follow
    kind_of: tuple[NDArray[np.int64], ...]  # by real application and class: which of its kinds; empty: not told apart
    shares: NDArray[np.float64]  # of the real application's queries, by one in disguise, before any is measured


@dataclass
class DataAware:
    """`planner` with accuracies by class. Its routes must lead each application to a single lane."""

    planner: Planner
    kinds: int = 4  # that are told apart in each application
    looks_at_evidence: ClassVar[bool] = True
    _known: tuple[Deployment, Disguise] | None = field(default=None, repr=False)
    _shares: NDArray[np.float64] | None = field(default=None, repr=False)  # of their application, by one shown
    _made: tuple[Plan, Plan] | None = field(default=None, repr=False)
    _evidence_ns: int = field(default=0, repr=False)  # that it was made for

    def __post_init__(self) -> None:
        if not 1 <= self.kinds <= MOST_KINDS:
            raise StrettoError(f"between 1 and {MOST_KINDS} kinds of query can be told apart, not {self.kinds}")

    @property
    def replan_s(self) -> float | None:
        """As often as the planner itself."""
        return self.planner.replan_s if isinstance(self.planner, HasRhythm) else None

    @property
    def knows_networks(self) -> bool:
        return isinstance(self.planner, KnowsNetworks) and self.planner.knows_networks

    @property
    def is_prepared(self) -> bool:
        return not isinstance(self.planner, Prepares) or self.planner.is_prepared

    def __call__(self, view: View) -> Plan:
        """The same plan object while the inner planner keeps to its own."""
        deployment = view.deployment
        if self._known is None or self._known[0] is not deployment:
            self._known = (deployment, disguise(deployment, self.kinds))
            self._made = None
            self._shares = self._known[1].shares
        seen = self._known[1]
        plan, evidence_ns = self.planner(self._shown(view, seen)), view.delays.evidence_ns
        if self._made is None or self._made[0] is not plan or evidence_ns != self._evidence_ns:
            self._evidence_ns = evidence_ns
            self._made = (plan, real_plan(plan, deployment, seen, evidence_ns))
        return self._made[1]

    def _shown(self, view: View, seen: Disguise) -> View:
        self._shares = shares = self._measured_shares(view, seen)
        ended = np.zeros((len(seen.owner), view.ended.shape[1]), np.int64)
        ended[seen.first] = view.ended  # they stand with the first application that is shown
        expected = view.expected_rates
        return replace(
            view,
            deployment=seen.deployment,
            rates=None if view.rates is None else view.rates[seen.owner] * shares,
            expected_rates=None if expected is None else tuple((np.array(expected)[seen.owner] * shares).tolist()),
            holds=None if view.holds is None else view.holds[:, seen.variant],
            latency_ratio=view.latency_ratio[seen.variant],
            is_measured=view.is_measured[seen.variant],
            ended=ended,
            dispersion=1 + shares * (view.dispersion[seen.owner] - 1),  # of a part of the queries, taken at random
            plan=None if self._made is None else self._made[0],
            waiting=lambda: tuple(shown_query(query, seen) for query in view.waiting()),
        )

    def _measured_shares(self, view: View, seen: Disguise) -> NDArray[np.float64]:
        """Each kind's share of its application's queries, by the rates of the lanes that they were given."""
        assert self._shares is not None
        if self._made is None or view.lane_rates is None or view.plan is not self._made[1]:
            return self._shares
        plan = self._made[0]
        shares = self._shares.copy()
        for number in range(len(seen.first)):
            mine = np.flatnonzero(seen.owner == number)
            asked = view.lane_rates[[plan.routes[disguised].lanes[0] for disguised in mine]]
            if np.count_nonzero(asked) > 1:
                shares[mine] = asked / asked.sum()
        return shares


def disguise(deployment: Deployment, kinds: int) -> Disguise:
    """Applications with recall per class become several; others stay as they are."""
    applications: list[Application] = []
    owner: list[int] = []
    variant: list[int] = []
    first: list[int] = []
    kind_of: list[NDArray[np.int64]] = []
    shares: list[float] = []
    for number, application in enumerate(deployment.applications):
        numbers = list(deployment.variants_of(number))
        first.append(len(applications))
        shown = kinds_of_query(application, kinds)
        kind_of.append(np.zeros(0, np.int64) if shown is None else shown[0])
        applications += [application, *(() if shown is None else shown[1])]
        shares += [1.0] if shown is None else [UNKNOWN_SHARE, *((1 - UNKNOWN_SHARE) * shown[2])]
        owner += [number] * (len(applications) - first[-1])
        variant += numbers * (len(applications) - first[-1])
    pairs = [
        (deployment.applications[number].name, each.name) for number, each in zip(owner, applications, strict=True)
    ]
    workers = tuple(replace(worker, resident=_residents(worker.resident, pairs)) for worker in deployment.workers)
    seen = Deployment(tuple(applications), workers, deployment.quantile)
    return Disguise(seen, np.array(owner), np.array(variant), np.array(first), tuple(kind_of), np.array(shares))


def kinds_of_query(
    application: Application, kinds: int
) -> tuple[NDArray[np.int64], list[Application], NDArray[np.float64]] | None:
    """The kind of each class, the application as it is for each kind, and the kinds' shares of its queries; None where
    classes make no difference to it.
    """
    if not tells_classes_apart(application):
        return None
    accuracy = np.array([model.accuracy_by_class or model.recall for model in application.variants])
    classes = accuracy.shape[1]
    shares = np.array(application.class_shares) if len(application.class_shares) == classes else np.ones(classes)
    kind_of = alike(accuracy, shares, kinds)
    shown, of_kinds = [], np.zeros(int(kind_of.max()) + 1)
    for kind in range(len(of_kinds)):
        members = kind_of == kind
        of_kinds[kind] = shares[members].sum()
        weights = shares[members] if of_kinds[kind] > 0 else None  # no sample was told to be of any: all count alike
        means = np.average(accuracy[:, members], axis=1, weights=weights).clip(0, 1).tolist()
        variants = tuple(replace(model, accuracy=mean) for model, mean in zip(application.variants, means, strict=True))
        shown.append(replace(application, name=f"{application.name[:100]}:kind-{kind}", variants=variants))
    return kind_of, shown, of_kinds / of_kinds.sum()


def tells_classes_apart(application: Application) -> bool:
    """Whether every variant has a recall for the same classes, and there is anything to choose."""
    lengths = {len(model.recall) for model in application.variants}
    return len(application.variants) > 1 and len(lengths) == 1 and min(lengths) > 1


def _residents(resident: tuple[str, ...] | None, pairs: list[tuple[str, str]]) -> tuple[str, ...] | None:
    """`pairs` are names of applications, the real one and the one in disguise."""
    if resident is None:
        return None
    labels = [label.split("/", 1) for label in resident]
    return tuple(f"{disguised}/{variant}" for name, variant in labels for real, disguised in pairs if real == name)


def alike(accuracy: NDArray[np.float64], shares: NDArray[np.float64], kinds: int) -> NDArray[np.int64]:
    """The kind of each class: those whose variants are below the best by like amounts are taken together.

    `accuracy` is [variant, class]. Kinds begin at the classes that are furthest apart and move to the middle of their
    members, where a class counts by its share.
    """
    below = (accuracy - accuracy.max(axis=0)).T
    weights = np.maximum(shares, 1e-9)  # a class of no sample counts for next to nothing
    centres = np.average(below, axis=0, weights=weights)[None, :]
    gaps = _gaps(below, centres)
    while len(centres) <= kinds and (gaps.min(axis=1) > 1e-9).any():  # the first centre, that of all, goes afterwards
        furthest = int((weights * gaps.min(axis=1)).argmax())
        centres = np.concatenate([centres, below[furthest : furthest + 1]])
        gaps = np.concatenate([gaps, _gaps(below, centres[-1:])], axis=1)
    centres = centres[1:] if len(centres) > 1 else centres
    kind = _gaps(below, centres).argmin(axis=1)
    for _ in range(ROUNDS):
        places = np.unique(kind)
        centres = np.array([np.average(below[kind == each], axis=0, weights=weights[kind == each]) for each in places])
        before, kind = kind, _gaps(below, centres).argmin(axis=1)
        if np.array_equal(before, kind):
            break
    _, first, place = np.unique(kind, return_index=True, return_inverse=True)
    order: NDArray[np.int64] = np.argsort(np.argsort(first))[place]  # kinds are numbered as their first classes stand
    return order


def _gaps(rows: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    """[row, centre]"""
    gaps: NDArray[np.float64] = np.abs(rows[:, None, :] - centres[None, :, :]).sum(axis=2)
    return gaps


def shown_query(query: WaitingQuery, seen: Disguise) -> WaitingQuery:
    """The query as one of the application that is shown for its class."""
    kind_of = seen.kind_of[query.application]
    number = int(seen.first[query.application])
    if 0 <= query.query_class < len(kind_of):
        number += 1 + int(kind_of[query.query_class])
    return replace(query, application=number)


def real_plan(plan: Plan, deployment: Deployment, seen: Disguise, evidence_ns: int = 0) -> Plan:
    """The plan in the numbers of the real deployment, with routes by class. A query whose class is not told yet waits
    for evidence before a worker that is free may take it: it would else be answered without.
    """
    for number, route in enumerate(plan.routes):
        if len(route.lanes) != 1:
            name = seen.deployment.applications[number].name
            raise StrettoError(
                f"planner {plan.planner or 'without a name'} deals the queries of {name} to {len(route.lanes)} lanes;"
                " only one with a single lane for each application can be made data-aware"
            )
    lanes = tuple(replace(lane, select=renumbered(lane.select, seen.variant.tolist())) for lane in plan.lanes)
    for number in np.flatnonzero([len(kind_of) for kind_of in seen.kind_of]).tolist():
        unknown = plan.routes[int(seen.first[number])].lanes[0]
        if 0 < evidence_ns <= MOST_HELD * deployment.applications[number].slo_ns:
            held = replace(lanes[unknown], release=_held(lanes[unknown].release, evidence_ns))
            lanes = (*lanes[:unknown], held, *lanes[unknown + 1 :])
    routes = []
    for number in range(len(deployment.applications)):
        start, kind_of = int(seen.first[number]), seen.kind_of[number]
        if not len(kind_of):
            routes.append(plan.routes[start])
            continue
        used: list[int] = []
        places = []
        for disguised in range(start, start + 2 + int(kind_of.max())):
            lane = _shared(plan.routes[disguised].lanes[0], used, lanes)
            if lane not in used:
                used.append(lane)
            places.append(used.index(lane))
        targets = tuple(places[1 + int(kind)] for kind in kind_of)
        routes.append(Route(RouteRule.BY_CLASS, tuple(used), targets=targets))
    placement = None
    if plan.placement is not None:
        placement = tuple(tuple(dict.fromkeys(int(seen.variant[v]) for v in held)) for held in plan.placement)
    return replace(plan, lanes=lanes, routes=tuple(routes), placement=placement, planner=f"data_aware_{plan.planner}")


def _held(release: Release, evidence_ns: int) -> Release:
    """The same, and not before evidence had its time; one that waits for a deadline waits long enough as it is."""
    if isinstance(release, Deferred):
        return release
    if isinstance(release, Accumulate):
        return replace(release, timeout_ns=max(release.timeout_ns, evidence_ns))
    most = release.max_batch
    return Accumulate(most, evidence_ns, most, release.adaptive_cap, release.floor_rates)


def _shared(lane: int, used: list[int], lanes: tuple[Lane, ...]) -> int:
    """A lane in use that runs the same fixed variant, where there is one; a larger batch is then had."""
    select = lanes[lane].select
    for other in used:
        if isinstance(select, Fixed) and lanes[other].select == select:
            return other
    return lane
