"""Work beside the serving gives way when the loop's timers come late, and goes on when they do not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.live import pace
from stretto.live.pace import LATE_S, LEAST_SHARE, OWED_SHARE, Pace, shared

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the state of a process from /proc")


@pytest.fixture
def work() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    yield process
    process.kill()
    process.wait()


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def seen_stopped(process: int, bound_s: float = 10.0) -> bool:
    end = time.monotonic() + bound_s
    while time.monotonic() < end:
        if is_stopped(process):
            return True
        await asyncio.sleep(0.002)
    return False


def test_late_timers_halve_the_share_and_timely_ones_add_to_it() -> None:
    assert shared(0.8, 2 * LATE_S) == 0.4
    assert shared(LEAST_SHARE, 1.0) == LEAST_SHARE
    assert 0.8 < shared(0.8, 0.0) <= 1.0
    share = LEAST_SHARE
    for _ in range(30):
        share = shared(share, 0.0)
    assert share == 1.0


def test_work_is_stopped_for_a_part_of_the_time_on_a_loop_that_is_held_up(work: subprocess.Popen[bytes]) -> None:
    async def held_up() -> None:
        paced = Pace(asyncio.get_running_loop())
        paced.begin(work.pid)
        for _ in range(6):
            time.sleep(0.12)  # what holds the loop up
            await asyncio.sleep(0)
        assert paced.share == LEAST_SHARE
        assert await seen_stopped(work.pid)
        paced.end()
        assert not is_stopped(work.pid)

    asyncio.run(held_up())


def test_a_process_that_is_gone_disturbs_nothing(work: subprocess.Popen[bytes]) -> None:
    async def held_up() -> None:
        paced = Pace(asyncio.get_running_loop())
        paced.begin(work.pid)
        work.kill()
        work.wait()
        await asyncio.sleep(0.25)
        paced.end()

    asyncio.run(held_up())


def test_a_process_that_is_stopped_can_still_be_ended(work: subprocess.Popen[bytes]) -> None:
    async def held_up() -> None:
        paced = Pace(asyncio.get_running_loop())
        paced.begin(work.pid)
        time.sleep(0.12)
        assert await seen_stopped(work.pid)
        paced.end()
        work.terminate()
        assert work.wait(10) != 0

    asyncio.run(held_up())


def cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_work_is_stopped_while_all_cores_are_needed_but_for_what_it_is_owed(
    work: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "LATE_S", 60.0)  # timers may come late here: what counts is whether a core is spare

    async def busy() -> None:
        spare = False
        paced = Pace(asyncio.get_running_loop(), lambda: spare)
        paced.begin(work.pid)
        assert await seen_stopped(work.pid)
        began_s, began = cpu_s(work.pid), time.monotonic()
        stopped = 0
        while time.monotonic() - began < 2.0:
            await asyncio.sleep(0.005)
            stopped += is_stopped(work.pid)
        used = (cpu_s(work.pid) - began_s) / (time.monotonic() - began)
        assert 0 < used < 4 * OWED_SHARE
        assert stopped > 0
        spare = True
        end = time.monotonic() + 60  # its share grows from the least one
        while paced.share < 0.5 and time.monotonic() < end:
            await asyncio.sleep(0.01)
        began_s = cpu_s(work.pid)
        while cpu_s(work.pid) - began_s < 0.2 and time.monotonic() < end:
            await asyncio.sleep(0.01)
        assert cpu_s(work.pid) - began_s >= 0.2
        paced.end()

    asyncio.run(busy())
