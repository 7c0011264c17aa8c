"""Simulated arrivals: where queries come from, as sorted chunks of one structured array.

A source never holds more than a few chunks, so that 100 million queries stream through bounded memory. The same seed
gives the same bytes, whatever the chunk size, and a longer run begins with the whole of a shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S
from stretto.sim.choice import AliasTables, shares_of
from stretto.sim.merge import Numbered, marked, merged
from stretto.sim.processes import MAX_SECONDS, MIN_RATE, Poisson, Process, check_rate, generator

ARRIVAL = np.dtype(
    [
        ("time_ns", "i8"),
        ("deadline_ns", "i8"),
        ("application", "i4"),
        ("client", "i4"),
        ("query_class", "i4"),
        ("priority", "i4"),
    ],
    align=True,
)
CHUNK = 262_144
MAX_QUERIES = 10**11
MAX_CLIENTS = 100_000
MAX_DEADLINE_NS = 2**61

# What all queries of one stream share; `deadline_ns` is relative.
_ORIGIN = np.dtype([("deadline_ns", "i8"), ("application", "i4"), ("client", "i4"), ("priority", "i4")], align=True)


class Source(Protocol):
    """What feeds the simulator."""

    def chunks(self, deployment: Deployment, seconds: float, seed: int) -> Iterator[NDArray[np.void]]:
        """Arrays of ARRIVAL, sorted by time across all of them, each of 1 … CHUNK rows, times in [0, seconds)."""
        ...

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        """Mean queries/s by application over the first `seconds`."""
        ...


class Popularity(Protocol):
    """How a load is shared out among the applications."""

    def shares(self, applications: int) -> NDArray[np.float64]:
        """By application; they sum to one."""
        ...


@dataclass(frozen=True)
class Even:
    """Every application is as popular as any other."""

    def shares(self, applications: int) -> NDArray[np.float64]:
        return np.full(applications, 1.0 / applications)


@dataclass(frozen=True)
class Zipf:
    """The application in place k (from 1) is called in proportion to 1 / k^exponent."""

    exponent: float

    def __post_init__(self) -> None:
        if not 0 <= self.exponent <= 100:
            raise StrettoError(f"the Zipf exponent is {self.exponent}; it must be between 0 and 100")

    def shares(self, applications: int) -> NDArray[np.float64]:
        weights: list[float] = (np.arange(1, applications + 1, dtype=np.float64) ** -self.exponent).tolist()
        return shares_of("the Zipf shares", weights)


@dataclass(frozen=True)
class Weights:
    """One weight per application, in the order of the deployment."""

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        shares_of("the popularities of applications", self.weights)

    def shares(self, applications: int) -> NDArray[np.float64]:
        if len(self.weights) != applications:
            raise StrettoError(f"there are {len(self.weights)} popularity weights for {applications} applications")
        return shares_of("the popularities of applications", self.weights)


@dataclass(frozen=True)
class Mix:
    """What differs between the queries of one application: their class, and their deadline relative to their arrival.

    Empty `class_shares` leave the class unknown (-1); empty `deadlines_ns` leave the application's SLO; empty
    `deadline_shares` make all of the deadlines equally likely.
    """

    class_shares: tuple[float, ...] = ()
    deadlines_ns: tuple[int, ...] = ()
    deadline_shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.class_shares:
            shares_of("the classes of a mix", self.class_shares)
        for deadline_ns in self.deadlines_ns:
            _check_deadline("a deadline of a mix", deadline_ns)
        if self.deadline_shares:
            shares_of("the deadlines of a mix", self.deadline_shares)
            if len(self.deadline_shares) != len(self.deadlines_ns):
                raise StrettoError(
                    f"a mix has {len(self.deadline_shares)} shares for {len(self.deadlines_ns)} deadlines"
                )


@dataclass(frozen=True)
class Load:
    """Every application has its own independent stream of `process`, at its share of the total `rate` (queries/s).

    Without a rate, the process's own mean rate is the total. A process whose rate follows the clock keeps its shape
    over time in every stream; a Markovian one is slowed down to its share. `mix` goes by application name.
    """

    process: Process
    rate: float | None = None
    popularity: Popularity = field(default_factory=Even)
    mix: Mapping[str, Mix] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.rate is not None:
            check_rate("the rate of a load", self.rate)

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        check_span(seconds)
        total = self._whole().mean_rate(seconds)
        return tuple(float(total * share) for share in self.popularity.shares(len(deployment.applications)))

    def chunks(
        self, deployment: Deployment, seconds: float, seed: int, *, rows: int = CHUNK
    ) -> Iterator[NDArray[np.void]]:
        end_ns = check_run(self.expected_rates(deployment, seconds), seconds, rows)
        origins = np.zeros(len(deployment.applications), dtype=_ORIGIN)
        origins["application"] = np.arange(len(origins))
        origins["client"] = -1
        origins["deadline_ns"] = slos_ns(deployment)
        shares = self.popularity.shares(len(origins))
        whole = self._whole()
        seeds = _seeds(seed)
        if whole.splits:
            numbered = marked(whole, shares, seeds.times, seeds.marks, end_ns)
        else:
            rates = shares * whole.mean_rate()
            streams = np.flatnonzero(rates >= MIN_RATE)
            by_stream = seeds.times.spawn(len(rates))
            processes = [self.process.at_rate(float(rates[stream])) for stream in streams]
            numbered = merged(processes, [by_stream[stream] for stream in streams], end_ns)
            origins = origins[streams]
        return _assembled(numbered, origins, _Marker.of(deployment, self.mix, origins, (), seeds), rows)

    def _whole(self) -> Process:
        return self.process if self.rate is None else self.process.at_rate(self.rate)


@dataclass(frozen=True)
class Client:
    """One client, who calls one application. None takes the process's own rate, and the application's SLO."""

    application: str
    process: Process
    rate: float | None = None
    deadline_ns: int | None = None  # relative to the arrival
    priority: int = 0

    def __post_init__(self) -> None:
        if self.rate is not None:
            check_rate("the rate of a client", self.rate)
        if self.deadline_ns is not None:
            _check_deadline("the deadline of a client", self.deadline_ns)
        if not -(2**31) <= self.priority < 2**31:
            raise StrettoError(f"the priority of a client is {self.priority}; it must fit 32 bits")

    def own_process(self) -> Process:
        """The process at the client's rate."""
        return self.process if self.rate is None else self.process.at_rate(self.rate)


@dataclass(frozen=True)
class Clients:
    """Clients by number, each with an independent stream. A client's own deadline goes before the mix's."""

    clients: tuple[Client, ...]
    mix: Mapping[str, Mix] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= len(self.clients) <= MAX_CLIENTS:
            raise StrettoError(f"there must be between 1 and {MAX_CLIENTS} clients, not {len(self.clients)}")

    @staticmethod
    def alike(count: int, client: Client, mix: Mapping[str, Mix] | None = None) -> Clients:
        """`count` clients that differ in nothing but their number and their luck."""
        if not 1 <= count <= MAX_CLIENTS:
            raise StrettoError(f"there must be between 1 and {MAX_CLIENTS} clients, not {count}")
        return Clients((client,) * count, mix or {})

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        check_span(seconds)
        numbers = application_numbers(deployment)
        rates = [0.0] * len(numbers)
        for number, client in enumerate(self.clients):
            rates[self._application(number, numbers)] += client.own_process().mean_rate(seconds)
        return tuple(rates)

    def chunks(
        self, deployment: Deployment, seconds: float, seed: int, *, rows: int = CHUNK
    ) -> Iterator[NDArray[np.void]]:
        end_ns = check_run(self.expected_rates(deployment, seconds), seconds, rows)
        numbers = application_numbers(deployment)
        slo_ns = slos_ns(deployment)
        origins = np.zeros(len(self.clients), dtype=_ORIGIN)
        for number, client in enumerate(self.clients):
            application = self._application(number, numbers)
            deadline_ns = slo_ns[application] if client.deadline_ns is None else client.deadline_ns
            origins[number] = (deadline_ns, application, number, client.priority)
        own_deadline = [number for number, client in enumerate(self.clients) if client.deadline_ns is not None]
        processes = [client.own_process() for client in self.clients]
        seeds = _seeds(seed)
        if all(isinstance(process, Poisson) for process in processes):
            rates = np.array([process.mean_rate() for process in processes])
            whole = Poisson(math.fsum(rates))
            numbered = marked(whole, rates / whole.rate, seeds.times, seeds.marks, end_ns)
        else:
            numbered = merged(processes, seeds.times.spawn(len(processes)), end_ns)
        return _assembled(numbered, origins, _Marker.of(deployment, self.mix, origins, own_deadline, seeds), rows)

    def _application(self, number: int, numbers: Mapping[str, int]) -> int:
        name = self.clients[number].application
        if name not in numbers:
            raise StrettoError(f"client {number} calls application {name[:40]!r}, which the deployment does not have")
        return numbers[name]


def application_numbers(deployment: Deployment) -> dict[str, int]:
    """Number of each application by its name."""
    return {application.name: number for number, application in enumerate(deployment.applications)}


def slos_ns(deployment: Deployment) -> NDArray[np.int64]:
    """SLO by application."""
    for application in deployment.applications:
        _check_deadline(f"the SLO of application {application.name}", application.slo_ns)
    return np.array([application.slo_ns for application in deployment.applications], dtype=np.int64)


def check_span(seconds: float) -> None:
    """Refuses a length of a run that is not a number, not above zero, or absurd."""
    if not (isinstance(seconds, int | float | np.number) and 0 < seconds <= MAX_SECONDS):
        raise StrettoError(f"a run of {seconds!r:.40} seconds is not between 0 and {MAX_SECONDS:.0f}")


def check_run(rates: Sequence[float], seconds: float, rows: int) -> int:
    """The end of a run in ns, unless it is too large to make."""
    check_span(seconds)
    if sum(rates) * seconds > MAX_QUERIES:
        raise StrettoError(f"the run would have more than {MAX_QUERIES:.0e} queries; lower its rate or its seconds")
    if not 1 <= rows <= CHUNK:
        raise StrettoError(f"a chunk has between 1 and {CHUNK} rows, not {rows}")
    return round(seconds * NS_PER_S)


def _check_deadline(what: str, deadline_ns: int) -> None:
    if not (isinstance(deadline_ns, int | np.integer) and 0 < deadline_ns <= MAX_DEADLINE_NS):
        raise StrettoError(f"{what} is {deadline_ns!r:.40} ns; it must be a whole number above 0 and at most 2^61")


@dataclass(frozen=True)
class _Seeds:
    times: SeedSequence
    marks: SeedSequence
    classes: SeedSequence
    deadlines: SeedSequence


def _seeds(seed: int) -> _Seeds:
    """Each use of chance has its own stream, so that adding a class mix leaves the times as they were."""
    if not (isinstance(seed, int | np.integer) and 0 <= seed < 2**128):
        raise StrettoError(f"the seed is {seed!r:.40}; it must be a whole number from 0 to below 2^128")
    return _Seeds(*SeedSequence(int(seed)).spawn(4))


@dataclass(frozen=True, eq=False)
class _Marker:
    """Draws class and deadline of each query where a mix says so; both tables go by stream."""

    classes: AliasTables | None
    deadlines: AliasTables | None
    class_random: np.random.Generator
    deadline_random: np.random.Generator

    @staticmethod
    def of(
        deployment: Deployment,
        mix: Mapping[str, Mix],
        origins: NDArray[np.void],
        own_deadline: Sequence[int],
        seeds: _Seeds,
    ) -> _Marker:
        """Streams in `own_deadline` keep the deadline of their origin."""
        numbers = application_numbers(deployment)
        whole_share = np.ones(1)
        # Distribution 0 leaves things as they are; application a has distribution a + 1.
        classes: list[tuple[Sequence[int], NDArray[np.float64]]] = [((-1,), whole_share)] * (len(numbers) + 1)
        deadlines: list[tuple[Sequence[int], NDArray[np.float64]]] = [((0,), whole_share)] * (len(numbers) + 1)
        for name, parts in mix.items():
            if name not in numbers:
                raise StrettoError(f"the mix names application {name[:40]!r}, which the deployment does not have")
            application = deployment.applications[numbers[name]]
            if parts.class_shares:
                if application.classes and len(parts.class_shares) != application.classes:
                    raise StrettoError(
                        f"the mix of application {name} has {len(parts.class_shares)} class shares "
                        f"for {application.classes} classes"
                    )
                shares = shares_of("the classes of a mix", parts.class_shares)
                classes[numbers[name] + 1] = (range(len(shares)), shares)
            if parts.deadlines_ns:
                weights = parts.deadline_shares or (1.0,) * len(parts.deadlines_ns)
                deadlines[numbers[name] + 1] = (parts.deadlines_ns, shares_of("the deadlines of a mix", weights))
        by_class = origins["application"].astype(np.int64) + 1
        by_deadline = by_class.copy()
        by_deadline[list(own_deadline)] = 0
        return _Marker(
            AliasTables.of(classes).by(by_class) if any(parts.class_shares for parts in mix.values()) else None,
            AliasTables.of(deadlines).by(by_deadline) if any(parts.deadlines_ns for parts in mix.values()) else None,
            generator(seeds.classes),
            generator(seeds.deadlines),
        )

    def mark(self, chunk: NDArray[np.void], streams: NDArray[np.int64]) -> None:
        if self.classes is not None:
            chunk["query_class"] = self.classes.pick(self.class_random.random(len(chunk)), streams)
        if self.deadlines is not None:
            relative_ns = self.deadlines.pick(self.deadline_random.random(len(chunk)), streams)
            np.copyto(chunk["deadline_ns"], chunk["time_ns"] + relative_ns, where=relative_ns > 0)


def _assembled(numbered: Numbered, origins: NDArray[np.void], marker: _Marker, rows: int) -> Iterator[NDArray[np.void]]:
    """Full chunks of `rows`, and what is left."""
    chunk, filled = np.empty(rows, dtype=ARRIVAL), 0
    for times, streams in numbered:
        at = 0
        while at < len(times):
            taken = min(rows - filled, len(times) - at)
            part = chunk[filled : filled + taken]
            _fill(part, times[at : at + taken], streams[at : at + taken], origins)
            marker.mark(part, streams[at : at + taken])
            at += taken
            filled += taken
            if filled == rows:
                yield chunk
                chunk, filled = np.empty(rows, dtype=ARRIVAL), 0
    if filled:
        yield chunk[:filled]


@compiled
def _fill(chunk: Any, times: Any, streams: Any, origins: Any) -> None:
    for i in range(len(chunk)):
        origin = origins[streams[i]]
        chunk[i].time_ns = times[i]
        chunk[i].deadline_ns = times[i] + origin.deadline_ns
        chunk[i].application = origin.application
        chunk[i].client = origin.client
        chunk[i].query_class = -1
        chunk[i].priority = origin.priority
