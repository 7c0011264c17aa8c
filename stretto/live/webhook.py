"""An actuator that tells somebody else: the wanted number of workers, as JSON, to an address that the operator gave.

    POST URL    {"kind": "cpu-x86-64-…", "workers": 5}

It asks again after a growing pause, follows no redirect, and waits no longer than its time limit for anything.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from urllib.parse import urlsplit

from stretto.core.errors import StrettoError

TIMEOUT_S = 5.0
TRIES = 3
FIRST_PAUSE_S = 0.5
MAX_URL = 2000


class Webhook:
    """One call at a time for each kind; a number is absolute, so that a call that came twice does no harm."""

    def __init__(
        self, url: str, token: str = "", *, timeout_s: float = TIMEOUT_S, pause_s: float = FIRST_PAUSE_S
    ) -> None:
        """StrettoError where the address is not plain http or https. `token` is sent as a bearer token."""
        self._timeout_s, self._pause_s = timeout_s, pause_s
        is_plain = url.isascii() and url.isprintable() and " " not in url and len(url) <= MAX_URL
        try:
            parts = urlsplit(url if is_plain else "")
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise StrettoError(f"{url[:80]!r} is no address for a webhook; write it as https://HOST[:PORT]/PATH")
        if not token.isascii() or not token.isprintable():
            raise StrettoError("the token of the webhook has characters that cannot be sent")
        self._is_secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, port or (443 if self._is_secure else 80)
        host = f"[{self._host}]" if ":" in self._host else self._host
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [
            f"POST {target} HTTP/1.1",
            f"Host: {host}:{self._port}",
            *([f"Authorization: Bearer {token}"] if token else []),
            *("Content-Type: application/json", "User-Agent: stretto", "Connection: close"),
        ]
        self._head = "\r\n".join(lines)

    async def scale_to(self, kind: str, count: int) -> None:
        """StrettoError where nobody took it after several tries."""
        body = json.dumps({"kind": kind, "workers": count}).encode()
        problem = ""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(self._pause_s * 2 ** (attempt - 1))
            try:
                async with asyncio.timeout(self._timeout_s):
                    problem = await self._post(body)
            except TimeoutError:
                problem = f"did not answer within {self._timeout_s:g} s"
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                problem = f"cannot be reached ({type(error).__name__})"
            if not problem:
                return
        raise StrettoError(f"the webhook {problem}")

    async def _post(self, body: bytes) -> str:
        """What went wrong, if anything."""
        tls = ssl.create_default_context() if self._is_secure else None
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=tls)
        try:
            writer.write(f"{self._head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            status = await reader.readline()  # at most 64 KiB; nothing else of the answer matters
        finally:
            writer.close()
        words = status.decode("latin-1").split()
        if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
            return "gave no HTTP answer"
        if words[1].startswith("3"):
            return f"answered {words[1][:3]}; redirects are not followed"
        return "" if words[1].startswith("2") else f"answered {words[1][:3]}"
