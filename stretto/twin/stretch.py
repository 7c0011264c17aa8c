"""A stretch of arrivals: the recent requests of one application as they came, and the figures that describe them.

Where no requests were recorded, a stretch has its rate and burstiness alone. Figures count queries: a request of
several rows is that many queries at one instant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_MS, NS_PER_S

REQUEST = np.dtype(
    [("offset_ns", "i8"), ("slack_ns", "i8"), ("rows", "i4"), ("client", "i4"), ("priority", "i4")], align=True
)
MOST_REQUESTS = 20_000
MOST_CLASSES = 100_000
MAX_ROWS = 1 << 20
MAX_SPAN_NS = 10**17  # three years
WINDOWS_NS = (10 * NS_PER_MS, 100 * NS_PER_MS, NS_PER_S)
SHORTEST_SPAN_NS = 100 * NS_PER_MS  # a single request, or a few at once, has no rate of its own
FEWEST_WINDOWS = 10  # below, a variance of counts says nothing
SLACK_QUANTILES = (0.01, 0.5, 0.99)
MAX_RATE = 1e9
LEVEL_NS = NS_PER_S // 2  # in which a load is followed
LASTING_NS = 4 * NS_PER_S  # a load of several applications that moves more slowly is another load, judged by itself
CHANCE = 3.0  # standard deviations of a dispersion, within which requests are taken to come one by one
MOVES = 4.0  # times the dispersion of short windows, from which on a load moves by itself


@dataclass(frozen=True, eq=False)
class ArrivalStretch:
    """`requests` are sorted by `offset_ns`, which counts from the start of the stretch; a slack of -1 is the SLO.

    `class_shares` may sum to less than one: the class of the rest is not known.
    """

    rate: float  # queries/s
    dispersion: tuple[float, ...] = (math.nan,) * len(WINDOWS_NS)  # variance/mean of counts, by window; NaN: unknown
    span_ns: int = 0
    requests: NDArray[np.void] = field(default_factory=lambda: np.zeros(0, REQUEST))
    class_shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= MAX_RATE:
            raise StrettoError(f"a rate of arrivals is between 0 and {MAX_RATE:.0e} queries/s, not {self.rate}")
        if len(self.dispersion) != len(WINDOWS_NS) or any(value < 0 or value > MAX_RATE for value in self.dispersion):
            raise StrettoError(f"a dispersion is between 0 and {MAX_RATE:.0e}, and there are {len(WINDOWS_NS)} of them")
        shares = self.class_shares
        if len(shares) > MOST_CLASSES or not all(share >= 0 for share in shares) or not sum(shares) <= 1 + 1e-9:
            raise StrettoError("class shares are not negative and sum to at most one")
        requests = np.array(self.requests, dtype=REQUEST)
        if len(requests):
            offsets = requests["offset_ns"]
            if not 0 < self.span_ns <= MAX_SPAN_NS or offsets[0] < 0 or offsets[-1] >= self.span_ns:
                raise StrettoError("the requests of a stretch lie between its start and its end")
            if (np.diff(offsets) < 0).any():
                raise StrettoError("the requests of a stretch are in the order of their arrival")
            if not ((requests["rows"] >= 1) & (requests["rows"] <= MAX_ROWS)).all():
                raise StrettoError(f"a request has between 1 and {MAX_ROWS} rows")
        requests.setflags(write=False)
        object.__setattr__(self, "requests", requests)

    @staticmethod
    def of(requests: NDArray[np.void], span_ns: int, class_shares: tuple[float, ...] = ()) -> ArrivalStretch:
        """What these requests, over so long, amount to."""
        queries = int(requests["rows"].sum())
        rate = min(queries / span_ns * NS_PER_S, MAX_RATE) if span_ns > 0 else 0.0
        spread = tuple(dispersion(requests["offset_ns"], requests["rows"], span_ns, window) for window in WINDOWS_NS)
        return ArrivalStretch(rate, spread, span_ns, requests, class_shares)

    @property
    def queries(self) -> int:
        return int(self.requests["rows"].sum())

    def rows_histogram(self) -> dict[int, int]:
        """Requests by their number of rows."""
        sizes, counts = np.unique(self.requests["rows"], return_counts=True)
        return dict(zip(sizes.tolist(), counts.tolist(), strict=True))

    def mean_rows(self) -> float:
        return self.queries / len(self.requests) if len(self.requests) else 1.0

    def slack_ns(self) -> tuple[int, ...]:
        """How long after its arrival a request is due, by SLACK_QUANTILES; empty where none was recorded."""
        stated = self.requests["slack_ns"][self.requests["slack_ns"] >= 0]
        if not len(stated):
            return ()
        return tuple(np.quantile(stated, SLACK_QUANTILES, method="nearest").tolist())

    @cached_property
    def is_poisson(self) -> bool:
        """Whether nothing in the stretch says that its requests come other than independently of each other."""
        alone = np.ones(len(self.requests), np.int32)
        for window_ns in (*WINDOWS_NS[:-1], LEVEL_NS, WINDOWS_NS[-1]):
            spread = dispersion(self.requests["offset_ns"], alone, self.span_ns, window_ns)
            if abs(spread - 1.0) > CHANCE * math.sqrt(2.0 / max(self.span_ns // window_ns, 1)):  # NaN is not above it
                return False
        return True

    def counts(self, window_ns: int) -> NDArray[np.float64]:
        """Queries in each whole window of the stretch."""
        return counts_in_windows(self.requests["offset_ns"], self.requests["rows"], self.span_ns, window_ns)


def levelled(stretch: ArrivalStretch) -> ArrivalStretch:
    """The same requests at one load, where it moved by the second: each half second is made as long as it was busy.

    A load that moves so is followed by the second, and a plan serves one level of it at a time. Bursts that are shorter
    stay as they were.
    """
    if not moves(stretch.requests["offset_ns"], stretch.requests["rows"], stretch.span_ns):
        return stretch
    return _evened(stretch, stretch.counts(LEVEL_NS), LEVEL_NS)


def levelled_together(stretches: Mapping[str, ArrivalStretch]) -> dict[str, ArrivalStretch]:
    """Several applications at one load, where that of one of them moved by the second: every four seconds are made as
    long as all of them together were busy. What is shorter stays, for a plan for all must follow it.
    """
    level = dict(stretches)
    for span_ns in {each.span_ns for each in level.values() if each.span_ns >= 2 * LASTING_NS}:
        group = {name: each for name, each in level.items() if each.span_ns == span_ns and len(each.requests)}
        if any(moves(each.requests["offset_ns"], each.requests["rows"], span_ns) for each in group.values()):
            counts = np.sum([each.counts(LASTING_NS) for each in group.values()], axis=0)
            level |= {name: _evened(each, counts, LASTING_NS) for name, each in group.items()}
    return level


def _evened(stretch: ArrivalStretch, counts: NDArray[np.float64], window_ns: int) -> ArrivalStretch:
    """With each window as long as its count, and the whole as long as before."""
    end_ns = len(counts) * window_ns
    requests = stretch.requests[stretch.requests["offset_ns"] < end_ns].copy()
    share = np.concatenate([[0.0], np.cumsum(counts) / counts.sum()])
    places = np.interp(requests["offset_ns"], np.arange(len(counts) + 1) * float(window_ns), share * end_ns)
    requests["offset_ns"] = np.minimum(places, end_ns - 1)
    return ArrivalStretch.of(requests, end_ns, stretch.class_shares)


def moves(offsets_ns: NDArray[np.int64], rows: NDArray[np.int32], span_ns: int) -> bool:
    """Whether the load moved by the second, and not by as much as its short bursts make it."""
    if span_ns // LEVEL_NS < FEWEST_WINDOWS or not len(offsets_ns):
        return False
    counts = counts_in_windows(offsets_ns, rows, span_ns, LEVEL_NS)
    short = dispersion(offsets_ns, rows, span_ns, WINDOWS_NS[0])
    return bool(counts.var() > MOVES * (short if short > 1 else 1.0) * counts.mean())  # NaN is not above it


def counts_in_windows(
    offsets_ns: NDArray[np.int64], rows: NDArray[np.int32], span_ns: int, window_ns: int
) -> NDArray[np.float64]:
    """Queries in each whole window; what is left at the end is not counted."""
    windows = span_ns // window_ns
    if windows > 10_000_000:
        raise StrettoError("the stretch is too long to be counted in windows so short")
    place = offsets_ns // window_ns
    inside = place < windows
    return np.bincount(place[inside], rows[inside], windows).astype(np.float64)


def dispersion(offsets_ns: NDArray[np.int64], rows: NDArray[np.int32], span_ns: int, window_ns: int) -> float:
    """Variance over mean of the queries in windows: 1 for Poisson, above for bursts; NaN where windows are few. Offsets
    are sorted.
    """
    windows = span_ns // window_ns
    if windows < FEWEST_WINDOWS or not len(offsets_ns):
        return math.nan
    # Sums over the windows that hold something, so that a long stretch with few requests costs little.
    inside = int(np.searchsorted(offsets_ns, windows * window_ns))
    if not inside:
        return math.nan
    place = offsets_ns[:inside] // window_ns
    first = np.flatnonzero(np.diff(place, prepend=-1))
    counts = np.add.reduceat(rows[:inside], first, dtype=np.float64)
    mean = counts.sum() / windows
    return float((np.square(counts).sum() / windows - mean * mean) / mean)
