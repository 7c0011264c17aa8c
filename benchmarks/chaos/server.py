"""`stretto serve` as it is run in production, with its recording and its log on a disk that can be filled.

The disk is a small tmpfs where we may mount one (root). Elsewhere there is a plain folder that cannot be filled: the
benchmark then says that this was not tried.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving import infer_body
from stretto.cli.started import Started

DISK_MB = 256
PORTS = ("http", "grpc", "management", "management grpc")
NOWHERE = "http://127.0.0.1:9"  # discard: nobody listens
STEP_S = 0.02


@dataclass(frozen=True)
class Disk:
    """Where the server writes; `is_small` says that it can be filled."""

    folder: Path
    is_small: bool

    @property
    def filler(self) -> Path:
        return self.folder / "filler"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def fill(self) -> None:
        """Until not one byte is left."""
        with self.filler.open("wb", buffering=0) as file:
            block = bytes(1 << 20)
            while block:
                try:
                    written = file.write(block)
                    block = block[: len(block) if written == len(block) else 1]
                except OSError:
                    block = block[: len(block) // 2]

    def empty(self) -> None:
        self.filler.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk() -> Iterator[Disk]:
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", folder]
        is_small = os.geteuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0
        try:
            yield Disk(Path(folder), is_small)
        finally:
            if is_small:
                # The server's own children may have the log open for a moment after it.
                subprocess.run(["umount", "--lazy", folder], check=False)


def free_ports(count: int) -> list[int]:
    """Of the loopback; they were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def has_exporter() -> bool:
    """Whether spans can be sent at all: an extra."""
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


@contextlib.contextmanager
def chaos_server(arguments: Sequence[str], log: Path, application: str, patience_s: float) -> Iterator[Started]:
    """Yields when the healthy application was answered for the first time, or after so long without."""
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    options = [part for name, port in ports.items() for part in (f"--{name.replace(' ', '-')}-port", str(port))]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "stretto", "serve", *arguments, *options],
            stdin=subprocess.DEVNULL,
            stderr=file,
            text=True,
            env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE},
        )
    server = Started(process, {name: f"127.0.0.1:{port}" for name, port in ports.items()})
    try:
        end = time.monotonic() + patience_s
        while process.poll() is None and time.monotonic() < end and not is_answered(server, application):
            time.sleep(STEP_S)
        yield server
    finally:
        server.end()


def is_answered(server: Started, application: str) -> bool:
    """One query of the zoo's sample, with all the time in the world."""
    body, headers = infer_body(application, deadline_ms=10_000.0)
    request = urllib.request.Request(f"{server.url}/v2/models/{application}/infer", body, method="POST")
    for header in headers:
        request.add_header(*header.split(": ", 1))
    try:
        with urllib.request.urlopen(request, timeout=15) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
