"""The server under every client test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running
