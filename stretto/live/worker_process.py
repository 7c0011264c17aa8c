"""A worker process: `python -m stretto.live.worker_process FD`. It holds models, runs batches and says how they went.

It talks on one socket, and ends when that closes: a server that is gone leaves no workers behind.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time

import numpy as np

from stretto.core.errors import StrettoError
from stretto.live.arena import Arena
from stretto.live.frames import Frame, FrameReader, Kind, failures_as_text, run_in, spec_from_text
from stretto.live.shelf import NO_ANSWER, NOT_LOADED, ModelSpec, Shelf

log = logging.getLogger("stretto.live.worker")
CHUNK = 1 << 16


class WorkerProcess:
    """Does what it is told, in order."""

    def __init__(self, channel: socket.socket):
        self._channel = channel
        self._shelf = Shelf()
        self._specs: dict[str, ModelSpec] = {}
        self._arena: Arena | None = None
        self._saying = threading.Lock()  # a load beside the work ends in a thread of its own
        self._descriptors: list[int] = []  # of shared memory, in the order of the frames that name them

    def work(self) -> None:
        self._say(Frame(Kind.READY))
        reader = FrameReader()
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._channel, CHUNK, 4)
            self._descriptors += descriptors
            if not data:
                return
            for frame in reader.feed(data):
                if frame.kind == Kind.STOP:
                    return
                self._do(frame)

    def _do(self, frame: Frame) -> None:
        if frame.kind == Kind.RUN:
            self._run(frame)
        elif frame.kind == Kind.LOAD and frame.b:
            threading.Thread(target=self._load, args=(frame,), daemon=True).start()
        elif frame.kind == Kind.LOAD:
            self._load(frame)
        elif frame.kind == Kind.UNLOAD:
            key = frame.text.decode()
            self._specs.pop(key, None)
            self._shelf.unload(key)
        elif frame.kind == Kind.MAP:
            if self._arena is not None:
                self._arena.close()
            self._arena = Arena(self._descriptors.pop(0), frame.a)

    def _load(self, frame: Frame) -> None:
        problem = ""
        try:
            spec = spec_from_text(frame.text)
            self._shelf.load(spec)
            self._specs[spec.key] = spec
        except StrettoError as error:
            problem = str(error)
        except Exception as error:
            log.exception("a model cannot be loaded")
            problem = f"it cannot be loaded ({type(error).__name__})"
        self._say(Frame(Kind.LOADED, frame.a, text=problem.encode()))

    def _run(self, frame: Frame) -> None:
        started_ns = time.monotonic_ns()
        number, slot, rows = frame.a, frame.b, frame.c
        key, runs = run_in(frame.text)
        failures: dict[int, str] = {}
        spec = self._specs.get(key)
        try:
            if spec is None or self._arena is None:
                failures = dict.fromkeys(range(rows), NOT_LOADED)
            else:
                parts = self._arena.parts(slot, spec, runs) if runs else (self._arena.inputs(slot, spec, rows),)
                answered = self._shelf.run(key, parts)
                failures = answered.failures
                if answered.answers is not None:
                    np.copyto(self._arena.answers(slot, spec, rows), answered.answers)
        except Exception:  # whatever a model's own code raises must not end the worker
            log.exception("a batch failed")
            failures = dict.fromkeys(range(rows), NO_ANSWER)
        self._say(Frame(Kind.ENDED, number, started_ns, time.monotonic_ns(), failures_as_text(failures)))

    def _say(self, frame: Frame) -> None:
        with self._saying:
            self._channel.sendall(frame.encoded())


def main() -> None:
    # They may reach the whole group; the server ends its workers itself.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.setblocking(True)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        WorkerProcess(channel).work()
    os._exit(0)  # models may hold threads that would not end by themselves


if __name__ == "__main__":
    main()
