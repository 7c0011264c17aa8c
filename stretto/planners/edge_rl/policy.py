"""The policy: a small network from what is seen to weights for the instances (edge RL, equations 8 and 9).

Here it runs in NumPy alone. In training the weights are drawn: Gaussian noise is added to the network's outputs before
the softmax, and equation 9 is the density of what comes out. In use there is no noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.errors import StrettoError
from stretto.core.profile import Quantile
from stretto.planners.edge_rl.encoding import (
    BEGINNING,
    SHARED_FEATURES,
    Numbers,
    Setting,
    Situation,
    encode_joint,
    encode_shared,
    joint_size,
)
from stretto.planners.edge_rl.instances import BATCHES, BUFFER, BUFFERS, Instance

HIDDEN = (90, 60)  # units of the two hidden layers (section 5.1.4)
SERVICE_TOLERANCE = 0.02  # by which service times may differ from those that a policy was trained for
SLOTS_S = (0.001, 3600.0)
LATENCIES = ("", *(quantile.name.lower() for quantile in Quantile))


@dataclass(frozen=True)
class Description:
    """What a policy is for, and how it came about."""

    encoding: str  # joint or shared
    slot_s: float  # between two decisions
    instances: tuple[tuple[str, float, float], ...] = ()  # variant, service ms, accuracy; shared: none, it fits any
    slo_ms: float = 0.0
    sees_phase: bool = False  # full observability
    batching: bool = False
    buffer: int = BUFFER  # queries that an instance holds, the running one among them
    published_batches: bool = False  # are gathered by the rule of the paper (see `gathering`)
    latency: str = ""  # mean or p95, which service times are; "": what the deployment decides by
    trained: dict[str, float | str] = field(default_factory=dict)  # for people: workload, slots, seed, figures

    def checked(self) -> Description:
        """Itself; StrettoError where a file says what no training could have written."""
        if self.encoding not in ("joint", "shared"):
            raise StrettoError(f"a policy sees joint or shared, not {self.encoding[:40]!r}")
        if not SLOTS_S[0] <= self.slot_s <= SLOTS_S[1]:
            raise StrettoError(f"a policy decides each {SLOTS_S[0] * 1e3:g} ms to an hour, not each {self.slot_s:g} s")
        if not (isinstance(self.buffer, int) and BUFFERS[0] <= self.buffer <= BUFFERS[1]):
            raise StrettoError(f"a buffer holds {BUFFERS[0]} to {BUFFERS[1]} queries, not {self.buffer}")
        if self.latency not in LATENCIES:
            raise StrettoError(f"service times are {', '.join(LATENCIES[1:])}, not {self.latency[:40]!r}")
        return self

    @property
    def models(self) -> tuple[int, ...]:
        """By instance: the number of its model among those there are, in order of appearance."""
        names = list(dict.fromkeys(variant for variant, _, _ in self.instances))
        return tuple(names.index(variant) for variant, _, _ in self.instances)

    @property
    def inputs(self) -> int:
        """Numbers that its network takes."""
        if self.encoding == "shared":
            return SHARED_FEATURES
        return joint_size(len(self.instances), self.sees_phase, self.batching, self.buffer)

    @property
    def outputs(self) -> int:
        """Numbers that its network gives: one for each instance, and for each model one for each of BATCHES."""
        if self.encoding == "shared":
            return 1
        return len(self.instances) + self.batching * len(set(self.models)) * len(BATCHES)

    def as_trained(self, deployment: Deployment) -> Deployment:
        """The deployment with the service times that the policy was trained with: means or a quantile."""
        if not self.latency or deployment.quantile is Quantile[self.latency.upper()]:
            return deployment
        return replace(deployment, quantile=Quantile[self.latency.upper()])

    def described(self, instances: Sequence[Instance], names: Sequence[str], slo_ns: int) -> Description:
        """The same for these instances; `names` are those of the deployment's variants."""
        crew = tuple((names[each.variant], each.service_ns / 1e6, each.accuracy) for each in instances)
        return replace(self, instances=crew, slo_ms=slo_ns / 1e6)

    def misfit(self, wanted: Description) -> str:
        """Why a policy does not fit these instances, as the end of a sentence; empty where it does."""
        if self.encoding == "shared":
            return ""
        if len(self.instances) != len(wanted.instances):
            return f"is for {len(self.instances)} instances, and there are {len(wanted.instances)}"
        for place, (ours, theirs) in enumerate(zip(self.instances, wanted.instances, strict=True)):
            if ours[0] != theirs[0]:
                return f"is for {ours[0]} as instance {place}, which is {theirs[0]} here"
            if not math.isclose(ours[1], theirs[1], rel_tol=SERVICE_TOLERANCE):
                return f"is for {ours[0]} in {ours[1]:.4g} ms a query, which takes {theirs[1]:.4g} ms here"
        if not math.isclose(self.slo_ms, wanted.slo_ms, rel_tol=SERVICE_TOLERANCE):
            return f"is for an SLO of {self.slo_ms:g} ms, which is {wanted.slo_ms:g} ms here"
        if self.batching and not wanted.batching:
            return "chooses batch sizes, and no instance here takes more than one query at once"
        return ""


@dataclass(frozen=True, eq=False)
class Policy:
    """`layers` are (weight [out, in], bias) of the network; tanh between them."""

    description: Description
    layers: tuple[tuple[NDArray[np.float32], NDArray[np.float32]], ...]

    def __post_init__(self) -> None:
        sizes = [self.description.inputs, *(len(bias) for _, bias in self.layers)]
        sound = sizes[-1] == self.description.outputs and all(
            weight.shape == (after, before)
            for (weight, _), before, after in zip(self.layers, sizes, sizes[1:], strict=False)
        )
        if not sound:
            raise StrettoError("the network of the policy does not have the shape that its description says")

    def encode(self, seen: Situation, setting: Setting) -> Numbers:
        """What its network takes."""
        if self.description.encoding == "shared":
            return encode_shared(seen, setting, self.description.slot_s, self.description.buffer)
        described = self.description
        return encode_joint(seen, setting, described.sees_phase, described.batching, described.buffer)

    def outputs(self, features: Numbers) -> Numbers:
        """What its network gives, [system, number]."""
        values = features
        for place, (weight, bias) in enumerate(self.layers):
            values = values @ weight.T + bias
            if place + 1 < len(self.layers):
                np.tanh(values, out=values)
        return values[..., 0] + features[..., BEGINNING] if self.description.encoding == "shared" else values

    def decide(self, seen: Situation, setting: Setting) -> tuple[NDArray[np.float64], NDArray[np.int64] | None]:
        """Weights [system, instance] without noise, and by model which of BATCHES is likeliest, where it batches."""
        outputs = self.outputs(self.encode(seen, setting))
        count = seen.length.shape[1]
        batches = None
        if self.description.batching:
            batches = outputs[:, count:].reshape(len(outputs), -1, len(BATCHES)).argmax(axis=2)
        return softmax(outputs[:, :count].astype(np.float64)), batches


def softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shares that sum to one, along the last axis (equation 8 without noise)."""
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    shares: NDArray[np.float64] = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def log_density(shares: NDArray[np.float64], means: NDArray[np.float64], sigma: float) -> NDArray[np.float64]:
    """Logarithm of equation 9: the density of softmax(means + noise) at `shares`, along the last axis; a density over
    all shares but one, which the others tell.
    """
    count = shares.shape[-1]
    logs = np.log(shares)
    q = logs - means
    exponent = q.sum(axis=-1) ** 2 / (2 * count * sigma**2) - (q**2).sum(axis=-1) / (2 * sigma**2)
    scale = 0.5 * math.log(count) + (count - 1) * math.log(sigma * math.sqrt(2 * math.pi))
    density: NDArray[np.float64] = exponent - scale - logs.sum(axis=-1)
    return density
