"""The bytes in flight of all connections together: bodies that are still being read, tensors that wait or run, and what
a crowd of connections takes by itself.

Every body and every request is counted when its bytes come and when it ends; on the way of a query that is two
additions. Where the budget is short, the largest bodies are given up first, and never for one that is larger: a client
with a small body always finds room. A body is as large as its client says that it will be: by what has come of it,
those that are nearly complete would be given up for others that just begin, and where many come at once none would end.
One that should have come to its end long ago also gives way to another of its size. Largest means to a factor of two,
and those that came first before others: with ten thousand bodies to choose from, to sort them took longer than all
else. Messages of gRPC are counted before they are read, in grpc/reads.py.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

SMALL_BYTES = 65_536  # what holds no more may also use the spare part
SPARE_PART = 8  # this part of the budget is kept for what is small
SHARE_PART = 4  # this part of the budget may one connection hold
CONNECTION_BYTES = 12_000  # that one takes by itself, whatever it sends
FREE_CONNECTIONS = 1_000  # so many count nothing; all together count for half of the budget at most
RELIEF_PART = 128  # so much is made free at a time: to give up many bodies takes a while
MOST_BITS = 64


class Holder(Protocol):
    """A connection. `held` and `weight` are the budget's own, and 0 at first."""

    held: int
    weight: int  # the larger of what it holds and what it promised, while it holds anything

    @property
    def promised(self) -> int:
        """How long its body will be, as far as its client said so."""

    @property
    def is_stale(self) -> bool:
        """Whether its body has been on its way for so long that others of its size go first."""

    def give_up(self) -> None:
        """Forget the body that is being read, tell its client, and let go of it here."""


class Budget:
    """In bytes. On the event loop's thread only."""

    def __init__(self, limit: int):
        self.limit = limit
        self.share = limit // SHARE_PART
        self.used = 0
        self.given_up = 0  # bodies, since the start
        self._connections = self._of_connections = 0  # how many are open, and which part of `used` is for them
        self._most_of_large = limit - limit // SPARE_PART
        # Connections with a body that is not complete, or that waits its turn, by how many bits its weight has; and for
        # each of these a number that none of them weighs more than.
        self._holders: list[OrderedDict[Holder, None]] = [OrderedDict() for _ in range(MOST_BITS)]
        self._largest = [0] * MOST_BITS

    def connected(self, more: int) -> None:
        """So many connections more are open, or less. What a crowd of them takes by itself is not there for bodies."""
        self._connections += more
        crowd_bytes = min(max(0, self._connections - FREE_CONNECTIONS) * CONNECTION_BYTES, self.limit // 2)
        self.used += crowd_bytes - self._of_connections
        self._of_connections = crowd_bytes

    def take(self, size: int) -> bool:
        """For tensors of a request that is complete; `used` is to be lowered again when it ends. False: no room."""
        most = self.limit if size <= SMALL_BYTES else self._most_of_large
        if self.used + size > most:
            self._relieve(size, most - size)
            if self.used + size > most:
                return False
        self.used += size
        return True

    def hold(self, holder: Holder, size: int) -> bool:
        """Further bytes of a body that is being read. False: there is no room; they are counted all the same until
        the holder lets go.
        """
        self._hold(holder, holder.held + size)
        self.used += size
        most = self.limit if holder.weight <= SMALL_BYTES else self._most_of_large
        if self.used > most:
            self._relieve(holder.weight, most, holder)
        return self.used <= most and holder.held <= self.share

    def let_go_of(self, holder: Holder, size: int) -> None:
        """A part of what it holds; no more than that, for it may have been given up in the meantime."""
        size = min(size, holder.held)
        self._hold(holder, holder.held - size)
        self.used -= size

    def let_go(self, holder: Holder) -> None:
        """The body became a request, or nothing."""
        if holder.held:
            self.used -= holder.held
            self._hold(holder, 0)

    def _hold(self, holder: Holder, size: int) -> None:
        """So much from now on."""
        weight = max(size, holder.promised) if size else 0
        before, bits = holder.weight.bit_length(), weight.bit_length()
        holder.held, holder.weight = size, weight
        if bits != before:
            self._holders[before].pop(holder, None)
            if size:
                self._holders[bits][holder] = None
        if weight > self._largest[bits]:
            self._largest[bits] = weight

    def _relieve(self, size: int, most: int, asking: Holder | None = None) -> None:
        """Give up bodies that are larger than this, the largest first, until there is room and some more."""
        enough, size_bits = most - self.limit // RELIEF_PART, size.bit_length()
        for bits in range(MOST_BITS - 1, size_bits, -1):
            holders = self._holders[bits]
            while holders and self.used > enough:
                self._give_up(next(iter(holders)))
        alike = self._holders[size_bits]
        while alike and self.used > enough:
            oldest = next(iter(alike))
            if oldest is asking or oldest.weight < size or not oldest.is_stale:
                break
            self._give_up(oldest)
        if self.used <= enough or self._largest[size_bits] <= size:
            return  # and nobody is looked for
        for holder in [holder for holder in alike if holder.weight > size]:
            if self.used <= enough:
                return
            self._give_up(holder)
        self._largest[size_bits] = size

    def _give_up(self, holder: Holder) -> None:
        self.given_up += 1
        holder.give_up()
        self.let_go(holder)
