"""What a policy sees, as numbers between 0 and about 1: of one system, or of thousands at once.

`joint` is the encoding of the paper (section 5.1.4): for each instance its queue length one-hot, the elapsed service
time, and the ages of its queries, zero-padded to one more than its buffer holds (16, as published); under full
observability the phase of the load as well. A policy over it is for the very instances that it was trained with.

`shared` is ours: the setting is part of what is seen. Each instance is described by itself, by the measured load, and
by how it compares with the others; one small network judges each instance, so that one policy serves any number. Last
comes the logarithm of the weight that the policy begins with (`filling`), to which the network's output is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.compiled import compiled
from stretto.core.profile import NS_PER_S
from stretto.core.view import Lines
from stretto.planners.edge_rl.filling import LEAST_RATE, filling_shares
from stretto.planners.edge_rl.instances import BUFFER, LARGEST_BATCH, Instance

MOST_LOAD = 4.0  # that is told apart from more
MOST_WORK = 2.0  # in SLOs
SHARED_FEATURES = 13
BEGINNING = 12  # the number among them to which the network's output is added
PHASE_FEATURES = 3

Numbers = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Still:
    """What `encode_shared` works out of a setting once."""

    features: Numbers  # those that do not change, the others zero
    seconds: NDArray[np.float64]  # a query takes, shared by all instances, those at least as accurate, the better ones
    share: NDArray[np.float64]  # of the speed of all
    better: NDArray[np.float64]  # [system, instance, other]: 1 where the other is more accurate
    as_good: NDArray[np.float64]  # the same for those at least as accurate
    by_as_good: NDArray[np.float64]  # their share of the speed of all of them


@dataclass(frozen=True, eq=False)
class Setting:
    """What does not change with time, by system and instance."""

    service_ns: NDArray[np.float64]  # [system, instance], of one query
    accuracy: NDArray[np.float64]  # [system, instance]
    slo_ns: NDArray[np.float64]  # [system, 1]

    @cached_property
    def still(self) -> Still:
        """What `encode_shared` needs of it."""
        speed = 1e9 / self.service_ns  # queries/s of an instance
        ahead = self.accuracy[:, None, :] - self.accuracy[:, :, None]  # [system, instance, other]
        total = np.broadcast_to(speed.sum(axis=1, keepdims=True), speed.shape)
        is_as_good, is_better = ((ahead >= least).astype(np.float64) for least in (0.0, 1e-9))
        as_good, better = ((others @ speed[..., None])[..., 0] for others in (is_as_good, is_better))
        features = np.zeros((*speed.shape, SHARED_FEATURES), np.float32)
        features[..., 0] = self.service_ns / self.slo_ns * 4
        features[..., 1] = (self.accuracy - self.accuracy.min(axis=1, keepdims=True)) * 10
        features[..., 2] = (self.accuracy.max(axis=1, keepdims=True) - self.accuracy) * 10
        features[..., 3] = share = speed / total
        features[..., 4] = 1.0 / speed.shape[1]
        seconds = 1.0 / np.maximum(np.stack((total, as_good, better), axis=2), 1e-9)
        by_as_good = is_as_good * speed[:, None, :] / as_good[..., None]
        return Still(features, seconds, share, is_better, is_as_good, by_as_good)

    @staticmethod
    def of(systems: Sequence[tuple[Sequence[Instance], int]]) -> Setting:
        """From each system's instances and SLO."""
        service = np.array([[float(each.service_ns) for each in crew] for crew, _ in systems])
        accuracy = np.array([[each.accuracy for each in crew] for crew, _ in systems])
        return Setting(service, accuracy, np.array([[float(slo_ns)] for _, slo_ns in systems]))


@dataclass(frozen=True, eq=False)
class Situation:
    """What is seen at one moment, by system."""

    length: NDArray[np.int64]  # [system, instance]: waiting and running
    running: NDArray[np.int64]
    elapsed_ns: NDArray[np.int64]  # of the running batch; 0: idle
    age_ns: NDArray[np.int64]  # [system, instance, place], oldest first; 0: none
    rate: NDArray[np.float64]  # λ as measured, queries/s
    phase: NDArray[np.int64] | None = None  # of the load; None: not observed
    since: NDArray[np.float64] | None = None  # how long it lasts already, in mean lengths of the phase


def situation(lines: Lines, now_ns: int, rate: NDArray[np.float64]) -> Situation:
    """From lanes, with or without an axis of systems in front."""
    if lines.length.ndim == 1:
        lines = Lines(*(array[None] for array in (lines.length, lines.running, lines.started_ns, lines.arrival_ns)))
    elapsed_ns, age_ns = np.empty_like(lines.started_ns), np.empty_like(lines.arrival_ns)
    fill_since(elapsed_ns.reshape(-1), lines.started_ns.reshape(-1), now_ns)
    fill_since(age_ns.reshape(-1), lines.arrival_ns.reshape(-1), now_ns)
    return Situation(lines.length, lines.running, elapsed_ns, age_ns, rate)


@compiled
def fill_since(since_ns: Any, moments_ns: Any, now_ns: int) -> None:
    """How long ago each moment was; 0 where there is none (-1). A batch may begin later than now."""
    for place in range(len(moments_ns)):
        since_ns[place] = max(now_ns - moments_ns[place], 0) if moments_ns[place] >= 0 else 0


def idle(instances: int, rate: float, depth: int = BUFFER + 1) -> Situation:
    """Before anything came."""
    nothing = np.zeros((1, instances), np.int64)
    return Situation(nothing, nothing, nothing, np.zeros((1, instances, depth), np.int64), np.array([rate]))


def joint_size(instances: int, sees_phase: bool, sees_batches: bool, buffer: int = BUFFER) -> int:
    """How many numbers `encode_joint` gives: lengths from 0 on, the elapsed time, and ages, by instance."""
    return instances * ((buffer + 1) + 1 + (buffer + 1) + sees_batches) + PHASE_FEATURES * sees_phase


def encode_joint(
    seen: Situation, setting: Setting, sees_phase: bool, sees_batches: bool, buffer: int = BUFFER
) -> Numbers:
    """[system, feature]."""
    systems, count = seen.length.shape
    features = np.zeros((systems, joint_size(count, sees_phase, sees_batches, buffer)), np.float32)
    width = joint_size(1, False, sees_batches, buffer)
    shape = (systems, count)
    fill_joint(
        features,
        width,
        buffer,
        seen.length,
        seen.running,
        seen.elapsed_ns,
        seen.age_ns,
        np.broadcast_to(setting.service_ns, shape),
        np.broadcast_to(setting.slo_ns, shape),
    )
    if sees_phase:
        assert seen.phase is not None and seen.since is not None
        features[:, -PHASE_FEATURES:] = phase_features(seen.phase, seen.since)
    return features


@compiled
def fill_joint(
    features: Any,
    width: int,
    buffer: int,
    length: Any,
    running: Any,
    elapsed_ns: Any,
    age_ns: Any,
    service_ns: Any,
    slo_ns: Any,
) -> None:
    """What is seen of every instance, `width` numbers each, into features that are zero."""
    lengths = depth = buffer + 1
    for system in range(length.shape[0]):
        for instance in range(length.shape[1]):
            first = instance * width
            features[system, first + min(length[system, instance], buffer)] = 1.0
            elapsed = elapsed_ns[system, instance] / service_ns[system, instance]
            features[system, first + lengths] = min(elapsed, 1.0)
            ages = first + lengths + 1
            longest_ns = MOST_WORK * slo_ns[system, instance]
            for place in range(min(depth, age_ns.shape[2])):
                if age_ns[system, instance, place] > 0:
                    features[system, ages + place] = min(age_ns[system, instance, place] / longest_ns, 1.0)
            if ages + depth < first + width:
                features[system, ages + depth] = running[system, instance] / LARGEST_BATCH


def phase_features(phase: NDArray[np.int64], since: NDArray[np.float64]) -> Numbers:
    """[system, feature]: which one it is, and how long it lasts already."""
    lasts = np.minimum(since, MOST_LOAD) / MOST_LOAD
    return np.stack((phase == 0, phase == 1, lasts), axis=1).astype(np.float32)


def encode_shared(seen: Situation, setting: Setting, slot_s: float, buffer: int = BUFFER) -> Numbers:
    """[system, instance, feature]."""
    still = setting.still
    features = still.features.copy()
    work = (seen.length * setting.service_ns - np.minimum(seen.elapsed_ns, setting.service_ns)) / setting.slo_ns
    work = np.minimum(np.maximum(work, 0.0), MOST_WORK)
    rate = seen.rate[:, None]
    features[..., 5] = seen.length / (buffer + 1)
    features[..., 6] = work
    features[..., 7:10] = np.minimum(rate[..., None] * still.seconds, MOST_LOAD)
    features[..., 10] = (still.by_as_good @ work[..., None])[..., 0]
    features[..., 11] = (still.share * work).sum(axis=1, keepdims=True)
    slo_s = setting.slo_ns / NS_PER_S
    shares = filling_shares(
        work,
        np.maximum(rate, LEAST_RATE) * slo_s,
        setting.service_ns / setting.slo_ns,
        still.better,
        still.as_good,
        slot_s / slo_s,
    )
    features[..., BEGINNING] = np.log(shares)
    return features
