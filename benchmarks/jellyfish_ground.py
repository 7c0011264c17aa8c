"""The ground that Jellyfish was published on: YOLOv4 at 16 input sizes, its clients, and the workers that serve them.

The paper plots its profiles (figure 6) but prints few numbers of them. Those that it does print are met here: the p99
of the smallest variant is 23 ms at batch 1 and 32 ms at batch 4 (124 FPS), index 3 does 90 FPS at batch 3 and index 9
does 32 FPS at batch 1, and throughput is nearly flat from batch 8 on. In between, latency is a line in the pixels of a
frame and a line in the batch size. Accuracy is a concave curve through the mean average precision on COCO of the
PyTorch YOLOv4 that the authors ran (0.466 at 416), from 0.25 at 128 to 0.50 at 608.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stretto.core.application import Application, Variant
from stretto.core.deployment import Deployment
from stretto.core.profile import NS_PER_MS, LatencyProfile, Quantile
from stretto.core.worker import UNLIMITED_MEMORY, Worker

SIZES = tuple(range(128, 640, 32))  # 640 is less accurate than 608 and slower, so it is left out
MAX_BATCH = 12
PLATEAU = 8  # from this batch size on, throughput hardly grows
APPLICATION = "detect"
QUANTILE = Quantile.P99
# The paper plans with the p99 and prints no other. Execution on a GPU varies little; these shares of the p99 are ours.
SHARES_OF_P99 = {Quantile.MEAN: 0.90, Quantile.P50: 0.89, Quantile.P95: 0.96, Quantile.P99: 1.0}
LOAD_NS = 175 * NS_PER_MS  # 150 to 200 ms to move a model to the GPU (section VI-G)

# Clients of section VI-F.
RATES = (10.0, 15.0, 25.0)
SLOS_MS = (75.0, 100.0, 150.0)
MBIT_PER_S = (7.5, 50.0)


def frame_bytes(size: int) -> int:
    """Of one JPEG frame: 3·r²/c, where compression c grows with the size from 4.78 to 8.13."""
    compression = 4.78 + (8.13 - 4.78) * (size - SIZES[0]) / (SIZES[-1] - SIZES[0])
    return round(3 * size * size / compression)


def accuracy(index: int) -> float:
    """Mean average precision."""
    return 0.52 - 0.27 * math.exp(-(SIZES[index] - SIZES[0]) / 184.4)


def profile_ns(index: int, batch: int) -> int:
    """The p99 latency of a batch."""
    pixels = (SIZES[index] / SIZES[0]) ** 2  # times those of the smallest
    first, each = 22.137 + 0.863 * pixels, 2.383 + 0.617 * pixels
    up_to_plateau = first + each * (min(batch, PLATEAU) - 1)
    beyond = 0.95 * (first + each * (PLATEAU - 1)) / PLATEAU
    return round((up_to_plateau + beyond * max(batch - PLATEAU, 0)) * NS_PER_MS)


def variants(memory_bytes: int = 0, kinds: dict[str, float] | None = None) -> tuple[Variant, ...]:
    """All 16, smallest first. `kinds` says how many times as long each kind of worker takes."""
    made = []
    for index, size in enumerate(SIZES):
        p99 = np.array([0] + [profile_ns(index, batch) for batch in range(1, MAX_BATCH + 1)], dtype=np.float64)
        profiles = tuple(
            LatencyProfile(
                np.rint(np.array([times * SHARES_OF_P99[quantile] * p99 for quantile in Quantile])).astype(np.int64),
                kind,
            )
            for kind, times in (kinds or {"default": 1.0}).items()
        )
        made.append(
            Variant(
                f"yolov4-{size}",
                accuracy(index),
                profiles,
                memory_bytes=memory_bytes,
                load_ns=LOAD_NS,
                input_size=(size, size, 3),
                frame_bytes=frame_bytes(size),
            )
        )
    return tuple(made)


def deployment(workers: int, slo_ms: float, resident: int = 0, sizes: int = len(SIZES)) -> Deployment:
    """`resident`: how many variants a worker can hold, the smallest ones at the start; 0: it holds all of them.
    `sizes`: so many variants, the smallest.
    """
    models = variants(memory_bytes=1 if resident else 0)[:sizes]
    at_start = tuple(f"{APPLICATION}/{model.name}" for model in models[:resident]) if resident else None
    crew = tuple(
        Worker(f"gpu-{number}", memory_bytes=resident or UNLIMITED_MEMORY, resident=at_start)
        for number in range(workers)
    )
    return Deployment((Application(APPLICATION, round(slo_ms * NS_PER_MS), models),), crew, QUANTILE)


@dataclass(frozen=True)
class DrawnClient:
    """One client of section VI-F."""

    rate: float
    slo_ms: float
    mbit_per_s: float


def draw_clients(count: int, seed: int) -> tuple[DrawnClient, ...]:
    """Rate and SLO from their sets, bandwidth uniform in its range."""
    random = np.random.default_rng(seed)
    return tuple(
        DrawnClient(
            float(random.choice(RATES)),
            float(random.choice(SLOS_MS)),
            float(random.uniform(*MBIT_PER_S)),
        )
        for _ in range(count)
    )
