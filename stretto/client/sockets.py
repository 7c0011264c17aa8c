"""Blocking connections to one server, kept open between calls; any number of threads may use them at once."""

from __future__ import annotations

import socket
import threading
import time

from stretto.client.address import Endpoint, Request
from stretto.client.answer import Response
from stretto.client.errors import ConnectionFailed, Expired, Stale, cause
from stretto.client.response import ResponseReader

RECEIVE_BYTES = 262_144
ONE_WRITE_BYTES = 262_144  # a request up to this size is joined and written at once
KEPT_IDLE_S = 60.0  # less than the server's own keep_alive_s, so that it seldom closes first


class Socket:
    """One connection. Any exception leaves it unusable: close it then."""

    def __init__(self, endpoint: Endpoint, until_s: float, max_answer_bytes: int):
        self._reader = ResponseReader(max_answer_bytes)
        self.is_used = False
        self.idle_since_s = 0.0
        try:
            self._socket = socket.create_connection((endpoint.host, endpoint.port), _left(until_s))
        except (OSError, UnicodeError) as error:
            raise ConnectionFailed(f"{endpoint.shown} cannot be reached ({cause(error)})") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if endpoint.tls is not None:
            try:
                self._socket = endpoint.tls.wrap_socket(self._socket, server_hostname=endpoint.host)
            except (OSError, ValueError) as error:
                self._socket.close()
                raise ConnectionFailed(f"no TLS with {endpoint.shown} ({cause(error)})") from None

    def exchange(self, request: Request, until_s: float) -> Response:
        """Stale where the server had closed this connection since it was last used."""
        try:
            self._send(request, until_s)
            return self._receive(until_s)
        except TimeoutError:
            raise Expired("no answer came within the deadline and the grace; this client stopped waiting") from None
        except OSError as error:
            raise self._broken(error) from None

    def _send(self, request: Request, until_s: float) -> None:
        self._socket.settimeout(_left(until_s))
        try:
            size = sum(map(len, request.body))
            for part in (request.joined(),) if size <= ONE_WRITE_BYTES else (request.head, *request.body):
                self._socket.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the server may have refused a large body before it was through: its answer, if any, comes next

    def _receive(self, until_s: float) -> Response:
        while True:
            self._socket.settimeout(_left(until_s))
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise self._broken(None)
            if self._reader.feed(data):
                self.is_used = True
                return self._reader.take()

    def _broken(self, error: Exception | None) -> Exception:
        if self.is_used and not self._reader.has_begun:
            return Stale()
        return ConnectionFailed(f"the connection broke before the answer was complete ({cause(error)})")

    def close(self) -> None:
        self._socket.close()


class SocketPool:
    """The connection that was used last is taken first, so that the others may grow old and close."""

    def __init__(self, endpoint: Endpoint, max_idle: int, max_answer_bytes: int):
        self.endpoint = endpoint
        self._max_idle = max_idle
        self._max_answer_bytes = max_answer_bytes
        self._lock = threading.Lock()
        self._idle: list[Socket] = []
        self._is_closed = False

    def send(self, request: Request, timeout_ns: int) -> Response:
        """One request, one response; `timeout_ns` is for all of it, connecting included."""
        until_s = time.monotonic() + timeout_ns / 1e9
        idle_connection = self._take()
        if idle_connection is not None:
            try:
                return self._exchange(idle_connection, request, until_s)
            except Stale:
                pass
        return self._exchange(Socket(self.endpoint, until_s, self._max_answer_bytes), request, until_s)

    def _exchange(self, connection: Socket, request: Request, until_s: float) -> Response:
        try:
            response = connection.exchange(request, until_s)
        except BaseException:  # KeyboardInterrupt too: what would come later answers nobody's question
            connection.close()
            raise
        if response.keeps_alive:
            self._keep(connection)
        else:
            connection.close()
        return response

    def _take(self) -> Socket | None:
        now_s = time.monotonic()
        with self._lock:
            if self._is_closed:
                raise ConnectionFailed("this client is closed")
            connection = self._idle.pop() if self._idle else None
            old = []
            if connection is not None and now_s - connection.idle_since_s > KEPT_IDLE_S:
                old, self._idle, connection = [connection, *self._idle], [], None  # the others are older still
        for outdated in old:
            outdated.close()
        return connection

    def _keep(self, connection: Socket) -> None:
        connection.idle_since_s = time.monotonic()
        with self._lock:
            if not self._is_closed and len(self._idle) < self._max_idle:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _left(until_s: float) -> float:
    """Seconds until then; never 0, which a socket takes as "do not block"."""
    return max(until_s - time.monotonic(), 1e-6)
