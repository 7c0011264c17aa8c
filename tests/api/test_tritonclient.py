"""NVIDIA's own clients, in a process of their own, against the whole server."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.api.tracing import Tracing
from tests.api.fronting import RunningFronts
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
    secured = {"token": request.param, "management_token": request.param}
    with Running(repository, **secured, grpc=True, shared_memory=True) as running:
        if request.param is None and importlib.util.find_spec("opentelemetry") is not None:
            from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

            running.plane.tracing = Tracing(InMemorySpanExporter())
        yield running, request.param
        if running.plane.tracing is not None:
            running.plane.tracing.close()


@pytest.fixture(scope="module")
def fronted(repository: Path) -> Iterator[RunningFronts]:
    with RunningFronts(repository, token="s3cret", management_token="s3cret", grpc=True, executor="process") as running:
        yield running


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient(tritonclient_python: str, served: tuple[Running, str | None], protocol: str) -> None:
    check(tritonclient_python, *served, protocol)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient_and_front_ends(tritonclient_python: str, fronted: RunningFronts, protocol: str) -> None:
    check(tritonclient_python, fronted, "s3cret", protocol)


def check(tritonclient_python: str, server: Running, token: str | None, protocol: str) -> None:
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


@pytest.mark.parametrize("client", ["http", "http.aio", "grpc", "grpc.aio"])
def test_the_whole_surface(tritonclient_python: str, served: tuple[Running, str | None], client: str) -> None:
    server, token = served
    names = ("http", "management") if client.startswith("http") else ("grpc", "management grpc")
    inference, management = (":".join(map(str, server.address(name))) for name in names)
    command = [tritonclient_python, str(HERE / "tritonclient_surface.py"), "--client", client]
    command += ["--application", "fashion", "--inference", inference, "--management", management]
    command += [] if token is None else ["--token", token]
    command += [] if server.plane.tracing is None else ["--traces"]
    level = logging.getLogger().level
    try:
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S)
    finally:
        logging.getLogger().setLevel(level)  # which is one of the settings
    assert done.stdout, done.stderr.decode()
    results = json.loads(done.stdout)
    assert int(results.pop("calls")) > 25
    assert {name: result for name, result in results.items() if result != "pass"} == {}
    assert server.call(lambda: server.plane.regions.open) == 0
