"""Wakes the event loop at a moment on the monotonic clock, exact to some 50 µs.

The loop's own timers are rounded to whole milliseconds: a deferred batch would pay for that with its slack, and every
latency that a load generator measures would show it. On Linux the kernel's timer descriptor rings through the loop's
poll; elsewhere the loop's timer does. Shared by live/ and client/, which do not know each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable

CLOCK_MONOTONIC = 1
NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
ABSOLUTE = 1
NS_PER_S = 1_000_000_000


class _Spec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Alarm:
    """One moment at a time. Ringing early is harmless to the callee; an alarm moved later keeps its earlier ring."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]):
        self._loop = loop
        self._ring = ring
        self._set_ns: int | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._descriptor = -1
        if sys.platform == "linux":
            self._library = ctypes.CDLL(None, use_errno=True)
            self._descriptor = self._library.timerfd_create(CLOCK_MONOTONIC, NONBLOCK_CLOEXEC)
        if self._descriptor >= 0:
            self._spec = _Spec(0, 0, 0, 0)
            self._reference = ctypes.byref(self._spec)
            loop.add_reader(self._descriptor, self._descriptor_rang)

    def set(self, at_ns: int | None) -> None:
        """Ring at this moment at the latest; None: nothing more is wanted."""
        if at_ns is None or (self._set_ns is not None and at_ns >= self._set_ns):
            return
        self._set_ns = at_ns
        if self._descriptor >= 0:
            at_ns = max(at_ns, 1)  # all zeros would disarm it
            self._spec.value_s, self._spec.value_ns = divmod(at_ns, NS_PER_S)
            self._library.timerfd_settime(self._descriptor, ABSOLUTE, self._reference, None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(0, at_ns - time.monotonic_ns()) / NS_PER_S, self._rang)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        self._set_ns = -1  # earlier than anything that could still be asked for

    def _descriptor_rang(self) -> None:
        with contextlib.suppress(BlockingIOError):  # set anew between the poll and now
            os.read(self._descriptor, 8)
        self._rang()

    def _rang(self) -> None:
        self._set_ns = None
        self._handle = None
        self._ring()
