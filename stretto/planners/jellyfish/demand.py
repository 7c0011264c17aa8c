"""From a View to the scheduling problem: who asks how often, how much time the network leaves, and what can run where.

Rates are what was counted here, never what a client says. What comes from nobody in particular (λ of the application
that no known client explains) is shared out to a few clients without a name, which have the application's SLO.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.client import Client
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.frame_size import MISCOUNT, carried_bytes
from stretto.core.profile import NS_PER_S, Quantile
from stretto.core.view import View
from stretto.planners.jellyfish.problem import NEVER_NS, Problem

ALONE = 0.25  # of its latency, that a client alone on its worker may wait, for its own frames come unevenly
QUIET_NS = 2 * NS_PER_S  # a client that has not asked for so long is not planned for
UNEXPLAINED = 0.05  # of λ: less than this is taken for an error of counting, not for somebody
LEAST_RATE = 1.0  # queries/s, likewise
PARTS = 4  # for each worker, into which queries of nobody are shared out
STEPS = (1.0, 2.5, 5.0)  # by which rates are told apart, and these times powers of ten
MOST_CELLS, LEAST_COLUMNS = 30_000, 37  # of the tables of sums, for each worker and client: that bounds planning time


@dataclass(frozen=True, eq=False)
class Ladder:
    """The variants of an application that are worth planning with, by rising accuracy, and the likes of workers."""

    variants: tuple[int, ...]
    workers: tuple[int, ...]
    like_of: tuple[int, ...]  # by place in `workers`: workers of equal kind and memory are alike
    latency_ns: NDArray[np.int64]  # [like, place in `variants`, batch], at the quantile that is planned with
    mean_ns: NDArray[np.int64]  # likewise, in the mean


@dataclass(frozen=True, eq=False)
class Demand:
    """`clients` come first in the problem; behind them `unnamed` parts of what comes from nobody in particular, or
    none where the SLO itself is too short. `carried[client, model]`: its network carries frames of that size at its
    rate. `hopeless` are no part of the problem: no model answers them in time.
    """

    problem: Problem
    clients: tuple[Client, ...]
    unnamed: int
    carried: NDArray[np.bool_]
    hopeless: tuple[Client, ...] = ()


def ladder_of(view: View, application: int, workers: tuple[int, ...], quantile: Quantile) -> Ladder:
    """Without variants that another one beats in accuracy, latency and bytes together (section III-B)."""
    deployment = view.deployment
    likes: dict[tuple[str, int], int] = {}
    for worker in workers:
        owner = deployment.workers[worker]
        likes.setdefault((owner.kind, owner.memory_bytes), len(likes))
    numbers = deployment.variants_of(application)
    deepest = max(
        profile.max_batch
        for number in numbers
        for kind, _ in likes
        if (profile := deployment.variants[number].profile_on(kind)) is not None
    )
    latency, mean = (_latencies(view, numbers, likes, deepest, each) for each in (quantile, Quantile.MEAN))
    undominated = _undominated(deployment, numbers, latency)
    order = sorted(undominated, key=lambda place: (deployment.variants[numbers[place]].accuracy, place))
    chosen = latency[:, order]
    for like in range(len(likes)):
        _make_rising(chosen[like])
    like_of = tuple(likes[deployment.workers[w].kind, deployment.workers[w].memory_bytes] for w in workers)
    return Ladder(tuple(numbers[place] for place in order), workers, like_of, chosen, mean[:, order])


def _latencies(
    view: View, numbers: Sequence[int], likes: dict[tuple[str, int], int], deepest: int, quantile: Quantile
) -> NDArray[np.int64]:
    """[like, place in `numbers`, batch], as measured."""
    deployment = view.deployment
    latency = np.full((len(likes), len(numbers), deepest + 1), NEVER_NS, np.int64)
    latency[:, :, 0] = 0
    for (kind, memory), like in likes.items():
        for place, number in enumerate(numbers):
            variant = deployment.variants[number]
            profile = variant.profile_on(kind)
            if profile is not None and variant.memory_bytes + variant.dynamic_memory_bytes <= memory:
                ratio = view.latency_ratio[number, deployment.kinds.index(kind)]
                row = np.rint(profile.table_ns[quantile] * ratio).astype(np.int64)
                latency[like, place, 1 : profile.max_batch + 1] = row[1:]
    return latency


def _undominated(deployment: Deployment, numbers: Sequence[int], latency: NDArray[np.int64]) -> list[int]:
    able = [place for place in range(len(numbers)) if (latency[:, place, 1] < NEVER_NS).any()]
    undominated: list[int] = []
    for place in able:
        variant = deployment.variants[numbers[place]]
        for other in able:
            rival = deployment.variants[numbers[other]]
            is_as_good = (
                rival.accuracy >= variant.accuracy
                and rival.frame_bytes <= variant.frame_bytes
                and (latency[:, other] <= latency[:, place]).all()
            )
            is_the_same = (
                is_as_good and (latency[:, other] == latency[:, place]).all() and rival.accuracy == variant.accuracy
            )
            if other != place and is_as_good and (not is_the_same or other < place):
                break
        else:
            undominated.append(place)
    return undominated


def _make_rising(latency: NDArray[np.int64]) -> None:
    """A larger model counts as no quicker than a smaller one: tails of measured profiles may say otherwise (VI-A)."""
    can_run = latency[:, 1] < NEVER_NS
    latency[can_run] = np.maximum.accumulate(latency[can_run], axis=0)


def demand_of(
    view: View,
    application: int,
    ladder: Ladder,
    *,
    queueing: float,
    step: float,
    headroom: float,
    least_wait: float | None = None,
) -> Demand:
    """What is asked of an application's workers. `least_wait`: times the latency of a batch, that a client must leave
    time for or is hopeless; None: as much as `queueing`.
    """
    deployment = view.deployment
    served = deployment.applications[application]
    of_it = tuple(client for client in view.clients() if client.application == served.name)
    clients = tuple(client for client in of_it if view.now_ns - client.seen_ns <= QUIET_NS)
    rates = [client.rate if math.isfinite(client.rate) else 0.0 for client in clients]
    unnamed = _unnamed(view, application, sum(rates), len(ladder.workers), bool(clients))
    frames = np.array([deployment.variants[variant].frame_bytes for variant in ladder.variants], np.float64)
    overhead_ns = view.delays.control_ns + view.delays.data_ns * np.arange(ladder.latency_ns.shape[2])
    wait = queueing if least_wait is None else least_wait
    needed_ns = ((1.0 + wait) * ladder.latency_ns[:, :, 1:] + overhead_ns[1:]).min(axis=(0, 2))  # by model
    networks = _Networks(clients, rates, frames, served.slo_ns, (1.0 + queueing) / (1.0 + min(ALONE, queueing)))
    budgets, carried = networks.with_unknown_as_others(needed_ns)
    budgets = np.concatenate([budgets, np.full((len(unnamed), len(frames)), served.slo_ns, np.int64)])
    carried = np.concatenate([carried, np.ones((len(unnamed), len(frames)), np.bool_)])
    can_be_served = (needed_ns <= budgets).any(axis=1)
    budgets = budgets[can_be_served]
    problem = Problem(
        accuracy=np.array([deployment.variants[variant].accuracy for variant in ladder.variants]),
        latency_ns=ladder.latency_ns,
        kind_of=np.array(ladder.like_of, np.int64),
        rate=headroom * np.array([*rates, *unnamed], np.float64)[can_be_served],
        budget_ns=budgets,
        queueing=queueing,
        step=max(step, coarse_step(_most_throughput(ladder), len(ladder.workers) * len(budgets))),
        overhead_ns=overhead_ns,
    )
    hopeful = tuple(client for client, can_be in zip(clients, can_be_served, strict=False) if can_be)
    hopeless = tuple(client for client, can_be in zip(clients, can_be_served, strict=False) if not can_be)
    return Demand(problem, hopeful, len(unnamed), carried[can_be_served], hopeless)


class _Networks:
    """What the networks of clients leave of their SLOs."""

    def __init__(
        self,
        clients: Sequence[Client],
        rates: Sequence[float],
        frames: NDArray[np.float64],
        slo_ns: int,
        waiting: float,
    ) -> None:
        """`waiting`: how often the time that a batch needs with nobody before it is in what (5) reserves for it."""
        self.rates, self.frames, self.waiting = rates, frames, waiting
        self.steady_share = np.array([client.network.steady_share for client in clients], np.float64)
        self.sent = frames * np.array([client.frame_ratio for client in clients])[:, None]  # bytes, [client, model]
        slos_ns = [slo_ns if client.slo_ns is None else client.slo_ns for client in clients]
        self.slo_ns = np.array(slos_ns, np.float64)
        # Not a number: not known.
        self.bytes_per_s = np.array([client.network.bytes_per_s or math.nan for client in clients], np.float64)
        delays_ns = [client.network.delay_ns for client in clients]
        self.delay_ns = np.array([math.nan if delay is None else delay for delay in delays_ns], np.float64)

    def with_unknown_as_others(self, needed_ns: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """`left`, where what is not known of a network is the median of what is known of clients that can be served:
        one that says of itself what nobody can serve says nothing of others. `needed_ns`: by model, the least.
        """
        known = self.left(math.inf, 0.0)
        if not np.isnan([self.bytes_per_s, self.delay_ns]).any():
            return known
        can_be_served = (needed_ns <= known[0]).any(axis=1)
        return self.left(_median(self.bytes_per_s[can_be_served], math.inf), _median(self.delay_ns[can_be_served], 0.0))

    def left(self, bytes_per_s: float, delay_ns: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """By client and model, what is left of the SLO, and which sizes are carried; with these for what is not known.

        Ours: a size that the network cannot carry at the client's rate would only fill the link, and the client sends
        less; the smallest is left, for it has to send something.
        """
        speeds = np.where(np.isnan(self.bytes_per_s), bytes_per_s, self.bytes_per_s)
        delays_ns = np.where(np.isnan(self.delay_ns), delay_ns, self.delay_ns)
        most = [
            carried_bytes(speed, max(rate - MISCOUNT, 0.0))
            for speed, rate in zip(speeds.tolist(), self.rates, strict=True)
        ]
        carried = (self.sent <= np.array(most)[:, None]) | (self.frames == self.frames.min())
        budgets, careful = (self._left_at(each, delays_ns) for each in (speeds, speeds * self.steady_share))
        # The smallest size is exempt: there is none to step down to, and who has no place misses every frame.
        is_larger = self.frames > self.frames.min()
        budgets = np.where(is_larger, np.minimum(budgets, self.waiting * careful), budgets)
        budgets[~carried] = -1
        return np.clip(budgets, -1, 2**62).astype(np.int64), carried

    def _left_at(self, speeds: NDArray[np.float64], delays_ns: NDArray[np.float64]) -> NDArray[np.float64]:
        """By client and model, what is left of the SLO with such bandwidths."""
        left: NDArray[np.float64] = self.slo_ns[:, None] - delays_ns[:, None] - self.sent / speeds[:, None] * NS_PER_S
        return left


def _median(values: NDArray[np.float64], where_none: float) -> float:
    """Of those that are known."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else where_none


def coarse_step(throughput: float, pairs: int) -> float:
    """How finely rates can be told apart in reasonable time, given the most that a worker brings through and so many
    pairs of a worker and a client; at the published scale of many clients, in steps of 5 as published.
    """
    finest = throughput / max(MOST_CELLS / max(pairs, 1), LEAST_COLUMNS)
    scale = 10.0 ** math.floor(math.log10(finest))
    return next((step * scale for step in STEPS if step * scale >= finest * (1 - 1e-9)), 10.0 * scale)


def _most_throughput(ladder: Ladder) -> float:
    batches = np.arange(1, ladder.latency_ns.shape[2])
    return float((batches * NS_PER_S / ladder.latency_ns[:, :, 1:]).max())


def _unnamed(view: View, application: int, explained: float, workers: int, has_clients: bool) -> list[float]:
    """The rates of the parts of what no client explains; where nothing comes at all, one that hardly asks."""
    rate = 0.0 if view.rates is None else float(view.rates[application])
    left = rate - explained
    if left <= max(LEAST_RATE, UNEXPLAINED * rate):
        return [] if has_clients else [LEAST_RATE]
    parts = min(PARTS * workers, max(1, int(left / LEAST_RATE)))
    return [left / parts] * parts


def quantile_for(deployment: Deployment, tail: bool) -> Quantile:
    """The p99, as published, or what the deployment's decisions rest on."""
    return Quantile.P99 if tail else deployment.quantile


def check_served(deployment: Deployment, application: int, workers: Sequence[int]) -> None:
    """Refuses to plan an application that none of its workers can answer."""
    kinds = {deployment.workers[worker].kind for worker in workers}
    variants = deployment.applications[application].variants
    if not any(variant.profile_on(kind) for variant in variants for kind in kinds):
        raise StrettoError(f"no worker can answer application {deployment.applications[application].name}")
