"""Which frames to send over which links; everything in it is checked before the first frame is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stretto.client.address import DEFAULT_URL
from stretto.client.asking import MAX_DEADLINE_MS
from stretto.client.load.spec import MAX_SECONDS, check_range
from stretto.client.network.link import Link
from stretto.client.tensors import Array
from stretto.core.errors import StrettoError

MAX_CLIENTS = 4096
MAX_FPS = 1000.0
MAX_FRAMES = 2_000_000
MAX_EDGE = 4096


@dataclass(frozen=True, eq=False)
class FrameLoad:
    """One client for each of `links`; each makes `fps` frames a second, at a phase of its own.

    `inputs` are frames of full size, one a row, that clients take in an order of their own; with `labels` answers are
    checked. `edge`: every frame is sent at this height and width, whatever the server tells. Without `slo_ms` the
    application's own SLO counts, from when a frame is made to its answer.
    """

    application: str
    inputs: Array
    links: tuple[Link, ...]
    names: tuple[str, ...] = ()
    labels: NDArray[np.int64] | None = None
    url: str = DEFAULT_URL
    fps: float = 15.0
    seconds: float = 10.0
    slo_ms: float | None = None
    edge: int | None = None
    encoding: str = "raw"
    seed: int = 0
    token: str | None = None
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        if not self.application:
            raise StrettoError("name the application that the frames are for")
        if not 1 <= len(self.links) <= MAX_CLIENTS:
            raise StrettoError(f"there may be from 1 to {MAX_CLIENTS} clients, not {len(self.links)}")
        if self.names and len(self.names) != len(self.links):
            raise StrettoError("give every link a name, or none")
        check_range("the frame rate", self.fps, 0, MAX_FPS, "frames/s")
        check_range("the duration", self.seconds, 0, MAX_SECONDS, "seconds")
        check_range("the SLO", self.slo_ms, 0, MAX_DEADLINE_MS, "ms")
        if len(self.links) * self.fps * self.seconds > MAX_FRAMES:
            raise StrettoError(f"these are more than {MAX_FRAMES:,} frames; send fewer, or for a shorter time")
        if np.ndim(self.inputs) < 3 or not len(self.inputs):
            raise StrettoError("frames are images, one a row: an array [n, h, w] or [n, channels, h, w]")
        if self.labels is not None and np.shape(self.labels) != np.shape(self.inputs)[:1]:
            raise StrettoError(f"there must be one label for each of the {len(self.inputs)} frames")
        if self.edge is not None and not 1 <= self.edge <= MAX_EDGE:
            raise StrettoError(f"a frame's height is from 1 to {MAX_EDGE} pixels, not {self.edge}")
        if not 0 <= self.seed < 2**63:
            raise StrettoError(f"the seed is {self.seed}; it is a whole number from 0 on")

    @property
    def link_names(self) -> tuple[str, ...]:
        return self.names or tuple(f"client {number}" for number in range(1, len(self.links) + 1))


@dataclass(frozen=True)
class ClientNow:
    """One client as it stands, for a live view; NaN or nothing where it is not known yet."""

    name: str
    given: float  # bytes/s of its link at this moment
    bandwidth: float  # bytes/s as the client measures it
    edge: int
    variant: str
    latency_ms: float  # of the last answer
    frames: int
    missed: int
    correct: int


@dataclass(frozen=True)
class FramesNow:
    """Where a run stands."""

    elapsed_s: float
    seconds: float
    slo_ms: float
    clients: tuple[ClientNow, ...]


ReportFrames = Callable[[FramesNow], None]
