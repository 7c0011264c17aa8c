"""What became of every frame of simulated clients, and the figures that Jellyfish is measured by (section VI-A)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.core.deployment import Deployment
from stretto.core.outcome import Outcome
from stretto.core.plan import Plan
from stretto.core.profile import NS_PER_S
from stretto.sim.network.sizes import answered_accuracy
from stretto.sim.results import Result

# One row per frame, in the order of their making. -1: it never came so far.
FRAME = np.dtype(
    [
        ("client", "i4"),
        ("size", "i4"),  # that it was sent at, as the variant whose input it is
        ("bytes", "i8"),
        ("made_ns", "i8"),
        ("sent_ns", "i8"),  # its first byte left
        ("arrived_ns", "i8"),  # its last byte came
        ("ended_ns", "i8"),  # its batch ended, or it was dropped
        ("answered_ns", "i8"),  # its client knows
        ("variant", "i4"),
        ("worker", "i4"),
        ("batch", "i4"),
        ("outcome", "i4"),  # an Outcome; DROPPED_EXPIRED without an arrival: given up by its client
    ],
    align=True,
)


@dataclass(frozen=True)
class FrameFigures:
    """Of a run, or of one client. Accuracy is per answer on time; misses are all other frames."""

    frames: int
    miss_rate: float
    accuracy: float
    correct_on_time: float  # share of frames answered right and on time
    dropped_at_client: int
    latency_ms: dict[str, float]  # of answers, from the making of the frame
    megabit_per_s: float  # sent
    has_accuracy: bool  # False: some variant's accuracy was not given, and figures of accuracy say nothing


@dataclass(frozen=True)
class NetworkSummary(FrameFigures):
    """A whole run."""

    planner: str
    seed: int
    seconds: float
    worker_use: float
    plans: int  # that differed from the one before
    outcomes: dict[str, int]
    clients: tuple[FrameFigures, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON; accuracy is None where it was not given."""
        summary = asdict(self)
        for part in (summary, *summary["clients"]):
            if not part["has_accuracy"]:
                part["accuracy"] = part["correct_on_time"] = None
        return summary


@dataclass(frozen=True)
class PlanAt:
    """A plan that came into force."""

    time_ns: int
    plan: Plan


@dataclass(frozen=True, eq=False)
class NetworkResult:
    """`frames` of dtype FRAME; `plans` in the order in which they came into force; `server` is what the server saw."""

    summary: NetworkSummary
    frames: NDArray[Any]
    plans: tuple[PlanAt, ...]
    server: Result
    estimates: NDArray[np.float64]  # [time ns, client, bytes/s as the server knew it], each half second
    switches: tuple[int, int]  # of workers to another variant: to one in memory, and to one that was not


def figures_of(frames: NDArray[Any], deployment: Deployment, seconds: float) -> FrameFigures:
    on_time = frames[frames["outcome"] == Outcome.ON_TIME]
    answered = frames[(frames["outcome"] >= 0) & (frames["outcome"] <= Outcome.LATE)]
    accuracy = answered_accuracy(deployment, on_time["size"], on_time["variant"])
    latency_ms = (answered["answered_ns"] - answered["made_ns"]) / 1e6
    count = len(frames)
    shares = (("p50", 50), ("p95", 95), ("p99", 99))
    return FrameFigures(
        frames=count,
        miss_rate=(count - len(on_time)) / count if count else 0.0,
        accuracy=float(accuracy.mean()) if len(on_time) else 0.0,
        correct_on_time=float(accuracy.sum()) / count if count else 0.0,
        dropped_at_client=int(((frames["outcome"] == Outcome.DROPPED_EXPIRED) & (frames["arrived_ns"] < 0)).sum()),
        latency_ms={name: float(np.percentile(latency_ms, share)) if len(answered) else 0.0 for name, share in shares},
        megabit_per_s=float(frames["bytes"][frames["sent_ns"] >= 0].sum()) * 8e-6 / max(seconds, 1e-9),
        has_accuracy=all(variant.has_accuracy for variant in deployment.variants),
    )


def summary_of(
    frames: NDArray[Any], deployment: Deployment, server: Result, clients: int, warmup_s: float, plans: int
) -> NetworkSummary:
    """Frames made before the warm-up is over count for nothing."""
    counted = frames[frames["made_ns"] >= warmup_s * NS_PER_S]
    seconds = server.summary.seconds
    by_outcome = np.bincount(counted["outcome"], minlength=len(Outcome))
    return NetworkSummary(
        **asdict(figures_of(counted, deployment, seconds)),
        planner=server.summary.planner,
        seed=server.summary.seed,
        seconds=seconds,
        worker_use=server.summary.worker_use,
        plans=plans,
        outcomes={outcome.name.lower(): int(by_outcome[outcome]) for outcome in Outcome},
        clients=tuple(figures_of(counted[counted["client"] == each], deployment, seconds) for each in range(clients)),
    )
