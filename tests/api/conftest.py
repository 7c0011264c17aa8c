"""One server for all tests that leave it as they found it."""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from tests.api.serving import PATIENCE_S, Complaints, Running, repository_of


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository_of(tmp_path_factory.mktemp("repository"), "fashion", "mnist")


@pytest.fixture(scope="session")
def shared_server(repository: Path) -> Iterator[Running]:
    with Running(repository) as running:
        yield running


@pytest.fixture
def server(shared_server: Running) -> Iterator[Running]:
    """The shared server; nothing may be left waiting, and nothing counted twice or not at all."""
    yield shared_server
    shared_server.gate.is_open.set()
    shared_server.wait_for_queries(0)
    shared_server.wait_until(lambda: shared_server.plane.open_requests == 0, "every request has its end")
    assert shared_server.missing() == 0


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """Warnings and errors that the server logs during the test."""
    handler = Complaints()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.lines
    finally:
        logging.getLogger().removeHandler(handler)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """And its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    files = folder / "certificate.pem", folder / "key.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = subprocess.run(
        [*command, "-out", str(files[0]), "-keyout", str(files[1])], capture_output=True, timeout=PATIENCE_S
    )
    if made.returncode != 0:
        pytest.skip("openssl makes no certificate here")
    return files


@pytest.fixture
def segment() -> Iterator[SharedMemory]:
    """Memory that a client on this machine shares with a server."""
    shared = SharedMemory(create=True, size=16_384)
    try:
        yield shared
    finally:
        shared.close()
        shared.unlink()
