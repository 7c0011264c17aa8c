"""The service as its parts know it: what it was told, what it serves by now, and what serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol

from stretto.live.engine import Engine
from stretto.live.offer import Offer
from stretto.live.options import ServiceOptions
from stretto.live.replan import Replanner
from stretto.live.state import State
from stretto.repository.application import ApplicationFiles


class Running(Protocol):
    """On the loop's thread. It has an engine and a replanner from its start on."""

    options: ServiceOptions
    state: State
    files: dict[str, ApplicationFiles]  # of what is served
    offer: Offer
    engine: Engine
    replanner: Replanner

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that ends with the service."""
