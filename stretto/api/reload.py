"""What SIGHUP does: tokens, certificates, limits of clients, the level of the log and times of the end, as they are
stated now. A file that cannot be used is told of, and what was in force stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from stretto.api.logs import set_level
from stretto.core.errors import StrettoError
from stretto.live.terminal import Terminal

if TYPE_CHECKING:
    from stretto.api.serve_options import Fronts, ServeOptions
    from stretto.api.server import Listeners

log = logging.getLogger("stretto.api")

# Fields of ServeOptions and Listen that are taken up, or compared by their own fields.
TAKEN_UP = {"listen", "service", "log_level", "drain_s", "drain_grace_s"}
TAKEN_UP_BY_LISTENERS = {"tokens", "management_tokens", "tls_certificate", "tls_key", "rates"}
TAKEN_UP_BY_SERVICE = {"share"}  # by the scheduler of a cluster


class Reload:
    """`options` are those in force. A signal while an earlier one is worked on is one more after it."""

    def __init__(
        self,
        options: ServeOptions,
        listeners: Listeners,
        reread: Callable[[], ServeOptions] | None,
        hung_up: Callable[[], None],
        fronts: Fronts | None = None,
    ) -> None:
        """`hung_up` is called where the signal means that the terminal is gone."""
        self.options = self._started_with = options
        self._fronts = fronts
        self._listeners, self._reread, self._hung_up = listeners, reread, hung_up
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._terminal = Terminal()

    def signalled(self) -> None:
        if self._terminal.is_gone:
            self._hung_up()
            return
        task = asyncio.get_running_loop().create_task(self._take_up())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take_up(self) -> None:
        async with self._turn:
            if self._reread is None:
                return
            try:
                stated = await asyncio.to_thread(self._reread)
                await self._listeners.reload(stated.listen)
                if self._fronts is not None:
                    await self._fronts.reload(stated)
            except StrettoError as error:
                log.error("nothing was reloaded, and what was in force stays: %s", error)
                return
            waiting = _differences(self._started_with, stated)
            self.options = stated
            set_level(stated.log_level)
            log.info("reloaded: tokens, certificate, limits of clients, level of the log, times of the end")
            if waiting:
                log.warning("these are others than at the start, and wait for the next start: %s", ", ".join(waiting))


def _differences(before: ServeOptions, after: ServeOptions) -> list[str]:
    """Fields that differ from those of the start, and cannot be taken up while it serves."""
    return [
        *_unequal(before, after, TAKEN_UP),
        *_unequal(before.listen, after.listen, TAKEN_UP_BY_LISTENERS),
        *_unequal(before.service, after.service, TAKEN_UP_BY_SERVICE),
    ]


def _unequal(before: Any, after: Any, without: set[str]) -> list[str]:
    names = [field.name for field in fields(before) if field.name not in without]
    return [name for name in names if getattr(before, name) != getattr(after, name)]
