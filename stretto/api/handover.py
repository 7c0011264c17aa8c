"""Connections among the front ends of one machine: who has more than its share hands some over.

The system shares connections out by a hash. Of 64 connections, the busiest of four front ends got 1.25 times its share
(median of 200 tries; 1.6 at worst), of 16 it got 1.5 times: there it is the limit while others idle, and proxies keep
connections for hours. One that is started again would have none at all. So all see in one small memory how many each
has. Between two requests a connection's descriptor goes to the one that has the fewest, and that lives: each writes a
beat. Over TLS a connection can change hands only before its handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.live.face.memory import FrontMemory

BEAT_S = 0.05
ALIVE_NS = 250_000_000  # since its last beat
TAKEN = 64  # connections a turn of the event loop
BEAT, OPEN, TOOK = range(3)  # columns of a front end's row; how many it gave to each other one is behind these
FIRST_GIVEN = 3

Adopt = Callable[[socket.socket], asyncio.Task[None] | None]  # done when the connection is there; None: it is refused


class Counts:
    """What front ends know of each other. Every number has one writer: the front end whose row it is in."""

    def __init__(self, memory: FrontMemory, count: int):
        self.memory = memory
        self.rows = memory.array(0, np.int64, (count, FIRST_GIVEN + count))

    @staticmethod
    def made(count: int) -> Counts:
        return Counts(FrontMemory.made(8 * count * (FIRST_GIVEN + count), "stretto-handover"), count)

    def given_to(self, number: int) -> int:
        return int(self.rows[:, FIRST_GIVEN + number].sum())

    def _loads(self) -> NDArray[np.int64]:
        """Connections of each, with those that are on their way to it."""
        rows = self.rows
        loads: NDArray[np.int64] = rows[:, OPEN] + rows[:, FIRST_GIVEN:].sum(axis=0) - rows[:, TOOK]
        return loads

    def _alive(self) -> NDArray[np.bool_]:
        is_alive: NDArray[np.bool_] = self.rows[:, BEAT] > time.monotonic_ns() - ALIVE_NS
        return is_alive

    def surplus(self, number: int) -> int:
        """How many connections it has beyond its share of all that those have that live."""
        loads = self._loads()
        of_living = loads[self._alive()]
        return max(0, int(loads[number]) + (-int(of_living.sum()) // len(of_living))) if len(of_living) else 0

    def least(self, number: int) -> tuple[int, int]:
        """Who has the fewest connections of the others that live, and how many more this one has. Itself, and 0, where
        it is alone.
        """
        load, is_alive = self._loads(), self._alive()
        is_alive[number] = False
        others = np.flatnonzero(is_alive)
        if not len(others):
            return number, 0
        least = int(others[load[others].argmin()])
        return least, int(load[number] - load[least])


class Handovers:
    """What the process that starts front ends has for all of them: it lasts longer than each."""

    def __init__(self, count: int):
        self.counts = Counts.made(count)
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        self.doors = [pair[0] for pair in pairs]  # where connections are given to each
        self.own = [pair[1] for pair in pairs]
        for each in (*self.doors, *self.own):
            each.setblocking(False)

    def descriptors(self, number: int) -> list[int]:
        """For one of them, as `Handover.of` takes them."""
        own_descriptor = self.own[number].fileno()
        return [self.counts.memory.descriptor, own_descriptor, *(door.fileno() for door in self.doors)]

    def ended(self, number: int) -> None:
        """Nobody gives to it from now on; whoever waits there is told by the end of his connection."""
        self.counts.rows[number, BEAT] = 0
        while (descriptors := received(self.own[number])) is not None:
            for each in descriptors:
                os.close(each)

    def close(self) -> None:
        for each in (*self.doors, *self.own):
            each.close()


class Handover:
    """Of one front end, on its event loop's thread."""

    def __init__(self, number: int, counts: Counts, own_socket: socket.socket, doors: Sequence[socket.socket]):
        self._number, self._counts, self._own, self._doors = number, counts, own_socket, doors
        self._row = counts.rows[number]
        self._adopt: Adopt = socket.socket.close
        self._connections = self._coming = 0
        self.surplus = 0  # connections that should be given to others until the next beat
        self._loop = asyncio.get_running_loop()
        self._beat: asyncio.TimerHandle | None = None

    @staticmethod
    def of(number: int, memory: int, own_descriptor: int, *doors: int) -> Handover:
        """By descriptors."""
        size = os.fstat(memory).st_size
        counts = Counts(FrontMemory(memory, size), len(doors))
        return Handover(
            number, counts, socket.socket(fileno=own_descriptor), [socket.socket(fileno=door) for door in doors]
        )

    def start(self, adopt: Adopt) -> None:
        """Connections that others give are `adopt`'s from now on."""
        self._adopt = adopt
        self.has(self._connections)
        self._row[TOOK] = self._counts.given_to(self._number)  # what was given to the process before this one is gone
        self._loop.add_reader(self._own, self._take)
        self._beats()

    def stop(self) -> None:
        """Nothing more is taken."""
        if self._beat is not None:
            self._beat.cancel()
            self._row[BEAT] = 0
            self._loop.remove_reader(self._own)
            self._adopt = socket.socket.close
            self._take()
            self._beat = None

    def has(self, connections: int) -> None:
        self._connections = connections
        self._row[OPEN] = connections + self._coming

    def comes(self, connection: asyncio.Task[None]) -> None:
        """One more will be there when this is done."""
        self._coming += 1
        self.has(self._connections)
        connection.add_done_callback(self._came)

    def _came(self, connection: asyncio.Task[None]) -> None:
        self._coming -= 1
        self.has(self._connections)

    def gave(self, descriptor: int, is_counted: bool = True) -> bool:
        """Whether a connection, of which nothing was read that is not answered, is another's from now on. It counts
        among its own, or is new.
        """
        least, lead = self._counts.least(self._number)
        if lead < (2 if is_counted else 1):  # it would only turn the two round
            return False
        try:
            socket.send_fds(self._doors[least], [b"\0"], [descriptor])
        except OSError:  # it does not come to taking any at present
            return False
        self._row[FIRST_GIVEN + least] += 1
        return True

    def _take(self) -> None:
        for _ in range(TAKEN):
            descriptors = received(self._own)
            if descriptors is None:
                return
            for descriptor in descriptors:
                given = socket.socket(fileno=descriptor)
                given.setblocking(False)
                coming = self._adopt(given)
                if coming is not None:
                    self.comes(coming)
            self._row[TOOK] += 1  # not before: in between, it would count nowhere

    def _beats(self) -> None:
        self._row[BEAT] = time.monotonic_ns()
        self.surplus = self._counts.surplus(self._number)
        self._beat = self._loop.call_later(BEAT_S, self._beats)


def received(own_socket: socket.socket) -> list[int] | None:
    """The descriptor of the next connection, or none where this process may have no more; None: nothing was given."""
    with contextlib.suppress(OSError):
        content, descriptors, _, _ = socket.recv_fds(own_socket, 1, 1, socket.MSG_CMSG_CLOEXEC)
        return descriptors if content else None
    return None
