"""Links over ZeroMQ: the scheduler is the hub of them, front ends and workers each have a line to it.

Each side sends a beat every fifth of a second. Who is silent for four is lost at once, and what was sent to it with it;
who comes back opens a new link. A beat says how long the last one of the other side was held, so that both know how
long a message takes, without a common clock. Whoever speaks nonsense loses its link and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

import zmq

from stretto.core.errors import StrettoError
from stretto.live.cluster.wire import HANDSHAKE_FAILED, Bounds, Unreachable, Wire, Wires
from stretto.live.face.link import Peer
from stretto.live.face.messages import MAX_PAYLOAD, NONSENSE, plain, text

log = logging.getLogger("stretto.cluster")

BEAT_S = 0.2
SILENT_BEATS = 4  # of a worker or front end
HUB_SILENT_BEATS = 6  # of the scheduler, which plans beside
BEAT_AGAIN_S = 0.05  # at the soonest, when somebody was disconnected: whoever connects again and again costs no more
OPENING_S = 3.0  # for the hub's answer, after which it is asked again; ZeroMQ tries to connect all the time
PAUSES_S = 0.05, 0.5  # between two tries to open, growing
REFUSED_PAUSE_S = 5.0
BEATS_KEPT = 8
MOST_LINKS = 20_000
MOST_TRANSIT_NS = 10**9
BOUNDS = Bounds(20_000, MAX_PAYLOAD + 64, 4 * MAX_PAYLOAD)
BEAT = struct.Struct("<qqq")  # own clock; the other's, from its last beat; and for how long that was held

Told = dict[str, Any]


class Sign(IntEnum):
    """What links say to each other; all other kinds are for their peers."""

    OPEN = 240  # JSON: who this is
    WELCOME = 241  # JSON: who that is
    REFUSED = 242  # text: why
    BEAT = 243
    BYE = 244


class Pulse:
    """Of one link: when the other side was heard last, and how long a message takes."""

    def __init__(self) -> None:
        self.heard_ns = time.monotonic_ns()
        self._theirs = (0, 0)  # the clock of their last beat, and ours when it came
        self._rounds_ns: deque[int] = deque(maxlen=BEATS_KEPT)

    def beat(self) -> bytes:
        now_ns = time.monotonic_ns()
        stamp_ns, came_ns = self._theirs
        return BEAT.pack(now_ns, stamp_ns, now_ns - came_ns if stamp_ns else 0)

    def heard_beat(self, payload: memoryview) -> None:
        if len(payload) != BEAT.size:
            raise StrettoError(NONSENSE)
        theirs_ns, ours_ns, held_ns = BEAT.unpack(payload)
        now_ns = time.monotonic_ns()
        self._theirs = theirs_ns, now_ns
        if ours_ns:
            self._rounds_ns.append(min(max(0, now_ns - ours_ns - max(0, held_ns)), 2 * MOST_TRANSIT_NS))

    @property
    def transit_ns(self) -> int:
        """Half of the quickest of the last rounds: the others met a busy process."""
        return min(self._rounds_ns, default=0) // 2


class HubLink:
    """To one front end or worker, from its opening to its end."""

    def __init__(self, hub: Hub, identity: bytes):
        self.pulse = Pulse()
        self.peer: Peer | None = None
        self.identity = identity
        self._hub = hub

    @property
    def transit_ns(self) -> int:
        return self.pulse.transit_ns

    def welcome(self, answer: Mapping[str, Any]) -> None:
        """Before anything else is sent."""
        self.send(Sign.WELCOME, text(answer))

    def send(self, kind: int, payload: bytes = b"") -> None:
        self._hub.send(self, kind, payload)

    def close(self) -> None:
        self._hub.end(self)


Welcoming = Callable[[HubLink, Told], Peer]


class Hub:
    """All links of a scheduler. `welcome` is told who opens one, welcomes it and says who hears what it sends;
    StrettoError where it is not taken.
    """

    def __init__(self, wires: Wires, endpoint: str, welcome: Welcoming):
        self._welcome = welcome
        self._links: dict[bytes, HubLink] = {}
        self._wire = wires.listening(endpoint, self._heard, BOUNDS)
        self._is_beating = False
        self._wire.watch(zmq.EVENT_DISCONNECTED, lambda event: self._beat_soon())  # finds out who that was
        self._loop = wires.loop
        self._last_beat_s = 0.0
        self._beaten_ns = time.monotonic_ns()
        self._timer = self._loop.call_later(BEAT_S, self._tick)

    @property
    def endpoint(self) -> str:
        return self._wire.endpoint

    def close(self) -> None:
        """Everybody is told."""
        self._timer.cancel()
        for link in list(self._links.values()):
            self.end(link)
        self._wire.close()

    def send(self, link: HubLink, kind: int, payload: bytes = b"") -> None:
        if link.identity in self._links:
            try:
                self._wire.send((link.identity, bytes((kind,)) + payload))
            except Unreachable:  # it is gone, or reads no more; whoever sends this may be in the middle of something
                del self._links[link.identity]
                self._loop.call_soon(self._lost, link)

    def end(self, link: HubLink) -> None:
        """From here on nothing of it is heard."""
        if self._links.get(link.identity) is link:
            self.send(link, Sign.BYE)
            self._links.pop(link.identity, None)
            self._lost(link)

    @staticmethod
    def _lost(link: HubLink) -> None:
        peer, link.peer = link.peer, None
        if peer is not None:
            peer.lost()

    def _heard(self, frames: list[Any]) -> None:
        if len(frames) != 2 or not frames[1]:
            return self._forget(frames[0])
        identity, kind, payload = frames[0], frames[1][0], memoryview(frames[1])[1:]
        link = self._links.get(identity)
        try:
            if kind == Sign.OPEN:
                self._open(identity, plain(payload))
            elif link is None:
                self._tell(identity, Sign.BYE)  # it was lost here; it opens anew
            else:
                link.pulse.heard_ns = time.monotonic_ns()
                if kind == Sign.BEAT:
                    link.pulse.heard_beat(payload)
                elif kind == Sign.BYE:
                    self.end(link)
                elif link.peer is not None:
                    link.peer.heard(kind, payload)
        except StrettoError as error:
            log.warning("a link is ended: %s", error)
            self._forget(identity)
        except Exception:
            self._forget(identity)
            raise

    def _forget(self, identity: bytes) -> None:
        link = self._links.get(identity)
        if link is not None:
            self.end(link)

    def _open(self, identity: bytes, opening: Told) -> None:
        if identity in self._links or len(self._links) >= MOST_LINKS:
            raise StrettoError(NONSENSE)
        self._links[identity] = link = HubLink(self, identity)
        try:
            link.peer = self._welcome(link, opening)
        except StrettoError as error:
            self._links.pop(identity, None)
            self._tell(identity, Sign.REFUSED, str(error).encode())
            return

    def _tell(self, identity: bytes, sign: Sign, payload: bytes = b"") -> None:
        try:
            self._wire.send((identity, bytes((sign,)) + payload))
        except Unreachable:
            log.debug("somebody spoke and was gone")

    def _tick(self) -> None:
        self._timer = self._loop.call_later(BEAT_S, self._tick)
        self._wire.drain(BOUNDS.messages)  # what lies there unread is nobody's silence
        now_ns = time.monotonic_ns()
        stood_ns = now_ns - self._beaten_ns - round(2e9 * BEAT_S)
        self._beaten_ns = now_ns
        for link in list(self._links.values()):
            if stood_ns > 0:  # the machine stood still, or this loop did
                link.pulse.heard_ns += stood_ns
            if now_ns - link.pulse.heard_ns > SILENT_BEATS * BEAT_S * 1e9:
                self.end(link)
        self._beat()

    def _beat_soon(self) -> None:
        if not self._is_beating:
            self._is_beating = True
            self._loop.call_at(self._last_beat_s + BEAT_AGAIN_S, self._beat)

    def _beat(self) -> None:
        self._is_beating = False
        self._last_beat_s = self._loop.time()
        for link in list(self._links.values()):
            self.send(link, Sign.BEAT, link.pulse.beat())


class Line:
    """To the hub, found again whenever it is lost. `opening` says who this is, each time; `opened` who hears what comes
    from then on, with the hub's answer.
    """

    def __init__(
        self,
        wires: Wires,
        endpoint: str,
        opening: Callable[[], Mapping[str, Any]],
        opened: Callable[[Line, Told], Peer],
    ):
        self._wires, self._endpoint = wires, endpoint
        self._opening, self._opened = opening, opened
        self._loop = wires.loop
        self._wire: Wire | None = None
        self._peer: Peer | None = None  # while it is open
        self.is_open = False
        self._pulse = Pulse()
        self._pause_s = PAUSES_S[0]
        self._beaten_ns = time.monotonic_ns()
        self._said: set[str] = set()  # what was logged since it was open last
        self._pausing: asyncio.TimerHandle | None = None
        self._timer = self._loop.call_later(BEAT_S, self._tick)
        self._connect()

    @property
    def transit_ns(self) -> int:
        return self._pulse.transit_ns

    def send(self, kind: int, payload: bytes = b"") -> None:
        if self.is_open:
            self._put(kind, payload)

    def close(self) -> None:
        self._timer.cancel()
        if self._pausing is not None:
            self._pausing.cancel()
        if self.is_open:
            self._put(Sign.BYE)
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.socket.setsockopt(zmq.LINGER, 200)
            wire.close()
        self._say_lost()

    def _put(self, kind: int, payload: bytes = b"") -> None:
        if self._wire is None:
            return
        try:
            self._wire.send((bytes((kind,)) + payload,))
        except Unreachable:  # it does not read any more
            self._loop.call_soon(self._lost, self._wire)

    def _connect(self) -> None:
        self._pausing = None
        self._pulse = Pulse()
        self._wire = wire = self._wires.calling(self._endpoint, self._heard, BOUNDS)
        wire.watch(zmq.EVENT_DISCONNECTED | HANDSHAKE_FAILED, lambda event: self._happened(wire, event))
        self._put(Sign.OPEN, text(self._opening()))

    def _happened(self, wire: Wire, event: int) -> None:
        if event & HANDSHAKE_FAILED:
            self._complain(
                "the scheduler at %s did not let this process in: every process needs the same key (--key-file)"
            )
        if event & zmq.EVENT_DISCONNECTED or event & HANDSHAKE_FAILED:
            self._lost(wire)

    def _complain(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            log.error(sentence, self._endpoint)

    def _lost(self, wire: Wire | None, pause_s: float | None = None) -> None:
        """That connection is of no use any more; another is made after a pause."""
        if wire is None or wire is not self._wire:
            return
        self._wire = None
        wire.close()
        pause_s = self._pause_s if pause_s is None else pause_s
        self._pause_s = min(2 * self._pause_s, PAUSES_S[1])
        self._pausing = self._loop.call_later(pause_s, self._connect)
        self._say_lost()

    def _say_lost(self) -> None:
        peer, self._peer, self.is_open = self._peer, None, False
        if peer is not None:
            peer.lost()

    def _heard(self, frames: list[Any]) -> None:
        if len(frames) != 1 or not frames[0]:
            return
        kind, payload = frames[0][0], memoryview(frames[0])[1:]
        self._pulse.heard_ns = time.monotonic_ns()
        try:
            if kind == Sign.BEAT:
                self._pulse.heard_beat(payload)
            elif kind == Sign.WELCOME:
                self._pause_s = PAUSES_S[0]
                self._said.clear()
                self.is_open = True
                self._peer = self._opened(self, plain(payload))
            elif kind == Sign.REFUSED:
                reason = bytes(payload[:400]).decode("utf-8", "replace").replace("%", "%%")
                self._complain(f"the scheduler at %s refused this process: {reason}")
                self._lost(self._wire, REFUSED_PAUSE_S)
            elif kind == Sign.BYE:
                self._lost(self._wire)
            elif self._peer is not None:
                self._peer.heard(kind, payload)
        except StrettoError as error:
            log.warning("the link to %s is ended: %s", self._endpoint, error)
            self._lost(self._wire)
        except Exception:  # a message that was half heard: what is left of it would never be
            log.exception("the link to %s is ended", self._endpoint)
            self._lost(self._wire)

    def _tick(self) -> None:
        self._timer = self._loop.call_later(BEAT_S, self._tick)
        wire = self._wire
        if wire is None:
            return
        wire.drain(BOUNDS.messages)
        if self._wire is not wire:
            return
        now_ns = time.monotonic_ns()
        stood_ns = now_ns - self._beaten_ns - round(2e9 * BEAT_S)
        self._beaten_ns = now_ns
        self._pulse.heard_ns += max(0, stood_ns)
        silent_s = (now_ns - self._pulse.heard_ns) / 1e9
        if silent_s > (HUB_SILENT_BEATS * BEAT_S if self.is_open else OPENING_S):
            self._lost(wire)
        elif self.is_open:
            self._put(Sign.BEAT, self._pulse.beat())
