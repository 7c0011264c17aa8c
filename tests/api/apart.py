"""A few lines of Python in a process of their own, where nothing else takes memory."""

from __future__ import annotations

import subprocess
import sys


def run_apart(program: str) -> int:
    """The number that it prints."""
    return int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
