"""AsyncClient: the same calls for asyncio. Cancelling a call withdraws it from the server too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stretto.client.address import DEFAULT_URL, Request, endpoint_of, model_path
from stretto.client.answer import Answer, Response, answer_of, content_of
from stretto.client.asking import NS_PER_MS, Wish, infer_request
from stretto.client.errors import BadRequest, ConnectionFailed, Expired, Unavailable
from stretto.client.metadata import ApplicationMetadata, Inputs, application_metadata
from stretto.client.response import DEFAULT_MAX_ANSWER_BYTES
from stretto.client.streams import StreamPool


class AsyncClient:
    """`async with AsyncClient(url) as client: answer = await client.infer("fashion", image, deadline_ms=50)`

    Belongs to one event loop. `timeout_ms` bounds calls without a deadline; a call with one is given up `grace_ms`
    after it.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        ca_file: str | Path | None = None,
        timeout_ms: float = 60_000.0,
        grace_ms: float = 1_000.0,
        max_connections: int = 256,
        max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES,
    ):
        self._pool = StreamPool(endpoint_of(url, token, ca_file), max_connections, max_answer_bytes)
        self._timeout_ms = timeout_ms
        self._grace_ms = grace_ms
        self._known: dict[str, ApplicationMetadata] = {}
        self._learning = asyncio.Lock()

    async def infer(
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
        metadata = await self._application(application)
        request = infer_request(self._pool.endpoint, application, metadata, inputs, wish)
        try:
            return answer_of(await self._pool.send(request, wish.timeout_ns(self._timeout_ms, self._grace_ms)))
        except BadRequest:
            self._known.pop(application, None)  # it may have been loaded anew, with other inputs
            raise

    async def metadata(self, application: str = "", version: str = "") -> dict[str, Any]:
        """What an application takes and gives, and its variants; without a name: what the server says of itself."""
        content: dict[str, Any] = await self._get(model_path(application, version) if application else "/v2")
        return content

    async def configuration(self, application: str) -> dict[str, Any]:
        """Limits, SLO, batching and tensors of an application, in the layout that Triton clients read."""
        content: dict[str, Any] = await self._get(model_path(application, leaf="config"))
        return content

    async def statistics(self, application: str = "", version: str = "") -> dict[str, Any]:
        """Counts and times per variant, of one application or of all."""
        path = model_path(application, version, "stats") if application else "/v2/models/stats"
        content: dict[str, Any] = await self._get(path)
        return content

    async def live(self) -> bool:
        """Whether a server answers there."""
        return await self._is_well("/v2/health/live")

    async def ready(self, application: str = "", version: str = "") -> bool:
        """Whether the application, or every one of the server's, can be served. NotFound where there is none such."""
        return await self._is_well(model_path(application, version, "ready") if application else "/v2/health/ready")

    async def close(self) -> None:
        """Closes every connection; calls that still wait end with ConnectionFailed."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _application(self, name: str) -> ApplicationMetadata:
        if name not in self._known:
            async with self._learning:  # calls that begin together ask once
                if name not in self._known:
                    self._known[name] = application_metadata(await self._get(model_path(name)))
        return self._known[name]

    async def _get(self, path: str) -> Any:
        return content_of(await self._send(self._pool.endpoint.get(path)))

    async def _is_well(self, path: str) -> bool:
        try:
            response = await self._send(self._pool.endpoint.get(path))
            if response.status != 200:
                content_of(response)
        except (ConnectionFailed, Expired, Unavailable):
            return False
        return response.status == 200

    async def _send(self, request: Request) -> Response:
        return await self._pool.send(request, round(self._timeout_ms * NS_PER_MS))
