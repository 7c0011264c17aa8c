"""A deployment as it was measured: each profile moved to where its runs really were.

A dispatcher corrects latencies while it serves, so candidates have to be tried against the corrected ones: on a machine
twice as fast as profiled they would else be judged as if half of it were missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

import numpy as np

from stretto.core.deployment import Deployment, with_latencies
from stretto.core.profile import Quantile
from stretto.sim.residuals import FEWEST, Residuals
from stretto.twin.setting import Setting

SHARES = {Quantile.P50: 0.5, Quantile.P95: 0.95, Quantile.P99: 0.99}
LEAST_MOVE = 1.01  # a profile that is as near as this is left alone


Ratios = tuple[tuple[float, ...], ...]  # [variant][kind]


def as_measured(deployment: Deployment, setting: Setting) -> tuple[Deployment, Setting, Ratios]:
    """Both with latencies as they were, at the quantile that decisions rest on, and how far they were moved. A variant
    with few runs is moved like the others on its kind.
    """
    factors = {
        where: _factor(residuals, deployment.quantile)
        for where, residuals in setting.residuals.items()
        if residuals.runs >= FEWEST
    }
    by_kind = {
        kind: median(factor for (_, its_kind), factor in factors.items() if its_kind == kind)
        for kind in {kind for _, kind in factors}
    }
    factors = {where: factors.get(where, by_kind.get(where[1], 1.0)) for where in _places(deployment)}
    if all(1 / LEAST_MOVE <= factor <= LEAST_MOVE for factor in factors.values()):
        return deployment, setting, _ratios(deployment, {})
    residuals = {
        where: Residuals({bucket: runs / factors.get(where, 1.0) for bucket, runs in measured.by_bucket.items()})
        for where, measured in setting.residuals.items()
    }
    ratios = _ratios(deployment, factors)
    return with_latencies(deployment, ratios), replace(setting, residuals=residuals), ratios


def _ratios(deployment: Deployment, factors: Mapping[tuple[str, str], float]) -> Ratios:
    labels = [deployment.variant_label(number) for number in range(len(deployment.variants))]
    return tuple(tuple(factors.get((label, kind), 1.0) for kind in deployment.kinds) for label in labels)


def _places(deployment: Deployment) -> list[tuple[str, str]]:
    return [
        (f"{application.name}/{variant.name}", profile.kind)
        for application in deployment.applications
        for variant in application.variants
        for profile in variant.profiles
    ]


def _factor(residuals: Residuals, quantile: Quantile) -> float:
    share = SHARES.get(quantile)
    return float(np.mean(residuals.pooled) if share is None else np.quantile(residuals.pooled, share))
