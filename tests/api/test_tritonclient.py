"""NVIDIA's own clients, in a process of their own, against the whole server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.serving import Running

HERE = Path(__file__).resolve().parent
PATIENCE_S = 90.0
pytestmark = pytest.mark.extras


@pytest.fixture(scope="module")
def tritonclient_python() -> str:
    """A Python that has tritonclient: the one that STRETTO_TRITONCLIENT_PYTHON names, or this one."""
    for python in filter(None, (os.environ.get("STRETTO_TRITONCLIENT_PYTHON"), sys.executable)):
        both = "import tritonclient.grpc, tritonclient.http"
        if subprocess.run([python, "-c", both], capture_output=True, timeout=PATIENCE_S).returncode == 0:
            return python
    pytest.skip("no Python with tritonclient[http,grpc]; name one in STRETTO_TRITONCLIENT_PYTHON")


@pytest.fixture(scope="module", params=[None, "s3cret"])
def served(request: pytest.FixtureRequest, repository: Path) -> Iterator[tuple[Running, str | None]]:
    with Running(repository, token=request.param, management_token=request.param, grpc=True) as running:
        yield running, request.param


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient(tritonclient_python: str, served: tuple[Running, str | None], protocol: str) -> None:
    server, token = served
    names = ("http", "management") if protocol == "http" else ("grpc", "management grpc")
    inference, management = (":".join(map(str, server.address(name))) for name in names)
    command = [tritonclient_python, str(HERE / f"tritonclient_{protocol}.py"), "--application", "fashion", "--reload"]
    command += ["--inference", inference, "--management", management]
    command += [] if token is None else ["--token", token]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S)
    assert done.stdout, done.stderr.decode()
    results = json.loads(done.stdout)
    assert {name: result for name, result in results.items() if result != "pass"} == {}
    assert len(results) > 20
    assert done.returncode == 0
    server.wait_for_queries(0)
    assert server.call(lambda: server.plane.open_requests) == 0
