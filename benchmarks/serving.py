"""What the benchmarks of serving share: requests as bytes, closed loops in their own process, pinning to cores."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from stretto.cli.queries import sample_of

ROOT = Path(__file__).parent.parent
READ_BYTES = 1 << 16


def on_core(core: int) -> list[str]:
    """The start of a command that runs on one core, where the machine lets us."""
    cores = physical_cores()
    return ["taskset", "-c", str(cores[core % len(cores)][0])] if shutil.which("taskset") else []


def physical_cores(system: Path = Path("/sys/devices/system/cpu")) -> list[list[int]]:
    """The processors that we may use, by the core that they are threads of: two that share one take a third of each
    other's speed.
    """
    usable, cores = os.sched_getaffinity(0), dict[str, list[int]]()
    for cpu in sorted(usable):
        try:
            siblings = (system / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
        except OSError:
            siblings = str(cpu)
        cores.setdefault(siblings, []).append(cpu)
    return list(cores.values())


def pin(pid: int, cpus: Sequence[int]) -> None:
    """A process that runs, with all its threads."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cpus)


def on_other_cores(core: int) -> list[str]:
    """The start of a command that leaves this core, all its threads, to others, where there are more and we may."""
    cores = physical_cores()
    del cores[core % len(cores)]
    others = [cpu for each in cores for cpu in each]
    return ["taskset", "-c", ",".join(map(str, others))] if others and shutil.which("taskset") else []


def family(pid: int) -> list[int]:
    """A process and all that it started, and they."""
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += [each for child in (task / "children").read_text().split() for each in family(int(child))]
    return found


def cpu_s(pid: int) -> float:
    """That a process has used; nothing where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def infer_body(
    application: str, rows: int = 1, *, binary: bool = True, deadline_ms: float | None = None
) -> tuple[bytes, list[str]]:
    """The body of an inference of the zoo's sample, and the headers that go with it."""
    inputs, _ = sample_of(application)
    array = inputs[:rows]
    tensor: dict[str, Any] = {"name": "input", "datatype": "FP32", "shape": list(array.shape)}
    parameters: dict[str, Any] = {} if deadline_ms is None else {"deadline_ms": deadline_ms}
    if not binary:
        tensor["data"] = [round(value, 4) for value in array.ravel().tolist()]
        return orjson.dumps({"inputs": [tensor], "parameters": parameters}), ["Content-Type: application/json"]
    raw = array.astype("<f4").tobytes()
    tensor["parameters"] = {"binary_data_size": len(raw)}
    head = orjson.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True, **parameters}})
    return head + raw, [f"Inference-Header-Content-Length: {len(head)}", "Content-Type: application/octet-stream"]


def one_by_one(
    address: str, path: str, body: bytes, headers: Sequence[str], *, seconds: float, core: int
) -> dict[str, Any]:
    """One connection, one request at a time, from a core of its own: what one client waits. On a blocking socket, as a
    client that has nothing else to do would use; an event loop of its own would be measured too.
    """
    host, _, port = address.rpartition(":")
    lines = [f"POST {path} HTTP/1.1", f"Host: {address}", f"Content-Length: {len(body)}", *headers, "", ""]
    request = "\r\n".join(lines).encode() + body
    took_s: list[float] = []
    cpus, errors, cores = os.sched_getaffinity(0), 0, physical_cores()
    os.sched_setaffinity(0, cores[core % len(cores)])
    try:
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            counting = time.perf_counter() + min(1.0, seconds / 4)
            while (began := time.perf_counter()) < counting + seconds:
                connection.sendall(request)
                answer = connection.recv(READ_BYTES)
                end = answer.find(b"\r\n\r\n") + 4
                length = int(answer[:end].lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                while len(answer) < end + length:
                    answer += connection.recv(READ_BYTES)
                if began >= counting:
                    took_s.append(time.perf_counter() - began)
                    errors += not answer.startswith(b"HTTP/1.1 200")
    finally:
        os.sched_setaffinity(0, cpus)
    p50, p99 = np.percentile(np.array(took_s) * 1e3, (50, 99))
    return {"answers": len(took_s), "errors": errors, "p50_ms": float(p50), "p99_ms": float(p99)}


def closed_loop(
    address: str,
    path: str,
    body: bytes,
    headers: Sequence[str],
    *,
    connections: int,
    seconds: float,
    core: int | None = None,
    cpus: Sequence[int] = (),
    counting: Callable[[], None] = lambda: None,
    counted: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Drives `connections` in a closed loop, on a core or some processors where they are named; `counting` and
    `counted` are called when counting begins and ends.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "body"
        file.write_bytes(body)
        command = [
            *([] if core is None else on_core(core)),
            *(sys.executable, "-m", "benchmarks.closed_loop", address, str(connections), str(seconds)),
            *(str(file), path, *headers),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            if cpus:
                pin(process.pid, cpus)
            result: dict[str, Any] = {}
            for line in process.stdout:
                if line == "counting\n":
                    counting()
                elif line == "counted\n":
                    counted()
                else:
                    result = json.loads(line)
    if not result:
        raise SystemExit("the closed loop ended without a result")
    return result


@contextlib.contextmanager
def every(period_s: float, call: Callable[[], None]) -> Iterator[None]:
    """Calls again and again in a thread, while the body runs."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(period_s):
            call()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
