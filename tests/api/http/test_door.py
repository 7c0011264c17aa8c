"""The door for plain connections, on a real uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from stretto.api.http.door import SERVERS, PlainDoor

CLIENTS = 80


def test_a_crowd_is_let_in_together() -> None:
    """One connection was accepted in a turn of the loop: whoever came behind a crowd waited for as many turns."""
    uvloop = pytest.importorskip("uvloop")

    async def work() -> None:
        accepted, turns = 0, 0

        class Counted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nonlocal accepted
                accepted += 1

        with contextlib.ExitStack() as stack:
            listening = socket.socket()
            listening.bind(("127.0.0.1", 0))
            listening.listen(CLIENTS)
            listening.setblocking(False)
            address = listening.getsockname()
            door = PlainDoor(listening, Counted)
            for _ in range(CLIENTS):  # they stand in the system's queue
                stack.enter_context(socket.create_connection(address))
            await door.open(CLIENTS)
            while accepted < CLIENTS:
                await asyncio.sleep(0)
                turns += 1
            door.close()
        await door.wait_closed()
        assert CLIENTS / SERVERS <= turns < CLIENTS / SERVERS + 10
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(work(), 20))
