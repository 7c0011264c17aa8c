"""A small ladder of sizes for tests: three variants, each larger one more accurate, slower and heavier to send."""

from __future__ import annotations

from stretto.core.application import Application, Variant
from stretto.core.bandwidth import Bandwidth, constant
from stretto.core.deployment import Deployment
from stretto.core.profile import NS_PER_MS, LatencyProfile
from stretto.core.worker import workers
from stretto.sim.network.clients import NetworkClient

SIZES = {"small": (64, 5_000, 0.5, 6.0), "middle": (128, 20_000, 0.7, 12.0), "large": (256, 80_000, 0.9, 24.0)}


def ladder(worker_count: int = 2, slo_ms: float = 100.0) -> Deployment:
    variants = tuple(
        Variant(
            name,
            accuracy,
            (LatencyProfile.linear(0.25 * latency_ms, 0.75 * latency_ms, max_batch=8),),
            input_size=(side, side, 3),
            frame_bytes=frame_bytes,
        )
        for name, (side, frame_bytes, accuracy, latency_ms) in SIZES.items()
    )
    return Deployment((Application("see", round(slo_ms * NS_PER_MS), variants),), workers(worker_count))


def client(bandwidth: Bandwidth | float = 4e6, fps: float = 20.0, **rest: object) -> NetworkClient:
    known = bandwidth if isinstance(bandwidth, Bandwidth) else constant(bandwidth)
    return NetworkClient("see", fps, known, **rest)  # type: ignore[arg-type]
