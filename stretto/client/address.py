"""Where a server is and how requests to it begin: the URL, the token and the TLS settings, checked once."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from stretto import __version__
from stretto.core.errors import StrettoError

DEFAULT_URL = "http://127.0.0.1:8080"
MAX_TOKEN = 8192


@dataclass(frozen=True)
class Request:
    """One HTTP request, ready to be written: its head, then the parts of its body."""

    head: bytes
    body: tuple[bytes | memoryview, ...] = ()

    @property
    def size(self) -> int:
        """Bytes on the wire."""
        return len(self.head) + sum(map(len, self.body))

    def joined(self) -> bytes:
        return b"".join((self.head, *self.body))


@dataclass(frozen=True)
class Endpoint:
    """`fields` are the headers that every request has; `prefix` is the path before /v2, where there is one."""

    host: str
    port: int
    prefix: str
    fields: bytes
    tls: ssl.SSLContext | None = None

    @property
    def shown(self) -> str:
        """For messages: scheme, host and port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.tls is None else 'https'}://{host}:{self.port}"

    def get(self, path: str) -> Request:
        return Request(f"GET {self.prefix}{path} HTTP/1.1\r\n".encode() + self.fields + b"\r\n")

    def post(self, path: str, parts: tuple[bytes | memoryview, ...], json_length: int, fields: bytes = b"") -> Request:
        """A body of JSON and, behind its first `json_length` bytes, raw tensors. `fields` are headers of its own."""
        length = sum(map(len, parts))  # a view of a tensor is one of bytes
        head = (
            f"POST {self.prefix}{path} HTTP/1.1\r\n"
            "Content-Type: application/octet-stream\r\n"
            f"Content-Length: {length}\r\n"
            f"Inference-Header-Content-Length: {json_length}\r\n"
        )
        return Request(head.encode() + self.fields + fields + b"\r\n", parts)


def endpoint_of(url: str, token: str | None = None, ca_file: str | Path | None = None) -> Endpoint:
    """StrettoError where the URL or the token cannot be used."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise StrettoError(f"{url[:80]!r} is no URL; write it as {DEFAULT_URL}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise StrettoError(f"{url[:80]!r} is no URL of a server; write it as {DEFAULT_URL} or https://host:port")
    if parts.username is not None or parts.query or parts.fragment:
        raise StrettoError("the URL of a server has no user, query or fragment; give a token by token=")
    if not (host.isascii() and parts.path.isascii()) or any(sign <= " " for sign in host + parts.path):
        raise StrettoError("the URL of a server is plain ASCII; write other letters in their encoded form")
    is_secure = parts.scheme == "https"
    if ca_file is not None and not is_secure:
        raise StrettoError("a CA file belongs to an https:// URL; change the URL or leave the CA file out")
    fields = f"Host: {parts.netloc}\r\nUser-Agent: stretto/{__version__}\r\n"
    if token is not None:
        if not token or len(token) > MAX_TOKEN or any(not "!" <= sign <= "~" for sign in token):
            raise StrettoError("a token is one word of printable ASCII signs")
        fields += f"Authorization: Bearer {token}\r\n"
    default_port = 443 if is_secure else 80
    return Endpoint(
        host,
        default_port if port is None else port,
        parts.path.rstrip("/"),
        fields.encode(),
        _context(ca_file) if is_secure else None,
    )


def _context(ca_file: str | Path | None) -> ssl.SSLContext:
    """Certificates are always checked: against the system's authorities, or against those in `ca_file`."""
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except OSError as error:  # SSLError is one
        reason = error.strerror or "it holds no certificate"
        raise StrettoError(f"the CA file {ca_file} cannot be used ({reason})") from None


def model_path(application: str, version: str = "", leaf: str = "") -> str:
    """/v2/models/APP[/versions/VARIANT][/leaf]"""
    path = f"/v2/models/{quote(application, safe='')}"
    if version:
        path += f"/versions/{quote(version, safe='')}"
    return f"{path}/{leaf}" if leaf else path
