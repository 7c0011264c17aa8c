"""Calls back at a moment of the monotonic clock, to some ten microseconds.

Event loops round their timers to whole milliseconds, which would show in every latency. Linux's timerfd does not; it is
reached through ctypes, as Python has it only from 3.13 on. Elsewhere the loop's own timer must do.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

CLOCK_MONOTONIC = 1
ABSOLUTE = 1
NS_PER_S = 1_000_000_000


class _Setting(ctypes.Structure):
    """struct itimerspec: the interval (none here) and the moment, in seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Alarm:
    """One callback at a time; it must set the alarm anew or clear it."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._setting = _Setting(0, 0, 0, 0)
        self._pointer = ctypes.byref(self._setting)
        self._descriptor = _timer_descriptor()
        if self._descriptor >= 0:
            self._settime = ctypes.CDLL(None).timerfd_settime
            self._loop.add_reader(self._descriptor, callback)

    def set(self, moment_ns: int) -> None:
        """`moment_ns` is above 0. Setting it also takes back an alarm that rang and was not read."""
        if self._descriptor >= 0:
            setting = self._setting
            setting.value_s, setting.value_ns = divmod(moment_ns, NS_PER_S)
            self._settime(self._descriptor, ABSOLUTE, self._pointer, None)
            return
        self.clear()
        self._timer = self._loop.call_later(max(0, moment_ns - time.monotonic_ns()) / NS_PER_S, self._callback)

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._descriptor >= 0:
            self._setting.value_s = self._setting.value_ns = 0
            self._settime(self._descriptor, ABSOLUTE, self._pointer, None)

    def close(self) -> None:
        self.clear()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


def _timer_descriptor() -> int:
    """A timerfd, or -1 where there is none."""
    if sys.platform != "linux":
        return -1
    try:
        return int(ctypes.CDLL(None).timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
    except (OSError, AttributeError):
        return -1
