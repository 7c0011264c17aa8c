"""Where tritonclient is. It cannot share a process with our own definition of the protocol, so it runs in its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def tritonclient_python() -> str:
    """A Python that has tritonclient: this one, or the one that STRETTO_TRITONCLIENT_PYTHON names."""
    for python in filter(None, (os.environ.get("STRETTO_TRITONCLIENT_PYTHON"), sys.executable)):
        found = subprocess.run([python, "-c", "import tritonclient.grpc"], capture_output=True, timeout=60)
        if found.returncode == 0:
            return python
    pytest.skip("no Python with tritonclient; name one in STRETTO_TRITONCLIENT_PYTHON")
