"""A small real HTTP server that keeps the contract of docs/serving.md for one application, in a thread of its own.

Its model is the identity: the scores of a query are its own first numbers, so that a test knows the right class.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httptools
import numpy as np

STATUS = {
    **{"expired": 504, "infeasible": 412, "overloaded": 429, "cancelled": 499, "unavailable": 503, "failed": 500},
    **{"bad_request": 400, "not_found": 404, "unauthenticated": 401, "forbidden": 403},
}
VERSIONS = ("", "/versions/fast", "/versions/good")


@dataclass
class Rules:
    """How the server behaves; a test changes them between its calls."""

    application: str = "rows"
    shape: tuple[int, ...] = (4,)
    classes: int = 3
    labels: tuple[str, ...] = ("ant", "bee", "cat")
    slo_ms: float = 500.0
    ladder: str | None = None
    token: str | None = None
    refuse: str = ""  # with this reason
    is_binary: bool = True
    body: bytes | None = None  # in place of every answer
    holds: bool = False  # inference gets no answer
    closes: int = 0  # so many requests to come find the connection closed
    last: dict[str, Any] = field(default_factory=dict)  # JSON of the last inference
    paths: list[str] = field(default_factory=list)
    connections: int = 0
    exchanges: set[Exchange] = field(default_factory=set)
    held: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # one up for each held request
    left: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))  # one up when its client went


class Server:
    """`with Server() as server:` … `server.url`, `server.rules`."""

    def __init__(self, rules: Rules | None = None, tls: ssl.SSLContext | None = None):
        self.rules = rules or Rules()
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._port: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self._port.result(10)}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._port.result(10)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, t: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Closes every connection; may be called twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            assert not self._thread.is_alive()

    def _run(self) -> None:
        listening = self._loop.create_server(lambda: Exchange(self.rules), "127.0.0.1", 0, ssl=self._tls, backlog=1000)
        server = self._loop.run_until_complete(listening)
        self._port.set_result(server.sockets[0].getsockname()[1])
        self._loop.run_forever()
        server.close()
        for exchange in list(self.rules.exchanges):
            exchange.transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


class Exchange(asyncio.Protocol):
    """One connection of the server."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.parser = httptools.HttpRequestParser(self)
        self.is_held = False
        rules.connections += 1

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.rules.exchanges.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.rules.exchanges.discard(self)
        if self.is_held:
            self.rules.left.release()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.path, self.body, self.headers = b"", b"", {}

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        rules, path = self.rules, self.path.decode()
        rules.paths.append(path)
        if rules.closes:
            rules.closes -= 1
            self.transport.abort()
        elif rules.token is not None and self.headers.get("authorization") != f"Bearer {rules.token}":
            self.refuse("unauthenticated")
        elif path in ("/v2", "/v2/health/live"):
            self.answer(200, json.dumps({"name": "stretto", "version": "test", "extensions": []}).encode())
        elif path in ("/v2/health/ready", *(f"/v2/models/{rules.application}{part}/ready" for part in VERSIONS)):
            self.refuse(rules.refuse) if rules.refuse else self.answer(200, b"")
        elif path == f"/v2/models/{rules.application}":
            self.answer(200, json.dumps(self.metadata()).encode())
        elif path == f"/v2/models/{rules.application}/config":
            parameters = {"slo_ms": {"string_value": str(rules.slo_ms)}}
            if rules.ladder is not None:
                parameters["ladder"] = {"string_value": rules.ladder}
            self.answer(200, json.dumps({"name": rules.application, "parameters": parameters}).encode())
        elif path == f"/v2/models/{rules.application}/stats":
            self.answer(200, b'{"model_stats":[]}')
        elif path.startswith(f"/v2/models/{rules.application}/") and path.endswith("/infer"):
            self.infer()
        else:
            self.refuse("not_found")

    def metadata(self) -> dict[str, Any]:
        rules = self.rules
        given = {"name": "x", "datatype": "FP32", "shape": [-1, *rules.shape]}
        output = {"name": "probabilities", "datatype": "FP32", "shape": [-1, rules.classes]}
        return {"name": rules.application, "versions": ["fast", "good"], "inputs": [given], "outputs": [output]}

    def infer(self) -> None:
        rules = self.rules
        length = int(self.headers["inference-header-content-length"])
        rules.last = content = json.loads(self.body[:length])
        if rules.holds:
            self.is_held = True
            rules.held.release()
        elif rules.refuse:
            self.refuse(rules.refuse)
        elif rules.body is not None:
            self.answer(200, rules.body)
        else:
            (given,) = content["inputs"]
            if given["shape"][1:] != list(rules.shape) or given["datatype"] != "FP32":
                self.refuse("bad_request")
                return
            assert given["parameters"]["binary_data_size"] == len(self.body) - length
            queries = np.frombuffer(self.body, "<f4", offset=length).reshape(given["shape"])
            self.respond(content, queries.reshape(len(queries), -1)[:, : rules.classes])

    def respond(self, content: dict[str, Any], scores: np.ndarray[Any, Any]) -> None:
        wanted = content.get("outputs", [{"name": "probabilities"}])
        count = wanted[0].get("parameters", {}).get("classification", 0)
        output: dict[str, Any] = {"name": wanted[0]["name"], "datatype": "FP32", "shape": scores.shape}
        raw = np.ascontiguousarray(scores).tobytes()
        if count:
            best = np.argsort(-scores, axis=1)[:, :count]
            texts = [
                f"{row[i]:g}:{i}:{self.rules.labels[i]}" for row, top in zip(scores, best, strict=True) for i in top
            ]
            output |= {"datatype": "BYTES", "shape": best.shape, "data": texts}
            raw = b"".join(struct.pack("<I", len(text)) + text.encode() for text in texts)
        is_binary = self.rules.is_binary and content["parameters"]["binary_data_output"]
        if is_binary:
            output.pop("data", None)
            output["parameters"] = {"binary_data_size": len(raw)}
        elif not count:
            output["data"] = scores.ravel().tolist()
        version = self.path.decode().split("/")[5] if "/versions/" in self.path.decode() else "good"
        told = {"variant": version, "expected_accuracy": 0.9, "batch_size": len(scores), "outcome": "on_time"}
        times = {"queue_ms": 1.5, "run_ms": 2.5, "slack_ms": 40.0}
        answer = {"model_name": self.rules.application, "model_version": version, "id": content.get("id", "")}
        text = json.dumps(answer | {"parameters": told | times, "outputs": [output]}).encode()
        if is_binary:
            self.answer(200, text + raw, f"Inference-Header-Content-Length: {len(text)}\r\n")
        else:
            self.answer(200, text)

    def refuse(self, reason: str) -> None:
        more = "Retry-After: 2\r\n" if reason == "overloaded" else ""
        self.answer(STATUS[reason], json.dumps({"error": f"it is {reason}", "reason": reason}).encode(), more)

    def answer(self, status: int, body: bytes, more: str = "") -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{more}\r\n"
        self.transport.write(head.encode() + body)
