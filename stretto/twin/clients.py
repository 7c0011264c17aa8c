"""Clients in a setting: how often each asks, what its SLO is, and how fast its network was each second lately.

From this the judge draws clients to try candidates with: bandwidths are resampled in blocks, on seeds of the judge's
own, so that drops and rises come as they did but not when they did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stretto.core.bandwidth import Bandwidth, in_steps
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S
from stretto.sim.network.clients import MAX_DELAY_NS, MAX_FPS, MAX_RATIO, NetworkClient

MOST_SECONDS = 120  # of bandwidths that are kept of a client
MOST_CLIENTS = 4_096  # of a setting; a judge needs no more to know what they are like
BLOCK_S = 20  # that stay together when bandwidths are resampled: drops must not come more often than they did
SLOWEST, FASTEST = 1.0, 1e12  # bytes/s


@dataclass(frozen=True)
class ClientConditions:
    """One client, as measured. `bytes_per_s`: the last seconds, the oldest first."""

    application: str
    rate: float  # queries/s
    bytes_per_s: tuple[float, ...]
    slo_ns: int | None = None  # None: the application's own
    delay_ns: int = 0  # there and back
    frame_ratio: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.rate <= MAX_FPS:
            raise StrettoError(f"a client asks up to {MAX_FPS:g} queries a second, not {self.rate}")
        if not 1 <= len(self.bytes_per_s) <= MOST_SECONDS:
            raise StrettoError(f"a client has between 1 and {MOST_SECONDS} seconds of bandwidth")
        if not all(SLOWEST <= each <= FASTEST for each in self.bytes_per_s):
            raise StrettoError(f"a bandwidth is between {SLOWEST:g} and {FASTEST:g} bytes/s")
        if self.slo_ns is not None and self.slo_ns <= 0:
            raise StrettoError("the SLO of a client must be above zero")
        if not (0 <= self.delay_ns <= 2 * MAX_DELAY_NS and 0 < self.frame_ratio <= MAX_RATIO):
            raise StrettoError("the delay or the frame sizes of a client are beyond their bounds")


def conditions_of(client: NetworkClient, seconds: float) -> ClientConditions:
    """What a scenario states of a client, second by second."""
    count = max(1, min(MOST_SECONDS, math.ceil(min(seconds, client.bandwidth.period_ns / NS_PER_S))))
    rates = (client.bandwidth.mean_over(second * NS_PER_S, (second + 1) * NS_PER_S) for second in range(count))
    return ClientConditions(
        client.application,
        client.fps,
        tuple(min(max(rate, SLOWEST), FASTEST) for rate in rates),
        client.slo_ns,
        client.delay_ns + client.back_ns,
        client.frame_ratio,
    )


def are_networked(deployment: Deployment, clients: Iterable[ClientConditions]) -> bool:
    """Whether there is anything to choose by clients' networks: frames of several known sizes."""
    called = {client.application for client in clients}
    return any(
        application.name in called and len({variant.frame_bytes for variant in application.variants} - {0}) > 1
        for application in deployment.applications
    )


def at_rates(
    deployment: Deployment, clients: Sequence[ClientConditions], rates: Sequence[float]
) -> tuple[ClientConditions, ...]:
    """Clients that ask so much together, by application: some of those that there are, or all of them and copies."""
    chosen: list[ClientConditions] = []
    for application, wanted in zip(deployment.applications, rates, strict=True):
        askers = [client for client in clients if client.application == application.name]
        total, number = 0.0, 0
        while askers and number < MOST_CLIENTS:
            client = askers[number % len(askers)]
            if number > 0 and abs(total + client.rate - wanted) >= abs(total - wanted):
                break  # one more would be further from what is asked
            chosen.append(client)
            total += client.rate
            number += 1
    return tuple(chosen)


def drawn(clients: Sequence[ClientConditions], seconds: float, seed: int) -> tuple[NetworkClient, ...]:
    """Clients like these, with bandwidths that were theirs in another order."""
    random = np.random.default_rng([seed, 0x7E7])
    return tuple(
        NetworkClient(
            client.application,
            client.rate,
            _resampled(client.bytes_per_s, math.ceil(seconds), random),
            client.slo_ns,
            client.delay_ns // 2,
            client.delay_ns - client.delay_ns // 2,
            frame_ratio=client.frame_ratio,
            jitter=0.1,
            joins_s=float(random.uniform(0, 0.5)),
        )
        for client in clients
    )


def _resampled(bytes_per_s: tuple[float, ...], seconds: int, random: np.random.Generator) -> Bandwidth:
    """Blocks from anywhere in the past, around its end, one after the other."""
    count = len(bytes_per_s)
    block = min(BLOCK_S, count)
    values: list[float] = []
    while len(values) < seconds:
        start = int(random.integers(count))
        values += [bytes_per_s[(start + step) % count] for step in range(block)]
    return in_steps(values[:seconds])


def smaller(
    deployment: Deployment, clients: Sequence[ClientConditions], most_rate: float
) -> tuple[Deployment, tuple[ClientConditions, ...]]:
    """The same in small where more is asked than a judge can try: a part of the workers, and of the clients."""
    total = sum(client.rate for client in clients)
    fewest = min(sum(worker.kind == kind for worker in deployment.workers) for kind in deployment.kinds)
    part = min(math.floor(total / most_rate), max(1, fewest // 2))
    if part <= 1:
        return deployment, tuple(clients)
    workers = []
    for kind in deployment.kinds:
        crew = [worker for worker in deployment.workers if worker.kind == kind]
        workers += crew[: math.ceil(len(crew) / part)]
    there = Deployment(deployment.applications, tuple(workers), deployment.quantile)
    share = len(workers) / len(deployment.workers)
    by_rate = sorted(clients, key=lambda client: (client.application, client.rate))
    places = np.unique((np.arange(max(1, round(share * len(by_rate)))) / share).astype(int))
    return there, tuple(by_rate[place] for place in places.tolist() if place < len(by_rate))


def worse_networks(clients: Sequence[ClientConditions], factor: float) -> tuple[ClientConditions, ...]:
    """The same clients behind networks so many times as fast."""
    return tuple(
        replace(client, bytes_per_s=tuple(max(rate * factor, SLOWEST) for rate in client.bytes_per_s))
        for client in clients
    )


def scaled_rates(clients: Sequence[ClientConditions], factor: float) -> tuple[ClientConditions, ...]:
    """The same clients, each asking so many times as often."""
    return tuple(replace(client, rate=min(client.rate * factor, MAX_FPS)) for client in clients)
