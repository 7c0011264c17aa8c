"""Addresses into calls of the data plane. A framework would cost more than our dispatch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from stretto.api.access import Access
from stretto.api.errors import ApiError, Reason, as_api_error, not_found, too_large
from stretto.api.feedback import BODY_BYTES as FEEDBACK_BYTES
from stretto.api.http.compression import WORTH_PACKING, deflate, inflate, wanted
from stretto.api.http.decode import Decoder, parse_json
from stretto.api.http.encode import JSON_TYPE, encode_error, encode_json, encode_response
from stretto.api.http.extensions import ADDRESSES, extension, trace_setting
from stretto.api.http.repeated import Repeated
from stretto.api.messages import Array, InferRequest, InferResponse, Terms
from stretto.api.plane import Plane
from stretto.api.turns import PATIENCE_PART
from stretto.config.fields import MAX_FILE_BYTES
from stretto.core.profile import NS_PER_MS

if TYPE_CHECKING:
    from stretto.repository.application import ApplicationFiles

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[tuple[bytes, bool] | None]]  # a part of the body, and whether more follows
Header = tuple[bytes, bytes]  # of a request
Answer = tuple[int, bytes, bytes]  # status, body, and lines of headers
MODELS = b"/v2/models/"
MAX_ADDRESSES = 1024  # of known infer addresses, kept split
MAX_HEADS = 1024  # remembered
MAX_HEAD_BYTES = 2048  # of each
NEVER_NS = 2**62
TEXT_BYTES = 64  # the most that a value takes in JSON, with its share of spaces and brackets
METRICS_TYPE = b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"


@dataclass(slots=True)
class Asked:
    """What the address and the headers of an inference say."""

    name: str
    version: str
    header_length: bytes | None = None
    stated: int = 0  # length of its body
    encoding: bytes = b""
    compression: bytes = b""  # that its answer may have
    traceparent: bytes = b""
    is_acknowledged: bool = False  # it wants to know when its last byte has come
    limit: int = 0
    elements: int = 0
    output: str = ""
    account: bytes = b""  # whose token it came with
    caller: tuple[bytes, bytes, bytes] = (b"", b"", b"")  # authorization, host and origin
    files: ApplicationFiles | None = None  # of the application, when it was asked
    patience_ns: int = NEVER_NS  # that its body may wait for its turn to be read

    json_bytes: int = 0  # before raw tensors, as far as it can be told
    repeated: Repeated | None = None  # what the last request with these headers said, where others may repeat it


class App:
    """`metrics` gives the text of /metrics; it and the repository calls are there on the management listener only."""

    def __init__(
        self,
        plane: Plane,
        *,
        is_management: bool = False,
        access: Access | None = None,
        metrics: Callable[[], Awaitable[bytes]] | None = None,
    ):
        self._plane = plane
        self._limits = plane.limits
        self._is_management = is_management
        self._access = access or Access()
        self._metrics = metrics
        self._decoder = Decoder(plane.limits)
        self._infers: dict[bytes, tuple[str, str]] = {}  # by address
        self._heads: dict[bytes, Asked] = {}

    async def __call__(self, scope: Scope, receive: Receive) -> Answer | None:
        """None: the client is gone."""
        try:
            return await self._answer(scope, receive)
        except _Gone:
            return None
        except Exception as error:
            return encode_error(self._plane.count_refusal(as_api_error(error)))

    async def _answer(self, scope: Scope, receive: Receive) -> Answer:
        method = scope["method"]
        known = self.known_infer(scope["raw_path"])
        if known is not None and method == "POST":
            return await self._infer(scope, receive, *known)
        parts = [unquote(part) for part in scope["raw_path"].decode("ascii", "replace").split("/")[1:]]
        if parts and parts[-1] == "":
            parts.pop()
        if scope["raw_path"] == b"/":
            _allow(method, "GET")
            return _json(self._plane.control.welcome(self._is_management))
        if parts[:1] == ["metrics"] and len(parts) == 1:
            return await self._metrics_text(scope, method)
        if parts[:1] != ["v2"]:
            raise not_found("there is nothing at this address; the protocol is below /v2")
        rest = parts[1:]
        if rest[:1] == ["health"]:
            return self._health(rest, method)
        self._authenticate(scope)
        if rest[:1] == ["repository"]:
            return await self._repository(rest[1:], scope, receive)
        if rest == ["fleet"]:
            return await self._fleet(scope, receive)
        if rest == ["partition"]:
            return await self._partition(scope, receive)
        if rest == ["clients"]:
            return self._clients(method)
        if rest[:1] and rest[0] in ADDRESSES:
            return _json_or_nothing(
                extension(self._plane, rest, await self._posted(scope, receive), self._is_management)
            )
        if not rest:
            _allow(method, "GET")
            return _json(self._plane.control.server_metadata())
        if rest[0] != "models" or len(rest) < 2:
            raise not_found("there is nothing at this address")
        if rest[1:] == ["stats"]:
            _allow(method, "GET")
            await self._plane.control.refresh()
            return _json(self._plane.control.statistics())
        return await self._model(rest[1], rest[2:], scope, receive)

    async def _model(self, name: str, rest: list[str], scope: Scope, receive: Receive) -> Answer:
        plane, version, method = self._plane, "", scope["method"]
        if rest[:1] == ["versions"]:
            if len(rest) < 2 or not rest[1]:
                raise not_found("a version must be named")
            version, rest = rest[1], rest[2:]
        if rest == ["infer"]:
            _allow(method, "POST")
            return await self._infer(scope, receive, name, version)
        if rest == ["feedback"] and not version:
            _allow(method, "POST")
            body = await _body(receive, min(FEEDBACK_BYTES, self._limits.header_json_bytes))
            return _json(plane.take_feedback(name, parse_json(body)))
        if rest == ["trace", "setting"]:
            content = await self._posted(scope, receive)
            return _json(trace_setting(plane, name, content, self._is_management))
        _allow(method, "GET")
        if not rest:
            return _json(plane.control.model_metadata(name, version))
        if rest == ["ready"]:
            if plane.ready(name, version):
                return 200, b"", b""
            raise ApiError(Reason.UNAVAILABLE, f"application {name} cannot be served at present")
        if rest == ["config"]:
            return _json(plane.control.model_config(name, version))
        if rest == ["stats"]:
            await plane.control.refresh()
            return _json(plane.control.statistics(name, version))
        raise not_found("there is nothing at this address")

    async def _infer(self, scope: Scope, receive: Receive, name: str, version: str) -> Answer:
        asked = self.asked(scope["headers"], name, version)
        body = await _body(receive, asked.limit)
        if asked.is_acknowledged and "stretto.acknowledge" in scope:
            scope["stretto.acknowledge"]()
        request = self.decoded(asked, body, scope["stretto.begun_ns"], scope["stretto.head_bytes"])
        response = await self._plane.infer(request, scope["stretto.open"])
        return self.encoded(asked, response)

    # -- the parts of an inference, which protocol.py puts together without a task where it can ------------------------

    def known_infer(self, url: bytes) -> tuple[str, str] | None:
        """(application, version) where this is plainly the address of something that is served. From the first request
        on: where thousands a second begin together, many come before the first of them is answered.
        """
        return self._infers.get(url) or self._found_infer(url)

    def _found_infer(self, url: bytes) -> tuple[str, str] | None:
        """Remembered where it names what is served, in one spelling: a client must not fill up the table."""
        place, _, last = url.rpartition(b"/")
        if last != b"infer" or self._plane.is_starting or not place.startswith(MODELS):
            return None
        name, is_pinned, version = place[len(MODELS) :].decode("ascii", "replace").partition("/versions/")
        files = self._plane.service.files.get(name)
        if files is None or (is_pinned and all(variant.name != version for variant in files.variants)):
            return None
        if len(self._infers) < MAX_ADDRESSES:
            self._infers[url] = name, version
        return name, version

    def known_head(self, head: bytes) -> Asked | None:
        """What a head that came before asks; None where it must be read, and what it asks be looked at."""
        asked = self._heads.get(head)
        if asked is None:
            return None
        if self._plane.service.files.get(asked.name) is not asked.files:
            del self._heads[head]
            return None
        if not self._access.is_open:
            try:
                asked.account = self._access.admit(*asked.caller)
            except ApiError:
                return None
        return asked

    def remember_head(self, head: bytes, asked: Asked) -> None:
        """`head` came in one piece, and says how long its body is: the same bytes mean the same."""
        if asked.stated and 0 < len(head) <= MAX_HEAD_BYTES:
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            self._heads[head] = asked

    def asked(self, headers: list[Header], name: str, version: str) -> Asked:
        """What the headers say; ApiError where the token is wrong, the application is not served, or the body is to be
        larger than its largest input could make it.
        """
        asked = Asked(name, version)
        authorization = host = origin = b""
        for key, value in headers:
            if key == b"inference-header-content-length":
                asked.header_length = value
                asked.json_bytes = int(value) if value.isdigit() and len(value) <= 12 else 0
            elif key == b"content-length":
                asked.stated = int(value)
            elif key == b"content-encoding":
                asked.encoding = value
            elif key == b"accept-encoding":
                asked.compression = wanted(value)
            elif key == b"authorization":
                authorization = value
            elif key == b"traceparent":
                asked.traceparent = value
            elif key == b"stretto-ack":
                asked.is_acknowledged = value == b"1"
            elif key == b"host":
                host = value
            elif key == b"origin":
                origin = value
        if not self._access.is_open:
            asked.caller = authorization, host, origin
            asked.account = self._admit(*asked.caller)
        limits, files = self._limits, self._plane.service.files.get(name)
        if files is None:
            raise self._plane.not_served(name)
        asked.files = files
        asked.output = files.output.name
        asked.patience_ns = round(files.slo_ms * NS_PER_MS) // PATIENCE_PART
        asked.elements = files.limits.max_batch * files.limits.max_elements
        useful = limits.header_json_bytes + TEXT_BYTES * asked.elements
        asked.limit = min(limits.body_bytes, files.limits.max_body_bytes, useful, self._plane.budget.share)
        if asked.stated > asked.limit:
            raise too_large(f"a request may have {asked.limit} bytes, not {asked.stated}")
        return asked

    def refused(self, headers: list[Header]) -> Asked:
        """In the place of what cannot be asked; only how much of it comes is of interest."""
        return Asked("", "", stated=int(next((value for key, value in headers if key == b"content-length"), b"0")))

    def decoded(self, asked: Asked, body: bytes | memoryview, begun_ns: int, head_bytes: int) -> InferRequest:
        """`begun_ns`: when its first byte came; `head_bytes`: of its headers, which take time to come, too."""
        sent_bytes = head_bytes + len(body)
        if asked.encoding:
            body = inflate(body, asked.encoding, min(asked.limit, self._limits.inflated_bytes))
        request = self._decoder.request(
            body, asked.header_length, asked.name, asked.version, asked.output, asked.elements
        )
        if asked.traceparent:
            request.traceparent = asked.traceparent.decode("latin-1")
        request.sent_bytes, request.begun_ns, request.account = sent_bytes, begun_ns, asked.account
        return request

    def by_terms(self, asked: Asked, body: bytes | memoryview) -> tuple[Terms, Array] | None:
        """Of a request that says what was said before, as far as it may be taken by that alone. Mostly it was said with
        the same headers.
        """
        plane, repeated = self._plane, asked.repeated
        if plane.rates is not None or plane.tracing is not None:
            return None  # somebody counts it for its client, or follows its way
        array = None if repeated is None else repeated.tensor(body)
        if array is None:
            if asked.encoding or (asked.header_length is not None and not asked.json_bytes):
                return None
            repeated = self._decoder.repeated(body, asked.json_bytes, asked.name, asked.version, asked.elements)
            if repeated is None or repeated.terms.files is not asked.files:
                return None
            asked.repeated, array = repeated, repeated.tensor(body)
        return None if repeated is None or array is None else (repeated.terms, array)

    def encoded(self, asked: Asked, response: InferResponse) -> Answer:
        return self.packed(asked, *encode_response(response))

    def packed(self, asked: Asked, content: bytes, headers: bytes) -> Answer:
        if asked.compression and len(content) >= WORTH_PACKING:
            content = deflate(content, asked.compression)
            headers += b"content-encoding: %b\r\n" % asked.compression
        return 200, content, headers

    def _health(self, rest: list[str], method: str) -> Answer:
        _allow(method, "GET")
        if rest == ["health", "ready"]:
            self._plane.check_ready()
        elif rest != ["health", "live"]:
            raise not_found("there is nothing at this address")
        elif not self._plane.live():
            raise ApiError(Reason.UNAVAILABLE, "the server is going down")
        return 200, b"", b""

    async def _repository(self, rest: list[str], scope: Scope, receive: Receive) -> Answer:
        if not self._is_management:
            raise ApiError(Reason.FORBIDDEN, "the repository is managed at the management listener's own address")
        _allow(scope["method"], "POST")
        content = await self._posted(scope, receive) or {}
        if rest == ["index"]:
            return _json(self._plane.control.index(content.get("ready") is True))
        if len(rest) == 3 and rest[0] == "models" and rest[2] in ("load", "unload"):
            await (self._plane.control.load if rest[2] == "load" else self._plane.control.unload)(rest[1])
            return 200, b"", b""
        raise not_found("there is nothing at this address")

    async def _posted(self, scope: Scope, receive: Receive) -> dict[str, Any] | None:
        """The JSON of a POST, which may be empty; None for a GET."""
        if scope["method"] != "POST":
            _allow(scope["method"], "GET")
            return None
        body = await _body(receive, self._limits.header_json_bytes)
        return parse_json(body) if body.strip() else {}

    async def _fleet(self, scope: Scope, receive: Receive) -> Answer:
        if not self._is_management:
            raise ApiError(Reason.FORBIDDEN, "the fleet is managed at the management listener's own address")
        if scope["method"] == "POST":
            content = parse_json(await _body(receive, self._limits.header_json_bytes))
            await self._plane.control.add_workers(content.get("worker"))
        else:
            _allow(scope["method"], "GET")
        return _json(self._plane.control.fleet())

    async def _partition(self, scope: Scope, receive: Receive) -> Answer:
        if not self._is_management:
            raise ApiError(Reason.FORBIDDEN, "the partition is managed at the management listener's own address")
        if scope["method"] == "POST":
            await self._plane.control.take_partition(await _body(receive, MAX_FILE_BYTES))
        else:
            _allow(scope["method"], "GET")
        return _json(self._plane.control.partition())

    def _clients(self, method: str) -> Answer:
        if not self._is_management:
            raise ApiError(Reason.FORBIDDEN, "clients are listed at the management listener's own address")
        _allow(method, "GET")
        return _json(self._plane.control.clients())

    async def _metrics_text(self, scope: Scope, method: str) -> Answer:
        if self._metrics is None:
            raise ApiError(Reason.FORBIDDEN, "metrics are at the management listener's own address")
        self._authenticate(scope)
        _allow(method, "GET")
        return 200, await self._metrics(), METRICS_TYPE

    def _authenticate(self, scope: Scope) -> None:
        if not self._access.is_open:
            headers = dict(scope["headers"])
            self._admit(*(headers.get(name, b"") for name in (b"authorization", b"host", b"origin")))

    def _admit(self, authorization: bytes, host: bytes, origin: bytes) -> bytes:
        return self._access.admit(authorization, host, origin)


class _Gone(Exception):
    """The client went away before its request was complete."""


async def _body(receive: Receive, limit: int) -> bytes:
    """The whole body, and no more than `limit` of it."""
    parts: list[bytes] = []
    size, has_more = 0, True
    while has_more:
        received = await receive()
        if received is None:
            raise _Gone
        part, has_more = received
        parts.append(part)
        size += len(part)
        if size > limit:
            raise too_large(f"a request may have {limit} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _allow(method: str, allowed: str) -> None:
    if method != allowed and not (method == "HEAD" and allowed == "GET"):
        raise ApiError(Reason.NOT_ALLOWED, f"this address takes {allowed}")


def _json_or_nothing(content: Any) -> Answer:
    return (200, b"", b"") if content is None else _json(content)


def _json(content: Any) -> Answer:
    return 200, encode_json(content), JSON_TYPE
