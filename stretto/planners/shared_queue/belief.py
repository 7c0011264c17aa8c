"""A table that believes what the queue shows: n queries that came within the head's age tell of a load of their own.

A policy is solved for a load that stays. When a burst begins, the measured load lags behind by half a second, but the
queue knows at once: the shared queue holds exactly those who came since its head did. So each cell (n, age) takes its
action from the policy for the load that it makes likely: the mean of a gamma posterior whose prior is the measured
load, worth `prior` queries of evidence, and whose data are the queries seen less two deviations of what chance brings.
Less than the measured load is never believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stretto.planners.parts.policy import Policy

DEVIATIONS = 2.0


def believed(policies: Sequence[Policy], slo_ns: int, prior: float) -> Policy:
    """The first policy, with cells of the others (of rising loads) where the queue makes those loads likely."""
    first = policies[0]
    if len(policies) == 1:
        return first
    rows = max(len(policy.variant) for policy in policies)
    load = likely_load(first.load, rows, slo_ns, first.slack_ns, prior)
    loads = np.array([policy.load for policy in policies])
    place = np.searchsorted(np.sqrt(loads[:-1] * loads[1:]), load)  # the nearest, by ratio
    variant = np.empty((rows, len(first.slack_ns)), np.int32)
    batch = np.empty_like(variant)
    for number, policy in enumerate(policies):
        rows_of_policy = np.minimum(np.arange(rows), len(policy.variant) - 1)
        where = place == number
        variant[where] = policy.variant[rows_of_policy][where]
        batch[where] = policy.batch[rows_of_policy][where]
    return replace(first, variant=variant, batch=batch)


def likely_load(load: float, rows: int, slo_ns: int, slack_ns: NDArray[np.int64], prior: float) -> NDArray[np.float64]:
    """Queries/s by queued and slack: the posterior mean, at least the prior's."""
    seen = np.maximum(np.arange(rows) - 1, 0)[:, None]
    expected = load * np.maximum(slo_ns - slack_ns, 0)[None, :] / 1e9
    sure = seen - DEVIATIONS * np.sqrt(expected)
    likely: NDArray[np.float64] = load * np.maximum((sure + prior) / (expected + prior), 1.0)
    return likely
