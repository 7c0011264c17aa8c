"""The bytes in flight of all connections together: bodies that are still being read, and tensors that wait or run.

Every body and every request is counted when its bytes come and when it ends; on the way of a query that is two
additions. Where the budget is short, the bodies that hold most are given up first, and never for one that holds more:
a client with a small body always finds room. Messages of gRPC are counted before they are read, in grpc/reads.py.
"""

from __future__ import annotations

from typing import Protocol

SMALL_BYTES = 65_536  # what holds no more may also use the spare part
SPARE_PART = 8  # this part of the budget is kept for what is small
SHARE_PART = 4  # this part of the budget may one connection hold
RELIEF_PART = 16  # so much is made free at a time: looking for those that hold most takes a while


class Holder(Protocol):
    """A connection. `held` is the budget's own, and 0 at first."""

    held: int

    def give_up(self) -> None:
        """Forget the body that is being read, tell its client, and let go of it here."""


class Budget:
    """In bytes. On the event loop's thread only."""

    def __init__(self, limit: int):
        self.limit = limit
        self.share = limit // SHARE_PART
        self.used = 0
        self.given_up = 0  # bodies, since the start
        self._most_of_large = limit - limit // SPARE_PART
        self._largest = 0  # nobody holds more
        self._holders: set[Holder] = set()  # connections with a body that is not complete, or that waits its turn

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
        if not holder.held:
            self._holders.add(holder)
        holder.held += size
        self.used += size
        self._largest = max(self._largest, holder.held)
        most = self.limit if holder.held <= SMALL_BYTES else self._most_of_large
        if self.used > most:
            self._relieve(holder.held, most)
        return self.used <= most and holder.held <= self.share

    def let_go_of(self, holder: Holder, size: int) -> None:
        """A part of what it holds; no more than that, for it may have been given up in the meantime."""
        size = min(size, holder.held)
        holder.held -= size
        self.used -= size
        if not holder.held:
            self._holders.discard(holder)

    def let_go(self, holder: Holder) -> None:
        """The body became a request, or nothing."""
        if holder.held:
            self._holders.discard(holder)
            self.used -= holder.held
            holder.held = 0

    def _relieve(self, size: int, most: int) -> None:
        """Give up bodies of those that hold more than this, the largest first, until there is room and some more."""
        if self._largest <= size:
            return  # and nobody is looked for
        enough = most - self.limit // RELIEF_PART
        larger = [holder for holder in self._holders if holder.held > size]
        for holder in sorted(larger, key=lambda holder: holder.held, reverse=True):
            if self.used <= enough:
                self._largest = holder.held
                return
            self.given_up += 1
            holder.give_up()
            self.let_go(holder)
        self._largest = size
