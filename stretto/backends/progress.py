"""How far the load of a model is, for whoever waits for it: a ladder of batch sizes may take a GPU seconds.

Who loads says where that is to be told; what is prepared step by step tells it there. In the thread that loads alone:
several models may be loaded at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_tell: ContextVar[Callable[[float], None] | None] = ContextVar("tell", default=None)


@contextmanager
def telling(tell: Callable[[float], None]) -> Iterator[None]:
    """Shares of what is loaded meanwhile go to `tell`, from 0 to 1."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


def prepared(done: int, steps: int) -> None:
    """So many of so many steps are behind it."""
    tell = _tell.get()
    if tell is not None and steps > 1:
        tell(done / steps)
