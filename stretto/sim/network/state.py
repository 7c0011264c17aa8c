"""A simulated client: what it knows, what is on its link, and what it does with what it hears."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from stretto.core.frame_size import CONFIRMED_NS, PROBE_NS, SETTLED_NS
from stretto.core.outcome import Outcome
from stretto.core.recent import Recent
from stretto.sim.network.clients import Adaptation, NetworkClient
from stretto.sim.network.sizes import Choice, Promised


class Word(NamedTuple):
    """What a client hears with the end of a frame: how that ended, and the size that it is told."""

    outcome: Outcome
    place: int | None  # of the size
    is_nowhere: bool = False  # clients are mapped, and this one is not


@dataclass(eq=False)
class ClientState:
    """One client. `holds_back`: refused, it tries only now and then, as this project's live client does."""

    spec: NetworkClient
    choice: Choice
    application: int
    slo_ns: int
    identity: str
    holds_back: bool
    free_ns: int = 0  # when its link has sent all that it was given
    told: Promised | None = None
    first_ns: int | None = None  # when its first frame was acknowledged
    last: float | None = None  # bytes/s of the last frame that was acknowledged
    acks: deque[tuple[int, float]] = field(default_factory=deque)  # when an acknowledgement comes, and its bytes/s
    to_say: deque[tuple[int, float]] = field(default_factory=deque)  # the same, until it is said with a frame
    recent: Recent = field(default_factory=lambda: Recent(0))
    is_held: bool = False
    probe_ns: int = 0  # when it may try again

    def place(self, now_ns: int) -> int | None:
        """Of the size of a frame that it makes now; None: it sends none."""
        if self.is_held:
            if now_ns < self.probe_ns:
                return None
            self.probe_ns = now_ns + PROBE_NS
            return 0
        return self.choice.place(self.told, self._known(now_ns), max(0, self.free_ns - now_ns))

    def hear(self, now_ns: int, word: Word) -> None:
        """An answer says what to send. What it rests on is the bandwidth of the last second, as the server knows it."""
        before = self.told
        self._acknowledge(now_ns)
        if word.place is None or self.first_ns is None or now_ns < self.first_ns + SETTLED_NS:
            self.told = None
        elif before is None or before.place != word.place or now_ns - before.time_ns >= CONFIRMED_NS:
            self.told = Promised(word.place, now_ns, self.recent.bytes_per_s(now_ns))
        if self.holds_back and self.spec.sending.adaptation is Adaptation.TOLD:
            self._hold(now_ns, word)

    def to_report(self, sent_ns: int) -> list[float]:
        """The bytes/s that it had measured when a frame was sent, and not said yet."""
        measured = []
        while self.to_say and self.to_say[0][0] <= sent_ns:
            measured.append(self.to_say.popleft()[1])
        return measured

    def _hold(self, now_ns: int, word: Word) -> None:
        if word.is_nowhere or word.outcome is Outcome.DROPPED_OVERLOAD:
            self.probe_ns = self.probe_ns if self.is_held else now_ns + PROBE_NS
            self.is_held = True
        elif word.outcome.is_answer:
            self.is_held = False

    def _known(self, now_ns: int) -> float | None:
        """The bandwidth as the client knows it: over the last second, or of the last frame where that was slower."""
        self._acknowledge(now_ns)
        recent = self.recent.bytes_per_s(now_ns)
        return recent if recent is None or self.last is None else min(recent, self.last)

    def _acknowledge(self, now_ns: int) -> None:
        """What the client has measured by now."""
        while self.acks and self.acks[0][0] <= now_ns:
            at_ns, self.last = self.acks.popleft()
            self.first_ns = at_ns if self.first_ns is None else self.first_ns
            self.recent.reported(at_ns, self.last)
