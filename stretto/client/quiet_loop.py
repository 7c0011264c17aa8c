"""An event loop for sending load: uvloop's where it is there, without collections that would hold requests up."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar


class Driven(Protocol):
    """A load that was prepared. Ctrl-C ends it early; what was sent until then counts."""

    was_interrupted: bool


Prepared = TypeVar("Prepared", bound=Driven)


def driven(prepare: Coroutine[Any, Any, Prepared], drive: Callable[[Prepared], Coroutine[Any, Any, None]]) -> Prepared:
    """Both in one loop of their own."""
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        load = runner.run(prepare)
        gc.collect()
        gc.freeze()  # else each full collection would go through everything that is loaded, and requests leave late
        try:
            runner.run(drive(load))
        except KeyboardInterrupt:
            load.was_interrupted = True
        finally:
            gc.unfreeze()
        return load


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
