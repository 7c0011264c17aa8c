"""Residuals: how far measured run times were from the profile, and the service law that draws from them.

A residual is the time of one run over what the profile says for its batch: at the quantile that decisions rest on, or
in the mean, whichever the runs follow more evenly. Runs are kept apart by variant, kind of worker and bucket of batch
sizes (1, 2–3, 4–7, …), because small batches spread more than large ones. Where runs are few, those of the variant's
other buckets speak too, and where those are few, those of all variants on the kind: else whoever ran least would look
steadiest, or fast because nobody tried it, or slow because its one run was its first. Where nothing ran at all, the
profile's own quantiles are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import MAX_BATCH_LIMIT, Quantile

BUCKETS = MAX_BATCH_LIMIT.bit_length()
FEWEST = 30  # runs that speak at all
MANY = 200  # that weigh as much as what is borrowed
MANY_TIMES = 5  # as many, and nothing is
BLENDED = 512  # values of a sample that borrows
MOST_POOLED = 4096  # runs that a pool keeps, evenly chosen
RATIOS = (1e-4, 1e4)

Floats = NDArray[np.float64]


def bucket_of_batch(batch: int) -> int:
    """0 for a batch of 1, 1 for 2–3, 2 for 4–7 and so on."""
    return batch.bit_length() - 1


def batches_of_bucket(bucket: int) -> tuple[int, int]:
    """The smallest and the largest batch of a bucket."""
    return 1 << bucket, min((2 << bucket) - 1, MAX_BATCH_LIMIT)


@dataclass(frozen=True, eq=False)
class Residuals:
    """Of one variant on one kind of worker: sorted ratios by bucket of batch sizes, all of them read-only."""

    by_bucket: Mapping[int, Floats]
    pooled: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ordered: dict[int, Floats] = {}
        for bucket, sample in sorted(self.by_bucket.items()):
            if not 0 <= bucket < BUCKETS:
                raise StrettoError(f"bucket {bucket} of batch sizes is outside 0 … {BUCKETS - 1}")
            ordered[bucket] = sorted_ratios(sample)
        if not ordered:
            raise StrettoError("residuals need at least one run")
        object.__setattr__(self, "by_bucket", ordered)
        object.__setattr__(self, "pooled", pool(list(ordered.values())))

    @property
    def runs(self) -> int:
        return sum(len(sample) for sample in self.by_bucket.values())


@dataclass(frozen=True, eq=False)
class Measured:
    """A service law: run times as measured, by (application/variant, kind of worker).

    `row` is the row of the profiles that the residuals are ratios to; None: the quantile that decisions rest on.
    `handoffs_ns` are times that batches took to an idle worker and back, less the delays that plans reckon with; below
    zero where it was faster. Empty: just those delays. `moved`: by how much profiles were moved since; runs take as
    long as before. Runs that are lent from one variant to another are so as ratios to profiles as they were.
    """

    residuals: Mapping[tuple[str, str], Residuals]
    handoffs_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    row: Quantile | None = None
    moved: Mapping[tuple[str, str], float] = field(default_factory=dict)
    _last: list[tuple[Deployment, NDArray[np.int64], Floats]] = field(default_factory=list, init=False, repr=False)

    def laid_out(self, deployment: Deployment) -> tuple[NDArray[np.int64], Floats]:
        """(laws, ratios) for the compiled loop: laws[row, bucket] = (first, count) into the ratios; count 0: none.

        Many trials ask for the same deployment one after the other, so the last answer is kept.
        """
        if not self._last or self._last[0][0] is not deployment:
            self._last[:] = [(deployment, *self._laid_out(deployment))]
        return self._last[0][1:]

    def _laid_out(self, deployment: Deployment) -> tuple[NDArray[np.int64], Floats]:
        of_kind = pools_by_kind(self.residuals)
        laws = np.zeros((len(deployment.variants) * len(deployment.kinds), BUCKETS, 2), dtype=np.int64)
        parts: list[Floats] = []
        filled = 0
        for variant in range(len(deployment.variants)):
            for place, kind in enumerate(deployment.kinds):
                if kind not in of_kind:
                    continue
                where = (deployment.variant_label(variant), kind)
                residuals, moved = self.residuals.get(where), self.moved.get(where, 1.0)
                of_variant = of_kind[kind] if residuals is None else blended(residuals.pooled, of_kind[kind])
                start, filled = filled, filled + len(of_variant)
                parts.append(of_variant / moved)
                for bucket in range(BUCKETS):
                    law = (start, len(of_variant))
                    of_bucket = None if residuals is None else residuals.by_bucket.get(bucket)
                    if of_bucket is not None and len(of_bucket) >= FEWEST:
                        parts.append(blended(of_bucket, of_variant) / moved)
                        law = (filled, len(parts[-1]))
                        filled += law[1]
                    laws[variant * len(deployment.kinds) + place, bucket] = law
        return laws, np.concatenate(parts) if parts else np.zeros(1)


def pools_by_kind(residuals: Mapping[tuple[str, str], Residuals]) -> dict[str, Floats]:
    """All runs on each kind of worker as one sample."""
    by_kind: dict[str, list[Floats]] = {}
    for (_, kind), measured in residuals.items():
        by_kind.setdefault(kind, []).append(measured.pooled)
    return {kind: pool(samples) for kind, samples in by_kind.items()}


def blended(borrower: Floats, lender: Floats) -> Floats:
    """A sample with what it borrows from a larger one: all of it where it has few runs, less and less with more.

    What is borrowed is moved to where the own runs are: some dozen of them tell that, but how far runs spread, and how
    often one takes twice as long, only hundreds do.
    """
    runs = len(borrower)
    if runs < FEWEST:
        return lender
    if runs >= MANY_TIMES * MANY:
        return borrower
    moved = lender * math.exp(float(np.log(borrower).mean() - np.log(lender).mean()) * runs / (runs + FEWEST))
    taken = round(BLENDED * runs / (runs + MANY))
    both = np.sort(np.concatenate([_evenly(borrower, taken), _evenly(moved, BLENDED - taken)]))
    both.setflags(write=False)
    return both


def _evenly(ordered: Floats, count: int) -> Floats:
    """So many values of a sorted sample, evenly chosen."""
    chosen: Floats = ordered[((np.arange(count) + 0.5) * len(ordered) / count).astype(np.int64)]
    return chosen


def sorted_ratios(sample: ArrayLike) -> Floats:
    """A sample in order; StrettoError where a ratio is no ratio of two times."""
    ordered: Floats = np.sort(np.asarray(sample, dtype=np.float64))
    if ordered.ndim != 1 or not len(ordered) or not ((ordered >= RATIOS[0]) & (ordered <= RATIOS[1])).all():
        raise StrettoError(f"residuals are one or more ratios between {RATIOS[0]:g} and {RATIOS[1]:g}")
    ordered.setflags(write=False)
    return ordered


def pool(samples: list[Floats]) -> Floats:
    """All of them as one sorted sample; of very many, evenly chosen ones."""
    merged = np.sort(np.concatenate(samples))
    if len(merged) > MOST_POOLED:
        merged = _evenly(merged, MOST_POOLED)
    merged.setflags(write=False)
    return merged
