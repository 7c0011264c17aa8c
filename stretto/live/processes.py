"""A worker that is a process of its own: what crashes there is lost alone, and Python's lock is not shared."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stretto.backends.model import Array
from stretto.backends.resident import resident_bytes_of
from stretto.core.errors import StrettoError
from stretto.live.arena import SLOTS, Arena, fill, runs_of, slot_bytes
from stretto.live.awake import Awake
from stretto.live.children import Watch, end_group
from stretto.live.executor import Job, Listener, Loading, Loss
from stretto.live.face.columns import Rows
from stretto.live.face.memory import FrontMemory
from stretto.live.frames import (
    ONE_PLACE,
    Frame,
    FrameReader,
    Kind,
    failures_in,
    places_as_text,
    run_as_text,
    spec_as_text,
)
from stretto.live.lent import lent, place_of
from stretto.live.orders import Orders
from stretto.live.rows import Lying, as_arrays
from stretto.live.shelf import NOT_LOADED, ModelSpec, Report, failed
from stretto.live.worker_process import DEVICE_LOST

log = logging.getLogger("stretto.live")

CHUNK = 1 << 13  # a frame is mostly shorter, and memory for more would be taken each time
EXIT_S = 0.25  # from the end of its socket to the end of a process
EXIT_STEP_S = 0.01
SEND_BYTES = 1 << 20

Place = tuple[int, int, int, int]  # as in `PLACE`: whose memory, the number of the shape, rows, and where in it


@dataclass(frozen=True)
class StartedProcess:
    """A worker process, and our end of its socket."""

    process: subprocess.Popen[bytes]
    channel: socket.socket

    @staticmethod
    def made(arguments: Sequence[str] = ()) -> StartedProcess:
        """OSError where it cannot be started."""
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            process = subprocess.Popen(
                [sys.executable, "-m", "stretto.live.worker_process", str(theirs.fileno()), *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                process_group=0,  # so that it ends with all that its models start
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return StartedProcess(process, ours)

    def end(self) -> None:
        """It was never used."""
        self.channel.close()
        end_group(self.process.pid)
        self.process.wait()


class ProcessExecutor:
    """Started once: a lost worker gets a new executor."""

    is_awaited, is_here = False, True

    def __init__(
        self,
        worker: int,
        loop: asyncio.AbstractEventLoop,
        listener: Listener,
        arguments: Sequence[str] = (),
        started: StartedProcess | None = None,
    ):
        """`started`: its process, where that runs already."""
        self._worker = worker
        self._started = started
        self._arguments = arguments
        self._loop = loop
        self._listener = listener
        self._reader = FrameReader()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._watch: Watch | None = None
        self._arena: Arena | None = None
        self._needed = 0  # bytes of a slot, for the models that it was told to hold
        self._old_arenas: list[Arena] = []
        self._orders = Orders(worker, listener, self._tell_load)
        # By number: the job, its model, its slot, and of which memory.
        self._jobs: dict[int, tuple[Job, ModelSpec, int, Arena]] = {}
        self._free = deque(range(SLOTS))
        self._fronts: dict[int, weakref.finalize[..., FrontMemory]] = {}  # whose memory its process sees, by number
        self._growth: dict[str, int] = {}
        self._awake = Awake(loop)
        self._is_up = False  # the process runs, and reads what it is told
        self._is_over = False
        self._is_killed = False

    # -- what it is told ---------------------------------------------------------------------------------------------

    def start(self, specs: Sequence[ModelSpec]) -> None:
        try:
            started = self._started or StartedProcess.made(self._arguments)
        except OSError as error:
            self._cannot_start(error)
            return
        self._process, self._channel = started.process, started.channel
        self._loop.add_reader(self._channel.fileno(), self._readable)
        self._watch = Watch(self._loop, self._process, self._exited)
        self._hold(specs, self._ready)

    def _cannot_start(self, error: OSError) -> None:
        self._loop.call_soon(self._listener.worker_lost, self._worker, f"it cannot be started ({error.strerror})")

    def run(self, job: Job) -> None:
        spec = self._orders.specs.get(job.key)
        if spec is None:
            self._loop.call_soon(self._listener.job_ended, job, failed(job.count, NOT_LOADED))
            return
        if self._arena is None or self._needed > self._arena.slot_size:
            self.kill()  # there was no memory left to share; the job is lost with the process
            return
        slot, number = self._free.popleft(), self._orders.number()
        self._jobs[number] = (job, spec, slot, self._arena)
        if spec.source.device != "cpu":
            self._awake.began(job.expected_ns)
        places = self._places(job, spec)
        if places is not None:
            self._say(Frame(Kind.RUN_LYING, number, slot, job.count, places_as_text(job.key, places)))
            return
        rows = as_arrays(job.parts)
        runs = runs_of(rows, spec)
        fill(self._arena.batch(slot, spec, job.count, runs), rows)
        self._say(Frame(Kind.RUN, number, slot, job.count, run_as_text(job.key, runs)))

    def _places(self, job: Job, spec: ModelSpec) -> bytes | None:
        """Where all rows of a batch lie in memory that the process sees, as `PLACE`; None where some do not."""
        if isinstance(job.entries, Rows) and (rows := job.entries.places(spec)) is not None:
            for number in set(rows["front"].tolist()) - self._fronts.keys():
                self._map_front(number, job.entries.queries.front(number).memory)
            return rows.tobytes()
        places = bytearray()
        for part in job.parts:
            place = self._lying_place(part, spec) if isinstance(part, Lying) else self._lent_place(part, spec)
            if place is None:
                return None
            places += ONE_PLACE.pack(*place)
        return bytes(places)

    def _lying_place(self, part: Lying, spec: ModelSpec) -> Place | None:
        """Of rows that lie with a front end."""
        if part.memory is None or part.size >= len(spec.shapes) or spec.shapes[part.size] != part.shape[1:]:
            return None
        if part.dtype != spec.input_dtype:
            return None
        if part.front not in self._fronts:
            self._map_front(part.front, part.memory)
        return part.front, part.size, len(part), part.place

    def _lent_place(self, rows: Array, spec: ModelSpec) -> Place | None:
        """Of a request whose body was read into memory that the process sees: the process copies, and not the event
        loop, which has bodies to read.
        """
        location = place_of(rows)
        if location is None or rows.shape[1:] not in spec.shapes or rows.dtype != spec.input_dtype:
            return None
        number, memory, place = location
        if place % rows.itemsize:
            return None
        if number not in self._fronts:
            self._map_front(number, memory)
        return number, spec.shapes.index(rows.shape[1:]), len(rows), place

    def _map_front(self, front: int, memory: FrontMemory | None) -> None:
        """From now on its process sees this memory too, until nobody here refers to it any more."""
        if self._channel is None or memory is None:
            return
        try:
            socket.send_fds(self._channel, [Frame(Kind.MAP_FRONT, front, memory.size).encoded()], [memory.descriptor])
        except OSError as error:
            self._could_not_say(error)
        self._fronts[front] = gone = weakref.finalize(memory, self._front_gone, front)
        gone.atexit = False

    def _front_gone(self, front: int) -> None:
        """On whichever thread let go of it last."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._unmap_front, front)

    def _unmap_front(self, front: int) -> None:
        if self._fronts.pop(front, None) is not None:
            self._say(Frame(Kind.UNMAP_FRONT, front))

    def load(self, spec: ModelSpec, alone: bool) -> None:
        self._orders.load(spec, alone)

    def prepare(self, specs: Sequence[ModelSpec], done: Callable[[dict[str, str]], None]) -> None:
        """In a thread of the process, so that batches go on meanwhile."""
        self._hold(specs, done, is_beside=True)

    def unload(self, key: str) -> None:
        self._orders.specs.pop(key, None)
        self._say(Frame(Kind.UNLOAD, text=key.encode()))

    def loading(self) -> Sequence[Loading]:
        """It takes orders in turn: one that stands behind a batch has not begun."""
        return self._orders.loading(self._jobs) if self._is_up else ()

    def memory_bytes(self) -> int:
        return 0 if self._process is None or self._is_over else resident_bytes_of(self._process.pid)

    def growth(self) -> Mapping[str, int]:
        return self._growth

    def kill(self) -> None:
        """With all that its models started; its end tells the rest."""
        if self._process is not None and not self._is_over:
            self._is_killed = True
            end_group(self._process.pid)
            self._process.kill()  # where it has left its group

    async def stop(self, patience_s: float = 10.0) -> None:
        process = self._process
        if process is None:
            return
        self._say(Frame(Kind.STOP))
        try:
            await asyncio.to_thread(process.wait, patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait, 10.0)
        while self._channel is not None and self._readable():
            pass  # what it said last may still lie in the socket
        self._end("it was stopped")

    # -- loads -------------------------------------------------------------------------------------------------------

    def _hold(
        self, specs: Sequence[ModelSpec], done: Callable[[dict[str, str]], None], is_beside: bool = False
    ) -> None:
        if specs:
            self._orders.hold(specs, done, is_beside)
        else:
            self._loop.call_soon(done, {})

    def _tell_load(self, number: int, spec: ModelSpec, is_beside: bool) -> None:
        self._make_room()
        self._say(Frame(Kind.LOAD, number, int(is_beside), text=spec_as_text(spec)))

    def _make_room(self) -> None:
        """Larger shared memory where a model needs it; batches on their way end in the memory that they began in."""
        self._needed = needed = slot_bytes(self._orders.specs.values())
        if self._arena is not None and needed <= self._arena.slot_size:
            return
        if self._channel is None:
            return
        try:
            specs = self._orders.specs.values()
            is_gpu = any(spec.source.device != "cpu" for spec in specs)  # which holds all of it anyway
            arena = Arena.made(needed, is_gpu)
        except (OSError, ValueError) as error:
            log.error("worker %d needs %d bytes of shared memory: %s", self._worker, SLOTS * needed, error)
            self.kill()
            return
        if self._arena is not None:
            self._old_arenas.append(self._arena)
            self._close_unused()
        self._arena = arena
        try:
            socket.send_fds(self._channel, [Frame(Kind.MAP, needed).encoded()], [arena.descriptor])
        except OSError as error:
            self._could_not_say(error)
        for number, memory in lent() if is_gpu else ():  # now, for registering it with the GPU takes a moment
            if number not in self._fronts:
                self._map_front(number, memory)

    def _close_unused(self) -> None:
        in_use = [arena for _, _, _, arena in self._jobs.values()]
        for arena in [arena for arena in self._old_arenas if arena not in in_use]:
            self._old_arenas.remove(arena)
            arena.close()

    def _ready(self, broken: dict[str, str]) -> None:
        if not self._is_over:
            self._listener.worker_ready(self._worker, broken)

    # -- what it tells -----------------------------------------------------------------------------------------------

    def _readable(self) -> bool:
        """Hear what is there; false where there was nothing."""
        assert self._channel is not None
        try:
            data = self._channel.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._lost()
            return False
        try:
            for frame in self._reader.feed(data):
                self._heard(frame)
        except StrettoError:
            self.kill()
            return False
        return True

    def _heard(self, frame: Frame) -> None:
        if frame.kind == Kind.ENDED and frame.a in self._jobs:
            failures = failures_in(frame.text)
            job, spec, slot, arena = self._jobs.pop(frame.a)
            answers = None
            if len(failures) < job.count:
                answers = arena.answers(slot, spec, job.count).copy()
            self._free.append(slot)
            if spec.source.device != "cpu":
                self._awake.ended()
            if self._old_arenas:
                self._close_unused()
            self._listener.job_ended(job, Report(answers, failures, frame.b, frame.c))
        elif frame.kind == Kind.LOADED:
            self._orders.ended(frame.a, frame.text.decode("utf-8", "replace"))
        elif frame.kind == Kind.LOADING:
            self._orders.went_on(frame.a, frame.b / 1000)
        elif frame.kind == Kind.GREW:
            self._growth[frame.text.decode("utf-8", "replace")] = frame.a
        elif frame.kind == Kind.READY:
            self._is_up = True

    def _exited(self) -> None:
        """Its process has ended. What it said last may still lie in the socket, which whoever it forked may hold
        open.
        """
        while self._channel is not None and self._readable():
            pass
        self._lost()

    def _lost(self, patience_s: float = EXIT_S) -> None:
        """Its process has ended, or its socket is closed. How it ended is known a moment later; nobody is kept waiting
        for that.
        """
        if self._is_over:
            return
        self._hang_up()
        code = None if self._process is None else self._process.poll()
        if code is None and patience_s > 0:
            self._loop.call_later(EXIT_STEP_S, self._lost, patience_s - EXIT_STEP_S)
            return
        reason = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        self._end(reason)
        loss = Loss.OWN
        if code == DEVICE_LOST:
            loss, reason = Loss.DEVICE, f"{reason}: its device failed or is not there"
        elif code == -signal.SIGKILL and not self._is_killed:
            loss = Loss.KILLED
        self._listener.worker_lost(self._worker, f"its process ended with {reason}", loss)

    def _hang_up(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._channel is not None:
            self._loop.remove_reader(self._channel.fileno())
            self._channel.close()
            self._channel = None

    def _end(self, reason: str) -> None:
        """Nothing is left: no descriptor, no memory, no process."""
        self._is_over = True
        self._hang_up()
        for arena in (*self._old_arenas, *([] if self._arena is None else [self._arena])):
            arena.close()
        self._arena, self._old_arenas = None, []
        for gone in self._fronts.values():
            gone.detach()
        self._fronts.clear()
        self._jobs.clear()  # their rows may lie with a front end that goes, too
        process = self._process
        if process is not None:
            end_group(process.pid)
        if process is not None and process.poll() is None:
            process.kill()
            self._loop.run_in_executor(None, process.wait)
        log.debug("worker %d: %s", self._worker, reason)

    def _say(self, frame: Frame) -> None:
        if self._channel is None:
            return
        try:
            self._channel.sendall(frame.encoded())
        except OSError as error:
            self._could_not_say(error)

    def _could_not_say(self, error: OSError) -> None:
        """Its process is stuck with a full socket, and is ended; or it is gone, which the closed socket tells."""
        if isinstance(error, BlockingIOError):
            self.kill()
