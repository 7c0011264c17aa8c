"""Client: blocking calls, for any number of threads at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stretto.client.address import DEFAULT_URL, Request, endpoint_of, model_path
from stretto.client.answer import Answer, Response, answer_of, content_of
from stretto.client.asking import NS_PER_MS, Wish, infer_request
from stretto.client.errors import BadRequest, ConnectionFailed, Expired, Unavailable
from stretto.client.metadata import ApplicationMetadata, Inputs, application_metadata
from stretto.client.response import DEFAULT_MAX_ANSWER_BYTES
from stretto.client.sockets import SocketPool


class Client:
    """`with Client(url) as client: answer = client.infer("fashion", image, deadline_ms=50)`

    `timeout_ms` bounds calls without a deadline; a call with one is given up `grace_ms` after it.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        ca_file: str | Path | None = None,
        timeout_ms: float = 60_000.0,
        grace_ms: float = 1_000.0,
        max_idle_connections: int = 32,
        max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES,
    ):
        self._pool = SocketPool(endpoint_of(url, token, ca_file), max_idle_connections, max_answer_bytes)
        self._timeout_ms = timeout_ms
        self._grace_ms = grace_ms
        self._lock = threading.Lock()
        self._known: dict[str, ApplicationMetadata] = {}

    def infer(
        self,
        application: str,
        inputs: Inputs,
        *,
        deadline_ms: float | None = None,
        version: str = "",
        min_accuracy: float | None = None,
        priority: int | None = None,
        client_id: int | str | None = None,
        classification: int = 0,
        id: str = "",
        outputs: Sequence[str] | None = None,
    ) -> Answer:
        """Asks an application. A single query may lack the batch axis; its outputs still have it, of size 1."""
        wish = Wish(deadline_ms, version, min_accuracy, priority, client_id, classification, id, outputs)
        metadata = self._application(application)
        request = infer_request(self._pool.endpoint, application, metadata, inputs, wish)
        try:
            return answer_of(self._pool.send(request, wish.timeout_ns(self._timeout_ms, self._grace_ms)))
        except BadRequest:
            self._forget(application)  # it may have been loaded anew, with other inputs
            raise

    def metadata(self, application: str = "", version: str = "") -> dict[str, Any]:
        """What an application takes and gives, and its variants; without a name: what the server says of itself."""
        content: dict[str, Any] = self._get(model_path(application, version) if application else "/v2")
        return content

    def configuration(self, application: str) -> dict[str, Any]:
        """Limits, SLO, batching and tensors of an application, in the layout that Triton clients read."""
        content: dict[str, Any] = self._get(model_path(application, leaf="config"))
        return content

    def statistics(self, application: str = "", version: str = "") -> dict[str, Any]:
        """Counts and times per variant, of one application or of all."""
        path = model_path(application, version, "stats") if application else "/v2/models/stats"
        content: dict[str, Any] = self._get(path)
        return content

    def partition(self, new: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """At the management address of a sub-cluster's scheduler: the partition in force and how far a change is.
        Another one, as a file of `stretto partition` has it, is taken up first.
        """
        path, endpoint = "/v2/partition", self._pool.endpoint
        body = json.dumps(new or {}).encode()
        content: dict[str, Any] = (
            self._get(path) if new is None else content_of(self._send(endpoint.post(path, (body,), len(body))))
        )
        return content

    def live(self) -> bool:
        """Whether a server answers there."""
        return self._is_well("/v2/health/live")

    def ready(self, application: str = "", version: str = "") -> bool:
        """Whether the application, or every one of the server's, can be served. NotFound where there is none such."""
        return self._is_well(model_path(application, version, "ready") if application else "/v2/health/ready")

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _application(self, name: str) -> ApplicationMetadata:
        with self._lock:
            known = self._known.get(name)
        if known is None:
            known = application_metadata(self._get(model_path(name)))
            with self._lock:
                self._known[name] = known
        return known

    def _forget(self, application: str) -> None:
        with self._lock:
            self._known.pop(application, None)

    def _get(self, path: str) -> Any:
        return content_of(self._send(self._pool.endpoint.get(path)))

    def _is_well(self, path: str) -> bool:
        try:
            response = self._send(self._pool.endpoint.get(path))
            if response.status != 200:
                content_of(response)
        except (ConnectionFailed, Expired, Unavailable):
            return False
        return response.status == 200

    def _send(self, request: Request) -> Response:
        return self._pool.send(request, round(self._timeout_ms * NS_PER_MS))
