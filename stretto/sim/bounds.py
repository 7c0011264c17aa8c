"""Upper bounds to hold a schedule against.

Staggered execution is Symphony's ideal for one model on N workers (section 4.2, equations 1 and 2). The fluid bounds
are linear programs over how much of each worker kind's time goes to which variant: they know no queue, no memory and no
randomness, only that a batch must fit the SLO by itself. Latency is read at one quantile; where a run draws latencies
around a mean, ask for Quantile.MEAN, or the run may beat the bound.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S, LatencyProfile, Quantile

MANY = 1e9  # workers: more than anybody has


@dataclass(frozen=True)
class Ideal:
    """The batch that every worker runs without a pause, and what all of them answer (queries/s)."""

    batch: int
    throughput: float


@dataclass(frozen=True)
class MixRow:
    """`rate` queries/s of an application answered by a variant in batches of `batch`, which keep `workers` busy."""

    application: int
    variant: int
    kind: str
    batch: int
    rate: float
    workers: float


@dataclass(frozen=True)
class FluidBound:
    """The mix with the most correct answers.

    No schedule has a higher `correct_share`. `accuracy` bounds the schedules that answer as many queries; one that
    answers fewer may be more accurate on those.
    """

    accuracy: float  # mean over the queries answered
    correct_share: float  # of the queries submitted: answered, and expected to be right
    answered_share: float  # of the queries submitted
    worker_use: tuple[float, ...]  # share of the time of each worker kind, in the deployment's order of kinds
    mix: tuple[MixRow, ...]


@dataclass(frozen=True)
class FluidFleet:
    """The cheapest workers that could: `cost` is what no fleet that keeps the promise can be below."""

    cost: float
    workers: Mapping[str, float]  # by kind, parts of a worker too


@dataclass(frozen=True)
class FluidAverage:
    """Over a load that changes: no schedule has a higher `correct_share`; the other two are of that mix."""

    accuracy: float
    correct_share: float
    answered_share: float


def staggered(profile: LatencyProfile, slo_ns: int, workers: int, quantile: Quantile = Quantile.P95) -> Ideal:
    """Equation 2: N workers start l(b)/N apart, so a query waits l(b)/N at most: (1 + 1/N)·l(b) ≤ SLO."""
    return _steady(profile, slo_ns * workers // (workers + 1), workers, quantile)


def uncoordinated(profile: LatencyProfile, slo_ns: int, workers: int, quantile: Quantile = Quantile.P95) -> Ideal:
    """Equation 1: a query may wait for a whole batch before its own: 2·l(b) ≤ SLO."""
    return _steady(profile, slo_ns // 2, workers, quantile)


def _steady(profile: LatencyProfile, budget_ns: int, workers: int, quantile: Quantile) -> Ideal:
    # The equations print <, the formula of section 5.2.2 is a floor and so means ≤, as our deadlines do. No size in
    # the paper's table 4 lies on the edge, so both give its numbers.
    if workers < 1:
        raise StrettoError(f"a bound needs at least one worker, not {workers}")
    best = _best_batch(profile, budget_ns, quantile)
    if best == 0:
        return Ideal(0, 0.0)
    return Ideal(best, workers * best / profile.latency_ns(best, quantile) * NS_PER_S)


def _best_batch(profile: LatencyProfile, budget_ns: int, quantile: Quantile) -> int:
    """The batch within the budget with the least time per query, the largest where equal; 0 where none is.

    On a line α·b + β that is the largest batch within the budget; a measured profile may have a better one below it.
    """
    largest = profile.largest_batch_within(budget_ns, quantile)
    if largest == 0:
        return 0
    per_query = profile.table_ns[quantile, 1 : largest + 1] / np.arange(1, largest + 1)
    as_good = per_query <= per_query.min() * (1 + 1e-6)  # latencies are rounded to whole nanoseconds
    return int(np.flatnonzero(as_good)[-1]) + 1


def staggered_goodput(
    deployment: Deployment, quantile: Quantile | None = None, variants: Collection[int] | None = None
) -> float:
    """Queries/s under staggered execution, by the fastest variant: for one application on workers of one kind."""
    if len(deployment.applications) != 1 or len(deployment.kinds) != 1:
        raise StrettoError("staggered execution bounds one application on workers of one kind; use fluid_goodput")
    reading = deployment.quantile if quantile is None else quantile
    return max(
        staggered(profile, deployment.applications[0].slo_ns, len(deployment.workers), reading).throughput
        for variant in (range(len(deployment.variants)) if variants is None else variants)
        if (profile := deployment.variants[variant].profile_on(deployment.kinds[0])) is not None
    )


def fluid_accuracy(
    deployment: Deployment,
    rates: Iterable[float],
    quantile: Quantile | None = None,
    variants: Collection[int] | None = None,
) -> FluidBound:
    """The mix with the most correct answers at these rates (queries/s by application); `variants` limits the choice."""
    demand = _amounts(deployment, rates, "rate")
    columns = _columns(deployment, quantile, variants)
    total = float(demand.sum())
    if not columns or total == 0:
        return FluidBound(0.0, 0.0, 0.0, (0.0,) * len(deployment.kinds), ())
    accuracy = np.array([deployment.variants[column.variant].accuracy for column in columns])
    from scipy.optimize import linprog  # 0.7 s to import, which a server never needs

    solved = linprog(
        -accuracy,
        A_ub=np.vstack([_worker_rows(deployment, columns), _application_rows(deployment, columns)]),
        b_ub=np.concatenate([_worker_counts(deployment), demand]),
        method="highs",
    )
    rate = np.clip(_solution(solved), 0.0, None)
    answered = float(rate.sum())
    correct = float(accuracy @ rate)
    mix, use = _mix(deployment, columns, rate)
    return FluidBound(correct / answered if answered else 0.0, correct / total, answered / total, use, mix)


def fluid_over_time(
    deployment: Deployment,
    counts: NDArray[np.int64],
    window_s: float,
    quantile: Quantile | None = None,
) -> FluidAverage:
    """The mix of each window by itself; `counts` are its arrivals by window and application.

    What arrives in a window is answered on time before the longest SLO after its end is over, so each window is given
    the workers for that much longer. That makes it a bound, whatever a schedule carries over from window to window.
    """
    if not window_s > 0 or counts.ndim != 2 or counts.sum() == 0:
        raise StrettoError("a bound over time needs windows of more than zero seconds, and arrivals in them")
    span_s = window_s + max(application.slo_ns for application in deployment.applications) / NS_PER_S
    answered = correct = 0.0
    for arrivals in counts:
        bound = fluid_accuracy(deployment, arrivals / span_s, quantile)
        answered += bound.answered_share * float(arrivals.sum())
        correct += bound.correct_share * float(arrivals.sum())
    total = float(counts.sum())
    return FluidAverage(correct / answered if answered else 0.0, correct / total, answered / total)


def fluid_goodput(
    deployment: Deployment,
    shares: Iterable[float],
    quantile: Quantile | None = None,
    variants: Collection[int] | None = None,
) -> float:
    """The largest total rate (queries/s), divided by `shares` among the applications, of which all can be answered."""
    popularity = _amounts(deployment, shares, "share")
    if popularity.sum() == 0:
        raise StrettoError("at least one application needs a share above zero")
    popularity = popularity / popularity.sum()
    columns = _columns(deployment, quantile, variants)
    if not columns:
        return 0.0
    worker_rows = _worker_rows(deployment, columns)
    # The last unknown is the total rate R: what is answered of an application equals its share of R.
    from scipy.optimize import linprog

    solved = linprog(
        np.append(np.zeros(len(columns)), -1.0),
        A_ub=np.hstack([worker_rows, np.zeros((len(worker_rows), 1))]),
        b_ub=_worker_counts(deployment),
        A_eq=np.hstack([_application_rows(deployment, columns), -popularity[:, None]]),
        b_eq=np.zeros(len(popularity)),
        method="highs",
    )
    return max(0.0, float(_solution(solved)[-1]))


def fluid_fleet(
    deployment: Deployment,
    rates: Iterable[float],
    costs: Mapping[str, float],
    *,
    accuracy: float = 0.0,
    answered: float = 1.0,
    held: Mapping[str, int] | None = None,
    most: float = math.inf,
    quantile: Quantile | None = None,
) -> FluidFleet | None:
    """The cheapest workers, by kinds of the deployment (its own numbers of them do not matter), that answer this share
    of the rates with this mean accuracy of answers; None where no number does, or none up to `most` workers in all.
    `held` fixes the number of some kinds.
    """
    demand = _amounts(deployment, rates, "rate")
    columns = _columns(deployment, quantile, None)
    if not columns:
        return None
    from scipy.optimize import linprog

    kinds, fixed = deployment.kinds, held or {}
    worker_rows = np.hstack([_worker_rows(deployment, columns), -np.eye(len(kinds))])
    below = np.array([accuracy - deployment.variants[column.variant].accuracy for column in columns])
    rest, each = np.zeros(len(kinds)), np.zeros(len(columns))
    applications = np.hstack([_application_rows(deployment, columns), np.zeros((len(demand), len(kinds)))])
    solved = linprog(
        np.concatenate([np.zeros(len(columns)), [costs[kind] for kind in kinds]]),
        A_ub=np.vstack(
            [worker_rows, applications, np.append(below, rest), np.append(each - 1, rest), np.append(each, rest + 1)]
        ),
        b_ub=np.concatenate([np.zeros(len(kinds)), demand, [0.0, -answered * demand.sum(), min(most, MANY)]]),
        bounds=[(0, None)] * len(columns) + [(fixed.get(kind, 0), fixed.get(kind)) for kind in kinds],
        method="highs",
    )
    if solved.x is None:
        return None
    counts = np.clip(solved.x[len(columns) :], 0.0, None)
    return FluidFleet(float(solved.fun), dict(zip(kinds, counts.tolist(), strict=True)))


@dataclass(frozen=True)
class _Column:
    """An unknown of the programs: queries/s on this variant and kind of worker, each of which takes `seconds`."""

    variant: int
    kind: str
    batch: int
    seconds: float


def _columns(
    deployment: Deployment, quantile: Quantile | None, variants: Collection[int] | None
) -> tuple[_Column, ...]:
    """One column per variant and kind: every batch within the SLO is allowed, but only the best is ever worth using."""
    reading = deployment.quantile if quantile is None else quantile
    columns = []
    for variant in range(len(deployment.variants)) if variants is None else sorted(set(variants)):
        slo_ns = deployment.applications[deployment.application_of[variant]].slo_ns
        for kind in deployment.kinds:
            profile = deployment.variants[variant].profile_on(kind)
            batch = 0 if profile is None else _best_batch(profile, slo_ns, reading)
            if profile is not None and batch > 0:
                columns.append(_Column(variant, kind, batch, profile.latency_ns(batch, reading) / batch / NS_PER_S))
    return tuple(columns)


def _amounts(deployment: Deployment, values: Iterable[float], what: str) -> NDArray[np.float64]:
    amounts = np.array(list(values), dtype=np.float64)
    if amounts.shape != (len(deployment.applications),):
        raise StrettoError(f"a bound needs one {what} for each of the {len(deployment.applications)} applications")
    if not np.isfinite(amounts).all() or (amounts < 0).any():
        raise StrettoError(f"every {what} must be a number that is not negative")
    return amounts


def _worker_rows(deployment: Deployment, columns: Sequence[_Column]) -> NDArray[np.float64]:
    return np.array([[c.seconds if c.kind == kind else 0.0 for c in columns] for kind in deployment.kinds])


def _worker_counts(deployment: Deployment) -> NDArray[np.float64]:
    kinds = [worker.kind for worker in deployment.workers]
    return np.array([kinds.count(kind) for kind in deployment.kinds], dtype=np.float64)


def _application_rows(deployment: Deployment, columns: Sequence[_Column]) -> NDArray[np.float64]:
    owners = [deployment.application_of[column.variant] for column in columns]
    return np.array([[float(owner == number) for owner in owners] for number in range(len(deployment.applications))])


def _solution(solved: object) -> NDArray[np.float64]:
    solution = getattr(solved, "x", None)
    if solution is None:
        raise StrettoError(f"the bound could not be computed: {getattr(solved, 'message', 'no solution')}")
    return np.asarray(solution, dtype=np.float64)


def _mix(
    deployment: Deployment, columns: Sequence[_Column], rate: NDArray[np.float64]
) -> tuple[tuple[MixRow, ...], tuple[float, ...]]:
    busy = rate * np.array([column.seconds for column in columns])
    rows = tuple(
        MixRow(deployment.application_of[c.variant], c.variant, c.kind, c.batch, float(rate[i]), float(busy[i]))
        for i, c in enumerate(columns)
        if rate[i] > 1e-9
    )
    used = (_worker_rows(deployment, columns) @ rate) / _worker_counts(deployment)
    return rows, tuple(float(share) for share in used)
