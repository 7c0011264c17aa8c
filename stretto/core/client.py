"""Clients: who asks, how often and over which network as measured, and what they were told to send.

A client is an identity of its own choosing together with the application that it asks: a camera that asks two is two
clients, for each has a rate, a place in the plan and a size to send of its own. Only the network is the identity's, and
what is measured with one is known of both. A client has a slot, a small number by which plans route. Slots are reused
once a client is forgotten, so that tables by client stay small however many come and go. Time comes in as an argument.

What a client says of its rate is kept to be shown, and decides nothing: plans and the door go by what was counted here.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from stretto.core.errors import StrettoError
from stretto.core.profile import NS_PER_S
from stretto.core.recent import LEAST_AGE_NS, STEP_NS, Recent, plausible

MAX_IDENTITY = 128
FORGET_S = 3.0  # a client that asked nothing for so long has gone
SMOOTHING = 0.125  # of delays and frame sizes, as TCP smooths round trips
MAX_DELAY_NS = 60 * NS_PER_S
MAX_FRAME_RATIO = 64.0  # a frame is not more than so many times as large, or small, as its size lets expect
CHANGED_BY = 1.2  # a bandwidth that moved by more than this factor is a reason to plan anew

REPORTS = 128  # of a bandwidth, over which its deviation from what was known before is averaged, as |log|
MOST_DEVIATION = 1.0  # of one report
DEVIATIONS = 3.0  # by which a bandwidth hardly falls before a plan can follow it

FIRST_RATE = 20.0  # queries/s that a client may ask which no plan has seen for a second yet
PROBE_RATE = 2.0  # queries/s of one that the plan maps nowhere, so that it is heard when there is room again
HEADROOM = 1.25  # over the rate that it was planned with
KEPT = 0.8  # of that, by plan, where it asked less since: who was refused and waited may come back as it was
WINDOW_NS = NS_PER_S // 2  # within which a client may be ahead of that
HELD = 0.97  # by plan: how slowly the rate fades that a client had when it was mapped nowhere and began to wait


@dataclass(frozen=True)
class Network:
    """The way from a client to here and back, as measured; None: not measured yet.

    A frame of so many bytes and its answer are on their way for `delay_ns + bytes / bytes_per_s`: the delay is that of
    both ways, and answers are taken to be small.
    """

    bytes_per_s: float | None = None
    delay_ns: int | None = None
    steady_share: float = 1.0  # of bytes_per_s, below which it hardly falls before a plan can follow it


@dataclass(frozen=True)
class Told:
    """What a client was told to send: the input size of the variant that it is mapped to. Empty: nothing.

    A size without a variant: the plan maps it nowhere, and it should only try now and then, at this size.
    """

    variant: str = ""
    input_size: tuple[int, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a plan puts a client: what it is told, and the lane that a by-client route leads it to (-1: no such
    route). `is_shared`: other clients, or none that the plan counted on, are led there too.
    """

    told: Told
    lane: int = -1
    is_shared: bool = False

    @property
    def is_nowhere(self) -> bool:
        """Clients are mapped, and this one is not."""
        return self.lane >= 0 and not self.told.variant


@dataclass(frozen=True)
class Client:
    """One client at one instant."""

    slot: int
    identity: str
    seen_ns: int  # when it last asked
    network: Network = field(default_factory=Network)
    told: Told = field(default_factory=Told)
    application: str = ""  # that it asks
    rate: float = 0.0  # queries/s, as counted here over the last second
    slo_ns: int | None = None  # from frame to answer, as it says; None: the application's own
    frame_ratio: float = 1.0  # bytes that it sends over what its variant's `frame_bytes` expects
    said_rate: float | None = None  # queries/s, as it says; for display only

    @property
    def key(self) -> tuple[str, str]:
        """By which it is known, whatever its slot."""
        return self.identity, self.application


class Way:
    """The network of one identity, as reported with what any of its clients asked."""

    __slots__ = ("clients", "delay_ns", "deviation", "recent", "reports")

    def __init__(self) -> None:
        self.clients = 0  # that share it
        self.delay_ns: float | None = None
        self.deviation = 0.0  # of reports from the bandwidth known before them, as |log| in the mean
        self.reports = 0  # that this mean is of
        self.recent: Recent | None = None  # None: no bandwidth was reported yet

    def reported(self, now_ns: int, bytes_per_s: float | None, delay_ns: int | None) -> None:
        """None: nothing."""
        if delay_ns is not None:
            self.delay_ns = _smoothed(self.delay_ns, min(max(delay_ns, 0), MAX_DELAY_NS))
        if self.recent is not None:
            self.recent.passed(now_ns)
        if bytes_per_s is not None:
            if self.recent is None:
                self.recent = Recent(now_ns)
            known, reported = self.recent.bytes_per_s(now_ns), plausible(bytes_per_s)
            if known is not None and reported is not None:
                off = min(abs(math.log(reported / known)), MOST_DEVIATION)
                self.reports = min(self.reports + 1, REPORTS)
                self.deviation += (off - self.deviation) / self.reports
            self.recent.reported(now_ns, bytes_per_s)

    def bytes_per_s(self, now_ns: int) -> float | None:
        return None if self.recent is None else self.recent.bytes_per_s(now_ns)

    @property
    def steady_share(self) -> float:
        """Of the bandwidth, below which it hardly falls before a plan can follow it."""
        return math.exp(-DEVIATIONS * self.deviation)


class Known:
    """What is kept of a client between two looks. Only the registry reads and writes it; others hold on to it."""

    __slots__ = (
        *("ahead_ns", "frame_ratio", "held_rate", "is_counted", "joined_ns", "key", "open", "place", "placed_rate"),
        *("planned_bytes_per_s", "planned_rate", "recent", "said_rate", "seen_ns", "slo_ns", "slot", "step", "way"),
    )

    def __init__(self, slot: int, key: tuple[str, str], way: Way, now_ns: int) -> None:
        self.slot = slot
        self.key = key  # identity and application
        self.way = way
        self.joined_ns = self.seen_ns = now_ns
        self.is_counted = False  # it has been there for long enough that its rate can be told
        self.recent = Recent(now_ns)
        self.step = -1  # in which its bandwidth was last compared with the plan's
        self.slo_ns: int | None = None
        self.frame_ratio: float | None = None  # None: no frame was counted yet
        self.said_rate: float | None = None
        self.open = 0  # queries that have not ended
        self.place = Place(Told())
        self.planned_rate: float | None = None  # None: no plan has seen it yet
        self.planned_bytes_per_s: float | None = None
        self.placed_rate = FIRST_RATE  # that the last plan counted on which had a place for it
        self.held_rate = 0.0  # measured before it was mapped nowhere; what it tries meanwhile is less than it wants
        self.ahead_ns = now_ns  # when what it asked would be due at the rate that it was planned with


class Clients:
    """Those in use, at most `most`; the one that asked longest ago gives way to a new one."""

    def __init__(self, most: int = 65_536) -> None:
        self.limit(most)
        self._by_key: OrderedDict[tuple[str, str], Known] = OrderedDict()  # who asked longest ago first
        self._ways: dict[str, Way] = {}  # by identity
        self._by_slot: dict[int, Known] = {}
        self._free: list[int] = []  # slots of clients that were forgotten, a heap: the lowest is taken next
        self._latest_ns = 0
        self._asking = 0  # clients with queries that have not ended
        self.is_changed = (
            False  # since a planner last looked: one came, was counted or went, or its bandwidth moved by much
        )
        self.on_change: Callable[[], None] = _nothing  # called when `is_changed` becomes true

    def __len__(self) -> int:
        return len(self._by_key)

    def limit(self, most: int, forget_s: float = FORGET_S) -> None:
        """How many are remembered at a time; those beyond are forgotten as new ones come. `forget_s`: for how long."""
        if most < 1:
            raise StrettoError("at least one client must be allowed")
        if not 0 < forget_s < math.inf:
            raise StrettoError("clients are remembered for a time above 0")
        self._most = most
        self._forget_ns = round(forget_s * NS_PER_S)

    def slot_of(self, now_ns: int, identity: str, application: str) -> int:
        """The client's slot; one that is new gets the lowest that is free."""
        key = identity, application
        state = self._by_key.get(key)
        if state is None:
            while len(self._by_key) >= self._most:
                self._forget(next(iter(self._by_key)))
            slot = heapq.heappop(self._free) if self._free else len(self._by_key)
            way = self._ways.setdefault(identity, Way())
            way.clients += 1
            state = self._by_key[key] = self._by_slot[slot] = Known(slot, key, way, now_ns)
            self._change()
        else:
            self._by_key.move_to_end(key)
            state.seen_ns = max(now_ns, state.seen_ns)
        self._latest_ns = max(now_ns, self._latest_ns)
        return state.slot

    def asked(
        self,
        now_ns: int,
        slot: int,
        queries: int = 1,
        *,
        bytes_per_s: float | None = None,
        delay_ns: int | None = None,
        slo_ns: int | None = None,
        frame_ratio: float | None = None,
        said_rate: float | None = None,
    ) -> None:
        """It asked so many queries, and reported this along with them; None: nothing. One that was forgotten meanwhile
        is passed over. Numbers are a client's own: those that make no sense are left out or held to their bounds.
        """
        state = self._by_slot.get(slot)
        if state is None:
            return
        state.recent.counted(now_ns, queries)
        state.slo_ns = slo_ns if slo_ns is not None and slo_ns > 0 else None
        if said_rate is not None:
            state.said_rate = said_rate
        state.way.reported(now_ns, bytes_per_s, delay_ns)
        if frame_ratio is not None and math.isfinite(frame_ratio) and frame_ratio > 0:
            within = min(max(frame_ratio, 1 / MAX_FRAME_RATIO), MAX_FRAME_RATIO)
            state.frame_ratio = _smoothed(state.frame_ratio, within)
        if not state.is_counted and now_ns - state.joined_ns >= LEAST_AGE_NS:
            state.is_counted = True  # what was planned when it came rests on a guess of its rate
            self._change()
        if bytes_per_s is not None and not self.is_changed and now_ns // STEP_NS != state.step:
            state.step = now_ns // STEP_NS
            if has_moved(state.planned_bytes_per_s, state.way.bytes_per_s(now_ns)):
                self._change()

    def admits(self, now_ns: int, slot: int) -> bool:
        """Whether it keeps to the rate that it was planned with, with some headroom. One that is forgotten is not held
        to anything.
        """
        state = self._by_slot.get(slot)
        return state is None or state.ahead_ns <= now_ns + WINDOW_NS

    def admitted(self, now_ns: int, slot: int, queries: int = 1) -> None:
        """These were let in."""
        state = self._by_slot.get(slot)
        if state is None:
            return
        if state.place.is_nowhere:
            rate = PROBE_RATE
        elif state.planned_rate is None:
            rate = FIRST_RATE
        else:
            rate = max(state.planned_rate, PROBE_RATE) * HEADROOM
        state.ahead_ns = max(state.ahead_ns, now_ns) + round(queries * NS_PER_S / rate)

    def identity_of(self, slot: int) -> str:
        """Empty where it is forgotten."""
        state = self._by_slot.get(slot)
        return "" if state is None else state.key[0]

    def delay_ns_of(self, slot: int) -> int:
        """Of both ways, as smoothed; 0 where it is not known."""
        state = self._by_slot.get(slot)
        return 0 if state is None or state.way.delay_ns is None else round(state.way.delay_ns)

    def began(self, slot: int, queries: int = 1) -> Known | None:
        """It has so many queries more; give what this returns to `ended`, for the slot may be another's by then."""
        state = self._by_slot.get(slot)
        if state is not None:
            self._asking += state.open == 0
            state.open += queries
        return state

    def ended(self, known: Known | None, queries: int = 1) -> None:
        """So many queries of a client have ended."""
        if known is not None:
            known.open -= queries
            self._asking -= known.open == 0

    def is_ahead_of_others(self, slot: int, places: int) -> bool:
        """Whether it has more queries that have not ended than an equal share of so many places."""
        state = self._by_slot.get(slot)
        return state is not None and state.open * self._asking > places

    def place_of(self, slot: int) -> Place | None:
        """Where the last plan puts it; None where it is forgotten."""
        state = self._by_slot.get(slot)
        return None if state is None else state.place

    def planned(self, seen: Sequence[Client], places: Mapping[int, Place]) -> None:
        """A plan was made from what was `seen`. Who came into a slot meanwhile has nothing to do with it. What a client
        was ahead of its old rate is forgiven, for the new plan knows its new one.

        One that has no place keeps the rate that it was measured with, but no more than the door would have let in at
        the rate that it had a place for: what is beyond was a burst, and would keep it out long after.
        """
        for client in seen:
            state = self._by_slot.get(client.slot)
            if state is not None and state.key == client.key:
                state.planned_rate = _granted(state, client.rate)
                state.ahead_ns = min(state.ahead_ns, state.seen_ns + WINDOW_NS)
        self.placed(seen, places)
        for client in seen:
            state = self._by_slot.get(client.slot)
            if state is None or state.key != client.key:
                continue
            if state.place.is_nowhere:
                state.held_rate = HELD * min(client.rate, HEADROOM * state.placed_rate)
            else:
                state.held_rate, state.placed_rate = 0.0, _measured(state, client.rate)

    def placed(self, seen: Sequence[Client], places: Mapping[int, Place]) -> None:
        """The same plan as before, looked at anew."""
        for client in seen:
            state = self._by_slot.get(client.slot)
            if state is not None and state.key == client.key and client.slot in places:
                state.place = places[client.slot]

    def told(self, slot: int, instruction: Told) -> None:
        """A client was told what to send, by no plan's route."""
        state = self._by_slot.get(slot)
        if state is not None:
            state.place = Place(instruction)

    def forget_gone(self, now_ns: int) -> int:
        """Forget those that asked nothing for so long as `limit` says; how many."""
        return self.forget_before(now_ns - self._forget_ns)

    def forget_before(self, then_ns: int) -> int:
        """Forget those that last asked before a moment; how many."""
        gone = []
        for key, state in self._by_key.items():
            if state.seen_ns >= then_ns:
                break
            gone.append(key)
        for key in gone:
            self._forget(key)
        if gone:
            self._change()
        return len(gone)

    def all(self, now_ns: int | None = None) -> tuple[Client, ...]:
        """By slot, as of now; None: as of when one last asked."""
        at_ns = self._latest_ns if now_ns is None else now_ns
        return tuple(_seen(self._by_slot[slot], at_ns) for slot in sorted(self._by_slot))

    def to_plan_for(self, now_ns: int) -> tuple[Client, ...]:
        """All, for a planner. What changes from here on is a reason to plan again, also while it plans."""
        self.is_changed = False
        seen = self.all(now_ns)
        for client in seen:
            self._by_slot[client.slot].planned_bytes_per_s = client.network.bytes_per_s
        return seen

    def latest(self, now_ns: int, most: int) -> tuple[Client, ...]:
        """Those that asked last, the latest first; at most so many."""
        return tuple(_seen(state, now_ns) for state in islice(reversed(self._by_key.values()), most))

    def _change(self) -> None:
        if not self.is_changed:
            self.is_changed = True
            self.on_change()

    def _forget(self, key: tuple[str, str]) -> None:
        state = self._by_key.pop(key)
        del self._by_slot[state.slot]
        heapq.heappush(self._free, state.slot)
        state.way.clients -= 1
        if not state.way.clients:
            del self._ways[key[0]]


def _nothing() -> None:
    """Nobody wants to know."""


def _smoothed(before: float | None, sample: float) -> float:
    return sample if before is None else before + SMOOTHING * (sample - before)


def has_moved(before: float | None, now: float | None) -> bool:
    """Whether a bandwidth differs from what was planned with by so much that this is a reason to plan anew."""
    if before is None or now is None:
        return before is not now
    return not before / CHANGED_BY <= now <= before * CHANGED_BY


def _measured(state: Known, rate: float) -> float:
    """The rate that a plan counts on; in its first second a client was hardly measured."""
    return max(rate, FIRST_RATE) if state.seen_ns - state.joined_ns < NS_PER_S else rate


def _granted(state: Known, rate: float) -> float:
    """What a client may ask until the next plan, from the rate that this one counts on."""
    rate = _measured(state, rate)
    return rate if state.planned_rate is None else max(rate, KEPT * state.planned_rate)


def _seen(state: Known, now_ns: int) -> Client:
    (identity, application), delay_ns = state.key, state.way.delay_ns
    return Client(
        state.slot,
        identity,
        state.seen_ns,
        Network(state.way.bytes_per_s(now_ns), None if delay_ns is None else round(delay_ns), state.way.steady_share),
        state.place.told,
        application,
        max(state.recent.rate(now_ns), state.held_rate),
        state.slo_ns,
        1.0 if state.frame_ratio is None else state.frame_ratio,
        state.said_rate,
    )
