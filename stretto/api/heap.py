"""Memory for bodies, taken from the system before the first of them comes.

Pages that are touched for the first time cost far more than reading into them: 600 kB images at 1 GB/s took 1.6 s to
get under way on a virtual machine, with half of them late. So some of it is touched ahead, and the C library is told to
keep what is freed instead of handing it back to the system after every large body.
"""

from __future__ import annotations

import ctypes
import sys

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
KEPT_BYTES = 128 << 20  # at the end of the heap
LARGEST_BYTES = 1 << 20  # a larger body has memory of its own, which goes back at once; a heap would have holes
STEP_BYTES = 512 << 10


def take_memory(size: int) -> None:
    """So many bytes are ready for bodies; nothing where the C library is another one."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or not (mallopt(MMAP_THRESHOLD, LARGEST_BYTES) and mallopt(TRIM_THRESHOLD, KEPT_BYTES)):
        return
    touched = [bytearray(STEP_BYTES) for _ in range(size // STEP_BYTES)]
    del touched
