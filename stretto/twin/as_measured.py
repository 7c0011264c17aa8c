"""A deployment as it was measured: each profile moved to where its runs really were.

A dispatcher corrects latencies while it serves, so candidates have to be tried against the corrected ones: on a machine
twice as fast as profiled they would else be judged as if half of it were missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment, with_latencies
from stretto.core.profile import LatencyProfile, Quantile
from stretto.sim.residuals import BUCKETS, FEWEST, batches_of_bucket, blended, pools_by_kind
from stretto.twin.setting import Setting

SHARES = {Quantile.P50: 0.5, Quantile.P95: 0.95, Quantile.P99: 0.99}
LEAST_MOVE = 1.01  # a profile that is as near as this is left alone


Ratios = tuple[tuple[float, ...], ...]  # [variant][kind]


def as_measured(deployment: Deployment, setting: Setting, tail: float = 1.0) -> tuple[Deployment, Setting, Ratios]:
    """Both with latencies as they were, and how far they were moved. A variant with few runs is moved like the others
    on its kind. `tail`: to the mean of what was measured (0), to the quantile that decisions rest on (1), or between.
    """
    row = deployment.quantile if setting.row is None else setting.row
    of_kind = {kind: runs for kind, runs in pools_by_kind(setting.residuals).items() if len(runs) >= FEWEST}
    factors = {}
    for where, profile in _places(deployment).items():
        factors[where] = 1.0
        if where[1] in of_kind:
            residuals = setting.residuals.get(where)
            sample = of_kind[where[1]] if residuals is None else blended(residuals.pooled, of_kind[where[1]])
            measured = {} if residuals is None else residuals.by_bucket
            reached = _at(sample, deployment.quantile) ** tail * float(sample.mean()) ** (1 - tail)
            factors[where] = reached * _row_over(profile, row, deployment.quantile, measured)
    if all(1 / LEAST_MOVE <= factor <= LEAST_MOVE for factor in factors.values()):
        return deployment, setting, _ratios(deployment, {})
    ratios = _ratios(deployment, factors)
    return with_latencies(deployment, ratios), replace(setting, moved=factors), ratios


def _ratios(deployment: Deployment, factors: Mapping[tuple[str, str], float]) -> Ratios:
    labels = [deployment.variant_label(number) for number in range(len(deployment.variants))]
    return tuple(tuple(factors.get((label, kind), 1.0) for kind in deployment.kinds) for label in labels)


def _places(deployment: Deployment) -> dict[tuple[str, str], LatencyProfile]:
    return {
        (f"{application.name}/{variant.name}", profile.kind): profile
        for application in deployment.applications
        for variant in application.variants
        for profile in variant.profiles
    }


def _at(ratios: NDArray[np.float64], quantile: Quantile) -> float:
    share = SHARES.get(quantile)
    return float(np.mean(ratios) if share is None else np.quantile(ratios, share))


def _row_over(
    profile: LatencyProfile, row: Quantile, quantile: Quantile, measured: Mapping[int, NDArray[np.float64]]
) -> float:
    """One row of a profile over another: the mean over the buckets of batches, by their runs where there are any."""
    if row == quantile:
        return 1.0
    buckets = [bucket for bucket in range(BUCKETS) if batches_of_bucket(bucket)[0] <= profile.max_batch]
    middle = [min(sum(batches_of_bucket(bucket)) // 2, profile.max_batch) for bucket in buckets]
    over = [profile.latency_ns(batch, row) / profile.latency_ns(batch, quantile) for batch in middle]
    runs = [len(measured.get(bucket, ())) for bucket in buckets]
    return float(np.average(over, weights=runs if any(runs) else None))
