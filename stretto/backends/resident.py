"""Memory of this process, and of others, as the system counts it."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # of a container


def resident_bytes() -> int:
    """Resident memory now; 0 where the system does not tell."""
    return _status_bytes("VmRSS")


def resident_bytes_of(process: int) -> int:
    """Resident memory of another process, without what it shares with others; 0 where the system does not tell."""
    status = f"/proc/{process}/status"
    return max(0, _status_bytes("VmRSS", status) - _status_bytes("RssShmem", status))


def total_bytes() -> int:
    """Memory that this machine has, or that its container may use; 0 where the system does not tell."""
    sizes = []
    with contextlib.suppress(OSError, ValueError):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in LIMITS:
        with contextlib.suppress(OSError, ValueError):
            sizes.append(int(limit.read_text()))
    return min((size for size in sizes if size > 0), default=0)


def peak_bytes() -> int:
    """The largest resident memory since `reset_peak`, or since the start where that could not be reset."""
    unit = 1 if sys.platform == "darwin" else 1024
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def reset_peak() -> bool:
    """Start a new peak; False where the system cannot."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def give_back() -> None:
    """Hand freed memory back to the system, so that the next growth shows."""
    import gc

    gc.collect()
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _status_bytes(field: str, status: str | Path = STATUS) -> int:
    try:
        with open(status, encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(field):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0
