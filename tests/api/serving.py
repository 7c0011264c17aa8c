"""The real server in a thread of its own, on free ports of the loopback, and a raw connection to it."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
import numpy as np
import uvloop

from stretto.api.bounds import rehearse_bounds
from stretto.api.grpc import open_inference_pb2 as protocol
from stretto.api.limits import Limits
from stretto.api.plane import Plane
from stretto.api.rates import RateLimits
from stretto.api.server import Listen, Listeners
from stretto.live.executor import Executor, Job, Listener
from stretto.live.options import ServiceOptions
from stretto.live.processes import ProcessExecutor
from stretto.live.rehearsal import rehearse
from stretto.live.service import Service
from stretto.live.threads import ThreadExecutor
from stretto.repository.read import read_repository, zoo_folder

PATIENCE_S = 30.0
STEP_S = 0.002
DEADLINE_MS = 20_000.0  # long enough for a machine that is busy with other things
INFER = "/v2/models/fashion/infer"
PINNED = "/v2/models/fashion/versions/linear/infer"
DEFAULT_LIMITS = Limits()
T = TypeVar("T")


class Gate:
    """Holds back every batch while it is closed; `is_failing` makes models fail."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.is_failing = False

    def __enter__(self) -> Self:
        self.is_open.clear()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.is_open.set()


class GatedExecutor(ThreadExecutor):
    """The real one, behind a gate."""

    gate: Gate

    def _run(self, job: Job, parts: Any) -> None:
        self.gate.is_open.wait(PATIENCE_S)
        key = job.key
        if self.gate.is_failing:
            job.key = "none/such@0"
        try:
            super()._run(job, parts)
        finally:
            job.key = key  # by which the engine knows whom the query should not go to again


class Running:
    """A server, and what a test may do with it from its own thread."""

    def __init__(
        self,
        repository: Path | str,
        *,
        limits: Limits = DEFAULT_LIMITS,
        token: str | None = None,
        tokens: Sequence[str] = (),
        rates: RateLimits | None = None,
        management_token: str | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        grpc: bool = False,
        shared_memory: bool = False,
        **service: Any,
    ):
        ports = 0 if grpc else None
        self._listen = Listen(
            http_port=0,
            grpc_port=ports,
            management_port=0,
            management_grpc_port=ports,
            tokens=tuple(tokens) if token is None else (token,),
            rates=rates or RateLimits(),
            management_tokens=() if management_token is None else (management_token,),
            tls_certificate=None if certificate is None else str(certificate),
            tls_key=None if key is None else str(key),
            limits=limits,
            shared_memory=shared_memory,
        )
        self._repository = str(repository)
        usual: dict[str, Any] = {"only": ("linear", "mlp", "cnn_s"), "planner": "priced"}
        self._options = usual | service
        self.gate = Gate()
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="server", daemon=True)
        self.service: Service
        self.listeners: Listeners

    def __enter__(self) -> Self:
        rehearse()
        rehearse_bounds()
        self._thread.start()
        try:
            self.run(self._start())
            self.wait_until(self._is_settled, "the server is ready")
        except BaseException:
            self.loop.call_soon_threadsafe(self.loop.stop)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gate.is_open.set()
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server hangs"
        self.loop.close()

    async def _start(self) -> None:
        self.service = self._service()
        self.listeners = Listeners(Plane(self.service, self._listen.limits, self._listen.shared_memory), self._listen)
        await self.service.start()
        await self.listeners.start()

    def _service(self) -> Service:
        options = ServiceOptions(self._repository, workers=1, reload_s=0, hang_s=2 * PATIENCE_S, **self._options)

        def factory(worker: int, loop: asyncio.AbstractEventLoop, listener: Listener) -> Executor:
            if options.executor == "process":
                return ProcessExecutor(worker, loop, listener)
            executor = GatedExecutor(worker, loop, listener)
            executor.gate = self.gate
            return executor

        return Service(options, read_repository(self._repository), factory)

    async def _stop(self) -> None:
        await self.listeners.stop()
        await self.service.stop()

    # -- on the server's own thread ----------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def call(self, function: Callable[[], T]) -> T:
        async def called() -> T:
            return function()

        return self.run(called())

    def _is_settled(self) -> bool:
        """It is ready, no model is on its trial, and all that passed is served."""
        service = self.service
        is_served = {spec.key for spec in service.engine.generation.served.specs}
        return service.is_ready() and not service.admission.is_trying and is_served == service.admission.wanted()

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE_S
        while not self.call(condition):
            assert time.monotonic() < end, f"{what}: not after {PATIENCE_S:.0f} s"
            time.sleep(STEP_S)

    # -- what it is doing --------------------------------------------------------------------------------------------

    @property
    def plane(self) -> Any:
        return self.listeners.plane

    @property
    def waiting(self) -> int:
        return self.call(lambda: self.service.engine.waiting)

    def wait_for_queries(self, count: int) -> None:
        self.wait_until(lambda: self.service.engine.waiting == count, f"{count} queries wait or run")

    def counts(self, application: str = "fashion") -> tuple[int, dict[str, int]]:
        """Submitted, and how they ended."""
        from stretto.core.outcome import Outcome

        def read() -> tuple[int, dict[str, int]]:
            engine = self.service.engine
            submitted, outcomes = engine.books.totals(engine.generations())[application]
            return int(submitted), {outcome.name.lower(): int(outcomes[outcome]) for outcome in Outcome}

        return self.call(read)

    def missing(self) -> int:
        """Queries that are in no count: submitted, and neither ended nor waiting nor running. Read in one moment."""

        def read() -> int:
            engine = self.service.engine
            telemetry = engine.generation.dispatcher.telemetry(engine.clock())
            totals = engine.books.totals(engine.generations()).values()
            ended = sum(int(submitted) - int(outcomes.sum()) for submitted, outcomes in totals)
            return ended - int(telemetry.lane_lengths.sum()) - telemetry.running

        return self.call(read)

    def address(self, name: str = "http") -> tuple[str, int]:
        return self.listeners.addresses[name]

    def url(self, name: str = "http") -> str:
        host, port = self.address(name)
        return f"http://{host}:{port}"

    def wire(self, name: str = "http", tls: ssl.SSLContext | None = None) -> Wire:
        return Wire(self.address(name), tls)

    def ask(self, method: str, path: str, body: bytes = b"", name: str = "http", **headers: str) -> Reply:
        """One call on a connection of its own; underscores in names of headers are hyphens."""
        with self.wire(name) as wire:
            return wire.ask(method, path, body, **headers)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        """Of an error, whose body must be as docs/serving.md says."""
        content = self.content
        assert self.headers["content-type"] == "application/json"
        assert set(content) == {"error", "reason"}, content
        assert content["error"] and isinstance(content["error"], str), content
        return str(content["reason"])


class Wire:
    """Bytes out, answers in; every wait has a bound."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None = None):
        self.socket: socket.socket = socket.create_connection(address, PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="localhost")
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        self.send(message(method, path, body, **headers))
        return self.reply(has_body=method != "HEAD")

    def reply(self, has_body: bool = True) -> Reply:
        """The next answer; EOFError where the connection ended instead."""
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0")) if has_body else 0
        while len(self._read) < length:
            self._more()
        body, self._read = self._read[:length], self._read[length:]
        return Reply(int(status.split(" ")[1]), headers, body)

    def replies(self) -> list[Reply]:
        """All answers until the server ends the connection."""
        found: list[Reply] = []
        while True:
            try:
                found.append(self.reply())
            except EOFError:
                assert not self._read, "the connection ended within an answer"
                return found

    def is_closed(self) -> bool:
        """Waits for the end of the connection; false where something came instead."""
        try:
            return not self._read and self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _more(self) -> None:
        try:
            data = self.socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            raise EOFError
        self._read += data


def message(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def images(rows: int = 1, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, 1, 28, 28)).astype(np.float32)


def json_body(
    array: np.ndarray, outputs: Sequence[Any] | None = None, id: str | None = None, **parameters: Any
) -> bytes:
    """An inference with all of it in JSON."""
    tensor = {"name": "input", "datatype": "FP32", "shape": list(array.shape), "data": array.ravel().tolist()}
    content: dict[str, Any] = {"inputs": [tensor], "parameters": {"deadline_ms": DEADLINE_MS, **parameters}}
    if outputs is not None:
        content["outputs"] = outputs
    if id is not None:
        content["id"] = id
    return json.dumps(content).encode()


def binary_body(array: np.ndarray, outputs: Sequence[Any] | None = None, **parameters: Any) -> tuple[bytes, str]:
    """An inference with a raw tensor: the body, and the length of its JSON part."""
    raw = array.tobytes()
    size = {"binary_data_size": len(raw)}
    tensor = {"name": "input", "datatype": "FP32", "shape": list(array.shape), "parameters": size}
    content: dict[str, Any] = {"inputs": [tensor], "parameters": {"deadline_ms": DEADLINE_MS, **parameters}}
    if outputs is not None:
        content["outputs"] = outputs
    head = json.dumps(content).encode()
    return head + raw, str(len(head))


def values_of(reply: Reply) -> np.ndarray:
    """The one output of an answer, from JSON or from raw bytes."""
    assert reply.status == 200, reply.body
    head = int(reply.headers.get("inference-header-content-length", len(reply.body)))
    output = json.loads(reply.body[:head])["outputs"][0]
    if "data" in output:
        return np.array(output["data"], np.float32).reshape(output["shape"])
    assert output["parameters"]["binary_data_size"] == len(reply.body) - head
    return np.frombuffer(reply.body[head:], np.float32).reshape(output["shape"])


class GoodQueries:
    """Good queries, one after the other on a connection of their own, while something else goes on."""

    def __init__(self, running: Running):
        self._running = running
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, name="good queries", daemon=True)
        self.answered = 0
        self._wrong: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        if kind is None:
            assert not self._thread.is_alive(), "a good query was not answered"
            assert not self._wrong, self._wrong[0]
            assert self.answered > 0

    def _ask(self) -> None:
        body, length = binary_body(images(2), binary_data_output=True)
        headers = {"Inference_Header_Content_Length": length}
        try:
            with self._running.wire() as wire:
                expected = values_of(wire.ask("POST", PINNED, body, **headers))
                while not self._stop.wait(STEP_S):
                    found = values_of(wire.ask("POST", PINNED, body, **headers))
                    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
                    self.answered += 1
        except BaseException as error:
            self._wrong.append(f"{type(error).__name__}: {error}")


def grpc_call(server: Running, name: str, request: Any, listener: str) -> Any:
    """One call of the protocol, by its name."""
    host, port = server.address(listener)
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        method = channel.unary_unary(
            f"/inference.GRPCInferenceService/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=getattr(protocol, f"{name}Response").FromString,
        )
        return method(request, timeout=PATIENCE_S)


def repository_of(folder: Path, *applications: str) -> Path:
    """A copy of a part of the zoo."""
    for name in applications:
        shutil.copytree(zoo_folder() / name, folder / name)
    return folder


class Complaints(logging.Handler):
    """What the server logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))
