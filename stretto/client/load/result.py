"""What a load measured: arrays with one entry per request, and their summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.client.load.spec import LoadSpec

NS_PER_MS = 1e6


class LoadOutcome(IntEnum):
    """How a request ended, as the generator saw it. On time: within the deadline, counted from when it was due."""

    ON_TIME = 0
    LATE = 1
    EXPIRED = 2
    INFEASIBLE = 3
    OVERLOADED = 4
    CANCELLED = 5
    UNAVAILABLE = 6
    FAILED = 7
    BAD_REQUEST = 8
    NOT_FOUND = 9
    UNAUTHENTICATED = 10
    FORBIDDEN = 11
    BAD_ANSWER = 12  # what came back is no answer of the protocol
    BROKEN = 13  # the connection broke before the answer was complete
    NO_CONNECTION = 14  # the server could not be reached
    NO_ANSWER = 15  # none came within the deadline and the grace
    NOT_SENT = 16  # no connection became free in that time

    @property
    def is_answer(self) -> bool:
        return self <= LoadOutcome.LATE

    @property
    def is_connection_error(self) -> bool:
        return LoadOutcome.BROKEN <= self <= LoadOutcome.NO_CONNECTION


PENDING = 255  # of a request that has not ended
OUTCOME_OF = {
    outcome.name.lower(): outcome for outcome in LoadOutcome if LoadOutcome.EXPIRED <= outcome <= LoadOutcome.FORBIDDEN
}  # by the reason on the wire


@dataclass(frozen=True)
class LoadProgress:
    """Where a run stands; counts are of requests, `correct_on_time` of rows."""

    fraction: float
    elapsed_s: float
    sent: int
    ended: int
    on_time: int
    late: int
    correct_on_time: int
    connections: int


@dataclass(frozen=True, eq=False)
class LoadResult:
    """Requests that ended, in the order in which they were due; all of them, unless the run was interrupted.

    `latency_ns` counts from `scheduled_ns`, to the answer or the refusal. `lag_ns` is how late the request left, -1
    where it never did. `variant` is a place in `variants`, -1 without an answer. Those of the application's ladder come
    first, from fast to accurate, also the ones that are not served. `correct` counts the right rows of an answer, -1
    where there is no answer or no label.
    """

    spec: LoadSpec
    deadline_ns: int | None
    variants: tuple[str, ...]
    is_labelled: bool
    scheduled_ns: NDArray[np.int64]
    latency_ns: NDArray[np.int64]
    lag_ns: NDArray[np.int64]
    outcome: NDArray[np.uint8]
    variant: NDArray[np.int16]
    correct: NDArray[np.int16]
    batch: NDArray[np.int32]
    elapsed_ns: int
    cpu_ns: int  # of the generator's own thread
    connections: int  # the most that were open at once
    waited: int  # requests for which no connection was free, and no more might be opened
    was_interrupted: bool = False
    penalty: str = "step"  # of the application

    def __len__(self) -> int:
        return len(self.outcome)

    @property
    def is_answer(self) -> NDArray[np.bool_]:
        return self.outcome <= LoadOutcome.LATE

    @property
    def correct_on_time(self) -> NDArray[np.int64]:
        """Right rows of each request that was answered on time; 0 for all others."""
        return np.where(self.outcome == LoadOutcome.ON_TIME, np.maximum(self.correct, 0), 0).astype(np.int64)

    @property
    def utility(self) -> float | None:
        """Mean over all queries of what their answers are worth (SneakPeek, equation 2): a right one is worth what its
        lateness leaves, every other nothing. None where no answer could be checked.
        """
        if not self.is_labelled or not len(self):
            return None
        kept = np.ones(len(self)) if self.deadline_ns is None else self._kept(self.deadline_ns)
        right = np.where(self.is_answer, np.maximum(self.correct, 0), 0)
        return float((right * kept).sum() / (len(self) * self.spec.rows))

    def _kept(self, deadline_ns: int) -> NDArray[np.float64]:
        """1 − γ of each request: lateness counts from the deadline, in lengths of the deadline."""
        x = np.clip((self.latency_ns - deadline_ns) / deadline_ns, 0.0, 1.0)
        if self.penalty == "step":
            return (x == 0).astype(np.float64)
        if self.penalty == "linear":
            return 1.0 - x
        kept: NDArray[np.float64] = (1.0 - x) ** 3 / ((1.0 - x) ** 3 + x**3)
        return kept

    @property
    def seconds(self) -> float:
        """What rates refer to: the duration asked for, or how far it came."""
        return min(self.spec.seconds, self.elapsed_ns / 1e9) if self.was_interrupted else self.spec.seconds

    def summary(self) -> dict[str, Any]:
        """Plain numbers. A share is of all requests that ended; None or NaN where there is nothing to tell."""
        total, rows = len(self), self.spec.rows
        counts = np.bincount(self.outcome, minlength=len(LoadOutcome))
        answers = self.is_answer
        answered, on_time = int(answers.sum()), int(counts[LoadOutcome.ON_TIME])
        checked = self.correct[answers & (self.correct >= 0)]
        lag = self.lag_ns[self.lag_ns >= 0]
        by_variant = np.bincount(self.variant[self.variant >= 0], minlength=len(self.variants))
        seconds = max(self.seconds, 1e-9)
        return {
            "application": self.spec.application,
            "url": self.spec.url,
            "arrivals": self.spec.kind,
            "seed": self.spec.seed,
            "rows": rows,
            "seconds": self.seconds,
            "deadline_ms": None if self.deadline_ns is None else self.deadline_ns / NS_PER_MS,
            "requests": total,
            "queries": total * rows,
            "outcomes": {outcome.name.lower(): int(counts[outcome]) for outcome in LoadOutcome},
            "connection_errors": int(sum(counts[outcome] for outcome in LoadOutcome if outcome.is_connection_error)),
            "on_time_share": on_time / total if total else None,
            "correct_on_time_share": (
                int(self.correct_on_time.sum()) / (total * rows) if self.is_labelled and total else None
            ),
            "utility": self.utility,
            "accuracy": int(checked.sum()) / (len(checked) * rows) if len(checked) else None,
            "latency_ms": percentiles_ms(self.latency_ns[answers]),
            "variants": {
                name: int(count) / answered for name, count in zip(self.variants, by_variant, strict=True) if count
            },
            "mean_batch": float(self.batch[answers].mean()) if answered else None,
            "offered_rate": total / seconds,
            "sent_rate": len(lag) / seconds,
            "answered_rate": answered / seconds,
            "goodput": on_time / seconds,
            "lag_ms": percentiles_ms(lag),
            "waited_for_connection": self.waited,
            "connections": self.connections,
            "generator_cpu_us": self.cpu_ns / 1e3 / total if total else None,
            "was_interrupted": self.was_interrupted,
        }


def joined(results: Sequence[LoadResult]) -> LoadResult:
    """Runs of one load, one after the other, as if it had been one."""
    first = results[0]
    variants = tuple(dict.fromkeys(name for each in results for name in each.variants))
    starts_s = np.cumsum([0.0] + [each.seconds for each in results]).tolist()
    numbers = [np.array([*map(variants.index, each.variants), -1], np.int16) for each in results]  # the last: no answer
    names = ("latency_ns", "lag_ns", "outcome", "correct", "batch")
    arrays: dict[str, Any] = {name: np.concatenate([getattr(each, name) for each in results]) for name in names}
    return replace(
        first,
        spec=replace(first.spec, seconds=starts_s[-1]),
        variants=variants,
        scheduled_ns=np.concatenate(
            [each.scheduled_ns + round(1e9 * start_s) for each, start_s in zip(results, starts_s, strict=False)]
        ),
        variant=np.concatenate([of[each.variant] for each, of in zip(results, numbers, strict=True)]),
        **arrays,
        elapsed_ns=sum(each.elapsed_ns for each in results),
        cpu_ns=sum(each.cpu_ns for each in results),
        connections=max(each.connections for each in results),
        waited=sum(each.waited for each in results),
        was_interrupted=any(each.was_interrupted for each in results),
    )


def percentiles_ms(values_ns: NDArray[np.int64]) -> dict[str, float]:
    """NaN without values."""
    if not len(values_ns):
        return dict.fromkeys(("p50", "p95", "p99", "max"), float("nan"))
    p50, p95, p99 = np.percentile(values_ns, (50, 95, 99)) / NS_PER_MS
    return {"p50": float(p50), "p95": float(p95), "p99": float(p99), "max": float(values_ns.max() / NS_PER_MS)}
