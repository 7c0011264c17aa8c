"""The alarm rings at its moment: not before, and soon after."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import pytest

from stretto.alarm import Alarm
from tests.live.real import until, within

MS = 1_000_000
SOON_NS = 500 * MS  # on a machine that is busy with something else


class Heard:
    def __init__(self) -> None:
        self.at_ns: list[int] = []

    def __call__(self) -> None:
        self.at_ns.append(time.monotonic_ns())


def on_both(work: Callable[[Alarm, Heard], object]) -> None:
    """With the kernel's timer, and with the loop's own where there is none."""

    async def run(has_descriptor: bool) -> None:
        heard = Heard()
        alarm = Alarm(asyncio.get_running_loop(), heard)
        if not has_descriptor:
            alarm.close()
            alarm._set_ns = None
        try:
            await work(alarm, heard)  # type: ignore[misc]
        finally:
            alarm.close()

    for has_descriptor in (True, False):
        within(20, lambda has=has_descriptor: run(has))  # type: ignore[misc]


def test_it_rings_at_its_moment() -> None:
    async def work(alarm: Alarm, heard: Heard) -> None:
        for pause_ms in (0.3, 1.7, 12.5):
            at_ns = time.monotonic_ns() + round(pause_ms * MS)
            heard.at_ns.clear()
            alarm.set(at_ns)
            await until(lambda: bool(heard.at_ns))
            assert at_ns - MS <= heard.at_ns[0] <= at_ns + SOON_NS
            assert len(heard.at_ns) == 1

    on_both(work)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="the kernel's timer is Linux's")
def test_the_kernel_s_timer_never_rings_early() -> None:
    async def work() -> None:
        heard = Heard()
        alarm = Alarm(asyncio.get_running_loop(), heard)
        for _ in range(20):
            at_ns = time.monotonic_ns() + 700_000
            heard.at_ns.clear()
            alarm.set(at_ns)
            await until(lambda: bool(heard.at_ns))
            assert heard.at_ns[0] >= at_ns
        alarm.close()

    within(20, work)


def test_an_earlier_moment_goes_before_and_a_later_one_is_left_to_the_callee() -> None:
    async def work(alarm: Alarm, heard: Heard) -> None:
        now_ns = time.monotonic_ns()
        alarm.set(now_ns + 600_000 * MS)
        alarm.set(now_ns + 5 * MS)
        alarm.set(now_ns + 900 * MS)  # it rings early, and whoever hears it sets it again
        alarm.set(None)
        await until(lambda: bool(heard.at_ns))
        assert now_ns + 4 * MS <= heard.at_ns[0] <= now_ns + 5 * MS + SOON_NS
        again_ns = time.monotonic_ns() + 3 * MS
        alarm.set(again_ns)
        await until(lambda: len(heard.at_ns) == 2)
        assert heard.at_ns[1] >= again_ns - MS

    on_both(work)


@pytest.mark.parametrize("at_ns", [0, 1, 10**6])
def test_a_moment_that_has_passed_rings_at_once(at_ns: int) -> None:
    async def work(alarm: Alarm, heard: Heard) -> None:
        alarm.set(at_ns)
        await until(lambda: bool(heard.at_ns))

    on_both(work)


def test_a_closed_alarm_is_silent_and_leaves_nothing() -> None:
    async def work() -> None:
        before = len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0
        heard = Heard()
        alarm = Alarm(asyncio.get_running_loop(), heard)
        alarm.set(time.monotonic_ns() + 2 * MS)
        alarm.close()
        alarm.close()
        alarm.set(1)
        other = Heard()
        later = Alarm(asyncio.get_running_loop(), other)
        later.set(time.monotonic_ns() + 30 * MS)
        await until(lambda: bool(other.at_ns))
        later.close()
        assert heard.at_ns == []
        assert not before or len(os.listdir("/proc/self/fd")) <= before

    within(20, work)
