"""A worker process: `python -m stretto.live.worker_process FD`. It holds models, runs batches and says how they went.

It talks on one socket, and ends when that closes: a server that is gone leaves no workers behind. It leads a process
group, in which is also what its models start. With a second argument, `probation`, it tries models that nobody knows
yet, and everything else goes before it; with `ahead`, it imports PyTorch before it is told what to hold.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import numpy as np

from stretto.backends.callable import reason_of
from stretto.backends.cuda import is_off
from stretto.backends.model import Array, DeviceLost, DeviceSpoilt, NoDevice
from stretto.backends.pinned import is_pinned, pin, unpin
from stretto.backends.progress import telling
from stretto.backends.torch import import_ahead
from stretto.core.errors import StrettoError
from stretto.live.arena import Arena
from stretto.live.children import IGNORED, end_with_parent, guard_forks
from stretto.live.face.memory import FrontMemory
from stretto.live.frames import Frame, FrameReader, Kind, failures_as_text, key_in, places_in, runs_in, spec_from_text
from stretto.live.lent import LAST
from stretto.live.shelf import NOT_LOADED, Begun, ModelSpec, Report, Shelf, failed

Run = TypeVar("Run")

log = logging.getLogger("stretto.live.worker")
CHUNK = 1 << 13  # a frame is mostly shorter, and memory for more would be taken each time
STATM = "/proc/self/statm"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
STEP_BYTES = 8 << 20  # of growth that is told
PROBATION = "probation"  # the second argument
PROBATION_NICENESS = 10
AHEAD = "ahead"  # the second argument of another
AWAKE_NS = 1_000_000  # after a batch ended on a GPU
DEVICE_LOST = 75  # the exit status of a worker whose GPU failed under it, or is not there
DEVICE_SPOILT = 76  # of one whose GPU is of no more use to it because of what a model did there
LARGE_BYTES = 1 << 15  # of one part of a batch: the GPU is told to copy it in the time in which it would be gathered
OVERLAPS = not is_off("overlap")
SWITCH_S = 0.0001  # how long a thread may keep Python's lock while another wants it


class Growth:
    """What this process grew by while each model ran: a look at its memory after each batch, told in large steps."""

    def __init__(self) -> None:
        self._file = os.open(STATM, os.O_RDONLY) if os.path.exists(STATM) else -1
        self._now = 0
        self._grown: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self.rest()

    def rest(self) -> None:
        """What it grew by until now was not by running a model."""
        self._now = self._resident()

    def ran(self, key: str) -> int:
        """The growth with this model so far, where that is worth telling; else 0."""
        before, self._now = self._now, self._resident()
        grown = self._grown.get(key, 0) + self._now - before
        self._grown[key] = grown
        if grown - self._told.get(key, 0) < STEP_BYTES:
            return 0
        self._told[key] = grown
        return grown

    def _resident(self) -> int:
        """Its own: what it shares, as tensors of front ends, is not its models'."""
        if self._file < 0:
            return 0
        _, resident, shared, *_ = os.pread(self._file, 128, 0).split()
        return (int(resident) - int(shared)) * PAGE_BYTES


@dataclass(frozen=True)
class Flight:
    """A batch that was launched on a GPU."""

    frame: Frame
    key: str
    started_ns: int
    begun: Begun

    def is_done(self) -> bool:
        try:
            return self.begun.is_done()
        except DeviceLost as error:
            end_without_device(error)


class WorkerProcess:
    """Does what it is told, in order. On a GPU a batch is launched while the one before it still computes; between
    orders the worker looks whether the oldest has ended, which costs a core as long as one computes, and for a moment
    after the last: to be woken would take longer than to launch the next.
    """

    def __init__(self, channel: socket.socket):
        self._channel = channel
        self._arrivals = select.poll()
        self._arrivals.register(channel, select.POLLIN)
        self._shelf = Shelf()
        self._specs: dict[str, ModelSpec] = {}
        self._arena: Arena | None = None
        self._fronts: dict[int, FrontMemory] = {}  # where rows of their requests lie
        self._saying = threading.Lock()  # a load beside the work ends in a thread of its own
        self._mapping = threading.Lock()
        self._loading: dict[str, threading.Thread] = {}  # models for a GPU, several at a time
        self._loads = 0  # that go on, but for those beside the batches
        self._growth = Growth()
        self._descriptors: list[int] = []  # of shared memory, in the order of the frames that name them
        self._flights: deque[Flight] = deque()
        self._ended_ns = 0  # when the last batch did
        self._is_direct = False  # a GPU reads the shared memory itself

    def work(self) -> None:
        self._say(Frame(Kind.READY))
        reader = FrameReader()
        while True:
            while self._is_awake() and not self._arrivals.poll(0):
                if self._flights and self._flights[0].is_done():
                    self._land()
            data, descriptors, _, _ = socket.recv_fds(self._channel, CHUNK, 4)
            self._descriptors += descriptors
            if not data:
                return
            for frame in reader.feed(data):
                if frame.kind == Kind.STOP:
                    self._land_all()
                    return
                self._do(frame)

    def _is_awake(self) -> bool:
        """A batch computes, or one did a moment ago."""
        return bool(self._flights) or (self._is_direct and time.monotonic_ns() < self._ended_ns + AWAKE_NS)

    def _do(self, frame: Frame) -> None:
        if frame.kind == Kind.RUN or frame.kind == Kind.RUN_LYING:
            self._run(frame)
        elif frame.kind == Kind.LOAD:
            self._begin_load(frame)
        elif frame.kind == Kind.UNLOAD:
            self._land_all()
            key = frame.text.decode()
            self._wait_for(key)
            self._specs.pop(key, None)
            self._shelf.unload(key)
        elif frame.kind == Kind.MAP:
            self._land_all()
            with self._mapping:
                if self._arena is not None:
                    self._arena.close()
                self._arena = Arena(self._descriptors.pop(0), frame.a)
                if self._is_direct:
                    self._arena.pin()
        elif frame.kind == Kind.MAP_FRONT:
            with self._mapping:
                self._fronts[frame.a] = memory = FrontMemory(self._descriptors.pop(0), frame.b)
                if self._is_direct and frame.a >= LAST:
                    pin(memory.bytes)
        elif frame.kind == Kind.UNMAP_FRONT:
            self._land_all()
            with self._mapping:
                gone = self._fronts.pop(frame.a, None)
                if gone is not None and frame.a >= LAST:
                    unpin(gone.bytes)

    def _begin_load(self, frame: Frame) -> None:
        """Beside the batches where it is told to. On a GPU several at a time: reading a program, and what cuDNN makes
        at the first run of each batch size, take seconds each.
        """
        spec = spec_from_text(frame.text)
        is_beside, unloads = bool(frame.b), self._shelf.unloads(spec.key)
        with self._saying:
            self._loads += not is_beside
        if not is_beside and spec.source.device == "cpu":
            self._load(frame, spec, unloads)
            return
        if not is_beside and spec.source.backend == "torch":
            import_ahead()  # so that programs are read in the order in which they are asked for
        load = threading.Thread(target=self._load, args=(frame, spec, unloads), daemon=True)
        if not is_beside:
            self._loading[spec.key] = load
        load.start()

    def _wait_for(self, key: str) -> None:
        """Batches that were launched before end first: what they answer does not wait for a load that goes on."""
        load = self._loading.pop(key, None)
        if load is not None and load.is_alive():
            self._land_all()
            load.join()

    def _load(self, frame: Frame, spec: ModelSpec, unloads: int) -> None:
        problem = ""
        try:
            with telling(lambda share: self._say(Frame(Kind.LOADING, frame.a, round(1000 * share)))):
                if self._shelf.load(spec, unloads):
                    self._specs[spec.key] = spec
            if self._shelf.overlaps(spec.key):
                self._read_directly()
            self._growth.rest()
        except (DeviceLost, NoDevice) as error:
            end_without_device(error)
        except StrettoError as error:
            problem = str(error)
        except Exception as error:
            log.debug("a model cannot be loaded", exc_info=True)
            problem = f"it cannot be loaded ({reason_of(error)})"
        if not frame.b:
            self._settle()
        self._say(Frame(Kind.LOADED, frame.a, text=problem.encode()))

    def _settle(self) -> None:
        """After the last of several loads, what reading left behind is collected: it would be while batches run. Models
        are not frozen, for the collector ends those that are unloaded.
        """
        with self._saying:
            self._loads -= 1
            is_last = self._loads == 0
        if is_last:
            gc.collect()

    def _read_directly(self) -> None:
        """From now on a GPU reads inputs where the server wrote them."""
        with self._mapping:
            was_direct, self._is_direct = self._is_direct, True
            if self._arena is not None:
                self._arena.pin()
            for front, memory in self._fronts.items():
                if not was_direct and front >= LAST:
                    pin(memory.bytes)

    def _run(self, frame: Frame) -> None:
        started_ns = time.monotonic_ns()
        is_lying = frame.kind == Kind.RUN_LYING
        key = key_in(frame.text)
        self._wait_for(key)
        spec, arena = self._specs.get(key), self._arena
        if spec is None or arena is None:
            self._end(frame, key, started_ns, failed(frame.c, NOT_LOADED))
            return
        if is_lying:
            rows_or_report = self._tried(frame.c, lambda: self._lying(frame, spec))
            if isinstance(rows_or_report, Report):
                self._end(frame, key, started_ns, rows_or_report)
                return
            parts = rows_or_report
        else:
            parts = arena.batch(frame.b, spec, frame.c, runs_in(frame.text))
        if not self._shelf.overlaps(key):
            self._end(frame, key, started_ns, self._tried(frame.c, lambda: self._shelf.run(key, parts)))
            return
        # Pinned memory is the server's own, and a request's rows stay in it until its batch has ended.
        is_steady = not is_lying or (all(map(is_pinned, parts)) and _are_large(parts))
        begun = self._tried(frame.c, lambda: self._shelf.begin(key, parts, frame.b, is_steady))
        if isinstance(begun, Report):
            self._land_all()
            self._end(frame, key, started_ns, begun)
            return
        self._flights.append(Flight(frame, key, started_ns, begun))
        if not OVERLAPS:
            self._land_all()

    def _lying(self, frame: Frame, spec: ModelSpec) -> list[Array]:
        """Rows where front ends put them. Those of a query that has ended may be another's by now: their answer goes
        nowhere.
        """
        shapes = spec.shapes
        return [
            self._fronts[front].array(place, spec.input_dtype, (rows, *shapes[shape]))
            for front, shape, rows, place in places_in(frame.text)
        ]

    def _land(self) -> None:
        """The oldest batch on its way is waited for. It counts from when it could begin: the one before it was in its
        way until then.
        """
        flight = self._flights.popleft()
        started_ns = max(flight.started_ns, self._ended_ns)
        self._end(flight.frame, flight.key, started_ns, self._tried(flight.frame.c, flight.begun.report))

    def _land_all(self) -> None:
        while self._flights:
            self._land()

    @staticmethod
    def _tried(rows: int, run: Callable[[], Run]) -> Run | Report:
        """What `run` gives; a report of failure where it raises."""
        try:
            return run()
        except DeviceLost as error:
            end_without_device(error)
        except Exception as error:  # whatever a model's own code raises must not end the worker
            log.debug("a batch failed", exc_info=True)
            return failed(rows, str(error) if isinstance(error, StrettoError) else reason_of(error))

    def _end(self, frame: Frame, key: str, started_ns: int, report: Report) -> None:
        spec = self._specs.get(key)
        if report.answers is not None and spec is not None and self._arena is not None:
            room, answers = self._arena.answers(frame.b, spec, frame.c), report.answers
            problem: Report | None = self._tried(frame.c, lambda: np.copyto(room, answers))
            report = problem or report
        self._ended_ns = time.monotonic_ns()
        self._say(Frame(Kind.ENDED, frame.a, started_ns, self._ended_ns, failures_as_text(report.failures)))
        grown = self._growth.ran(key)
        if grown:
            self._say(Frame(Kind.GREW, grown, text=key.encode()))

    def _say(self, frame: Frame) -> None:
        with self._saying:
            self._channel.sendall(frame.encoded())


def _are_large(parts: list[Array]) -> bool:
    """To copy each to the GPU by itself takes less than to gather them first."""
    return len(parts) == 1 or sum(part.nbytes for part in parts) >= LARGE_BYTES * len(parts)


def end_without_device(error: DeviceLost | NoDevice) -> NoReturn:
    """What this process had on the device is gone, and nothing brings it back but another process."""
    log.error("%s; this worker ends", error)
    os._exit(DEVICE_SPOILT if isinstance(error, DeviceSpoilt) else DEVICE_LOST)


def _step_back() -> None:
    """A model on probation takes no time that a served one wants, and is the first to go where memory is short."""
    os.nice(PROBATION_NICENESS)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def main() -> None:
    # Kernels are launched by one thread while another reads a program, in Python: after each launch the first would
    # wait for 5 ms, by Python's own choice.
    sys.setswitchinterval(SWITCH_S)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()  # a model that hangs does not see the socket close
    if PROBATION in sys.argv[2:]:
        _step_back()
    if AHEAD in sys.argv[2:]:
        threading.Thread(target=import_ahead, daemon=True).start()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.setblocking(True)
    guard_forks(channel)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        WorkerProcess(channel).work()
    os._exit(0)  # models may hold threads that would not end by themselves


if __name__ == "__main__":
    main()
