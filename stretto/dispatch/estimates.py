"""What a dispatcher learned, read out and taken over by name: rates, adaptive caps and corrected latencies.

Another deployment numbers everything anew, so that only names say what is the same. A corrected latency is taken over
only where the profile is the same: a ratio says nothing about another profile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.estimates import Estimates
from stretto.core.plan import Plan
from stretto.core.profile import LEAST_RATIO, MOST_RATIO
from stretto.dispatch.layout import Memory
from stretto.dispatch.records import RATE_BUCKETS

COUNTING = ("first_ns", "edge_ns", "bucket", "total")  # fields of a meter, in the order of Estimates.counting


def read_estimates(memory: Memory, deployment: Deployment, plan: Plan) -> Estimates:
    """A copy of everything that measuring changed."""
    shape = (len(deployment.variants), len(deployment.kinds))
    meters, lanes, rows = memory["meters"], memory["lanes"], memory["rows"].reshape(shape)
    return Estimates(
        rate_window_ns=plan.rate_window_ns,
        applications=tuple(application.name for application in deployment.applications),
        lanes=tuple(lane.name for lane in plan.lanes),
        counting=np.stack([meters[name] for name in COUNTING], axis=1),
        rates=meters["rate"].copy(),
        arrivals=memory["rate_counts"].reshape(-1, RATE_BUCKETS).copy(),
        caps=np.where(lanes["cap_target_ns"] > 0, lanes["cap"], 0.0),
        variants=_labels(deployment),
        kinds=deployment.kinds,
        profiled=memory["profiled"].reshape(*shape, -1).copy(),
        ratio=rows["ratio"].copy(),
        written=rows["written"].copy(),
        runs=rows["runs"].copy(),
    )


def take_estimates(memory: Memory, deployment: Deployment, plan: Plan, estimates: Estimates) -> None:
    """Write what has the same name here. The caller renews what follows from latencies."""
    _check(estimates)
    names = tuple(lane.name for lane in plan.lanes)
    source, target = _pairs(estimates.lanes, names)
    lanes = memory["lanes"]
    capped = (estimates.caps[source] > 0) & (lanes["cap_target_ns"][target] > 0)
    lanes["cap"][target[capped]] = np.minimum(estimates.caps[source[capped]], lanes["max_batch"][target[capped]])
    if estimates.rate_window_ns == plan.rate_window_ns:
        of_applications = _pairs(estimates.applications, tuple(each.name for each in deployment.applications))
        source = np.concatenate([of_applications[0], len(estimates.applications) + source])
        target = np.concatenate([of_applications[1], len(deployment.applications) + target])
        for place, name in enumerate(COUNTING):
            memory["meters"][name][target] = estimates.counting[source, place]
        memory["meters"]["rate"][target] = estimates.rates[source]
        memory["rate_counts"].reshape(-1, RATE_BUCKETS)[target] = estimates.arrivals[source]
    if memory.state["correction"][0] > 0:
        _take_latencies(memory, deployment, estimates)


def _take_latencies(memory: Memory, deployment: Deployment, estimates: Estimates) -> None:
    shape = (len(deployment.variants), len(deployment.kinds))
    rows = memory["rows"].reshape(shape)
    profiled, latency = memory["profiled"].reshape(*shape, -1), memory["latency"].reshape(*shape, -1)
    for old_variant, variant in zip(*_pairs(estimates.variants, _labels(deployment)), strict=True):
        for old_kind, kind in zip(*_pairs(estimates.kinds, deployment.kinds), strict=True):
            entry = (old_variant, old_kind)
            sizes = slice(1, int(rows["max_batch"][variant, kind]) + 1)
            measured = profiled[variant, kind, sizes]
            # Beyond the largest batch stands NEVER, so that one entry more tells a longer profile from a shorter one.
            longer = slice(1, sizes.stop + 1)
            if not np.array_equal(estimates.profiled[entry][longer], profiled[variant, kind, longer]):
                continue
            for name, values in (("ratio", estimates.ratio), ("written", estimates.written), ("runs", estimates.runs)):
                rows[name][variant, kind] = values[entry]
            if estimates.written[entry] != 1.0:
                latency[variant, kind, sizes] = (measured * estimates.written[entry]).astype(np.int64)


def _labels(deployment: Deployment) -> tuple[str, ...]:
    return tuple(deployment.variant_label(variant) for variant in range(len(deployment.variants)))


def _pairs(before: Sequence[str], after: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of the names that both have, in each of them."""
    places = {name: place for place, name in enumerate(before)}
    pairs = [(places[name], place) for place, name in enumerate(after) if name in places]
    source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return source, target


def _check(estimates: Estimates) -> None:
    meters, rows = len(estimates.applications) + len(estimates.lanes), (len(estimates.variants), len(estimates.kinds))
    fits = (
        estimates.counting.shape == (meters, len(COUNTING))
        and estimates.rates.shape == (meters,)
        and estimates.arrivals.shape == (meters, RATE_BUCKETS)
        and estimates.caps.shape == (len(estimates.lanes),)
        and estimates.profiled.shape[:2] == estimates.ratio.shape == estimates.written.shape == rows
        and estimates.runs.shape == rows
    )
    if not fits or estimates.profiled.ndim != 3:
        raise StrettoError("these estimates are no dispatcher's: the arrays do not fit their names")
    ratios = np.concatenate([estimates.ratio.ravel(), estimates.written.ravel()])
    if not ((ratios >= LEAST_RATIO) & (ratios <= MOST_RATIO)).all():
        raise StrettoError(
            f"a ratio of latencies lies between {LEAST_RATIO} and {MOST_RATIO} in a dispatcher's estimates"
        )
    buckets = estimates.counting[:, COUNTING.index("bucket")]
    if not ((buckets >= 0) & (buckets < RATE_BUCKETS)).all() or not np.isfinite(estimates.caps).all():
        raise StrettoError("these estimates are no dispatcher's: a number is out of its range")
