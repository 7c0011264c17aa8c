"""Memory that is touched ahead stays: a body that comes later costs no new pages. In a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource
from stretto.api.heap import take_memory

def faults(count, size):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        held = [bytearray(size) for _ in range(8)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

take_memory({taken})
print(faults(50, 600_000))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="pages are counted on Linux")
def test_bodies_touch_no_new_pages() -> None:
    def faults(taken: int) -> int:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(taken=taken)], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert faults(64 << 20) < 200, "fifty times eight bodies of 147 pages each"
