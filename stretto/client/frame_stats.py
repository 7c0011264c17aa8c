"""What became of a client's frames, and what it knows of its network. Every frame ends in exactly one count."""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum

from stretto.client.answer import Answer
from stretto.client.errors import StrettoClientError
from stretto.client.pacing import Size

LATENCIES = 1000  # of the last answers, kept for quantiles


class FrameOutcome(StrEnum):
    """By the client's own clock, from when the frame was made to when its answer was there."""

    ON_TIME = "on_time"
    LATE = "late"
    TOO_LATE_TO_SEND = "too_late_to_send"  # it could not have come back in time: nothing was sent
    TOO_MANY = "too_many"  # others were still on their way: nothing was sent
    HELD_BACK = "held_back"  # the server asked to wait: nothing was sent
    REFUSED = "refused"  # by the server: see `error`
    FAILED = "failed"  # no answer came


@dataclass(frozen=True)
class Frame:
    """One frame's end. `latency_ms` is NaN where no answer came."""

    outcome: FrameOutcome
    answer: Answer | None = None
    size: Size | None = None  # height and width as sent
    sent_bytes: int = 0
    has_arrived: bool = False  # the server had all of it, by its acknowledgement, answer or refusal
    latency_ms: float = math.nan
    made_s: float = 0.0  # on the monotonic clock
    error: StrettoClientError | None = None


@dataclass
class FrameStats:
    """Since the client was made; what has no count is as of now."""

    made: int = 0
    in_flight: int = 0
    sent: int = 0
    sent_bytes: int = 0
    outcomes: Counter[FrameOutcome] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)  # by the server's word
    accuracy_sum: float = 0.0  # expected, of the answers on time
    size: Size | None = None  # of the frame sent last
    variant: str = ""  # that answered last
    latency_ms: float = math.nan  # of the last answer
    bandwidth: float | None = None  # bytes/s, harmonic mean over the last second
    rtt_ms: float | None = None
    preparing_ms: float = math.nan  # of the last frame: how long it took to make it smaller and to encode it
    rate: float = 0.0  # frames/s over the last second
    latencies_ms: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES))

    def ended(self, frame: Frame) -> None:
        self.in_flight -= 1
        self.outcomes[frame.outcome] += 1
        if frame.error is not None and frame.outcome is FrameOutcome.REFUSED:
            self.refusals[frame.error.reason] += 1
        if frame.answer is not None:
            self.variant, self.latency_ms = frame.answer.variant, frame.latency_ms
            self.latencies_ms.append(frame.latency_ms)
            if frame.outcome is FrameOutcome.ON_TIME and math.isfinite(frame.answer.expected_accuracy):
                self.accuracy_sum += frame.answer.expected_accuracy

    @property
    def on_time(self) -> int:
        return self.outcomes[FrameOutcome.ON_TIME]

    @property
    def misses(self) -> int:
        """Frames that ended without an answer on time, whatever the reason."""
        return self.outcomes.total() - self.on_time

    @property
    def miss_rate(self) -> float:
        ended = self.outcomes.total()
        return self.misses / ended if ended else 0.0

    @property
    def accuracy(self) -> float:
        """Mean of what is expected of the answers on time."""
        return self.accuracy_sum / self.on_time if self.on_time else math.nan

    def quantile_ms(self, share: float) -> float:
        """Of the latencies of the last answers."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else math.nan
