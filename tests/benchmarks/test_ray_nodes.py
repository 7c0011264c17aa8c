"""What a process holds, told apart: a kill is to blame for nothing that clients or processes beside it brought."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from benchmarks.ray_nodes import descriptors_by_kind, listener

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def test_descriptors_but_those_of_clients() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        before = descriptors_by_kind(os.getpid(), port)
        with socket.create_connection(("127.0.0.1", port)) as client, server.accept()[0]:
            held = descriptors_by_kind(os.getpid(), port)
            assert held - before == {"others": 1}  # our own end of it; what came to the port is a client's
            assert descriptors_by_kind(os.getpid(), client.getsockname()[1]) - before == {"others": 1}
        ends = os.pipe()
        assert descriptors_by_kind(os.getpid(), port) - before == {"pipes": 2}
        for end in ends:
            os.close(end)
        assert descriptors_by_kind(os.getpid(), port) == before
        assert listener([os.getpid()], port) == os.getpid()
    with pytest.raises(LookupError):
        listener([os.getpid()], port)
