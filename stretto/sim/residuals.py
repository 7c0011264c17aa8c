"""Residuals: how far measured run times were from the profile, and the service law that draws from them.

A residual is the time of one run over what the profile says for its batch, at the quantile that decisions rest on. Runs
are kept apart by variant, kind of worker and bucket of batch sizes (1, 2–3, 4–7, …), because small batches spread more
than large ones. A bucket with few runs borrows all runs of its variant on that kind; a variant with few runs borrows
all runs on its kind, so that nobody looks fast because nobody tried it, or slow because its one run was its first;
where nothing ran at all, the profile's own quantiles are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import MAX_BATCH_LIMIT

BUCKETS = MAX_BATCH_LIMIT.bit_length()
FEWEST = 30  # runs that speak for themselves
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

    def of_bucket(self, bucket: int) -> Floats:
        """What batches of this bucket are drawn from."""
        sample = self.by_bucket.get(bucket)
        return self.pooled if sample is None or len(sample) < FEWEST else sample


@dataclass(frozen=True, eq=False)
class Measured:
    """A service law: run times as measured, by (application/variant, kind of worker).

    `handoffs_ns` are times that batches took to an idle worker and back, less the delays that plans reckon with; below
    zero where it was faster. Empty: just those delays.
    """

    residuals: Mapping[tuple[str, str], Residuals]
    handoffs_ns: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    _last: list[tuple[Deployment, NDArray[np.int64], Floats]] = field(default_factory=list, init=False, repr=False)

    def laid_out(self, deployment: Deployment) -> tuple[NDArray[np.int64], Floats]:
        """(laws, ratios) for the compiled loop: laws[row, bucket] = (first, count) into the ratios; count 0: none.

        Many trials ask for the same deployment one after the other, so the last answer is kept.
        """
        if not self._last or self._last[0][0] is not deployment:
            self._last[:] = [(deployment, *self._laid_out(deployment))]
        return self._last[0][1:]

    def _laid_out(self, deployment: Deployment) -> tuple[NDArray[np.int64], Floats]:
        by_kind: dict[str, list[Floats]] = {}
        for (_, kind), measured in self.residuals.items():
            by_kind.setdefault(kind, []).append(measured.pooled)
        borrowed = {kind: pool(samples) for kind, samples in by_kind.items()}
        laws = np.zeros((len(deployment.variants) * len(deployment.kinds), BUCKETS, 2), dtype=np.int64)
        parts: list[Floats] = []
        places: dict[int, tuple[int, int]] = {}  # of each sample that is laid out already
        filled = 0
        for variant in range(len(deployment.variants)):
            for place, kind in enumerate(deployment.kinds):
                residuals = self.residuals.get((deployment.variant_label(variant), kind))
                speaks = residuals is not None and residuals.runs >= FEWEST
                for bucket in range(BUCKETS):
                    sample = residuals.of_bucket(bucket) if residuals and speaks else borrowed.get(kind)
                    if sample is None:
                        continue
                    if id(sample) not in places:
                        places[id(sample)] = (filled, len(sample))
                        parts.append(sample)
                        filled += len(sample)
                    laws[variant * len(deployment.kinds) + place, bucket] = places[id(sample)]
        return laws, np.concatenate(parts) if parts else np.zeros(1)


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
        merged = merged[((np.arange(MOST_POOLED) + 0.5) * len(merged) / MOST_POOLED).astype(np.int64)]
    merged.setflags(write=False)
    return merged
