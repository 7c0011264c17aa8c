"""All that a server is told, and what it asks of front ends that are processes of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stretto.api.server import Listen
from stretto.core.errors import StrettoError
from stretto.live.options import ServiceOptions
from stretto.live.recording import RecordOptions

if TYPE_CHECKING:
    from stretto.live.service import Service

MOST_FRONT_ENDS = 64


@dataclass(frozen=True)
class ServeOptions:
    """All of it."""

    service: ServiceOptions
    listen: Listen = field(default_factory=Listen)
    drain_s: float = 30.0
    drain_grace_s: float = 0.0  # between "not ready" and the first refusal, for balancers; of SIGTERM only
    traces: bool = False  # OpenTelemetry spans
    record: Path | None = None  # where every event goes, for stretto replay
    record_options: RecordOptions = field(default_factory=RecordOptions)
    log_level: str = "info"
    log_format: str = "text"
    front_ends: int = 1  # processes that parse; 1: this one does

    def __post_init__(self) -> None:
        if self.front_ends == 1:
            return
        listen = self.listen
        if not 1 < self.front_ends <= MOST_FRONT_ENDS:
            raise StrettoError(f"there can be 1 to {MOST_FRONT_ENDS} front ends, not {self.front_ends}")
        if not sys.platform.startswith("linux"):
            raise StrettoError("several front ends share a port as Linux can; leave out --front-ends")
        if not listen.rates.are_off:
            raise StrettoError(
                "limits of clients need one front end: with several, each would grant its own. "
                "Leave out --front-ends, or --client-requests and --client-worker-ms"
            )
        if listen.shared_memory:
            raise StrettoError(
                "shared memory with clients needs one front end: a region is registered with whichever takes the "
                "connection, and others would not know it. Leave out --front-ends or --shared-memory"
            )
        if listen.http_port is None and listen.grpc_port is None:
            raise StrettoError("front ends have nothing to listen on: give --http-port or --grpc-port")
        share_of(listen, self.front_ends)  # refused here where that is too little


def share_of(listen: Listen, count: int) -> Listen:
    """What one of so many front ends may hold. StrettoError where that is too little for a message."""
    limits = listen.limits
    share = replace(
        limits,
        memory_bytes=limits.memory_bytes // count,
        waiting_requests=max(1, limits.waiting_requests // count),
    )
    return replace(listen, limits=share)


Reread = Callable[[], ServeOptions]


class Fronts(Protocol):
    """The front ends of a server that are processes of their own, here or elsewhere."""

    addresses: dict[str, tuple[str, int]]  # where they, or whatever they connect to, can be found

    async def start(self) -> None: ...

    async def opened_all(self) -> None:
        """Until clients can be told where to go. StrettoError where that will never be."""

    def progress(self, step: str, share: float) -> None: ...

    def serve(self, service: Service) -> None: ...

    def leave(self) -> None: ...

    async def reload(self, options: ServeOptions) -> None: ...

    async def stop(self) -> None: ...
