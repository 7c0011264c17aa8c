"""So many workers on Ray as the scheduler wants: it says so by its webhook, to a door on loopback of the process that
placed it. Who does not know the door's path, which is drawn anew for each run, finds nothing there.
"""

from __future__ import annotations

import http.server
import json
import logging
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from stretto.core.errors import StrettoError
from stretto.live.ray.actors import Role
from stretto.live.ray.placing import Placed

log = logging.getLogger("stretto.live.ray")

MOST_BYTES = 1000
END_S = 10.0  # for the batch that a worker has


class Workers:
    """By kind all that there could be, in order; the first `counts[kind]` of them are placed."""

    def __init__(self, placed: Placed, roles: Mapping[str, Sequence[Role]], counts: Mapping[str, int]):
        self._placed, self._roles, self._counts = placed, roles, dict(counts)
        self._lock = threading.Lock()

    def scale_to(self, kind: str, count: int) -> None:
        """Those that are too many finish what they have, and end. StrettoError where there is no such kind."""
        if kind not in self._roles:
            raise StrettoError(f"there are no workers of kind {kind[:80]}")
        roles = self._roles[kind]
        with self._lock:
            before, after = self._counts[kind], max(0, min(count, len(roles)))
            for role in roles[before:after]:
                self._placed.place(role)
            if after != before:
                log.info("%d workers of kind %s are wanted, and there were %d", after, kind, before)
            self._counts[kind] = after
        if after < before:
            self._placed.end([role.name for role in roles[after:before]], END_S)


class Door:
    """Open while it is not closed."""

    def __init__(self, workers: Workers):
        path = f"/{secrets.token_urlsafe(32)}"

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 5.0

            def do_POST(self) -> None:
                self.send_response(204 if self.path == path and self._took() else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _took(self) -> bool:
                length = self.headers.get("Content-Length", "")
                if not length.isdigit() or not 0 < int(length) <= MOST_BYTES:
                    return False
                try:
                    asked = json.loads(self.rfile.read(int(length)))
                    workers.scale_to(str(asked["kind"]), int(asked["workers"]))
                except (ValueError, TypeError, KeyError, StrettoError) as error:
                    log.warning("the number of workers cannot be changed: %s", error)
                    return False
                return True

            def log_message(self, format: str, *arguments: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}{path}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
