"""A simulated client: what waits for its link, what it knows, and what it does with what it hears.

A client that adapts as told is the shipped one: the same rule (`stretto.core.pacing`), one frame at a time on its way,
the next one when that is acknowledged, and no more than a few that have not ended. The others are as published: their
frames follow each other on the link as soon as it is free.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from stretto.core.outcome import Outcome
from stretto.core.pacing import GRACE_NS, IN_FLIGHT, Pacing
from stretto.sim.network.clients import Adaptation, NetworkClient
from stretto.sim.network.sizes import Sizes, size_by_network


class Word(NamedTuple):
    """What a client hears with the end of a frame: how that ended, and the size that it is told."""

    outcome: Outcome
    place: int | None  # of the size
    is_nowhere: bool = False  # clients are mapped, and this one is not


@dataclass(eq=False)
class ClientState:
    """One client; `application` is the number of the one that it asks."""

    spec: NetworkClient
    sizes: Sizes
    application: int
    slo_ns: int
    identity: str
    waiting: deque[int] = field(default_factory=deque)  # frames that wait for the link
    is_sending: bool = False
    open: int = 0  # frames that have not ended
    to_say: list[float] = field(default_factory=list)  # bytes/s that it measured and has not reported
    pacing: Pacing = field(init=False)
    largest: int = field(init=False)  # place of the largest size that it may send

    def __post_init__(self) -> None:
        self.largest = self.sizes.place_of(self.spec.sending.largest)
        guesses = [size * self.spec.frame_ratio for size in self.sizes.frame_bytes[: self.largest + 1]]
        self.pacing = Pacing(0, self.slo_ns, guesses)
        self.pacing.went(self.around_ns)

    @property
    def is_shipped(self) -> bool:
        return self.spec.sending.adaptation is Adaptation.TOLD

    @property
    def around_ns(self) -> int:
        return self.spec.delay_ns + self.spec.back_ns

    def takes(self, now_ns: int) -> bool:
        """Whether a frame that it makes now will wait for the link; else it is given up at once."""
        self.pacing.made(now_ns)
        return not self.is_shipped or (self.open < IN_FLIGHT and not self.pacing.is_held_back(now_ns))

    def place(self, now_ns: int, left_ns: int) -> int | None:
        """Of the size of a frame that goes now and has so much of its SLO left; None: it is not sent any more."""
        if self.is_shipped:
            return self.pacing.size_for(now_ns, left_ns)
        if left_ns <= 0:
            return None
        bytes_per_s = self.pacing.expected_bytes_per_s(now_ns)
        return size_by_network(self.spec, self.sizes, self.largest, self.slo_ns, bytes_per_s)

    def sent(self, place: int, frame_bytes: int) -> None:
        """A frame of this size has so many bytes."""
        self.pacing.sent(place, frame_bytes)

    def acknowledged(self, now_ns: int, frame_bytes: int, took_ns: int) -> None:
        """Of its first byte's leaving, so long ago; what is measured by that is said with a later frame."""
        self.pacing.acknowledged(now_ns, frame_bytes, took_ns)
        measured = self.pacing.to_report()
        if measured is not None:
            self.to_say.append(measured)

    def to_report(self) -> list[float]:
        """The bytes/s that it measured and has not said yet."""
        measured, self.to_say = self.to_say, []
        return measured

    def gives_up_ns(self, made_ns: int) -> int | None:
        """When it stops waiting for a frame; None: never."""
        return made_ns + self.slo_ns + GRACE_NS if self.is_shipped else None

    def hear(self, now_ns: int, made_ns: int, known_ns: int, word: Word) -> None:
        """A frame ended; at `known_ns` the client knew that the server had it."""
        self.open -= 1
        told = None if word.place is None else min(word.place, self.largest)
        if word.outcome.is_answer:
            self.pacing.answered(now_ns, now_ns - known_ns, told, word.is_nowhere)
        else:
            had_ns = made_ns + self.slo_ns - known_ns
            self.pacing.refused(now_ns, word.outcome is Outcome.DROPPED_OVERLOAD, told, word.is_nowhere, had_ns)
