"""Frames of a run as they are made and end; becomes a FrameResult."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from stretto.client.frame_stats import Frame as Ended
from stretto.client.frame_stats import FrameOutcome
from stretto.client.network.link import Link
from stretto.client.network.result import OUTCOMES, FrameResult

NAN = float("nan")


PENDING = 255  # of a frame that has not ended


@dataclass(slots=True)
class MadeFrame:
    """One frame; `made_ns` counts from the start of its link's trace."""

    client: int
    made_ns: int
    choice: int  # which of the inputs it is
    latency_ns: int = 0
    outcome: int = PENDING
    edge: int = -1
    sent_bytes: int = 0
    bandwidth: float = NAN
    given: float = NAN
    variant: int = -1
    correct: int = -1


@dataclass
class FrameRecord:
    """All frames in the order in which they are made."""

    frames: list[MadeFrame] = field(default_factory=list)
    variants: dict[str, int] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    arrived: int = 0
    on_time: Counter[int] = field(default_factory=Counter)  # by client
    ended: Counter[int] = field(default_factory=Counter)
    correct: Counter[int] = field(default_factory=Counter)

    def made(self, client: int, made_ns: int, choice: int) -> MadeFrame:
        frame = MadeFrame(client, made_ns, choice)
        self.frames.append(frame)
        return frame

    def end(self, frame: MadeFrame, latency_ns: int, ended: Ended) -> None:
        """A frame's one outcome."""
        assert frame.outcome == PENDING, "a frame ends once"
        frame.latency_ns, frame.outcome = latency_ns, OUTCOMES.index(ended.outcome)
        if ended.size is not None and ended.sent_bytes:
            frame.edge, frame.sent_bytes = ended.size[0], ended.sent_bytes
            self.arrived += ended.has_arrived
        if ended.answer is not None:
            name = ended.answer.variant
            frame.variant = self.variants.setdefault(name, len(self.variants))
        if ended.outcome is FrameOutcome.REFUSED and ended.error is not None:
            self.refusals[ended.error.reason] += 1
        is_on_time = ended.outcome is FrameOutcome.ON_TIME
        self.ended[frame.client] += 1
        self.on_time[frame.client] += is_on_time
        self.correct[frame.client] += is_on_time and frame.correct > 0

    def result(
        self,
        application: str,
        slo_ns: int,
        seconds: float,
        sizes: str,
        links: tuple[Link, ...],
        names: tuple[str, ...],
        is_labelled: bool,
        was_interrupted: bool,
    ) -> FrameResult:
        frames = sorted((frame for frame in self.frames if frame.outcome != PENDING), key=lambda frame: frame.made_ns)

        def column(name: str, kind: type[np.generic]) -> np.ndarray:
            return np.array([getattr(frame, name) for frame in frames], dtype=kind)

        return FrameResult(
            application,
            slo_ns,
            seconds,
            sizes,
            links,
            names,
            tuple(self.variants),
            dict(self.refusals),
            is_labelled,
            column("client", np.int16),
            column("made_ns", np.int64),
            column("latency_ns", np.int64),
            column("outcome", np.uint8),
            column("edge", np.int32),
            column("sent_bytes", np.int64),
            column("bandwidth", np.float64),
            column("given", np.float64),
            column("variant", np.int16),
            column("correct", np.int8),
            was_interrupted,
            self.arrived,
        )
