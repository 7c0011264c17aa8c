"""Processes that this one starts: how their end is noticed, and how everything that they started ends with them.

A model may start processes of its own, which inherit what its worker has open: that a worker's socket is open says
nothing about whether the worker lives. So the process itself is watched, and it is ended as a group.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

DEATH_SIGNAL = 1  # of prctl: what a child gets when the thread that started it ends
# They may reach a whole group; a server ends its processes itself. SIGTTOU: one in a group of its own may write.
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGTTOU)


class Watch:
    """Calls `ended` on the loop, once, when a process has ended, unless this is closed before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, process: subprocess.Popen[bytes], ended: Callable[[], None]):
        self._loop, self._ended = loop, ended
        self._descriptor = _process_descriptor(process.pid)
        self._is_closed = False
        if self._descriptor >= 0:
            loop.add_reader(self._descriptor, self._end)
        else:
            threading.Thread(target=self._wait, args=(process,), name="stretto-watch", daemon=True).start()

    def close(self) -> None:
        self._is_closed = True
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _end(self) -> None:
        if not self._is_closed:
            self.close()
            self._ended()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """In a thread, where the system has no descriptors of processes."""
        process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end)


def _process_descriptor(process: int) -> int:
    """Readable when the process has ended; -1 where the system has no such thing."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return -1


def end_group(leader: int) -> None:
    """A process that was started with a group of its own, and all that it started in that."""
    with contextlib.suppress(OSError):  # all of them are gone
        os.killpg(leader, signal.SIGKILL)


def end_started_by_models() -> None:
    """Processes that models started in this one, with multiprocessing: Python would wait for them at its end."""
    for child in multiprocessing.active_children():
        child.kill()


def end_with_parent() -> None:
    """However that ends, and also while this process is stopped or hangs."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)


def guard_forks(channel: socket.socket) -> None:
    """What a model forks in this process holds no end of its socket, can be told to end, and ends with it.

    The last is so for what the main thread forks: a death signal comes when the thread ends that forked, and a thread
    that loads a model ends long before the process does.
    """
    channel.set_inheritable(False)
    main_thread = threading.main_thread().ident
    is_of_main_thread = threading.local()

    def before() -> None:
        is_of_main_thread.value = threading.get_ident() == main_thread

    def in_child() -> None:
        channel.close()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if is_of_main_thread.value:
            end_with_parent()

    os.register_at_fork(before=before, after_in_child=in_child)
