"""A front end: it parses what clients send, checks it and answers, over HTTP and gRPC for inference. What is decided is
the scheduler's, behind a link; management and metrics are there, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from stretto.api.control import Control
from stretto.api.documents import summed_statistics
from stretto.api.front_counts import FrontCounts
from stretto.api.handover import Handover
from stretto.api.heap import TIDY_S, keep_heap, tidy
from stretto.api.limits import Limits
from stretto.api.logs import LEVELS, lost_lines, set_level
from stretto.api.plane import Plane
from stretto.api.rates import RateLimits
from stretto.api.server import Listen, Listeners
from stretto.api.tracing import Sampling, Tracing
from stretto.core.errors import StrettoError
from stretto.live.face.front import Directory, FrontEngine, Store
from stretto.live.face.front_service import FrontService
from stretto.live.face.messages import NONSENSE, NUMBER, Kind, packed, plain, text
from stretto.live.face.routed import Routed
from stretto.live.options import ServiceOptions
from stretto.repository.repository import Repository

log = logging.getLogger("stretto.api")

COUNTS_S = 1.0


@dataclass(frozen=True)
class FrontOptions:
    """What a front end is told at its start. As JSON it goes to another process."""

    repository: str
    listen: Listen  # for inference; management ports are left out
    name: str = "front end"
    traces: bool = False
    log_level: str = "info"
    log_format: str = "text"
    is_later: bool = False  # others serve already: it takes no connection before it can serve

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> FrontOptions:
        try:
            return FrontOptions(**{**content, "listen": listen_from_json(content["listen"])})
        except (KeyError, TypeError):
            raise StrettoError(NONSENSE) from None


def listen_from_json(content: Mapping[str, Any]) -> Listen:
    tokens = {name: tuple(content[name]) for name in ("tokens", "management_tokens")}
    limits = {"limits": Limits(**content["limits"]), "rates": RateLimits(**content["rates"])}
    return Listen(**{**content, **tokens, **limits})


class FrontControl(Control):
    """What a front end says of the server: its statistics are the scheduler's."""

    def __init__(self, plane: Plane, service: FrontService):
        super().__init__(plane)
        self._front = service

    async def refresh(self) -> None:
        await self._front.engine.ask()

    def statistics(self, application: str | None = None, version: str = "") -> dict[str, Any]:
        """As the scheduler said last."""
        if application is not None:
            self._files(application, version)
        statistics = self._front.engine.statistics.get("model_stats", [])
        chosen = [
            each for each in statistics if application in (None, each["name"]) and version in ("", each["version"])
        ]
        by_variant: dict[tuple[str, str], dict[str, Any]] = {}
        for each in chosen:  # several schedulers may have served one, each a while
            key = each["name"], each["version"]
            by_variant[key] = summed_statistics(by_variant[key], each) if key in by_variant else each
        return {"model_stats": list(by_variant.values())}


class FrontPlane(Plane):
    """The data plane of a front end. It serves as soon as the scheduler has said what."""

    def __init__(self, service: FrontService, limits: Limits):
        super().__init__(limits=limits)
        self.starts("waiting for the scheduler", 0.0)
        self.control = FrontControl(self, service)
        self._front = service
        self.feedback = None  # another front end may be sent the label
        self.is_told_to_leave = False  # itself, whatever the scheduler says

    def directed(self, directory: Directory) -> None:
        """What is served has changed."""
        self.wants_to_leave = self.is_told_to_leave or directory.is_leaving
        if self.is_starting and directory.version:
            self.serve(self._front)


class FrontServer:
    """Its listeners, its plane and its side of the face. A Peer of the link to the scheduler, where it has one.

    `shares_ports`: other front ends of this machine listen on the same ports, and with `handover` none has more
    connections than others.
    """

    def __init__(
        self,
        options: FrontOptions,
        repository: Repository,
        *stores: Store,
        shares_ports: bool = False,
        handover: Handover | None = None,
    ):
        self.options = options
        self.service = FrontService(ServiceOptions(options.repository), repository, *stores)
        self.plane = FrontPlane(self.service, options.listen.limits)
        if options.traces:
            self.plane.tracing = Tracing()
        listen = replace(options.listen, management_port=None, management_grpc_port=None)
        self.listeners = Listeners(self.plane, listen, shares_ports, handover)
        self.asked = asyncio.Event()  # to stop
        self.served = asyncio.Event()  # the scheduler has said what
        self._serve = self.engine.on_directory
        self.engine.on_directory = self._directed
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def engine(self) -> FrontEngine | Routed:
        return self.service.engine

    async def start(self) -> None:
        """All listeners are open. StrettoError where an address cannot be had."""
        keep_heap()
        self.plane.rooms.take_ahead()
        await self.listeners.start()
        self._spawn(tidy(self.plane.budget, TIDY_S))
        self.service.start()
        self._spawn(self._tell_counts())

    async def stop(self) -> None:
        """Answers that are on their way go out; then every connection is closed."""
        await self.listeners.stop()
        for task in list(self._tasks):
            task.cancel()
        self.service.stop()
        if self.plane.tracing is not None:
            self.plane.tracing.close()

    # -- what the scheduler says -------------------------------------------------------------------------------------

    def heard(self, kind: int, payload: memoryview) -> None:
        if kind == Kind.SETTINGS:
            self._spawn(self._take_up(plain(payload)))
        elif kind == Kind.PROGRESS:
            content = plain(payload)
            self.plane.starts(str(content.get("step", ""))[:80], float(content.get("share", 0.0)))
        elif kind == Kind.STOP:
            self.asked.set()
        else:
            self.service.engines[0].heard(kind, payload)

    def lost(self) -> None:
        self.service.engines[0].lost()

    def _directed(self, directory: Directory) -> None:
        self._serve(directory)
        self.plane.directed(directory)
        if not self.plane.is_starting:
            self.served.set()

    async def _take_up(self, settings: Mapping[str, Any]) -> None:
        """Tokens, certificate, level of the log and sampling of spans, as far as they are named."""
        try:
            if "listen" in settings:
                await self.listeners.reload(listen_from_json(settings["listen"]))
            if settings.get("log_level") in LEVELS:
                set_level(settings["log_level"])
            tracing = self.plane.tracing
            if "sampling" in settings and tracing is not None:
                tracing.sample_all({str(name): Sampling(**each) for name, each in settings["sampling"].items()})
        except (StrettoError, KeyError, TypeError) as error:
            log.error("new settings could not be taken up here, and what was in force stays: %s", error)
        self.engine.tell(Kind.TAKEN_UP, packed(NUMBER, [int(settings.get("number", 0))]))

    # -- what it counts itself ---------------------------------------------------------------------------------------

    def counts(self) -> FrontCounts:
        plane, lag, tracing = self.plane, self.engine.lag, self.plane.tracing
        return FrontCounts(
            requests_open=plane.open_requests,
            connections=self.listeners.connections,
            bytes_in_flight=plane.budget.used,
            bytes_in_flight_limit=plane.budget.limit,
            bodies_given_up=plane.budget.given_up,
            log_lines_lost=lost_lines(),
            spans_made=0 if tracing is None else tracing.made,
            spans_sent=0 if tracing is None else tracing.sent,
            lag_ns=lag.tell_ns(),
            lag_sum=lag.seen.sum,
            lag=tuple(lag.seen.counts),
            refused=dict(plane.refused),
        )

    async def _tell_counts(self) -> None:
        while True:
            self.engine.tell(Kind.COUNTS, text(asdict(self.counts())))
            await asyncio.sleep(COUNTS_S)

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
