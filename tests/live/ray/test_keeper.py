"""A process that is kept: there again when it ends, gone when its keeper is, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stretto.live.ray.actors import Role, RoleActor
from stretto.live.ray.keeper import Keeper

ROOT = Path(__file__).parents[3]
PATIENCE_S = 30.0
SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
# Says that it is there, in a file, and does at SIGTERM as it is told.
TOLD = "import signal, sys, time; signal.signal(signal.SIGTERM, {}); open(sys.argv[1], 'w').close(); time.sleep(600)"
ENDS = [sys.executable, "-c", TOLD.format("lambda *_: sys.exit(0)")]
STUBBORN = [sys.executable, "-c", TOLD.format("signal.SIG_IGN")]


def until(is_so: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """A process that ended and waits for somebody to ask how is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def keepers() -> Iterator[list[Keeper]]:
    kept: list[Keeper] = []
    yield kept
    for keeper in kept:
        keeper.stop(0.0)


def test_a_process_that_ends_is_there_again(keepers: list[Keeper]) -> None:
    keeper = Keeper(SLEEPS, os.environ)
    keepers.append(keeper)
    until(lambda: keeper.pid, "it was not started")
    first = keeper.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: keeper.pid not in (0, first), "it was not started again")
    assert keeper.starts == 2
    assert not keeper.stop(PATIENCE_S)  # SIGTERM ended it; it did not end by itself
    assert not keeper.pid
    assert not is_alive(first)


def test_asked_to_end_it_is_not_started_again(keepers: list[Keeper], tmp_path: Path) -> None:
    started = tmp_path / "started"
    keeper = Keeper([*ENDS, str(started)], os.environ)
    keepers.append(keeper)
    until(started.exists, "it was not started")
    assert keeper.stop(PATIENCE_S)
    assert keeper.starts == 1


def test_one_that_does_not_end_is_ended(keepers: list[Keeper], tmp_path: Path) -> None:
    started = tmp_path / "started"
    keeper = Keeper([*STUBBORN, str(started)], os.environ)
    keepers.append(keeper)
    until(started.exists, "it was not started")
    pid = keeper.pid
    assert not keeper.stop(0.2)
    assert not is_alive(pid)


def test_it_ends_with_a_keeper_that_is_killed() -> None:
    code = (
        "import os, time\n"
        "from stretto.live.ray.keeper import Keeper\n"
        f"keeper = Keeper({SLEEPS!r}, os.environ)\n"
        "while not keeper.pid: time.sleep(0.01)\n"
        "print(keeper.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
        until(lambda: not is_alive(pid), "it outlived its keeper")


def test_a_command_that_cannot_be_started_is_tried_again(keepers: list[Keeper], tmp_path: Path) -> None:
    program = tmp_path / "program"
    keeper = Keeper([str(program)], os.environ)
    keepers.append(keeper)
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    until(lambda: keeper.pid, "it was not started")


def test_the_key_of_a_role_is_in_no_list_of_processes() -> None:
    """A worker that finds no scheduler will do."""
    key = b"a key of some length"
    actor = RoleActor(Role("worker", ("worker", "--scheduler", "tcp://127.0.0.1:9"), "# settings"), key)
    try:
        until(lambda: actor.state()["pid"], "it was not started")
        words = Path(f"/proc/{actor.state()['pid']}/cmdline").read_bytes().split(b"\0")
        assert key not in b" ".join(words)
        for option, content in ((b"--key-file", key), (b"--config", b"# settings")):
            descriptor = words[words.index(option) + 1].rpartition(b"/")[2].decode()
            assert Path(f"/proc/{actor.state()['pid']}/fd/{descriptor}").read_bytes() == content
    finally:
        actor.stop(0.0)
