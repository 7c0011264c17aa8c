"""What a policy sees, as numbers between 0 and about 1: of one system, or of thousands at once.

`joint` is the encoding of the paper (section 5.1.4): for each instance its queue length one-hot, the elapsed service
time, and the ages of its queries, zero-padded to 16; under full observability the phase of the load as well. A policy
over it is for the very instances that it was trained with.

`shared` is ours: the setting is part of what is seen. Each instance is described by itself, by the measured load, and
by how it compares with the others; one small network judges each instance, so that one policy serves any number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stretto.core.view import Lines
from stretto.planners.edge_rl.instances import BUFFER, LARGEST_BATCH, Instance

DEPTH = 16  # ages of an instance
LENGTHS = BUFFER + 1
MOST_LOAD = 4.0  # that is told apart from more
MOST_WORK = 2.0  # in SLOs
SHARED_FEATURES = 12

Numbers = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Setting:
    """What does not change with time, by system and instance."""

    service_ns: NDArray[np.float64]  # [system, instance], of one query
    accuracy: NDArray[np.float64]  # [system, instance]
    slo_ns: NDArray[np.float64]  # [system, 1]

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
    elapsed_ns = np.where(lines.started_ns >= 0, np.maximum(now_ns - lines.started_ns, 0), 0)
    age_ns = np.where(lines.arrival_ns >= 0, now_ns - lines.arrival_ns, 0)
    return Situation(lines.length, lines.running, elapsed_ns, age_ns, rate)


def idle(instances: int, rate: float) -> Situation:
    """Before anything came."""
    nothing = np.zeros((1, instances), np.int64)
    return Situation(nothing, nothing, nothing, np.zeros((1, instances, DEPTH), np.int64), np.array([rate]))


def joint_size(instances: int, sees_phase: bool, sees_batches: bool) -> int:
    """Numbers that `encode_joint` gives."""
    return instances * (LENGTHS + 1 + DEPTH + sees_batches) + 3 * sees_phase


def encode_joint(seen: Situation, setting: Setting, sees_phase: bool, sees_batches: bool) -> Numbers:
    """[system, feature]."""
    systems, count = seen.length.shape
    features = np.zeros((systems, joint_size(count, sees_phase, sees_batches)), np.float32)
    parts = features[:, : features.shape[1] - 3 * sees_phase].reshape(systems, count, -1)
    parts[..., :LENGTHS] = np.minimum(seen.length, BUFFER)[..., None] == np.arange(LENGTHS)
    np.minimum(seen.elapsed_ns / setting.service_ns, 1.0, out=parts[..., LENGTHS], casting="same_kind")
    ages = seen.age_ns[..., :DEPTH] / (MOST_WORK * setting.slo_ns[..., None])
    np.minimum(ages, 1.0, out=parts[..., LENGTHS + 1 : LENGTHS + 1 + DEPTH], casting="same_kind")
    if sees_batches:
        parts[..., -1] = seen.running / LARGEST_BATCH
    if sees_phase:
        assert seen.phase is not None and seen.since is not None
        features[:, -3:-1] = seen.phase[:, None] == np.arange(2)
        features[:, -1] = np.minimum(seen.since, MOST_LOAD) / MOST_LOAD
    return features


def encode_shared(seen: Situation, setting: Setting) -> Numbers:
    """[system, instance, feature]."""
    service, slo = setting.service_ns, setting.slo_ns
    speed = 1e9 / service  # queries/s of an instance
    rate = seen.rate[:, None]
    work = np.clip((seen.length * service - np.minimum(seen.elapsed_ns, service)) / slo, 0.0, MOST_WORK)
    accuracy = setting.accuracy
    is_as_good = accuracy[:, None, :] >= accuracy[:, :, None]  # [system, instance, other]
    as_good = np.einsum("eij,ej->ei", is_as_good, speed)
    better = np.einsum("eij,ej->ei", accuracy[:, None, :] > accuracy[:, :, None], speed)
    work_as_good = np.einsum("eij,ej->ei", is_as_good, work * speed) / as_good
    total = speed.sum(axis=1, keepdims=True)
    features = np.empty((*service.shape, SHARED_FEATURES), np.float32)
    features[..., 0] = seen.length / LENGTHS
    features[..., 1] = work
    features[..., 2] = service / slo * 4
    features[..., 3] = (accuracy - accuracy.min(axis=1, keepdims=True)) * 10
    features[..., 4] = (accuracy.max(axis=1, keepdims=True) - accuracy) * 10
    features[..., 5] = np.minimum(rate / total, MOST_LOAD)
    features[..., 6] = np.minimum(rate / as_good, MOST_LOAD)
    features[..., 7] = np.minimum(rate / np.maximum(better, 1e-9), MOST_LOAD)
    features[..., 8] = work_as_good
    features[..., 9] = (work * speed).sum(axis=1, keepdims=True) / total
    features[..., 10] = speed / total
    features[..., 11] = (seen.length > 0).mean(axis=1, keepdims=True)
    return features
