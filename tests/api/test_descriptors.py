"""Connections of clients leave descriptors for the server itself."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from stretto.api.descriptors import MANAGEMENT, OWN, connection_shares, raise_limit
from stretto.client import Client, StrettoClientError
from tests.cli.test_serve import ROOT, digits
from tests.cli.test_serve_faults import SMALL, free_port, is_up, until


@pytest.mark.parametrize("descriptors", [256, 1_024, 4_096, 20_000, 1 << 20])
def test_all_listeners_together_leave_some(descriptors: int) -> None:
    shares = connection_shares(10_000, descriptors)
    taken = shares.http + shares.grpc + 2 * shares.management
    assert taken + OWN <= max(descriptors, OWN + 2 * MANAGEMENT + 64)
    assert min(shares.http, shares.grpc, shares.management) > 0
    if descriptors >= 20_000:
        assert shares.http == 10_000


def test_fewer_where_fewer_are_wanted() -> None:
    shares = connection_shares(100, 1 << 20)
    assert (shares.http, shares.grpc, shares.management) == (100, 100, 100)


def test_the_limit_is_raised_as_far_as_it_may_be() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        assert raise_limit() == resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= soft
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


WIDENED = """
import os, socket, threading, time
from stretto.api.descriptors import take_ahead
threading.Thread(target=threading.Event().wait, daemon=True).start()
def size():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("FDSize"))
first, least = size(), len(os.listdir("/proc/self/fd"))
take_ahead(10 ** 9)
assert size() == first, "more than is allowed changes nothing"
take_ahead(1000)
assert size() >= 1000 > first and len(os.listdir("/proc/self/fd")) == least
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the table's size is read as Linux shows it")
def test_the_table_of_descriptors_is_as_large_as_it_will_be_before_anybody_comes() -> None:
    """It grew while clients connected, and each time the whole server stood still for 10 to 30 ms."""
    subprocess.run([sys.executable, "-c", WIDENED], cwd=ROOT, check=True, timeout=60)


def children_of(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            if int((folder / "stat").read_text().rpartition(") ")[2].split()[1]) == parent:
                found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for as Linux shows them")
def test_idle_connections_do_not_keep_a_lost_worker_away() -> None:
    """They used to have every descriptor, and a worker process that was lost could not be started again."""
    http = free_port()
    ports = f"--http-port {http} --grpc-port -1 --management-port -1 --management-grpc-port -1"
    command = f"{sys.executable} -m stretto.cli.main serve {' '.join(SMALL)} --executor process {ports}"
    process = subprocess.Popen(
        ["sh", "-c", f"ulimit -n 700; exec {command}"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
    )
    with ExitStack() as stack:
        stack.callback(process.wait, 30)
        stack.callback(process.terminate)
        until(lambda: is_up(f"http://127.0.0.1:{http}"))
        assert "FDSize:\t1024" in Path(f"/proc/{process.pid}/status").read_text()  # 700 in powers of two
        with Client(f"http://127.0.0.1:{http}") as client:
            assert client.infer("mnist", digits(1), deadline_ms=30_000).variant == "linear"
            for _ in range(800):
                stack.enter_context(socket.create_connection(("127.0.0.1", http), 30))
            (worker,) = children_of(process.pid)
            os.kill(worker, signal.SIGKILL)
            until(lambda: not client.ready())

            def is_answered() -> bool:
                try:
                    return client.infer("mnist", digits(1), deadline_ms=30_000).variant == "linear"
                except StrettoClientError:
                    return False

            until(is_answered)
