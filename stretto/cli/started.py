"""A server in a process of its own, for as long as it is needed: for the demo and for benchmarks."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stretto.core.errors import StrettoError

ADDRESS = re.compile(r"^ {2}(http|grpc|management|management grpc) +(?:https?://)?(\S+)$")
START_S = 180.0  # the first start of all compiles
END_S = 40.0


@dataclass
class Started:
    """Where it listens, by the name of the listener, and its process."""

    process: subprocess.Popen[str]
    addresses: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # what it said on standard error

    @property
    def url(self) -> str:
        return f"http://{self.addresses['http']}"

    @property
    def management_url(self) -> str:
        return f"http://{self.addresses['management']}"

    def cpu_s(self) -> float:
        """Processor time that it has used."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """It finishes what it has, and is waited for; one that does not end by itself is ended."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def memory_bytes(self) -> int:
        """What it holds in memory."""
        with open(f"/proc/{self.process.pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def started_server(arguments: Sequence[str], prefix: Sequence[str] = ()) -> Iterator[Started]:
    """`stretto serve ARGUMENTS` on free ports of this machine; ended, and waited for, at the end."""
    ports = [name for name in ("--http-port", "--grpc-port", "--management-port", "--management-grpc-port")]
    given = {argument.partition("=")[0] for argument in arguments}
    free = [part for name in ports if name not in given for part in (name, "0")]
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "stretto", "serve", *arguments, *free],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    server = Started(process)
    reader = threading.Thread(target=_read, args=(server,), daemon=True)
    reader.start()
    try:
        _wait_until_ready(server)
        yield server
    finally:
        server.end()
        reader.join(5)


def _read(server: Started) -> None:
    assert server.process.stderr is not None
    for line in server.process.stderr:
        server.lines.append(line.rstrip("\n"))
        address_match = ADDRESS.match(line.rstrip("\n"))
        if address_match:
            server.addresses[address_match[1]] = address_match[2]


def _wait_until_ready(server: Started) -> None:
    from stretto.client import Client, StrettoClientError

    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if server.process.poll() is not None:
            raise StrettoError("the server ended at once: " + " ".join(server.lines[-3:]))
        if "http" in server.addresses:
            with contextlib.suppress(StrettoClientError), Client(server.url) as client:
                if client.ready():
                    return
        time.sleep(0.05)
    raise StrettoError(f"the server was not ready after {START_S:.0f} s")
