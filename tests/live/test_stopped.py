"""A judge that is stopped when its server's process ends does not hold that up: it ends with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.real import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the state of a process from /proc")

LIMIT_S = 300.0  # it takes some seconds; more on a busy machine

FAILING = """
import asyncio
import os
import signal
import sys
import time
from functools import partial

from stretto.live.options import ServiceOptions
from stretto.live.service import Service
from stretto.live.threads import ThreadExecutor
from stretto.repository.read import read_repository
from stretto.sim.ports import simulator_ports
from stretto.twin.live import LiveTwin
from tests.live.real import until
from tests.repository.build import KIND, build


def test_that_fails_while_its_judge_is_stopped(tmp_path):
    judges = []

    async def work():
        chosen = ServiceOptions(str(build(tmp_path / "models").root), workers=1, kind=KIND)
        twin, ports = LiveTwin(time.monotonic_ns()), simulator_ports()
        service = Service(chosen, read_repository(chosen.repository), ThreadExecutor, simulator=ports, twin=twin)
        await service.start()
        await until(service.is_ready)
        service.judging._aside.order(partial(time.sleep, 3600.0), print)
        judges.extend(service.judging._aside._processes())
        print(f"judge {judges[0]}", file=sys.stderr, flush=True)
        raise AssertionError("something is wrong")

    try:
        asyncio.run(work())
    finally:
        os.kill(judges[0], signal.SIGSTOP)  # as its pace does, and now nobody is left to continue it
"""


def test_pytest_ends_after_a_test_that_failed_with_its_judge_stopped(tmp_path: Path) -> None:
    """The interpreter waited for the judge for ever, and the judge for somebody who continues it."""
    path = tmp_path / "test_failing.py"
    path.write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-n0", "-p", "no:cacheprovider", str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 1 and "something is wrong" in ended.stdout, ended.stdout + ended.stderr
    judge = int(ended.stderr.partition("judge ")[2].split()[0])
    assert not Path(f"/proc/{judge}").exists()
