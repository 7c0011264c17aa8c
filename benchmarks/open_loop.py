"""An open loop of HTTP requests, as cheap as can be: they are due at random moments, whatever became of those before.

Run as a process of its own: `python -m benchmarks.open_loop ADDRESS RATE SECONDS SEED BODY_FILE PATH [HEADER …]`. A
request takes a connection that is free, or opens another; latency counts from when it was due. Prints a JSON line:
requests, answers, errors (any other status, broken, or none at the end), latency percentiles, how late requests left.
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

WAIT_S = 2.0  # for the last answers
WARM_S = 1.0  # at the beginning, which does not count


class Caller(asyncio.Protocol):
    """One connection, with at most one request on it."""

    def __init__(self, loop: Loop):
        self._loop = loop
        self._transport: Any = None
        self._parser = httptools.HttpResponseParser(self)
        self._due_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, due_s: float) -> None:
        self._due_s = due_s
        self._transport.write(self._loop.request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        status, is_kept = self._parser.get_status_code(), self._parser.should_keep_alive()
        self._parser = httptools.HttpResponseParser(self)
        due_s, self._due_s = self._due_s, None
        if due_s is not None:
            self._loop.ended(due_s, status == 200)
        if is_kept:
            self._loop.free.append(self)
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self in self._loop.free:
            self._loop.free.remove(self)
        if self._due_s is not None:
            self._loop.ended(self._due_s, False)


class Loop:
    def __init__(self, address: str, request: bytes) -> None:
        self.request = request
        self.free: list[Caller] = []
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._begin_s = 0.0
        self._latencies: list[float] = []
        self._lags: list[float] = []
        self._errors = self._sent = 0

    def ended(self, due_s: float, is_answer: bool) -> None:
        if due_s < self._begin_s:
            return
        if is_answer:
            self._latencies.append(time.perf_counter() - due_s)
        else:
            self._errors += 1

    async def _send(self, due_s: float) -> None:
        if due_s >= self._begin_s:
            self._sent += 1
            self._lags.append(time.perf_counter() - due_s)
        if not self.free:
            try:
                loop = asyncio.get_running_loop()
                _, caller = await loop.create_connection(lambda: Caller(self), self._host, self._port)
            except OSError:
                return self.ended(due_s, False)
            caller.send(due_s)
        else:
            self.free.pop().send(due_s)

    async def run(self, rate: float, seconds: float, seed: int) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        due = np.cumsum(rng.exponential(1 / rate, int(rate * (seconds + WARM_S) * 1.5) + 100))
        tasks: set[asyncio.Task[None]] = set()
        began_s = time.perf_counter()
        self._begin_s = began_s + WARM_S
        for moment in due[due < seconds + WARM_S].tolist():
            wait_s = began_s + moment - time.perf_counter()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            task = asyncio.get_running_loop().create_task(self._send(began_s + moment))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        end_s = time.perf_counter() + WAIT_S
        while len(self._latencies) + self._errors < self._sent and time.perf_counter() < end_s:
            await asyncio.sleep(0.01)
        latencies = np.array(self._latencies or [3600.0]) * 1e3
        return {
            "requests": self._sent,
            "answers": len(self._latencies),
            "errors": self._sent - len(self._latencies),
            "seconds": seconds,
            **{f"p{share}_ms": float(np.percentile(latencies, share)) for share in (50, 99)},
            "lag_p99_ms": float(np.percentile(np.array(self._lags or [0.0]) * 1e3, 99)),
        }


def main() -> None:
    address, rate, seconds, seed, file, path, *headers = sys.argv[1:]
    body = Path(file).read_bytes()
    head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]) + "\r\n\r\n"
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        loop = Loop(address, head.encode() + body)
        print(json.dumps(runner.run(loop.run(float(rate), float(seconds), int(seed)))))


if __name__ == "__main__":  # no benchmark by itself
    main()
