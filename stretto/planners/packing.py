"""Squishy bin packing: which sessions share a worker, in which batches (Nexus: Shen et al., SOSP 2019, section 6.1).

A session is a model with an SLO and a rate. A node is one worker that runs a batch of each of its sessions once per
duty cycle, so a query waits one cycle at most before its own batch. Items are squishy: in a shorter cycle a session's
batch is smaller, and costs more time per query.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S

TOLERANCE = 1e-9  # relative: rates and cycles are floats
STEP = 0.97
BISECTIONS = 25


@dataclass(frozen=True, eq=False)
class Session:
    """`latency_ns[b]` is l(b) for b = 0 … the largest batch; `rate` is in queries/s, above zero."""

    latency_ns: NDArray[np.int64]
    slo_ns: int
    rate: float
    memory_bytes: int = 0
    dynamic_memory_bytes: int = 0


@dataclass(frozen=True)
class Part:
    """What a node does for a session: `rate` queries/s in batches of at most `batch`."""

    session: int
    batch: int
    rate: float


@dataclass(frozen=True)
class Node:
    """One worker: each part runs once per duty cycle; `occupancy` is the share of the cycle that they fill."""

    duty_ns: float
    occupancy: float
    parts: tuple[Part, ...]


def saturated_batch(session: Session) -> int:
    """The largest b with 2·l(b) ≤ SLO; 1 where only a single query that need not wait makes it."""
    latency = session.latency_ns
    if latency[1] > session.slo_ns:
        raise StrettoError("a session cannot answer a single query within its SLO, so no packing serves it")
    return max(1, int(np.searchsorted(latency, session.slo_ns // 2, side="right")) - 1)


def pack_workers(sessions: Sequence[Session], memory_bytes: int, workers: int) -> tuple[Node, ...]:
    """Exactly one node per worker: the packing at the largest scale of the rates that fits.

    Nexus would release workers that it does not need and ask for those that it misses; here the number is given, so the
    rates are scaled to it. The nodes carry the scaled rates; only their proportions matter.
    """
    # From the scale at which saturated batches alone fill all workers, downwards in steps, because a packing may fail
    # below a scale at which one succeeds. At the least scale every session has under one query per cycle.
    high = workers / sum(_work(session) for session in sessions)
    least = 0.5 / max(session.rate * session.slo_ns / NS_PER_S for session in sessions)
    low, best = high, pack(sessions, memory_bytes, high, workers)
    while best is None and low > least:
        low, high = max(low * STEP, least), low
        best = pack(sessions, memory_bytes, low, workers)
    if best is None:
        return _take_turns(sessions, memory_bytes, workers)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        packed = pack(sessions, memory_bytes, middle, workers)
        low, high, best = (low, middle, best) if packed is None else (middle, high, packed)
    return _spread(best, workers)


def _work(session: Session) -> float:
    """How many workers the session keeps busy at its saturated batch."""
    batch = saturated_batch(session)
    return session.rate * int(session.latency_ns[batch]) / batch / NS_PER_S


def pack(
    sessions: Sequence[Session], memory_bytes: int, scale: float = 1.0, limit: int | None = None
) -> tuple[Node, ...] | None:
    """The nodes that serve `scale` times every session's rate (Nexus algorithm 1); None: it takes more than `limit`."""
    nodes: list[Node] = []
    residues: list[Node] = []
    for number, session in enumerate(sessions):
        if session.memory_bytes + session.dynamic_memory_bytes > memory_bytes:
            raise StrettoError("a session needs more memory than a worker has")
        batch = saturated_batch(session)
        latency_ns = int(session.latency_ns[batch])
        full_rate = batch / latency_ns * NS_PER_S
        full = math.floor(session.rate * scale / full_rate + TOLERANCE)
        if limit is not None and len(nodes) + full > limit:
            return None
        nodes += [Node(float(latency_ns), 1.0, (Part(number, batch, full_rate),))] * full
        residue = session.rate * scale - full * full_rate
        if full == 0 or residue > TOLERANCE * full_rate:
            residues.append(_residue(number, session, batch, residue))
    shared: list[Node] = []
    for residue_node in sorted(residues, key=lambda node: -node.occupancy):
        merged = [_merge(sessions, memory_bytes, node, residue_node) for node in shared]
        fitting = {place: node for place, node in enumerate(merged) if node is not None}
        if fitting:
            place, fullest = max(fitting.items(), key=lambda pair: pair[1].occupancy)
            shared[place] = fullest
        else:
            shared.append(residue_node)
            if limit is not None and len(nodes) + len(shared) > limit:
                return None
    return (*nodes, *shared)


def _residue(number: int, session: Session, saturated: int, rate: float) -> Node:
    """The duty cycle of a load below one worker's: the one that fills the least of the worker's time.

    The paper takes the largest b with l(b) + b/r ≤ SLO and the cycle b/r. That leaves out loads between two batch sizes
    and those below one query per cycle; the authors' program admits batches that are not always full, b = ⌈r·d⌉ in
    the longest cycle that the SLO allows. Both are among the choices here.
    """
    sizes = np.arange(1, saturated + 1)
    latency = session.latency_ns[1 : saturated + 1].astype(np.float64)
    if saturated == 1 and 2 * latency[0] > session.slo_ns:
        return Node(float(latency[0]), 1.0, (Part(number, 1, rate),))  # no cycle holds: a worker of its own
    longest = session.slo_ns - latency
    duty = np.minimum(longest, sizes / rate * NS_PER_S)
    is_filled = ((sizes - 1) / rate * NS_PER_S <= longest) & (latency <= duty)
    occupancy = np.where(is_filled, latency / duty, np.inf)
    place = saturated - 1 - int(np.argmin(occupancy[::-1]))  # the largest batch where equal
    return Node(float(duty[place]), float(occupancy[place]), (Part(number, place + 1, rate),))


def _merge(sessions: Sequence[Session], memory_bytes: int, node: Node, other: Node) -> Node | None:
    """Both in the shorter of their cycles, with batches shrunk to it; None where time or memory do not suffice."""
    duty_ns = min(node.duty_ns, other.duty_ns)
    parts = tuple(replace(part, batch=_gathered(part.rate, duty_ns)) for part in node.parts + other.parts)
    need_ns = sum(int(sessions[part.session].latency_ns[part.batch]) for part in parts)
    members = [sessions[part.session] for part in parts]
    if need_ns > duty_ns or _memory(members) > memory_bytes:
        return None
    return Node(duty_ns, need_ns / duty_ns, parts)


def _gathered(rate: float, duty_ns: float) -> int:
    return max(1, math.ceil(rate * duty_ns / NS_PER_S - TOLERANCE))


def _memory(members: Sequence[Session]) -> int:
    """Weights of all, and the working memory of the one that runs."""
    weights = sum(session.memory_bytes for session in members)
    return weights + max((session.dynamic_memory_bytes for session in members), default=0)


def _spread(nodes: tuple[Node, ...], workers: int) -> tuple[Node, ...]:
    """Spare workers halve, then third, … the busiest nodes. Equal sessions spill together, so a few may be spare."""
    copies = [1] * len(nodes)
    for _ in range(workers - len(nodes)):
        copies[max(range(len(nodes)), key=lambda place: nodes[place].occupancy / copies[place])] += 1
    return tuple(
        replace(node, parts=tuple(replace(part, rate=part.rate / count) for part in node.parts))
        for node, count in zip(nodes, copies, strict=True)
        for _ in range(count)
    )


def _take_turns(sessions: Sequence[Session], memory_bytes: int, workers: int) -> tuple[Node, ...]:
    """Where no duty cycle holds at any rate: sessions go to the least busy worker with room, and take turns there."""
    held: list[list[int]] = [[] for _ in range(workers)]
    busy = [0.0] * workers
    work = [_work(session) for session in sessions]
    for number in sorted(range(len(sessions)), key=lambda place: -work[place]):
        room = [w for w in range(workers) if _memory([sessions[n] for n in (*held[w], number)]) <= memory_bytes]
        if not room:
            raise StrettoError(f"the memory of {workers} workers does not hold all {len(sessions)} sessions")
        # The number of sessions breaks ties, so that no worker stays empty while another holds two without work.
        place = min(room, key=lambda w: (busy[w], len(held[w])))
        held[place].append(number)
        busy[place] += work[number]
    return tuple(_turns(sessions, numbers) for numbers in held)


def _turns(sessions: Sequence[Session], numbers: Sequence[int]) -> Node:
    """k sessions in turn: a query waits for k batches at most and then for its own, so (k + 1)·l(b) ≤ SLO if it can."""
    parts = []
    for number in numbers:
        session = sessions[number]
        within = int(np.searchsorted(session.latency_ns, session.slo_ns // (len(numbers) + 1), side="right")) - 1
        parts.append(Part(number, max(1, within), session.rate))
    duty_ns = float(sum(int(sessions[part.session].latency_ns[part.batch]) for part in parts))
    return Node(duty_ns, 1.0 if parts else 0.0, tuple(parts))
