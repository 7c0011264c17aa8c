"""The front-end processes of one server: `stretto serve --front-ends N`. They share the ports for inference, and the
system shares connections out among them; this process schedules, manages and is scraped.

One that is lost takes its own connections with it and nothing else. It is started again after a pause that grows. One
that is silent for long hangs, and is ended.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from stretto.api.front import FrontOptions
from stretto.api.front_counts import FrontCounts
from stretto.api.handover import Handovers
from stretto.api.serve_options import share_of
from stretto.api.server import CLOSING_S, bound_socket, check_free
from stretto.api.tracing import Tracing
from stretto.core.errors import StrettoError
from stretto.live.crew import HEALTHY_S, LONGEST_PAUSE_S
from stretto.live.face.desk import SETTLE_S, SETTLE_STEP_S, Desk
from stretto.live.face.front_end import FrontEnd
from stretto.live.face.link import StreamLink
from stretto.live.face.memory import FrontMemory
from stretto.live.face.messages import NUMBER, Kind, plain, text, unpacked
from stretto.live.members import FIRST_PAUSE_S

if TYPE_CHECKING:
    from stretto.api.plane import Plane
    from stretto.api.serve_options import ServeOptions
    from stretto.live.service import Service

log = logging.getLogger("stretto.api")

MEMORY_PART = 2  # of the budget for bodies and tensors: answers, and holes between
LOOK_S = 0.2  # at settings that management may have changed
OPEN_S = 120.0
SILENT_S = 5.0  # of a front end that serves, which says something each second; then it hangs
EXIT_S = 1.0  # from the end of its socket to the end of a process
STOP_S = 2 * CLOSING_S + 1.0  # for answers that are on their way


class Slot:
    """One front end, whichever process it is at present. The Peer of its link."""

    def __init__(self, owner: FrontEnds, number: int):
        self.number = number
        self.name = f"front end {number}"
        self.restarts = 0
        self.pause_s = FIRST_PAUSE_S
        self.started_s = self.heard_s = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.link: StreamLink | None = None
        self.memory: FrontMemory | None = None
        self.front: FrontEnd | None = None  # as the desk knows it
        self.is_linked = self.is_listening = False
        self.settings = 0  # number of those in force there
        self.problem = ""
        self._owner = owner

    def heard(self, kind: int, payload: memoryview) -> None:
        self.heard_s = self._owner.time()
        if kind == Kind.HELLO:
            self.is_linked = True
            self._owner.linked(self)
        elif kind == Kind.LISTENS:
            self.is_listening = True
            self._owner.opened()
        elif kind == Kind.TAKEN_UP:
            self.settings = int(unpacked(NUMBER, payload)[1][-1])
        elif kind == Kind.PROBLEM:
            self.problem = str(plain(payload).get("problem", ""))[:1000]
        elif self.front is not None:
            self.front.heard(kind, payload)

    def lost(self) -> None:
        front, self.front, self.link, self.memory = self.front, None, None, None
        self.is_linked = self.is_listening = False
        if front is not None:
            front.lost()
        self._owner.lost(self)

    @property
    def counts(self) -> FrontCounts:
        """As it said last."""
        counts = FrontCounts.from_json({} if self.front is None else self.front.counts)
        return replace(counts, restarts=self.restarts, is_listening=self.is_listening)


class FrontEnds:
    """On the loop's thread."""

    def __init__(self, options: ServeOptions, plane: Plane):
        self._options = options
        self._plane = plane
        self._listen = share_of(options.listen, options.front_ends)
        self._loop = asyncio.get_running_loop()
        self.addresses: dict[str, tuple[str, int]] = {}
        self.slots = [Slot(self, number) for number in range(options.front_ends)]
        self.desk: Desk | None = None
        self._handovers = Handovers(options.front_ends)
        self._reserved: list[socket.socket] = []  # bound, so that nobody else gets the ports; they take no connection
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._settings: dict[str, Any] = {}
        self._number = 0  # of these
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """The ports are had, and every process is on its way. StrettoError where an address cannot be had."""
        listen = self._listen
        check_free(listen)  # two servers would share the ports, and neither would say so
        ports = {"http": listen.http_port, "grpc": listen.grpc_port}
        for name, port in ports.items():
            if port is None:
                continue
            reserved = bound_socket(listen.host, port, is_shared=True)
            self._reserved.append(reserved)
            self.addresses[name] = (listen.host, reserved.getsockname()[1])
        bound_ports = {f"{name}_port": address[1] for name, address in self.addresses.items()}
        self._listen = replace(listen, **bound_ports)  # type: ignore[arg-type]
        self._settings = self._stated()
        try:
            await asyncio.gather(*(self._begin(slot) for slot in self.slots))
        except OSError as error:
            raise StrettoError(f"a front end cannot be started ({error.strerror})") from None
        self._plane.fronts = self.counts
        self._spawn(self._watch())

    async def opened_all(self) -> None:
        """Until every front end listens. StrettoError where one cannot."""
        try:
            await asyncio.wait_for(asyncio.shield(self._opened), OPEN_S)
        except TimeoutError:
            raise StrettoError(f"not every front end listens after {OPEN_S:.0f} s; is the machine too busy?") from None

    def time(self) -> float:
        return self._loop.time()

    def progress(self, step: str, share: float) -> None:
        """How far the start is, for clients that ask."""
        self._tell_all(Kind.PROGRESS, {"step": step, "share": share})

    def serve(self, service: Service) -> None:
        """There is something to serve from now on."""
        self.desk = Desk(service, self._plane.control.statistics)
        self._plane.control.settled = self.desk.settled
        for slot in self.slots:
            self._connect(slot)

    def leave(self) -> None:
        """They are not ready any more, and serve on."""
        if self.desk is not None:
            self.desk.is_leaving = True
            self.desk.look()

    async def reload(self, options: ServeOptions) -> None:
        """Tokens and certificate as they are stated now; in force everywhere when this returns."""
        stated = share_of(options.listen, len(self.slots))
        ports = {name: getattr(self._listen, name) for name in ("http_port", "grpc_port")}
        self._listen = replace(stated, limits=self._listen.limits, **ports)
        self._look()
        end = self._loop.time() + SETTLE_S  # one that hangs is not waited for
        while any(slot.is_linked and slot.settings < self._number for slot in self.slots):
            if self._loop.time() > end:
                break
            await asyncio.sleep(SETTLE_STEP_S)

    async def stop(self) -> None:
        """Answers that are on their way go out; then the processes end."""
        self._is_stopping = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.sleep(0)  # what ended in this turn is told first
        self._tell_all(Kind.STOP, {})
        await asyncio.gather(*(self._ended(slot, STOP_S if slot.is_linked else 0.0) for slot in self.slots))
        if self.desk is not None:
            self.desk.stop()
        for slot in self.slots:
            if slot.link is not None:
                slot.link.close()
        for reserved in self._reserved:
            reserved.close()
        self._handovers.close()
        if not self._opened.done():
            self._opened.cancel()

    def counts(self) -> dict[str, FrontCounts]:
        """By number, as text."""
        return {str(slot.number): slot.counts for slot in self.slots}

    # -- one of them -------------------------------------------------------------------------------------------------

    async def _begin(self, slot: Slot) -> None:
        slot.problem, slot.started_s = "", self.time()
        self._handovers.ended(slot.number)  # whoever was given to the one before when it was gone
        size = MEMORY_PART * self._listen.limits.budget_bytes
        slot.memory = FrontMemory.made(size)
        ours, theirs = socket.socketpair()
        with theirs:
            given = theirs.fileno(), slot.memory.descriptor
            handing_over = self._handovers.descriptors(slot.number)
            numbers = (*given, size, slot.number, *handing_over)
            command = [sys.executable, "-m", "stretto.api.front_process", *map(str, numbers)]
            slot.process = subprocess.Popen(command, pass_fds=(*given, *handing_over), stdin=subprocess.DEVNULL)
        ours.setblocking(False)
        _, slot.link = await self._loop.create_unix_connection(lambda: StreamLink(slot), sock=ours)
        asked = self._options
        logs = self._settings["log_level"], asked.log_format
        is_later = self.desk is not None
        options = FrontOptions(asked.service.repository, self._listen, slot.name, asked.traces, *logs, is_later)
        slot.link.send(Kind.OPTIONS, text(options.as_json()))

    def linked(self, slot: Slot) -> None:
        """Its process is up. It is told what is in force, and what is served where that is known."""
        if slot.link is not None:
            slot.link.send(Kind.SETTINGS, text(self._for(slot, self._settings)))
        self._connect(slot)

    def opened(self) -> None:
        """One more listens."""
        if all(each.is_listening for each in self.slots) and not self._opened.done():
            self._opened.set_result(None)

    def _connect(self, slot: Slot) -> None:
        if self.desk is not None and slot.is_linked and slot.front is None and slot.link is not None:
            slot.front = self.desk.connect(slot.link, slot.memory)
            slot.front.name = slot.name

    def lost(self, slot: Slot) -> None:
        """Its socket is closed."""
        self._handovers.ended(slot.number)
        if not self._is_stopping:
            self._spawn(self._begin_again(slot))

    async def _begin_again(self, slot: Slot) -> None:
        reason = await self._ended(slot, EXIT_S)
        if not self._opened.done():  # it never served: the start has failed
            problem = slot.problem or f"{slot.name} ended with {reason} at its start; the messages above say why"
            self._opened.set_exception(StrettoError(problem))
            return
        lived_s = self._loop.time() - slot.started_s
        pause_s = FIRST_PAUSE_S if lived_s > HEALTHY_S else slot.pause_s
        slot.pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        log.warning("%s is lost (%s); it is started again in %.1f s", slot.name, slot.problem or reason, pause_s)
        await asyncio.sleep(pause_s)
        slot.restarts += 1
        try:
            await self._begin(slot)
        except OSError as error:
            log.error("%s cannot be started (%s)", slot.name, error.strerror)
            self._spawn(self._begin_again(slot))

    @staticmethod
    async def _ended(slot: Slot, patience_s: float) -> str:
        """How its process ended; it is made to where it does not by itself."""
        process = slot.process
        if process is None:
            return "nothing"
        try:
            code = await asyncio.to_thread(process.wait, patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            code = await asyncio.to_thread(process.wait)
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    # -- what they are told ------------------------------------------------------------------------------------------

    def _stated(self) -> dict[str, Any]:
        tracing: Tracing | None = self._plane.tracing
        sampling = {} if tracing is None else {name: asdict(each) for name, each in tracing.sampling().items()}
        level = logging.getLevelName(logging.getLogger().level).lower()
        return {"listen": asdict(self._listen), "log_level": level, "sampling": sampling}

    def _for(self, slot: Slot, settings: Mapping[str, Any]) -> dict[str, Any]:
        """A number of spans that is left is shared out."""
        slot_settings = {**settings, "number": self._number}
        if "sampling" in slot_settings:
            slot_settings["sampling"] = {
                name: each | {"left": _part(each["left"], slot.number, len(self.slots))}
                for name, each in slot_settings["sampling"].items()
            }
        return slot_settings

    def _look(self) -> None:
        stated = self._stated()
        changed = {name: value for name, value in stated.items() if value != self._settings[name]}
        self._settings = stated
        if changed:
            self._number += 1
            for slot in self.slots:
                if slot.link is not None and slot.is_linked:
                    slot.link.send(Kind.SETTINGS, text(self._for(slot, changed)))

    async def _watch(self) -> None:
        looked_s = self.time()
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()
            stood_s = max(0.0, self.time() - looked_s - 2 * LOOK_S)  # this process: what came meanwhile is unread
            looked_s = self.time()
            for slot in self.slots:
                slot.heard_s += stood_s
                self._end_if_silent(slot)
            if self.desk is not None:
                lag = self.desk.service.engine.lag
                lag.elsewhere_ns = max(counts.lag_ns for counts in self.counts().values())

    def _end_if_silent(self, slot: Slot) -> None:
        """With its socket its queries end, and it is started again."""
        since_s, limit_s = (slot.heard_s, SILENT_S) if slot.is_listening else (slot.started_s, OPEN_S)
        if slot.process is not None and slot.link is not None and self.time() - since_s > limit_s:
            slot.problem = f"it was silent for {limit_s:.0f} s"
            slot.process.kill()

    def _tell_all(self, kind: Kind, content: Mapping[str, Any]) -> None:
        for slot in self.slots:
            if slot.link is not None and slot.is_linked:
                slot.link.send(kind, text(content))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _part(left: int, number: int, count: int) -> int:
    """-1: no end."""
    return left if left < 0 else left // count + (number < left % count)
