"""A simulated client: what it sends how often, over which network, and how it chooses the size of a frame.

Frames go one after the other over the client's own uplink, whose bandwidth changes with its trace. The SLO counts from
the making of a frame to its answer, so time on the network is taken from the server's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stretto.core.bandwidth import Bandwidth
from stretto.core.errors import StrettoError

MAX_FPS = 10_000.0
MAX_DELAY_NS = 60 * 10**9
MAX_RATIO = 1e3


class Adaptation(StrEnum):
    """How a client chooses the size of its next frame (Jellyfish sections III and VI-D)."""

    TOLD = "told"  # as the server says; less where the network has no room for that many bytes
    FIXED = "fixed"  # always `largest` (no data adaptation)
    BANDWIDTH = "bandwidth"  # the largest, up to `largest`, that the network carries at the client's rate
    SLO = "slo"  # of those, one that is through the network in what the compute share leaves of the SLO


@dataclass(frozen=True)
class Sending:
    """The rule of a client. `largest` names the variant whose input size is the most that it sends; empty: any."""

    adaptation: Adaptation = Adaptation.TOLD
    largest: str = ""
    compute_share: float = 0.0  # of the SLO, that an SLO-aware client leaves for the server

    def __post_init__(self) -> None:
        if not 0 <= self.compute_share < 1:
            raise StrettoError(f"the server's share of the SLO is between 0 and 1, not {self.compute_share}")
        if self.adaptation is Adaptation.FIXED and not self.largest:
            raise StrettoError("a client with a fixed size must name the variant whose size it sends")


@dataclass(frozen=True)
class NetworkClient:
    """One client. It makes its first frame at `joins_s` and none from `leaves_s` on."""

    application: str
    fps: float
    bandwidth: Bandwidth
    slo_ns: int | None = None  # None: the application's own
    delay_ns: int = 0  # a byte's way to the server, besides its transmission
    back_ns: int = 0  # an answer's way back
    jitter: float = 0.0  # each frame is made late by up to so much of the time between two
    frame_ratio: float = 1.0  # bytes of its frames over what variants expect at that size
    frame_spread: float = 0.0  # coefficient of variation of its frames' bytes
    joins_s: float = 0.0
    leaves_s: float | None = None
    sending: Sending = Sending()

    def __post_init__(self) -> None:
        if not 0 < self.fps <= MAX_FPS:
            raise StrettoError(f"a client sends between 0 and {MAX_FPS:g} frames a second, not {self.fps}")
        if self.slo_ns is not None and self.slo_ns <= 0:
            raise StrettoError("the SLO of a client must be above zero")
        if not (0 <= self.delay_ns <= MAX_DELAY_NS and 0 <= self.back_ns <= MAX_DELAY_NS):
            raise StrettoError("the delay of a network is between 0 and a minute")
        if not (0 <= self.jitter <= 1 and 0 <= self.frame_spread <= 1):
            raise StrettoError("the jitter of a client, and the spread of its frames, are between 0 and 1")
        if not 0 < self.frame_ratio <= MAX_RATIO:
            raise StrettoError(f"a client's frames are up to {MAX_RATIO:g} times as large as expected")
        if self.joins_s < 0 or (self.leaves_s is not None and self.leaves_s <= self.joins_s):
            raise StrettoError("a client joins at 0 s or later, and leaves after that")
