"""What a plan means for each client: which input size it should send, and whose worker time it shares.

Where the plan routes by client, a client is told the size of the one variant of its lane (Jellyfish, section III).
Any other plan may run several variants for it, so it is told the most accurate size that leaves time: the network time
of a frame at that size, and twice the latency of the variant of that size (a query may wait for the batch before its
own; equation 5), must be within its SLO, and frames at its rate must not need more than its bandwidth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.check import selected_variants
from stretto.core.client import Client, Clients, Place, Told
from stretto.core.deployment import Deployment
from stretto.core.plan import Plan, Route, RouteRule
from stretto.core.profile import NS_PER_S
from stretto.core.telemetry import Telemetry
from stretto.core.view import View
from stretto.planning.left import left_ns

TELL_S = 0.5  # how often clients are told anew what to send, where no plan does it
GATHER_S = 0.1  # changes of clients within this time are planned for together
WAIT = 2.0  # latencies from arrival to answer: at worst one batch before its own


def tell_all(
    clients: Clients, plan: Plan, deployment: Deployment, telemetry: Telemetry, before: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Networks change while a plan stays: what it means for each client is looked at anew. Returns what their networks
    leave of each application's SLO (None: all), from what they left `before`.
    """
    if not len(clients):
        return None
    seen = clients.all(telemetry.now_ns)
    placed = places(plan, deployment, seen, telemetry.latency_ratio)
    clients.placed(seen, placed)
    told = {slot: place.told for slot, place in placed.items()}
    return left_ns(deployment, seen, told, telemetry.rates, before)


def told_by_slot(plan: Plan, view: View) -> dict[int, Told]:
    """By slot, for the clients of the view whose application is served."""
    placed = places(plan, view.deployment, view.clients(), view.latency_ratio)
    return {slot: place.told for slot, place in placed.items()}


def places(
    plan: Plan, deployment: Deployment, clients: Sequence[Client], latency_ratio: NDArray[np.float64]
) -> dict[int, Place]:
    """By slot. `latency_ratio` is measured over profiled latency, by variant and kind."""
    number_of = {application.name: number for number, application in enumerate(deployment.applications)}
    by_application: dict[int, list[Client]] = {}
    for client in clients:
        if client.application in number_of:
            by_application.setdefault(number_of[client.application], []).append(client)
    place_by_slot: dict[int, Place] = {}
    for application, askers in by_application.items():
        route = plan.routes[application]
        if route.rule is RouteRule.BY_CLIENT:
            place_by_slot.update(_mapped(plan, route, deployment, askers))
        else:
            ladder = _ladder(plan, route, deployment, latency_ratio)
            place_by_slot.update(_by_network(ladder, deployment.applications[application].slo_ns, askers))
    return place_by_slot


# -- routed by client ------------------------------------------------------------------------------------------------


def _mapped(plan: Plan, route: Route, deployment: Deployment, clients: Sequence[Client]) -> dict[int, Place]:
    told_of_lane = {lane: _told_of_lane(plan, lane, deployment) for lane in route.lanes}
    lane_of = {client.slot: route.lanes[_target(route, client.slot)] for client in clients}
    mapped = Counter(lane_of.values())
    return {slot: Place(told_of_lane[lane], lane, is_shared=mapped[lane] > 1) for slot, lane in lane_of.items()}


def _target(route: Route, slot: int) -> int:
    """A client that the plan has not seen takes the first lane, as the dispatcher has it where no weights deal it."""
    return route.targets[slot] if slot < len(route.targets) else 0


def _told_of_lane(plan: Plan, lane: int, deployment: Deployment) -> Told:
    """The variant of a lane; the most accurate one where the lane may run several. A lane that takes nobody in is for
    clients that the plan maps nowhere: they hear a size, and no variant.
    """
    numbers = selected_variants(plan.lanes[lane])
    if not numbers:  # a worklist that is empty just now
        return Told()
    variant = max((deployment.variants[number] for number in numbers), key=lambda each: each.accuracy)
    return Told("" if plan.lanes[lane].capacity == 0 else variant.name, variant.input_size)


# -- any other route -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Ladder:
    """The sizes that a plan can use, the most accurate first: of each size its most accurate variant."""

    rungs: tuple[Told, ...]
    frame_bytes: NDArray[np.float64]
    latency_ns: NDArray[np.float64]  # of one query, on the quickest worker that it can come to
    smallest: int  # the one with the fewest bytes, where nothing fits


def _ladder(plan: Plan, route: Route, deployment: Deployment, latency_ratio: NDArray[np.float64]) -> _Ladder:
    best_of_size: dict[tuple[int, ...], tuple[float, float, int]] = {}  # accuracy, −latency, variant
    for lane in (plan.lanes[number] for number in route.lanes):
        for kind in {deployment.workers[worker].kind for worker in lane.workers}:
            for number in selected_variants(lane):
                variant = deployment.variants[number]
                profile = variant.profile_on(kind)
                if profile is not None:
                    ratio = latency_ratio[number, deployment.kinds.index(kind)]
                    rung = variant.accuracy, -float(profile.table_ns[deployment.quantile, 1] * ratio), number
                    best_of_size[variant.input_size] = max(rung, best_of_size.get(variant.input_size, rung))
    rungs = sorted(best_of_size.values(), key=lambda rung: (-rung[0], deployment.variants[rung[2]].frame_bytes))
    variants = [deployment.variants[number] for _, _, number in rungs]
    latency_ns = np.array([-latency for _, latency, _ in rungs], np.float64)
    return _Ladder(
        tuple(Told(variant.name, variant.input_size) for variant in variants),
        np.array([variant.frame_bytes for variant in variants], np.float64),
        latency_ns,
        min(range(len(variants)), key=lambda rung: (variants[rung].frame_bytes, latency_ns[rung]), default=0),
    )


def _by_network(ladder: _Ladder, slo_ns: int, clients: Sequence[Client]) -> dict[int, Place]:
    """The first rung that fits; the smallest where none does. A network that nobody measured yet takes no time."""
    if not ladder.rungs:  # a worklist that is empty just now says nothing
        return {}
    slowness = np.array([1.0 / (client.network.bytes_per_s or np.inf) for client in clients])  # s per byte
    delay_ns = np.array([client.network.delay_ns or 0 for client in clients], np.float64)
    ratio = np.array([client.frame_ratio for client in clients])
    rate = np.array([client.rate for client in clients])
    limit_ns = np.array([slo_ns if client.slo_ns is None else client.slo_ns for client in clients], np.float64)
    sending_s = ladder.frame_bytes[None, :] * (ratio * slowness)[:, None]
    needed_ns = delay_ns[:, None] + sending_s * NS_PER_S + WAIT * ladder.latency_ns[None, :]
    fits = (needed_ns <= limit_ns[:, None]) & (sending_s * rate[:, None] <= 1.0)
    rung = np.where(fits.any(axis=1), fits.argmax(axis=1), ladder.smallest)
    return {client.slot: Place(ladder.rungs[place]) for client, place in zip(clients, rung.tolist(), strict=True)}
