"""A closed loop of HTTP requests, as cheap as can be: each connection sends its request anew when it is answered.

Run as a process of its own: `python -m benchmarks.closed_loop ADDRESS CONNECTIONS SECONDS BODY_FILE PATH [HEADER …]`.
Prints a JSON line: answers, errors, seconds, latency percentiles, and the processor time that it used itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import httptools
import numpy as np
import uvloop


class Caller(asyncio.Protocol):
    """One connection."""

    def __init__(self, request: bytes, tally: dict[str, Any]):
        self.request = request
        self.tally = tally
        self.parser = httptools.HttpResponseParser(self)
        self.began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.began = time.perf_counter()
        self.transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        tally = self.tally
        if not tally["counting"]:
            if tally["over"]:
                self.transport.close()
                return
        elif self.parser.get_status_code() == 200:
            tally["latency"].append(time.perf_counter() - self.began)
        else:
            tally["errors"] += 1
        keep = self.parser.should_keep_alive()
        self.parser = httptools.HttpResponseParser(self)
        if keep:
            self.send()
        else:
            self.transport.close()
            self.tally["reconnect"]()


async def drive(address: str, connections: int, seconds: float, request: bytes) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    tally: dict[str, Any] = {"latency": [], "errors": 0, "counting": False, "over": False}
    pending: set[asyncio.Task[Any]] = set()

    async def connect() -> None:
        await loop.create_connection(lambda: Caller(request, tally), host, int(port))

    def reconnect() -> None:
        if not tally["over"]:
            task = loop.create_task(connect())
            pending.add(task)
            task.add_done_callback(pending.discard)

    tally["reconnect"] = reconnect
    for _ in range(connections):
        await connect()
    await asyncio.sleep(min(1.0, seconds / 4))
    print("counting", flush=True)
    tally["counting"] = True
    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    tally["counting"] = False
    took, used = time.perf_counter() - began, time.process_time() - cpu
    print("counted", flush=True)
    tally["over"] = True
    latency_ms = np.array(tally["latency"]) * 1e3
    p50, p99 = np.percentile(latency_ms, (50, 99)) if len(latency_ms) else (np.nan, np.nan)
    return {
        "answers": len(latency_ms),
        "errors": tally["errors"],
        "seconds": took,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "cpu_s": used,
    }


def main() -> None:
    address, connections, seconds, body_file, path, *headers = sys.argv[1:]
    body = Path(body_file).read_bytes()
    lines = [f"POST {path} HTTP/1.1", f"Host: {address}", f"Content-Length: {len(body)}", *headers, "", ""]
    request = "\r\n".join(lines).encode() + body
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(drive(address, int(connections), float(seconds), request))), flush=True)


if __name__ == "__main__":  # no benchmark by itself
    main()
