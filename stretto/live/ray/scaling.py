"""So many workers on Ray as the scheduler wants: it says so by its webhook, to a door on loopback of the process that
placed it. Who does not know the door's path, which is drawn anew for each run, finds nothing there.
"""

from __future__ import annotations

import http.server
import json
import logging
import secrets
import threading
from collections.abc import Sequence
from typing import Any

from stretto.core.errors import StrettoError
from stretto.live.ray.actors import Role
from stretto.live.ray.placing import Placed

log = logging.getLogger("stretto.live.ray")

MOST_BYTES = 1000
END_S = 10.0  # for the batch that a worker has


class Workers:
    """All that there could be, in order; the first `count` of them are placed."""

    def __init__(self, placed: Placed, roles: Sequence[Role], count: int):
        self._placed, self._roles, self._count = placed, roles, count
        self._lock = threading.Lock()

    def scale_to(self, count: int) -> None:
        """Those that are too many finish what they have, and end."""
        with self._lock:
            count = max(0, min(count, len(self._roles)))
            for role in self._roles[self._count : count]:
                self._placed.place(role)
            fewer = [role.name for role in self._roles[count : self._count]]
            if count != self._count:
                log.info("%d workers are wanted, and there were %d", count, self._count)
            self._count = count
        if fewer:
            self._placed.end(fewer, END_S)


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
                    count = json.loads(self.rfile.read(int(length)))["workers"]
                    workers.scale_to(int(count))
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
