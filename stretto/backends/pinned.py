"""Memory that a GPU reads directly: ranges that were registered with it, and whether an array lies in one."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from stretto.backends.model import Array

log = logging.getLogger("stretto.backends")

_ranges: dict[int, int] = {}  # from the first byte to behind the last


def pin(memory: Any) -> bool:
    """Registers a buffer; false where the system does not allow it. Then copies to the GPU go through other memory."""
    import torch

    start, size = _place(memory)
    error = int(torch.cuda.cudart().cudaHostRegister(start, size, 0))
    if error:
        log.warning("shared memory cannot be registered with the GPU (CUDA error %d); it is copied once more", error)
        return False
    _ranges[start] = start + size
    return True


def unpin(memory: Any) -> None:
    """Before the buffer goes; nothing where it was not registered."""
    start, _ = _place(memory)
    if _ranges.pop(start, None) is not None:
        import torch

        torch.cuda.cudart().cudaHostUnregister(start)


def is_pinned(array: Array) -> bool:
    """Whether all of it lies in registered memory."""
    if not _ranges or not array.flags.c_contiguous:
        return False
    start = array.__array_interface__["data"][0]  # in half the time of `ctypes`
    end = start + array.nbytes
    return any(first <= start and end <= behind for first, behind in tuple(_ranges.items()))


def _place(memory: Any) -> tuple[int, int]:
    view = np.frombuffer(memory, np.uint8)
    return int(view.ctypes.data), int(view.nbytes)
