"""Connections whose request does not become complete: a few of them are read in one turn of the event loop.

The event loop itself reads every socket that has something before anything else has its turn. Ten thousand slow bodies
so held it for up to 0.25 s at a time. Here they have a selector of their own, from which some are taken a turn, in the
order in which the system tells of them; who sends nothing costs nothing. Requests that come in one piece never wait
behind these, and after a turn they rest as long as it took: half of the loop's time is for others, whoever sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import time
from typing import Protocol

PORTIONS = 64  # that are read in one turn of the event loop; each takes some 50 µs


class Member(Protocol):
    """A connection. The event loop does not read it meanwhile."""

    descriptor: int

    def read_portion(self) -> None: ...


class Crowd:
    """Of one listener, on the event loop's thread."""

    def __init__(self) -> None:
        self._members: dict[int, Member] = {}  # by descriptor
        self._selector: select.epoll | None = None  # from the first member on
        self._resting: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, member: Member) -> bool:
        return self._members.get(member.descriptor) is member

    def join(self, member: Member) -> bool:
        """False where it cannot be: the event loop goes on reading it."""
        try:
            if self._selector is None:
                self._selector = select.epoll()
                self._listen()
            self._selector.register(member.descriptor, select.EPOLLIN)
        except (OSError, AttributeError):  # no descriptor is left, or this system has another kind of selector
            return False
        self._members[member.descriptor] = member
        return True

    def leave(self, member: Member) -> None:
        """Before its descriptor is closed, for that may be another connection's at once."""
        if member in self and self._selector is not None:
            del self._members[member.descriptor]
            with contextlib.suppress(OSError):
                self._selector.unregister(member.descriptor)

    def close(self) -> None:
        """The listener ends. Whoever is left is read no more."""
        self._members.clear()
        if self._resting is not None:
            self._resting.cancel()
        if self._selector is not None:
            asyncio.get_running_loop().remove_reader(self._selector)
            self._selector.close()
            self._selector = None

    def _listen(self) -> None:
        assert self._selector is not None
        self._resting = None
        asyncio.get_running_loop().add_reader(self._selector, self._take_turn)

    def _take_turn(self) -> None:
        assert self._selector is not None
        loop, began_s = asyncio.get_running_loop(), time.monotonic()
        for descriptor, _ in self._selector.poll(0, PORTIONS):
            member = self._members.get(descriptor)  # one may leave while another is read
            if member is not None:
                member.read_portion()
        loop.remove_reader(self._selector)
        self._resting = loop.call_later(time.monotonic() - began_s, self._listen)
