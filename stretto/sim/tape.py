"""Tapes: queries that were drawn from any source or recorded, which many simulations play in a circle.

Every simulation begins at its own moment of the tape, and the tape begins again where it ends. So a process that has no
compiled draw of its own (gamma gaps, any Markovian arrivals, a rate trace, several clients) and a log of what came once
load many simulations in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S
from stretto.sim.arrivals import Source
from stretto.sim.processes import MAX_SECONDS
from stretto.sim.query_log import QueryLog

MOST_QUERIES = 1_000_000  # that are drawn for a tape; a log is played as long as it is
MOST_SECONDS = 1_000_000.0

QUERY = np.dtype([("time_ns", "i8"), ("slack_ns", "i8")])  # slack: from the arrival to the deadline
PLAYER = np.dtype(
    [
        ("first", "i8"),  # where its tape begins among all of them
        ("count", "i8"),  # queries of its tape; 0: it plays none
        ("next", "i8"),  # query of the tape that comes next
        ("shift_ns", "i8"),  # from the time on the tape to that of the simulation
        ("span_ns", "i8"),
    ],
    align=True,
)


@dataclass(frozen=True, eq=False)
class Tape:
    """Rows of QUERY in order of time, from time 0 on. The tape begins again after `span_ns`."""

    queries: NDArray[np.void]
    span_ns: int


def tape_of(source: Source, deployment: Deployment, seed: int) -> Tape:
    """Returns the whole of a query log, or a stretch that is drawn from another source with this seed."""
    if isinstance(source, QueryLog):
        seconds = min(float(source.rows["time_ns"][-1]) / NS_PER_S + 1e-6, MAX_SECONDS)
    else:
        rate = sum(source.expected_rates(deployment, MOST_SECONDS))
        seconds = min(MOST_SECONDS, MOST_QUERIES / rate) if rate > 0 else MOST_SECONDS
    chunks = list(source.chunks(deployment, seconds, seed))
    if not chunks:
        raise StrettoError("the load has no query to learn from; give one that has some")
    queries = np.empty(sum(map(len, chunks)), QUERY)
    times_ns, deadlines_ns = (np.concatenate([chunk[name] for chunk in chunks]) for name in ("time_ns", "deadline_ns"))
    queries["time_ns"] = times_ns - times_ns[0]
    queries["slack_ns"] = deadlines_ns - times_ns
    last_ns = int(queries["time_ns"][-1])
    return Tape(queries, max(last_ns + last_ns // max(1, len(queries) - 1), 1))  # a mean gap, and the first one again


def players(tapes: Sequence[Tape | None], copies: int, seed: int) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """`copies` of PLAYER for each tape, each at a moment of its own, and the queries of all tapes."""
    records = np.zeros(len(tapes) * copies, PLAYER)
    random = np.random.default_rng([seed, 0x7A9E])
    parts = [np.zeros(0, QUERY)]
    first = 0
    for number, tape in enumerate(tapes):
        if tape is None:
            continue
        own = records[number * copies : (number + 1) * copies]
        start_ns = random.integers(0, tape.span_ns, copies)
        own["first"], own["count"], own["span_ns"] = first, len(tape.queries), tape.span_ns
        place = np.searchsorted(tape.queries["time_ns"], start_ns)
        is_over = place == len(tape.queries)
        own["next"] = np.where(is_over, 0, place)
        own["shift_ns"] = np.where(is_over, tape.span_ns, 0) - start_ns
        parts.append(tape.queries)
        first += len(tape.queries)
    return records, np.concatenate(parts)


@compiled
def play(player: Any, queries: Any, arrivals: Any, end_ns: int) -> int:
    """Puts the queries before `end_ns` into `arrivals`. Returns their number; -1 where there is no room."""
    count = 0
    while True:
        query = queries[player.first + player.next]
        time_ns = query.time_ns + player.shift_ns
        if time_ns >= end_ns:
            return count
        if count == len(arrivals):
            return -1
        arrival = arrivals[count]
        arrival.time_ns = time_ns
        arrival.deadline_ns = time_ns + query.slack_ns
        arrival.query_class = 0
        count += 1
        player.next += 1
        if player.next == player.count:
            player.next = 0
            player.shift_ns += player.span_ns
