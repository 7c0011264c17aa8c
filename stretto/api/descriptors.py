"""How many connections clients may open, so that a descriptor is always left for what the server needs itself: worker
processes that start again, models, recordings. Systems usually allow a process 1,024 unless it asks for more.
"""

from __future__ import annotations

import fcntl
import os
import resource
from contextlib import suppress
from dataclasses import dataclass

OWN = 256  # kept for the server
MANAGEMENT = 128  # for each management listener, whatever else is open
GRPC_PART = 4  # gRPC has this part of the rest, for many calls share one of its connections
MOST = 1 << 20  # some systems state no limit


@dataclass(frozen=True)
class ConnectionShares:
    """Connections that each listener may have open."""

    http: int
    grpc: int
    management: int

    @property
    def descriptors(self) -> int:
        """With those of the server itself."""
        return OWN + self.http + self.grpc + 2 * self.management


def raise_limit() -> int:
    """As many descriptors as this process may have without being privileged; returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST if soft == resource.RLIM_INFINITY else soft
    with suppress(OSError, ValueError):  # some systems state a higher limit than they grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def connection_shares(wanted: int, descriptors: int) -> ConnectionShares:
    """`wanted` for each listener, where there are so many descriptors."""
    room = max(descriptors - OWN - 2 * MANAGEMENT, 64)
    grpc = min(wanted, room // GRPC_PART)
    return ConnectionShares(min(wanted, room - grpc), grpc, min(wanted, MANAGEMENT))


def take_ahead(descriptors: int) -> None:
    """Have the system make room for so many now. It doubles its table of a process's descriptors when that is full, and
    where threads share it, it waits for all cores meanwhile: 10 to 30 ms, in which nothing else is read or answered, at
    the 256th connection, the 512th and so on.
    """
    with (
        open(os.devnull, "rb") as any_file,
        suppress(OSError, ValueError),
    ):  # fewer are allowed, or it is another system
        os.close(fcntl.fcntl(any_file.fileno(), fcntl.F_DUPFD_CLOEXEC, descriptors - 1))
