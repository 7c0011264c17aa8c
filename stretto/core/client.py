"""Clients: who asks, what is known of the network to them, and what they were told to send.

A client has an identity of its own choosing and a slot, a small number by which plans route. Slots are reused once a
client is forgotten, so that tables by client stay small however many come and go. Time comes in as an argument.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

from stretto.core.errors import StrettoError

MAX_IDENTITY = 128


@dataclass(frozen=True)
class Network:
    """The way from a client to here, as measured; None: not measured yet."""

    bytes_per_s: float | None = None
    delay_ns: int | None = None


@dataclass(frozen=True)
class Told:
    """What a client was told to send: the input size of the variant that it is mapped to. Empty: nothing."""

    variant: str = ""
    input_size: tuple[int, ...] = ()


@dataclass(frozen=True)
class Client:
    """One client at one instant."""

    slot: int
    identity: str
    seen_ns: int  # when it last asked
    network: Network = field(default_factory=Network)
    told: Told = field(default_factory=Told)
    application: str = ""  # that it called last
    rate: float = 0.0  # queries/s, as counted here over the last second
    slo_ns: int | None = None  # from frame to answer, as it says; None: the application's own
    frame_ratio: float = 1.0  # bytes that it sends over what its variant's `frame_bytes` expects


class Clients:
    """Those in use, at most `most`; the one that asked longest ago gives way to a new one."""

    def __init__(self, most: int = 65_536) -> None:
        self.limit(most)
        self._by_identity: OrderedDict[str, Client] = OrderedDict()  # who asked longest ago first
        self._identity_of: dict[int, str] = {}
        self._free: list[int] = []  # slots of clients that were forgotten

    def __len__(self) -> int:
        return len(self._by_identity)

    def limit(self, most: int) -> None:
        """How many are remembered at a time; those beyond are forgotten as new ones come."""
        if most < 1:
            raise StrettoError("at least one client must be allowed")
        self._most = most

    def slot_of(self, now_ns: int, identity: str) -> int:
        """The client's slot; one that is new gets the lowest that is free."""
        known = self._by_identity.get(identity)
        if known is None:
            while len(self._by_identity) >= self._most:
                self._forget(next(iter(self._by_identity)))
            slot = self._free.pop() if self._free else len(self._by_identity)
            known = Client(slot, identity, now_ns)
            self._identity_of[slot] = identity
        self._by_identity[identity] = replace(known, seen_ns=max(now_ns, known.seen_ns))
        self._by_identity.move_to_end(identity)
        return known.slot

    def measured(self, slot: int, network: Network) -> None:
        """The network to a client was measured; one that was forgotten meanwhile is passed over."""
        self._change(slot, network=network)

    def told(self, slot: int, told: Told) -> None:
        """A client was told what to send."""
        self._change(slot, told=told)

    def forget_before(self, then_ns: int) -> int:
        """Forget those that last asked before a moment; how many."""
        gone = []
        for identity, client in self._by_identity.items():
            if client.seen_ns >= then_ns:
                break
            gone.append(identity)
        for identity in gone:
            self._forget(identity)
        return len(gone)

    def all(self) -> tuple[Client, ...]:
        """By slot."""
        return tuple(sorted(self._by_identity.values(), key=lambda client: client.slot))

    def _change(self, slot: int, **what: Network | Told) -> None:
        identity = self._identity_of.get(slot)
        if identity is not None:
            self._by_identity[identity] = replace(self._by_identity[identity], **what)  # type: ignore[arg-type]

    def _forget(self, identity: str) -> None:
        slot = self._by_identity.pop(identity).slot
        del self._identity_of[slot]
        self._free.append(slot)
        self._free.sort(reverse=True)  # the lowest is taken next
