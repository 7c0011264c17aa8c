"""How many bytes a second really pass: through the proxy, and through the kernel's own token bucket (`tc` tbf).

The second needs root, `ip`, `tc` and a kernel with tbf; it happens in a network namespace of its own, where loopback
has packets of 1500 bytes, so nothing of the machine's network is touched.
`python -m benchmarks.wire_rate MBIT SECONDS` inside such a namespace prints a JSON line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.client.network import Link, Proxy
from stretto.core.bandwidth import BYTES_PER_MBIT, Bandwidth

ROOT = Path(__file__).parent.parent
WARM_UP_S = 0.3
BLOCK = b"x" * 65_536


@dataclass
class Arrivals:
    """Payload bytes as a server got them, at each moment on the monotonic clock."""

    at_ns: list[int]
    sizes: list[int]

    def rate(self, start_ns: int, seconds: float) -> float:
        """Bytes/s in a span of time."""
        end_ns = start_ns + round(seconds * 1e9)
        inside = (size for at_ns, size in zip(self.at_ns, self.sizes, strict=True) if start_ns <= at_ns < end_ns)
        return sum(inside) / seconds


class Sink:
    """A server that takes everything from one connection, in a thread."""

    def __init__(self) -> None:
        self.arrivals = Arrivals([], [])
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        connection, _ = self._socket.accept()
        with contextlib.suppress(ConnectionResetError):  # a sender that has done its time
            while content := connection.recv(1 << 18):
                self.arrivals.at_ns.append(time.monotonic_ns())
                self.arrivals.sizes.append(len(content))
        connection.close()

    def close(self) -> None:
        self._thread.join(10)
        self._socket.close()


def pour(port: int, seconds: float) -> None:
    """Sends as fast as it is let; what is still in the kernel then is thrown away."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(5.0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            connection.send(BLOCK)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def through_proxy(bandwidth: Bandwidth, seconds: float) -> tuple[Arrivals, int]:
    """What came through the proxy from a sender in a process of its own, and when the trace began."""
    sink = Sink()

    async def run() -> int:
        async with Proxy("127.0.0.1", sink.port, Link(bandwidth)) as proxy:
            sender = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c"),
                f"from benchmarks.wire_rate import pour; pour({proxy.port}, {seconds + 2 * WARM_UP_S})",
                cwd=ROOT,
            )
            await sender.wait()
            return proxy.start_ns

    start_ns = asyncio.run(run())
    sink.close()
    return sink.arrivals, start_ns


def through_tbf(mbit: float, seconds: float) -> dict[str, float]:
    """Bytes/s through tbf in a namespace of its own: `wire` as the kernel counted them, `payload` as they came."""
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-m", "benchmarks.wire_rate", str(mbit), str(seconds)],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
        cwd=ROOT,
    )
    if done.returncode != 0:
        raise RuntimeError(f"tbf could not be measured: {done.stderr.strip()[-300:]}")
    rates: dict[str, float] = json.loads(done.stdout)
    return rates


def why_no_tbf() -> str:
    """Why the kernel's own bucket cannot be measured here; empty where it can."""
    if os.geteuid() != 0:
        return "tc needs root"
    missing = [name for name in ("unshare", "ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"there is no {' and no '.join(missing)} on this machine"
    script = "ip link set lo up && tc qdisc add dev lo root tbf rate 1mbit burst 5kb latency 50ms"
    done = subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"no tbf in a network namespace here: {done.stderr.strip()[:200]}"


def _inside_namespace(mbit: float, seconds: float) -> dict[str, float]:
    burst = max(5_000, int(mbit * BYTES_PER_MBIT * 0.003))  # 3 ms, and a packet at least
    for command in (
        "ip link set lo mtu 1500 up",
        f"tc qdisc add dev lo root tbf rate {round(mbit * 1e6)}bit burst {burst} latency 50ms",
    ):
        subprocess.run(command.split(), check=True)
    sink = Sink()
    sender = threading.Thread(target=pour, args=(sink.port, seconds + 2 * WARM_UP_S), daemon=True)
    sender.start()
    time.sleep(WARM_UP_S)
    before, start_ns = _counted(), time.monotonic_ns()
    time.sleep(seconds)
    after, end_ns = _counted(), time.monotonic_ns()
    payload = sink.arrivals.rate(start_ns, (end_ns - start_ns) / 1e9)
    return {"wire": (after - before) * 1e9 / (end_ns - start_ns), "payload": payload}


def _counted() -> int:
    shown: list[dict[str, Any]] = json.loads(
        subprocess.run(["tc", "-s", "-j", "qdisc", "show", "dev", "lo"], check=True, capture_output=True).stdout
    )
    return int(next(entry["bytes"] for entry in shown if entry["kind"] == "tbf"))


if __name__ == "__main__":  # in a namespace, for `through_tbf`; not a benchmark
    print(json.dumps(_inside_namespace(float(sys.argv[1]), float(sys.argv[2]))))
