"""Arrivals resampled from a recorded stretch: a circular block bootstrap of the real stream.

Blocks of the stretch, long enough to hold its bursts, follow each other in random order; within a block everything is
as it was, rows of a request included. Applications that were recorded over the same span are cut at the same places, so
that their peaks stay together. Where a single application's requests spread as Poisson's do, they are drawn so: a short
stretch would else repeat the bursts that it had by chance. A load factor runs the whole film faster or slower: another
rate, the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S
from stretto.sim.arrivals import ARRIVAL, CHUNK, application_numbers, check_run, check_span, slos_ns
from stretto.sim.processes import MIN_RATE, SHAPES, Gamma, Poisson, Process, generator
from stretto.twin.stretch import REQUEST, ArrivalStretch, counts_in_windows, moves

FEWEST_REQUESTS = 50  # of a stretch that is resampled; below, its rate and burstiness say as much
LOAD_FACTORS = (1e-6, 1e6)
LADDER_NS = tuple(int(step * 10**power) for power in range(7, 13) for step in (1, 2, 5))  # 10 ms … 5000 s
FEWEST_BLOCKS = 10
FEWEST_MOVING = 2  # of a load that moves: how long it stays at a level counts for more than many blocks
FEWEST_TESTED = 16  # blocks in which a correlation is looked for
BLOCK_OF_BURSTS = 4  # a block is so many times as long as what it must not tear apart
SHORTEST_BLOCK_NS = BLOCK_OF_BURSTS * NS_PER_S  # the longest window whose dispersion is kept, so many times
SLAB = 65_536  # queries made at once, about
OVERLAP = 0.1  # of a stretch, which is left of it when it is cut to those of others

_TAKEN = np.dtype([("application", "i4"), *((name, REQUEST[name]) for name in REQUEST.names or ())], align=True)


@dataclass(frozen=True, eq=False)
class Resampled:
    """A Source. With a seed of its own it gives the same arrivals whatever seed the simulation has."""

    stretches: Mapping[str, ArrivalStretch]
    load_factor: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not LOAD_FACTORS[0] <= self.load_factor <= LOAD_FACTORS[1]:
            raise StrettoError(f"a load factor is between {LOAD_FACTORS[0]:g} and {LOAD_FACTORS[1]:g}")

    def expected_rates(self, deployment: Deployment, seconds: float) -> tuple[float, ...]:
        check_span(seconds)
        numbers = application_numbers(deployment)
        rates = [0.0] * len(numbers)
        for name, stretch in self.stretches.items():
            if name in numbers:
                rates[numbers[name]] = stretch.rate * self.load_factor
            elif stretch.rate > 0:
                raise StrettoError(f"the setting has queries of application {name}, which is not deployed")
        return tuple(rates)

    def chunks(
        self, deployment: Deployment, seconds: float, seed: int, *, rows: int = CHUNK
    ) -> Iterator[NDArray[np.void]]:
        rates = self.expected_rates(deployment, seconds)
        end_ns = check_run(rates, seconds, rows)
        streams = self._streams(deployment, seed if self.seed is None else self.seed)
        return _in_chunks(streams, end_ns, sum(rates), slos_ns(deployment), rows)

    def _streams(self, deployment: Deployment, seed: int) -> list[_Blocks | _Drawn]:
        """One for all stretches of one span, and one for each that is drawn from its figures."""
        numbers = application_numbers(deployment)
        groups: dict[int, list[tuple[int, ArrivalStretch]]] = {}
        streams: list[_Blocks | _Drawn] = []
        seeds = SeedSequence([seed, 0x7E1A])
        is_alone = sum(stretch.rate >= MIN_RATE for stretch in self.stretches.values()) == 1
        for name, stretch in self.stretches.items():
            if name not in numbers or stretch.rate < MIN_RATE:
                continue
            if len(stretch.requests) >= FEWEST_REQUESTS and not (is_alone and stretch.is_poisson):
                groups.setdefault(stretch.span_ns, []).append((numbers[name], stretch))
            else:
                times = SeedSequence([seed, 0x7E1B, numbers[name]])
                streams.append(_Drawn(numbers[name], stretch, process_of(stretch, self.load_factor), times))
        return [*(_Blocks(group, self.load_factor, seeds.spawn(1)[0]) for group in groups.values()), *streams]


def overlapping(stretches: Mapping[str, ArrivalStretch]) -> dict[str, ArrivalStretch]:
    """From the latest start of any of them on, as all end at the same moment: so many requests of each application are
    remembered, and those of a busy one go back less far. A stretch of which too few requests would be left to be
    resampled stays as it was. So does one of which little would be left, and longer ones are cut to it.
    """
    cut, span_ns = dict(stretches), 0
    recorded = {name: each for name, each in cut.items() if len(each.requests) >= FEWEST_REQUESTS}
    for name, each in sorted(recorded.items(), key=lambda item: item[1].span_ns):
        if span_ns < OVERLAP * each.span_ns:
            span_ns = each.span_ns
        start_ns = each.span_ns - span_ns
        requests = each.requests[each.requests["offset_ns"] >= start_ns].copy()
        if start_ns and len(requests) >= FEWEST_REQUESTS:
            requests["offset_ns"] -= start_ns
            cut[name] = ArrivalStretch.of(requests, span_ns, each.class_shares)
    return cut


def process_of(stretch: ArrivalStretch, load_factor: float) -> Process:
    """Poisson, or gamma gaps of the burstiness over the longest window that tells it; by requests, of one row each."""
    measured = [value for value in stretch.dispersion if math.isfinite(value) and value > 0]
    rate = stretch.rate * load_factor
    if not measured or len(stretch.requests):  # a few requests tell their rows, but no burstiness
        return Poisson(rate / stretch.mean_rows())
    return Gamma(min(max(1.0 / measured[-1], SHAPES[0]), SHAPES[1]), rate)


def block_length_ns(offsets_ns: NDArray[np.int64], rows: NDArray[np.int32], span_ns: int) -> int:
    """Long enough that counts of neighbouring blocks do not go together, as far as the stretch can show."""
    shortest = LADDER_NS[0]
    for length_ns in reversed(LADDER_NS):
        blocks = span_ns // length_ns
        if blocks < FEWEST_TESTED:
            continue
        if blocks > 10_000_000:
            break
        counts = counts_in_windows(offsets_ns, rows, span_ns, length_ns)
        around = counts - counts.mean()
        power = float(around @ around)
        if power > 0 and float(around[1:] @ around[:-1]) / power > 2.0 / math.sqrt(blocks):
            shortest = LADDER_NS[LADDER_NS.index(length_ns) + 1]
            break
    wanted = max(BLOCK_OF_BURSTS * shortest, SHORTEST_BLOCK_NS)
    fewest = FEWEST_MOVING if moves(offsets_ns, rows, span_ns) else FEWEST_BLOCKS
    return max(1, min(wanted, span_ns // fewest))


class _Classes:
    """Draws the class of each query; -1 where the stretch does not know it."""

    def __init__(self, shares: Mapping[int, tuple[float, ...]], seed: SeedSequence) -> None:
        self._upto = {application: np.cumsum(given) for application, given in shares.items() if given}
        self._random = generator(seed)

    def mark(self, queries: NDArray[np.void]) -> None:
        if not self._upto:
            return
        chance = self._random.random(len(queries))
        for application, upto in self._upto.items():
            mine = queries["application"] == application
            drawn = np.searchsorted(upto, chance[mine], side="right")
            queries["query_class"][mine] = np.where(drawn < len(upto), drawn, -1)


class _Blocks:
    """Blocks of one or more stretches of the same span, one after the other."""

    def __init__(self, group: list[tuple[int, ArrivalStretch]], load_factor: float, seed: SeedSequence) -> None:
        taken = np.zeros(sum(len(stretch.requests) for _, stretch in group), dtype=_TAKEN)
        at = 0
        for application, stretch in group:
            part = taken[at : at + len(stretch.requests)]
            part["application"] = application
            for name in REQUEST.names or ():
                part[name] = stretch.requests[name]
            at += len(part)
        taken = taken[np.argsort(taken["offset_ns"], kind="stable")]
        self._factor = load_factor
        self._span_ns = group[0][1].span_ns
        self._length_ns = block_length_ns(taken["offset_ns"], taken["rows"], self._span_ns)
        again = taken.copy()
        again["offset_ns"] += self._span_ns
        self._requests = np.concatenate([taken, again])  # the circle cut open; a block is shorter than the span
        places, classes = seed.spawn(2)
        self._random = generator(places)
        self._classes = _Classes({number: stretch.class_shares for number, stretch in group}, classes)
        self._blocks = 0
        self._left = np.zeros(0, ARRIVAL)

    def until(self, until_ns: int) -> NDArray[np.void]:
        """The queries before a moment that did not come yet; a relative deadline of -1 is the SLO."""
        last = math.floor(until_ns * self._factor / self._length_ns) + 1
        parts = [self._left]
        if last > self._blocks:
            parts.append(self._next(last - self._blocks))
        queries = np.concatenate(parts)
        ready = int(np.searchsorted(queries["time_ns"], until_ns))
        self._left = queries[ready:]
        return queries[:ready]

    def _next(self, count: int) -> NDArray[np.void]:
        starts = self._random.random(count) * self._span_ns
        offsets = self._requests["offset_ns"]
        first = np.searchsorted(offsets, starts)
        sizes = np.searchsorted(offsets, starts + self._length_ns) - first
        block = np.repeat(np.arange(count), sizes)
        within = np.arange(len(block)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        requests = self._requests[first[block] + within]
        into_ns = (self._blocks + block) * float(self._length_ns) + (requests["offset_ns"] - starts[block])
        self._blocks += count
        return _expanded(requests, (into_ns / self._factor).astype(np.int64), self._classes)


class _Drawn:
    """Requests that follow a process; what they hold is drawn from those that were recorded, where some were."""

    def __init__(self, application: int, stretch: ArrivalStretch, process: Process, seed: SeedSequence) -> None:
        times, requests, classes = seed.spawn(3)
        self._application, self._stretch = application, stretch
        self._blocks = process.blocks(times, 1024, 2**62)
        self._random = generator(requests)
        self._classes = _Classes({application: stretch.class_shares}, classes)
        self._left = np.zeros(0, ARRIVAL)

    def until(self, until_ns: int) -> NDArray[np.void]:
        parts = [self._left]
        while not len(parts[-1]) or parts[-1]["time_ns"][-1] < until_ns:
            times_ns = next(self._blocks)
            taken = np.zeros(len(times_ns), dtype=_TAKEN)
            taken["rows"], taken["client"], taken["slack_ns"] = 1, -1, -1
            recorded = self._stretch.requests
            if len(recorded):
                drawn = recorded[(self._random.random(len(taken)) * len(recorded)).astype(np.int64)]
                for name in REQUEST.names or ():
                    taken[name] = drawn[name]
            taken["application"] = self._application
            parts.append(_expanded(taken, times_ns, self._classes))
        queries = np.concatenate(parts)
        ready = int(np.searchsorted(queries["time_ns"], until_ns))
        self._left = queries[ready:]
        return queries[:ready]


def _expanded(requests: NDArray[Any], times_ns: NDArray[np.int64], classes: _Classes) -> NDArray[np.void]:
    """Each row of a request as a query at the same instant. Deadlines stay relative, -1 for the SLO."""
    of_request = np.repeat(np.arange(len(requests)), requests["rows"])
    queries = np.zeros(len(of_request), dtype=ARRIVAL)
    queries["time_ns"] = times_ns[of_request]
    queries["deadline_ns"] = requests["slack_ns"][of_request]
    for name in ("application", "client", "priority"):
        queries[name] = requests[name][of_request]
    queries["query_class"] = -1
    classes.mark(queries)
    return queries


def _in_chunks(
    streams: list[_Blocks | _Drawn], end_ns: int, rate: float, slo_ns: NDArray[np.int64], rows: int
) -> Iterator[NDArray[np.void]]:
    """All streams in order of time; of equal times, the streams in their order."""
    if not streams:
        return
    slab_ns = max(1, min(end_ns, int(SLAB / rate * NS_PER_S)))
    for start_ns in range(0, end_ns, slab_ns):
        until_ns = min(start_ns + slab_ns, end_ns)
        queries = np.concatenate([stream.until(until_ns) for stream in streams])
        if len(streams) > 1:
            queries = queries[np.argsort(queries["time_ns"], kind="stable")]
        relative_ns = np.where(queries["deadline_ns"] < 0, slo_ns[queries["application"]], queries["deadline_ns"])
        queries["deadline_ns"] = queries["time_ns"] + relative_ns
        for first in range(0, len(queries), rows):
            yield queries[first : first + rows]
