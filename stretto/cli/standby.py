"""A command that is kept alive: one process does it, and another, started already, waits to take its place."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

from stretto.live.children import end_with_parent

SETTLE_S = 2.0  # after one was told to go on, before the next is started to stand by: that takes a core for seconds
PAUSES_S = 0.0, 10.0  # before another is tried, growing while they end at once
HEALTHY_S = 5.0
WAIT_ON = "--wait-on"
REFUSED = 2  # the exit status of whoever was told something wrong


class Waiting:
    """A process that has started and does nothing until it is told."""

    def __init__(self, arguments: Sequence[str]):
        ours, theirs = os.pipe()
        try:
            command = [sys.executable, "-m", "stretto", *arguments, WAIT_ON, str(ours)]
            self.process = subprocess.Popen(command, pass_fds=(ours,), stdin=subprocess.DEVNULL)
        finally:
            os.close(ours)
        self._told = theirs

    def go(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it is gone, which whoever waits for it sees
            os.write(self._told, b"!")

    def end(self) -> None:
        """It has ended, or was never told to go on and ends now."""
        os.close(self._told)
        self.process.wait()


class Keeper:
    """`say` is told when one is lost."""

    def __init__(self, arguments: Sequence[str], say: Callable[[str], None]):
        self._arguments, self._say = arguments, say
        self._active: Waiting | None = None
        self._is_ending = False

    def run(self) -> int:
        """Until one ends by itself, or because this process was told to: its exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._signalled)
        spare: Waiting | None = None
        pause_s, was_healthy = PAUSES_S[0], False
        while True:
            self._active, spare = spare or Waiting(self._arguments), None
            began_s = time.monotonic()
            self._active.go()
            code = self._waited(self._active, SETTLE_S)
            if code is None:
                spare, was_healthy = Waiting(self._arguments), True
                code = self._waited(self._active, None)
            assert code is not None
            self._active.end()
            if self._is_ending or code == 0 or (code == REFUSED and not was_healthy):
                if spare is not None:
                    spare.end()
                return max(code, 0) if self._is_ending else code
            lived_s = time.monotonic() - began_s
            pause_s = PAUSES_S[0] if lived_s > HEALTHY_S else min(max(0.1, 2 * pause_s), PAUSES_S[1])
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            self._say(f"the scheduler ended with {how}; another takes its place")
            time.sleep(pause_s)

    def _waited(self, waiting: Waiting, patience_s: float | None) -> int | None:
        try:
            return waiting.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._is_ending = self._is_ending or number != signal.SIGHUP  # which says that files are to be read anew
        if self._active is not None:
            self._active.process.send_signal(number)


def wait_on_pipe(descriptor: int, make_ready: Callable[[], None]) -> bool:
    """In the process that waits, once it is ready: until it is told to go on; false where it never will be."""
    end_with_parent()
    make_ready()
    numbers = signal.SIGTERM, signal.SIGINT
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]  # it ends with whoever keeps it
    is_told = os.read(descriptor, 1) != b""
    os.close(descriptor)
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
    return is_told
