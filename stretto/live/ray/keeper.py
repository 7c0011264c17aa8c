"""Keeps one process alive: it is started again whenever it ends by itself, and ends with whoever keeps it.

A role runs in a process of its own beside its actor. So the actor answers whatever the role does, a role that is killed
is there again without Ray, and Ray's threads take nothing from it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

log = logging.getLogger("stretto.live.ray")

DEATH_SIGNAL = 1  # of prctl: what a child gets when the thread that started it dies
PAUSES_S = (0.0, 0.2, 1.0, 5.0)  # before the next start, by how many lives before it were short
SHORT_S = 10.0  # a life
KILL_S = 5.0  # for a killed process to be gone


class Keeper:
    """Of one command."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        kept_open: Sequence[int] = (),
        folder: str | None = None,
    ):
        """`kept_open` are descriptors that the process gets too; `folder` is its current one."""
        self._folder = folder
        self._argv, self._environment, self._kept_open = list(argv), dict(environment), tuple(kept_open)
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        # The system ends the process with this thread, so the thread stays for as long as the process does.
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """Of the process at present; 0 between two of them."""
        process = self._process
        return 0 if process is None or process.returncode is not None else process.pid

    def signal(self, number: int) -> None:
        """To the process, where there is one."""
        process = self._process
        if process is not None:
            process.send_signal(number)  # nothing where it has ended

    def stop(self, patience_s: float) -> bool:
        """It is asked to end, and ended where it does not. True: it ended by itself, as one that has nothing open."""
        self._stop.set()
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        self._thread.join(patience_s)
        is_clean = not self._thread.is_alive() and (process is None or process.returncode == 0)
        process = self._process
        if self._thread.is_alive() and process is not None:
            process.kill()
            self._thread.join(KILL_S)
        return is_clean

    def _keep(self) -> None:
        argv, parent, short_lives = self._argv, os.getpid(), 0
        while not self._stop.wait(PAUSES_S[min(short_lives, len(PAUSES_S) - 1)]):
            began_s = time.monotonic()
            try:
                self._process = process = subprocess.Popen(
                    argv,
                    env=self._environment,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    pass_fds=self._kept_open,
                    preexec_fn=lambda: _end_with(parent),
                )
            except OSError as error:
                log.error("%s cannot be started: %s", argv[0], error.strerror)
                short_lives += 1
                continue
            self.starts += 1
            if self._stop.is_set():  # it was asked between the look and the start
                process.terminate()
            status = process.wait()
            lived_s = time.monotonic() - began_s
            short_lives = short_lives + 1 if lived_s < SHORT_S else 0
            if not self._stop.is_set():
                log.warning("%s ended after %.0f s (%s); it is started again", " ".join(argv[1:4]), lived_s, status)


def _end_with(parent: int) -> None:
    """In the child, before it becomes another program."""
    if PRCTL is not None:
        PRCTL(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it is dead already
        os._exit(1)


PRCTL = getattr(ctypes.CDLL(None), "prctl", None)  # known to Linux alone; looked up before there is a child
